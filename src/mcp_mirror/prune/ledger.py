"""The tokens of each message, and what was changed in it.

An estimate is told for whole messages. Where one has several parts, what pruning one of them saves is told by the part
alone, and the message is told anew only when the budget seems to be met: else a message with many parts would be told
once for each of them.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from mcp_mirror.prune.formats import Message, Slot
from mcp_mirror.prune.placing import with_changes
from mcp_mirror.types import Location

Estimate = Callable[[Message], int]
"""Tells the tokens of one message."""

_LEEWAY: Final = 16
"""What a part adds to its message may be less than what it saves alone by this many tokens, and one in this many."""


class Ledger:
    """What a conversation costs while its parts are pruned and put back."""

    def __init__(
        self, messages: Sequence[Message], costs: Sequence[int], slots: Sequence[Slot], estimate: Estimate
    ) -> None:
        self._given = messages
        self._estimate = estimate
        self._first_costs = costs
        self._costs = list(costs)
        self._parts = Counter(slot.at for slot in slots)
        self._changes: dict[int, dict[Location, Any]] = {}
        self._stale: set[int] = set()
        self._weights: dict[tuple[int, Location], int] = {}
        self.total = sum(costs)
        """Tokens; told by parts alone until `settle`."""

    def weigh(self, slot: Slot) -> int:
        """The tokens of a part alone."""
        if self._parts[slot.at] == 1 and _item_of(slot) is None:
            return self._first_costs[slot.at]
        place = slot.at, slot.where
        if place not in self._weights:
            self._weights[place] = self._estimate(self._alone(slot))
        return self._weights[place]

    def meets(self, budget: int) -> bool:
        """Whether the messages fit."""
        if self.total <= budget:
            self.settle()
        return self.total <= budget

    def settle(self) -> None:
        """Tell the messages anew of which only parts were told."""
        for at in self._stale:
            self._account(at, self._estimate(self._changed(at)))
        self._stale.clear()

    def cut(self, slot: Slot, stub: Any) -> int:
        """Put a stub in a part's place; gives the tokens saved, 0 where none were and the part stays."""
        if self._parts[slot.at] == 1:
            saved = self._costs[slot.at] - self._estimate(with_changes({slot.where: stub}, self._given[slot.at]))
        else:
            shorter = with_changes({_place_alone(slot): stub}, self._alone(slot))
            saved = self.weigh(slot) - self._estimate(shorter)
        if saved <= 0:
            return 0
        if self._parts[slot.at] > 1:
            self._stale.add(slot.at)
        self._changes.setdefault(slot.at, {})[slot.where] = stub
        self._account(slot.at, self._costs[slot.at] - saved)
        return saved

    def put_back(self, slot: Slot, saved: int, budget: int) -> bool:
        """Put a part back if the budget is met still."""
        if saved - saved // _LEEWAY - _LEEWAY > budget - self.total:
            return False
        changes = self._changes[slot.at]
        stub = changes.pop(slot.where)
        cost = self._estimate(self._changed(slot.at)) if changes else self._first_costs[slot.at]
        if self.total - self._costs[slot.at] + cost > budget:
            changes[slot.where] = stub
            return False
        self._account(slot.at, cost)
        return True

    def messages(self) -> list[Message]:
        """All messages as they are now."""
        return [self._changed(at) if self._changes.get(at) else given for at, given in enumerate(self._given)]

    def _changed(self, at: int) -> Message:
        changed: Message = with_changes(self._changes[at], self._given[at])
        return changed

    def _account(self, at: int, cost: int) -> None:
        self.total += cost - self._costs[at]
        self._costs[at] = cost

    def _alone(self, slot: Slot) -> Message:
        """A message that holds this part alone."""
        message, key, item = self._given[slot.at], str(slot.where[0]), _item_of(slot)
        says = "role" if "role" in message else "type"
        return {says: message[says], key: message[key] if item is None else [message[key][item]]}


def _item_of(slot: Slot) -> int | None:
    """Which item of a list of its message a part is in."""
    item = slot.where[1] if len(slot.where) > 1 else None
    return item if isinstance(item, int) else None


def _place_alone(slot: Slot) -> Location:
    """Where a part is in a message that holds it alone."""
    return slot.where if _item_of(slot) is None else (slot.where[0], 0, *slot.where[2:])
