"""The order in which the parts of a conversation are pruned.

Phases go from the parts that a model needs least to those it needs most. Within a phase, large parts come before small
ones, and old parts before new ones of the same size class; each size class covers a factor of four. The order of two
parts does not change as a conversation grows, so later requests prune mostly the same parts, and the provider's prompt
cache remains valid.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Literal

from mcp_mirror.prune.formats import Kind, Message, Slot, is_from_model

Phase = Literal["tool results", "tool inputs", "last tool result", "assistant text", "user text"]

_ORDER: Final[tuple[Phase, ...]] = ("tool results", "tool inputs", "last tool result", "assistant text", "user text")


def order_slots(
    slots: Sequence[Slot], messages: Sequence[Message], count_part: Callable[[Slot], int]
) -> Iterator[tuple[Phase, Slot]]:
    """Yield the prunable parts in pruning order. `count_part` returns the tokens of a part."""
    last_from_model = max((at for at, message in enumerate(messages) if is_from_model(message)), default=-1)
    phases = _group_by_phase(slots, _find_latest_turn(messages, last_from_model))
    for phase in _ORDER:
        weighed = [(slot.at > last_from_model, -_size_class(count_part(slot)), slot) for slot in phases[phase]]
        for _, _, slot in sorted(weighed, key=lambda entry: entry[:2]):  # results that the model has not read come last
            yield phase, slot


def _group_by_phase(slots: Sequence[Slot], latest: frozenset[int]) -> Mapping[Phase, Sequence[Slot]]:
    kinds: dict[Kind, list[Slot]] = {"result": [], "input": [], "assistant": [], "user": []}
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


def _find_latest_turn(messages: Sequence[Message], last: int) -> frozenset[int]:
    """The indices of the latest assistant message; if calls are items, of all items that the model made together."""
    first = last
    while (
        first > 0
        and is_from_model(messages[first - 1])
        and not all("role" in messages[at] for at in (first - 1, first))
    ):
        first -= 1
    return frozenset(range(first, last + 1))


def _size_class(tokens: int) -> int:
    return tokens.bit_length() // 2
