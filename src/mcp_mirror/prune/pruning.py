"""Prunes as few parts of a conversation as needed to fit a budget."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from mcp_mirror.prune.formats import LABELS, ChatFormat, Message, Slot, check_messages, find_slots
from mcp_mirror.prune.ledger import Estimate, TokenLedger
from mcp_mirror.prune.phases import Phase, order_slots
from mcp_mirror.prune.replacements import compute_path
from mcp_mirror.prune.stubs import Stub
from mcp_mirror.settings.policies import TokenProvider
from mcp_mirror.tokens import estimate_tokens
from mcp_mirror.types import Location


class Memory(Protocol):
    """A memory for pruned parts, for example a dict."""

    def __setitem__(self, path: str, blob: bytes, /) -> None:
        """Store a value, JSON text, under its path. If the path exists, it has the same value."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A pruned part."""

    phase: Phase
    message: int
    """The index of its message."""
    where: Location
    """The location in the message."""
    size: int
    """Bytes of the stored part."""
    tokens: int
    """Tokens saved."""
    path: str | None
    """Its path; None without a memory."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """A pruned conversation."""

    messages: list[Any]
    """The original list if nothing was pruned; unchanged messages are the original objects."""
    tokens: int
    tokens_before: int
    fits: bool
    """Whether the budget is met; otherwise the conversation is as small as possible."""
    cuts: tuple[Cut, ...]
    """The pruned parts in pruning order."""


def prune_messages(
    messages: list[Any],
    budget: int,
    provider: ChatFormat,
    memory: Memory | None = None,
    *,
    estimate: Estimate | TokenProvider | None = None,
) -> Pruned:
    """Replace parts of a conversation by stubs until it has at most `budget` tokens.

    The module `phases` defines the order. A part is pruned only if its stub is smaller; in the end, parts that still
    fit are restored, the last pruned first. System messages, reasoning, ids, names and error marks remain unchanged.
    The original messages are not modified. A part always gets the same stub, so a harness can keep the whole
    conversation and prune it for each request.

    Args:
        messages: Plain dicts in the provider's format.
        budget: Maximum tokens of all messages together.
        provider: The format of the messages.
        memory: Stores the pruned parts; stubs then contain their paths, and `restore_messages` restores them. It must
            be persisted before a model sees the stubs.
        estimate: The provider whose tokens are counted, or a function that counts the tokens of one message. None: the
            provider of the format.

    Raises:
        TypeError: A message is not a dict.
        ValueError: The format or the provider is unknown.
    """
    check_messages(messages, provider)
    estimate = estimate if callable(estimate) else estimate_of(provider, estimate)
    costs = [estimate(message) for message in messages]
    before = sum(costs)
    if before <= budget:
        return Pruned(messages, before, before, fits=True, cuts=())
    slots = list(find_slots(messages, provider))
    ledger = TokenLedger(messages, costs, slots, estimate)
    trials = _restore_fitting(_prune_parts(messages, slots, ledger, budget, is_kept=memory is not None), ledger, budget)
    if memory is not None:
        for trial in trials:
            memory[str(trial.stub.path)] = trial.blob
    cuts = tuple(trial.as_cut() for trial in trials)
    return Pruned(ledger.messages() if cuts else messages, ledger.total, before, ledger.meets(budget), cuts)


@dataclass(frozen=True, slots=True)
class _Trial:
    """A pruned part that may be restored."""

    phase: Phase
    slot: Slot
    stub: Stub
    blob: bytes
    saved: int

    def as_cut(self) -> Cut:
        return Cut(self.phase, self.slot.at, self.slot.where, len(self.blob), self.saved, self.stub.path)


def _prune_parts(
    messages: list[Message], slots: list[Slot], ledger: TokenLedger, budget: int, *, is_kept: bool
) -> Iterator[_Trial]:
    """Prune one part after another until the budget is met."""
    for phase, slot in order_slots(slots, messages, ledger.count_part):
        packed = slot.form.pack(slot.value)
        if packed is None:
            continue
        domain, blob = packed
        stub = Stub(
            f"{len(blob):,} bytes of {LABELS[slot.kind]}", compute_path(slot, domain, blob) if is_kept else None
        )
        saved = ledger.cut(slot, slot.form.put(slot.value, stub))
        if saved:
            yield _Trial(phase, slot, stub, blob, saved)
            if ledger.meets(budget):
                return


def _restore_fitting(trials: Iterator[_Trial], ledger: TokenLedger, budget: int) -> list[_Trial]:
    """Restore parts that still fit, and return the others; all if the budget cannot be met."""
    pruned = list(trials)
    ledger.recount()
    if not ledger.meets(budget):
        return pruned
    return [trial for trial in pruned[::-1] if not ledger.restore(trial.slot, trial.saved, budget)][::-1]


_DEFAULT_PROVIDER: Final[Mapping[ChatFormat, TokenProvider]] = {
    "openai": "openai",
    "openai-responses": "openai",
    "anthropic": "anthropic",
    "vercel": "default",
}
"""The provider whose tokens are counted for a format; AI SDK messages may go to any provider."""


def estimate_of(provider: ChatFormat, tokens: TokenProvider | None) -> Estimate:
    """A function that counts the tokens of one message for a provider, by default the format's."""
    return partial(estimate_tokens, provider=tokens or _DEFAULT_PROVIDER[provider])
