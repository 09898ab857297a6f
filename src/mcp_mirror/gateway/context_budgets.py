"""Keeps the accounts of conversations: who may send how much, from the moment that a call begins.

By namespace and, within it, by what the harness calls the conversation, else by the connection. They are this
process's own and go with it. How much is too much, and what is sent instead, is decided elsewhere.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from mcp_mirror.core.budgets import MIN_CALL_TOKENS, TokenAccount, capacity_of
from mcp_mirror.errors import ToolError
from mcp_mirror.settings.policies import ContextPolicy

_logger = logging.getLogger(__name__)

CONVERSATION: Final = "mcp-mirror/conversation"
"""The member of a call's `_meta` that names the conversation: its id, or an object with `id`, `tokens`, `reset`."""

_MOST: Final = 4096
"""Conversations of one namespace; one more, and what was used longest ago is forgotten."""
_IDLE: Final = 86_400.0
"""Seconds after which a conversation that nobody uses is forgotten."""
_LONGEST: Final = 200
"""Characters of an id."""
_WANTED: Final = (
    f"`{CONVERSATION}` in `_meta` wants an id of up to {_LONGEST} characters, or an object with any of `id`, `reset` "
    "(true: it begins anew) and `tokens` (how many are in it now)."
)

Key = tuple[str, str]
"""Who named it (the harness, or the connection), and how."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Which conversation a call is of, and what its harness says of it."""

    key: Key
    tokens: int | None = None
    """What is in it at least, all told: of calls made at once none knows what the others bring. None: nobody says."""
    begins_anew: bool = False
    """Nothing is in it but `tokens`: it is another one under the old name, or was compacted."""

    @property
    def going_on(self) -> "Conversation":
        """The same without what was said of it once."""
        return Conversation(self.key)


def read_conversation(meta: Mapping[str, Any], connection: str | None) -> Conversation | None:
    """Which conversation a call says it is of; None where neither it nor its connection tells.

    Args:
        meta: The call's.
        connection: A name for the connection, where it is one client's own.

    Raises:
        ToolError: What it says is not of the form.
    """
    said = meta.get(CONVERSATION)
    told = {"id": said} if isinstance(said, str) else {} if said is None else said
    if not isinstance(told, Mapping) or not told.keys() <= {"id", "tokens", "reset"}:
        raise ToolError(_WANTED)
    name: Any = told.get("id")
    tokens: Any = told.get("tokens")
    reset: Any = told.get("reset", False)
    is_named = name is None or (isinstance(name, str) and 0 < len(name) <= _LONGEST)
    is_count = tokens is None or (isinstance(tokens, int) and not isinstance(tokens, bool) and tokens >= 0)
    if not (is_named and is_count and isinstance(reset, bool)):
        raise ToolError(_WANTED)
    if name is None and connection is None:
        return None
    key = ("connection", connection or "") if name is None else ("harness", str(name))
    return Conversation(key, tokens, begins_anew=reset)


@dataclass(slots=True)
class _LedgerEntry:
    account: TokenAccount
    used: float
    """Seconds, by the clock."""


@dataclass(slots=True)
class Reservation:
    """What one call may send; and what it sends in place of."""

    tokens: int | None = None
    """None: as much as it will."""
    stands_for: int = 0
    """Tokens that the result would have cost that is stored instead of shown."""
    sent: int = 0
    """Tokens of the answer that was sent."""
    _book: _LedgerEntry | None = field(default=None, repr=False)

    @property
    def is_spent(self) -> bool:
        """Whether there is no room to tell what a call came to: then it is not made."""
        return self.tokens is not None and self.tokens < MIN_CALL_TOKENS

    @property
    def left(self) -> int:
        """Tokens that could be sent at most."""
        return (self.tokens or 0) + (self._book.account.room if self._book else 0)

    def admits(self, cost: int) -> bool:
        """Whether so much may be sent."""
        return self.tokens is None or cost <= self.tokens

    def widen(self, cost: int) -> bool:
        """Hold as much, if there is room; whether so much may be sent."""
        if self._book is not None and self.tokens is not None and self.tokens < cost <= self.left:
            self._book.account = self._book.account.reserve(cost - self.tokens)
            self.tokens = cost
        return self.admits(cost)

    def settle(self, cost: int) -> None:
        """It is sent, and no more is held."""
        assert self.admits(cost)  # noqa: S101  # the rule that all of this is for
        if self._book is not None:
            self._book.account = self._book.account.settle(self.tokens or 0, cost)
            self._book, self.tokens = None, 0


@dataclass(slots=True)
class ContextBudgets:
    """All accounts."""

    policy: ContextPolicy
    """May be exchanged at any time."""
    clock: Callable[[], float]
    """Seconds that only grow."""
    _books: dict[str, OrderedDict[Key, _LedgerEntry]] = field(default_factory=dict)

    @contextmanager
    def hold(
        self, namespace: str, conversation: Conversation | None, wanted: int, definitions: Callable[[], int]
    ) -> Iterator[Reservation]:
        """What a call may send, held until it has sent it or has ended.

        Args:
            namespace: Whose conversation it is.
            conversation: Which; None: nothing tells.
            wanted: Tokens that it may need.
            definitions: Tells the tokens of what `tools/list` lists, which every conversation begins with.
        """
        capacity = capacity_of(self.policy)
        if capacity is None or conversation is None:
            yield Reservation()
            return
        book = self._open(namespace, conversation, capacity, definitions)
        tokens = book.account.share(wanted)
        book.account = book.account.reserve(tokens)
        hold = Reservation(tokens, _book=book)
        try:
            yield hold
        finally:
            hold.settle(0)

    def _open(
        self, namespace: str, conversation: Conversation, capacity: int, definitions: Callable[[], int]
    ) -> _LedgerEntry:
        """The account as the call finds it, after what its harness says of it."""
        now = self.clock()
        self._forget(now)
        books = self._books.setdefault(namespace, OrderedDict())
        book = books.get(conversation.key)
        if book is None:
            book = books[conversation.key] = _LedgerEntry(_begun(capacity, definitions()), now)
        elif conversation.begins_anew:
            sent = definitions() if conversation.tokens is None else conversation.tokens
            book.account = replace(book.account, sent=sent)
        sent = max(book.account.sent, conversation.tokens or 0)
        book.account, book.used = replace(book.account, sent=sent, capacity=capacity), now
        books.move_to_end(conversation.key)
        while len(books) > _MOST:
            books.popitem(last=False)
        return book

    def _forget(self, now: float) -> None:
        """What nobody has used for long; each namespace's stand in the order of their last use."""
        for namespace, books in tuple(self._books.items()):
            while books and next(iter(books.values())).used < now - _IDLE:
                books.popitem(last=False)
            if not books:
                del self._books[namespace]


def _begun(capacity: int, definitions: int) -> TokenAccount:
    if definitions + MIN_CALL_TOKENS > capacity:
        _logger.warning(
            "The definitions of the tools alone take %d tokens, and `context` leaves %d: no tool can be called.",
            definitions,
            capacity,
        )
    return TokenAccount(capacity, definitions)
