"""Prunes a conversation until it fits a budget, and not a part more."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from mcp_mirror.prune.formats import LABELS, ChatFormat, Message, Slot, check_messages, slots_of
from mcp_mirror.prune.ledger import Estimate, Ledger
from mcp_mirror.prune.phases import Phase, in_order
from mcp_mirror.prune.placing import path_of
from mcp_mirror.prune.stubs import Stub
from mcp_mirror.settings.policies import TokenProvider
from mcp_mirror.tokens import estimate_tokens
from mcp_mirror.types import Location


class Memory(Protocol):
    """Takes what is pruned; a dict does."""

    def __setitem__(self, path: str, blob: bytes, /) -> None:
        """Keep a value, JSON text, under its path; what is there already is the same."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One part that was pruned."""

    phase: Phase
    message: int
    """Which message it was in."""
    where: Location
    """The steps to it from there."""
    size: int
    """Bytes of what is kept of it."""
    tokens: int
    """How many it saves."""
    path: str | None
    """Where it is; None without a memory."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """A conversation after pruning."""

    messages: list[Any]
    """The very list that was given where nothing was pruned; a message that was not touched is the same object."""
    tokens: int
    tokens_before: int
    fits: bool
    """Whether the budget is met; where it is not, this is as small as it gets."""
    cuts: tuple[Cut, ...]
    """What was pruned, in the order in which it was."""


def prune_messages(
    messages: list[Any],
    budget: int,
    provider: ChatFormat,
    memory: Memory | None = None,
    *,
    estimate: Estimate | TokenProvider | None = None,
) -> Pruned:
    """Replace parts of a conversation by stubs until it has at most `budget` tokens.

    `phases` has the order. Nothing is pruned that would not get smaller or need not be: in the end whatever fits again
    is put back, the last first. System messages, reasoning, ids, names and marks of errors stay. The messages given are
    not changed. A part gets the same stub each time, so a harness can keep all of it and prune it for each request.

    Args:
        messages: Plain dicts in the provider's format.
        budget: Tokens that all messages together may have.
        provider: Whose format it is.
        memory: Takes what is pruned; the stubs then name its paths, and `restore_messages` puts it back. See that it
            is kept before a model sees the stubs.
        estimate: Whose tokens these are, or what tells those of one message. None: the format's own provider's.

    Raises:
        TypeError: A message is no dict.
        ValueError: The format, or whose tokens it is, is not known.
    """
    check_messages(messages, provider)
    estimate = estimate if callable(estimate) else estimate_of(provider, estimate)
    costs = [estimate(message) for message in messages]
    before = sum(costs)
    if before <= budget:
        return Pruned(messages, before, before, fits=True, cuts=())
    slots = list(slots_of(messages, provider))
    ledger = Ledger(messages, costs, slots, estimate)
    trials = _put_back(_cut(messages, slots, ledger, budget, is_kept=memory is not None), ledger, budget)
    if memory is not None:
        for trial in trials:
            memory[str(trial.stub.path)] = trial.blob
    cuts = tuple(trial.as_cut() for trial in trials)
    return Pruned(ledger.messages() if cuts else messages, ledger.total, before, ledger.meets(budget), cuts)


@dataclass(frozen=True, slots=True)
class _Trial:
    """A part that was pruned, and may be put back."""

    phase: Phase
    slot: Slot
    stub: Stub
    blob: bytes
    saved: int

    def as_cut(self) -> Cut:
        return Cut(self.phase, self.slot.at, self.slot.where, len(self.blob), self.saved, self.stub.path)


def _cut(messages: list[Message], slots: list[Slot], ledger: Ledger, budget: int, *, is_kept: bool) -> Iterator[_Trial]:
    """Prune one part after the other until the budget is met."""
    for phase, slot in in_order(slots, messages, ledger.weigh):
        packed = slot.form.pack(slot.value)
        if packed is None:
            continue
        domain, blob = packed
        stub = Stub(f"{len(blob):,} bytes of {LABELS[slot.kind]}", path_of(slot, domain, blob) if is_kept else None)
        saved = ledger.cut(slot, slot.form.put(slot.value, stub))
        if saved:
            yield _Trial(phase, slot, stub, blob, saved)
            if ledger.meets(budget):
                return


def _put_back(trials: Iterator[_Trial], ledger: Ledger, budget: int) -> list[_Trial]:
    """What of it has to be pruned: all where the budget cannot be met."""
    pruned = list(trials)
    ledger.settle()
    if not ledger.meets(budget):
        return pruned
    return [trial for trial in pruned[::-1] if not ledger.put_back(trial.slot, trial.saved, budget)][::-1]


_COUNTED_AS: Final[Mapping[ChatFormat, TokenProvider]] = {
    "openai": "openai",
    "openai-responses": "openai",
    "anthropic": "anthropic",
    "vercel": "default",
}
"""Whose tokens the messages of a format are; the AI SDK's may go to anybody."""


def estimate_of(provider: ChatFormat, tokens: TokenProvider | None) -> Estimate:
    """Tells the tokens of one message as these models, or those behind a format, count them."""
    return partial(estimate_tokens, provider=tokens or _COUNTED_AS[provider])
