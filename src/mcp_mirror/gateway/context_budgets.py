"""Token accounts of conversations: each call reserves the tokens that its reply may take.

An account belongs to a namespace and to the harness's conversation id, or to the connection if the harness sends none.
Accounts live in this process only.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Final

import msgspec

from mcp_mirror.core.budgets import MIN_CALL_TOKENS, ROOM_DIVISOR, TokenAccount
from mcp_mirror.errors import ToolError

_logger = logging.getLogger(__name__)

CONVERSATION: Final = "mcp-mirror/conversation"
"""The member of a call's `_meta` that names the conversation: its id, or an object with `id`, `tokens`, `reset`."""

_MAX_CONVERSATIONS: Final = 4096
"""Conversations of one namespace. Above this number the least recently used ones are dropped."""
_IDLE_SECONDS: Final = 86_400.0
"""Seconds after which an unused conversation is dropped."""
_MAX_ID: Final = 200
"""Characters of an id."""
_EXPECTED: Final = (
    f"%s must be an id of up to {_MAX_ID} characters, or an object with any of `id`, `reset` "
    "(true: the conversation starts again) and `tokens` (the number that it contains now)."
)

_TOO_MANY_DEFINITIONS: Final = (
    "The tool definitions take %d of the %d tokens that `context` allows, so tools cannot be called."
)

ConversationKey = tuple[str, str]
"""Whether the harness or the connection named the conversation, and the name."""


class Conversation(msgspec.Struct, frozen=True):
    """The conversation of a call, and what its harness reports about it."""

    key: ConversationKey
    tokens: int | None = None
    """All tokens in the conversation, at least: concurrent calls do not know each other's. None: not reported."""
    is_reset: bool = False
    """The conversation contains only `tokens`: it was compacted, or a new conversation has its id."""


class _Report(msgspec.Struct, forbid_unknown_fields=True):
    """The report of a harness about a conversation."""

    id: Annotated[str, msgspec.Meta(min_length=1, max_length=_MAX_ID)] | None = None
    tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    reset: bool = False


def read_conversation(
    meta: Mapping[str, Any], connection: str | None, called: str = f"`{CONVERSATION}` in `_meta`"
) -> Conversation | None:
    """Return the conversation that the `_meta` of a call or the connection of one client names; None if neither does.

    Errors name the member as `called`.

    Raises:
        ToolError: The member has another form.
    """
    given = meta.get(CONVERSATION)
    if given is None:
        return None if connection is None else Conversation(("connection", connection))
    try:
        report = msgspec.convert({"id": given} if isinstance(given, str) else given, _Report)
    except msgspec.ValidationError:
        raise ToolError(_EXPECTED % called) from None
    if report.id is None and connection is None:
        return None
    key = ("connection", connection or "") if report.id is None else ("harness", report.id)
    return Conversation(key, report.tokens, is_reset=report.reset)


class _LedgerEntry(msgspec.Struct):
    account: TokenAccount
    used: float
    """Seconds, by the clock."""


class Reservation(msgspec.Struct, eq=False):
    """Tokens that one call may send."""

    tokens: int | None = None
    """None: no limit."""
    _entry: _LedgerEntry | None = None

    @property
    def is_exhausted(self) -> bool:
        """Whether the reservation has no room for any reply, so that nothing may be called."""
        return self.tokens is not None and self.tokens < MIN_CALL_TOKENS

    @property
    def left(self) -> int:
        """Tokens that the call could send at most."""
        return (self.tokens or 0) + (self._entry.account.room if self._entry else 0)

    def admits(self, cost: int) -> bool:
        """Whether the call may send this many tokens."""
        return self.tokens is None or cost <= self.tokens

    def widen(self, cost: int) -> bool:
        """Reserve this many tokens if the account has room; return whether the call may send them."""
        if self._entry is not None and self.tokens is not None and self.tokens < cost <= self.left:
            self._entry.account = self._entry.account.reserve(cost - self.tokens)
            self.tokens = cost
        return self.admits(cost)

    def widen_to_share(self, cost: int) -> bool:
        """Reserve this many tokens if a call may reserve them of all that is left; return whether it may send them.

        So pictures, which cost more than any budget of texts, are shown, and do not take the room of the last calls.
        """
        return self.widen(cost) if cost <= self.left // ROOM_DIVISOR else self.admits(cost)

    def settle(self, cost: int) -> None:
        """Count what was sent and release the rest."""
        assert self.admits(cost)  # noqa: S101  # the invariant of this module
        if self._entry is not None:
            self._entry.account = self._entry.account.settle(self.tokens or 0, cost)
            self._entry, self.tokens = None, 0


UNLIMITED: Final = Reservation()
"""The reservation of calls without a budget. It never changes."""


class ContextBudgets(msgspec.Struct, frozen=True):
    """The accounts of all conversations. Copies with another capacity share them."""

    clock: Callable[[], float]
    """Seconds, monotonic."""
    capacity: int = 0
    """Tokens that the gateway may send to one conversation."""
    _accounts: OrderedDict[str, OrderedDict[ConversationKey, _LedgerEntry]] = msgspec.field(default_factory=OrderedDict)
    """The accounts of each namespace. Namespaces and accounts are in the order of their last use."""

    @contextmanager
    def reserve(
        self, namespace: str, conversation: Conversation, wanted: int, definitions: Callable[[], int]
    ) -> Iterator[Reservation]:
        """Reserve the tokens that a call may need until it settles or ends.

        `definitions` returns the tokens of the tool definitions, with which every conversation begins.
        """
        entry = self._open(namespace, conversation, definitions)
        tokens = entry.account.share(wanted)
        entry.account = entry.account.reserve(tokens)
        reservation = Reservation(tokens, _entry=entry)
        try:
            yield reservation
        finally:
            reservation.settle(0)

    def _open(self, namespace: str, conversation: Conversation, definitions: Callable[[], int]) -> _LedgerEntry:
        """Return the account, updated by the harness's report."""
        now = self.clock()
        self._drop_idle(namespace, now - _IDLE_SECONDS)
        accounts = self._accounts.setdefault(namespace, OrderedDict())
        self._accounts.move_to_end(namespace)
        entry = accounts.get(conversation.key)
        if entry is None:
            sent = definitions()
            if sent + MIN_CALL_TOKENS > self.capacity:
                _logger.warning(_TOO_MANY_DEFINITIONS, sent, self.capacity)
            entry = accounts[conversation.key] = _LedgerEntry(TokenAccount(self.capacity, sent), now)
        elif conversation.is_reset:
            sent = definitions() if conversation.tokens is None else conversation.tokens
            entry.account = msgspec.structs.replace(entry.account, sent=sent)
        sent = max(entry.account.sent, conversation.tokens or 0)
        entry.account, entry.used = msgspec.structs.replace(entry.account, sent=sent, capacity=self.capacity), now
        accounts.move_to_end(conversation.key)
        while len(accounts) > _MAX_CONVERSATIONS:
            accounts.popitem(last=False)
        return entry

    def _drop_idle(self, namespace: str, oldest: float) -> None:
        """Drop the namespace's accounts that were last used before this time, and other namespaces with only such."""
        accounts = self._accounts.get(namespace, OrderedDict())
        while accounts and next(iter(accounts.values())).used < oldest:
            accounts.popitem(last=False)
        while self._accounts:
            first = next(iter(self._accounts.values()))
            if first and next(reversed(first.values())).used >= oldest:
                return
            self._accounts.popitem(last=False)
