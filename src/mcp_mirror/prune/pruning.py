"""Prunes as few parts of a conversation as needed to fit a budget, and restores them.

Phases go from the parts that a model needs least to those it needs most. Within a phase, large parts come before small
ones, and old parts before new ones of the same size class; each size class covers a factor of four. The order of two
parts does not change as a conversation grows, so later requests prune mostly the same parts, and the provider's prompt
cache remains valid.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, Protocol

import msgspec

from mcp_mirror.prune.formats import (
    KIND_NAMES,
    ChatFormat,
    Message,
    PartKind,
    Slot,
    check_messages,
    find_slots,
    is_from_model,
)
from mcp_mirror.prune.ledger import Estimate, TokenLedger, compute_path, replace_values
from mcp_mirror.prune.stubs import Stub
from mcp_mirror.settings.policies import TokenProvider
from mcp_mirror.tokens import estimate_tokens
from mcp_mirror.types import Buffer, Location

Phase = Literal["tool results", "tool inputs", "last tool result", "assistant text", "user text"]
"""The phases in their order."""


def order_slots(
    slots: Sequence[Slot], messages: Sequence[Message], count_part: Callable[[Slot], int]
) -> Iterator[tuple[Phase, Slot]]:
    """Yield the prunable parts in pruning order. `count_part` returns the tokens of a part."""
    last_from_model = max((at for at, message in enumerate(messages) if is_from_model(message)), default=-1)
    first = last_from_model  # of the messages or items that the model made last, in a row
    while first > 0 and is_from_model(messages[first - 1]):
        first -= 1
    phases = _group_by_phase(slots, range(first, last_from_model + 1))
    for phase, prunable in phases.items():
        weighed = [(slot.at > last_from_model, -(count_part(slot).bit_length() // 2), slot) for slot in prunable]
        for _, _, slot in sorted(weighed, key=lambda entry: entry[:2]):  # results that the model has not read come last
            yield phase, slot


def _group_by_phase(slots: Sequence[Slot], latest: range) -> Mapping[Phase, Sequence[Slot]]:
    """The prunable parts by phase, in the order of the phases. `latest` has the messages that the model made last."""
    kinds: dict[PartKind, list[Slot]] = {"result": [], "input": [], "assistant": [], "user": []}
    for slot in slots:
        kinds[slot.kind].append(slot)
    from_model = [slot.at for slot in kinds["assistant"]]
    from_user = [slot.at for slot in kinds["user"]]
    return {
        "tool results": _select_prunable(kinds["result"][:-1]),
        "tool inputs": _select_prunable(slot for slot in kinds["input"] if slot.at not in latest),
        "last tool result": _select_prunable(kinds["result"][-1:]),
        "assistant text": _select_prunable(slot for slot in kinds["assistant"] if slot.at != from_model[-1]),
        "user text": _select_prunable(slot for slot in kinds["user"] if slot.at not in (from_user[0], from_user[-1])),
    }


def _select_prunable(slots: Sequence[Slot] | Iterator[Slot]) -> list[Slot]:
    return [slot for slot in slots if not slot.is_sealed and slot.form.find(slot.value) is None]


class Memory(Protocol):
    """A memory for pruned parts, for example a dict."""

    def __setitem__(self, path: str, blob: bytes, /) -> None:
        """Store a value, JSON text, under its path. If the path exists, it has the same value."""


class Cut(msgspec.Struct, frozen=True):
    """A pruned part."""

    phase: Phase
    """The kind of the part, such as `tool results`."""
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


class Pruned(msgspec.Struct, frozen=True):
    """A pruned conversation."""

    messages: list[Any]
    """The original list if nothing was pruned; unchanged messages are the original objects."""
    tokens: int
    """The estimated tokens of the messages."""
    tokens_before: int
    """The estimated tokens of the original messages."""
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

    Tool results go first, except the last one; then tool inputs, texts of the model and texts of users. A part is
    pruned only if its stub is smaller; in the end, parts that still fit are restored, the last pruned first. System
    messages, reasoning, ids, names and error marks remain unchanged.
    The original messages are not modified. A part always gets the same stub, so a harness can keep the whole
    conversation and prune it for each request.

    Args:
        messages: Plain dicts in the provider's format; other objects in them count and are not pruned.
        budget: Maximum tokens of all messages together.
        provider: The format of the messages: `openai` (Chat Completions and compatible APIs), `openai-responses`,
            `anthropic` or `vercel` (the AI SDK).
        memory: Stores the pruned parts; stubs then contain their paths, and `restore_messages` restores them. It must
            be persisted before a model sees the stubs.
        estimate: The provider whose tokens are counted, such as `llama`, or a function that counts the tokens of one
            message. None: the provider of the format.

    Raises:
        TypeError: A message is not a dict.
        ValueError: The format or the provider is unknown.
    """
    check_messages(messages, provider)
    if not callable(estimate):
        estimate = partial(estimate_tokens, provider=estimate or _DEFAULT_PROVIDER[provider])
    costs = [estimate(message) for message in messages]
    before = sum(costs)
    if before <= budget:
        return Pruned(messages, before, before, fits=True, cuts=())
    slots = list(find_slots(messages, provider))
    ledger = TokenLedger(messages, costs, slots, estimate)
    pruned = list(_prune_parts(messages, slots, ledger, budget, is_kept=memory is not None))
    ledger.recount()
    for slot, _, cut in reversed(pruned):
        ledger.restore(slot, cut.tokens, budget)
    ledger.settle(budget)
    kept = [(blob, cut) for slot, blob, cut in pruned if ledger.is_pruned(slot)]
    if memory is not None:
        for blob, cut in kept:
            memory[str(cut.path)] = blob
    cuts = tuple(cut for _, cut in kept)
    return Pruned(ledger.messages() if cuts else messages, ledger.total, before, ledger.total <= budget, cuts)


