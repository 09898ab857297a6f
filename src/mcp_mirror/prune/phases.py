"""In which order a conversation's parts are pruned.

The phases go from what a model misses least to what it misses most; within one, large parts go before small ones and
old ones before new ones. The size counts by class, each four times the one below: few parts then make much room, and
of parts of about one size the oldest goes. The order of two parts does not change as a conversation grows, so what was
pruned for one request is mostly pruned for the next, and the provider's prompt cache holds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Literal

from mcp_mirror.prune.formats import Kind, Message, Slot, is_assistants

Phase = Literal["tool results", "tool inputs", "last tool result", "assistant text", "user text"]

_ORDER: Final[tuple[Phase, ...]] = ("tool results", "tool inputs", "last tool result", "assistant text", "user text")


def in_order(
    slots: Sequence[Slot], messages: Sequence[Message], weigh: Callable[[Slot], int]
) -> Iterator[tuple[Phase, Slot]]:
    """What may be pruned, in the order in which it is. `weigh` tells the tokens of a part."""
    last_said = max((at for at, message in enumerate(messages) if is_assistants(message)), default=-1)
    phases = _phases(slots, _latest_turn(messages, last_said))
    for phase in _ORDER:
        weighed = [(slot.at > last_said, -_size_class(weigh(slot)), slot) for slot in phases[phase]]
        for _, _, slot in sorted(weighed, key=lambda entry: entry[:2]):  # results that no model has read yet come last
            yield phase, slot


def _phases(slots: Sequence[Slot], latest: frozenset[int]) -> Mapping[Phase, Sequence[Slot]]:
    kinds: dict[Kind, list[Slot]] = {"result": [], "input": [], "assistant": [], "user": []}
    for slot in slots:
        kinds[slot.kind].append(slot)
    said = [slot.at for slot in kinds["assistant"]]
    asked = [slot.at for slot in kinds["user"]]
    return {
        "tool results": _free(kinds["result"][:-1]),
        "tool inputs": _free(slot for slot in kinds["input"] if slot.at not in latest),
        "last tool result": _free(kinds["result"][-1:]),
        "assistant text": _free(slot for slot in kinds["assistant"] if slot.at != said[-1]),
        "user text": _free(slot for slot in kinds["user"] if slot.at not in (asked[0], asked[-1])),
    }


def _free(slots: Sequence[Slot] | Iterator[Slot]) -> list[Slot]:
    return [slot for slot in slots if not slot.is_sealed and slot.form.find(slot.value) is None]


def _latest_turn(messages: Sequence[Message], last: int) -> frozenset[int]:
    """The latest assistant message; where each call is an item of its own, all that the model made at once."""
    first = last
    while (
        first > 0
        and is_assistants(messages[first - 1])
        and not all("role" in messages[at] for at in (first - 1, first))
    ):
        first -= 1
    return frozenset(range(first, last + 1))


def _size_class(tokens: int) -> int:
    return tokens.bit_length() // 2