def _prune_parts(
    messages: list[Message], slots: list[Slot], ledger: TokenLedger, budget: int, *, is_kept: bool
) -> Iterator[tuple[Slot, bytes, Cut]]:
    """Prune one part after another until the budget is met. Yield each pruned part and its stored form."""
    for phase, slot in order_slots(slots, messages, ledger.count_part):
        packed = slot.form.pack(slot.value)
        if packed is None:
            continue
        domain, blob = packed
        path = compute_path(slot, domain, blob) if is_kept else None
        stub = Stub(f"{len(blob):,} bytes of {KIND_NAMES[slot.kind]}", path)
        saved = ledger.cut(slot, slot.form.put(slot.value, stub))
        if saved:
            yield slot, blob, Cut(phase, slot.at, slot.where, len(blob), saved, path)
            if ledger.meets(budget):
                return


_DEFAULT_PROVIDER: Final[Mapping[ChatFormat, TokenProvider]] = {
    "openai": "openai",
    "openai-responses": "openai",
    "anthropic": "anthropic",
    "vercel": "default",
}
"""The provider whose tokens are counted for a format; AI SDK messages may go to any provider."""


def restore_messages(messages: list[Any], read: Callable[[str], Buffer | None], provider: ChatFormat) -> list[Any]:
    """Restore a conversation exactly as it was before `prune_messages`; messages added since remain unchanged.

    A text that only resembles a stub, because a user, a tool or the model wrote or repeated one, is never restored: a
    path is derived from the part and its owner, so the stored part shows whether the stub is at its original place.

    Args:
        messages: The result of `prune_messages` in the original order: texts of users and the model are identified by
            their positions, tool results and inputs by the ids of their calls.
        read: Returns the part stored under a path, or None if it does not exist: `memory.get`. A stub without a stored
            part remains; `pruned_paths` lists its path.
        provider: The format of the messages.

    Raises:
        TypeError: A message is not a dict.
        ValueError: The format is unknown.
    """
    check_messages(messages, provider)
    changes: dict[int, dict[Location, Any]] = {}
    for slot in find_slots(messages, provider):
        for value in _find_original(slot, read):
            changes.setdefault(slot.at, {})[slot.where] = value
    if not changes:
        return messages
    return [replace_values(changes[at], given) if at in changes else given for at, given in enumerate(messages)]


def pruned_paths(messages: Sequence[Any], provider: ChatFormat) -> tuple[str, ...]:
    """The paths in the stubs of a conversation and in texts that resemble stubs: those that `restore_messages` reads.

    Raises:
        TypeError: A message is not a dict.
        ValueError: The format is unknown.
    """
    check_messages(messages, provider)
    stubs = (slot.form.find(slot.value) for slot in find_slots(messages, provider))
    return tuple(dict.fromkeys(stub.path for stub in stubs if stub and stub.path))


def _find_original(slot: Slot, read: Callable[[str], Buffer | None]) -> list[Any]:
    """The original value of a part; empty if the part is not a stub of `prune_messages`."""
    stub = slot.form.find(slot.value)
    blob = read(stub.path) if stub and stub.path else None
    if stub is None or blob is None:
        return []
    domains = [domain for domain in slot.form.domains if compute_path(slot, domain, blob) == stub.path]
    return [slot.form.unpack(slot.value, domain, blob) for domain in domains]
