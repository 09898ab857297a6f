"""Tracks the tokens and changes of each message while a conversation is pruned.

An estimate covers whole messages. If a message has several parts, the saving of one part is estimated from a message
with only this part, and the message is estimated again only when the budget seems to be met, and a few times while
parts are restored; otherwise a message with many parts would be estimated once for each of them.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from mcp_mirror.paths import PRUNED_SLUG, new_base
from mcp_mirror.prune.formats import Message, Slot
from mcp_mirror.prune.stubs import Domain
from mcp_mirror.types import Buffer, Location

Estimate = Callable[[Message], int]
"""Returns the tokens of one message."""

_TOLERANCE: Final = 16
"""The saving of a part in its message may be smaller than in a message with only this part: by this many tokens plus
one in this many."""
_MAX_CHECKS: Final = 8
"""Estimates of a whole message while its parts are restored."""


class TokenLedger:
    """The cost of a conversation while its parts are pruned and restored."""

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
        self._checks: Counter[int] = Counter()
        self._restored: list[tuple[Slot, Any, int]] = []
        self._weights: dict[tuple[int, Location], int] = {}
        self.total: int = sum(costs)
        """Tokens; for messages with several parts an approximation until `recount`."""

    def count_part(self, slot: Slot) -> int:
        """The tokens of a message with only this part."""
        if self._parts[slot.at] == 1 and _find_item_index(slot) is None:
            return self._first_costs[slot.at]
        place = slot.at, slot.where
        if place not in self._weights:
            self._weights[place] = self._estimate(self._isolate(slot))
        return self._weights[place]

    def meets(self, budget: int) -> bool:
        """Whether the messages fit the budget."""
        if self.total <= budget:
            self.recount()
        return self.total <= budget

    def recount(self) -> None:
        """Estimate again the messages whose parts were estimated one by one."""
        for at in self._stale:
            self._set_cost(at, self._estimate(self._build_current(at)))
        self._stale.clear()

    def cut(self, slot: Slot, stub: Any) -> int:
        """Replace a part by a stub and return the tokens saved; 0 if it saves none, and the part remains."""
        is_only = self._parts[slot.at] == 1
        if is_only:
            saved = self._costs[slot.at] - self._estimate(replace_values({slot.where: stub}, self._given[slot.at]))
        else:
            is_item = _find_item_index(slot) is not None
            where = (slot.where[0], 0, *slot.where[2:]) if is_item else slot.where  # where the part is isolated
            shorter = replace_values({where: stub}, self._isolate(slot))
            saved = self.count_part(slot) - self._estimate(shorter)
        if saved <= 0:
            return 0
        if not is_only:
            self._stale.add(slot.at)
        self._changes.setdefault(slot.at, {})[slot.where] = stub
        self._set_cost(slot.at, self._costs[slot.at] - saved)
        return saved

    def restore(self, slot: Slot, saved: int, budget: int) -> None:
        """Restore a part if the budget is still met.

        Whether it is met is exact for the first parts of a message that are tried; `settle` checks the others.
        """
        is_exact = self._checks[slot.at] < _MAX_CHECKS
        if saved - (saved // _TOLERANCE + _TOLERANCE if is_exact else 0) > budget - self.total:
            return
        changes = self._changes[slot.at]
        stub = changes.pop(slot.where)
        cost = self._costs[slot.at] + saved
        if not changes:
            cost = self._first_costs[slot.at]
        elif is_exact:
            self._checks[slot.at] += 1
            cost = self._estimate(self._build_current(slot.at))
        if self.total - self._costs[slot.at] + cost > budget:
            changes[slot.where] = stub
            return
        if changes and not is_exact:
            self._stale.add(slot.at)
        self._set_cost(slot.at, cost)
        self._restored.append((slot, stub, saved))

    def settle(self, budget: int) -> None:
        """Estimate all changed messages, and prune the parts restored last again if the budget is exceeded."""
        while not self.meets(budget) and self._restored:
            slot, stub, saved = self._restored.pop()
            self._changes[slot.at][slot.where] = stub
            self._stale.add(slot.at)
            self._set_cost(slot.at, self._costs[slot.at] - saved)
        self.recount()

    def is_pruned(self, slot: Slot) -> bool:
        """Whether a stub is in the place of a part."""
        return slot.where in self._changes[slot.at]

    def messages(self) -> list[Message]:
        """All messages in their current state."""
        return [self._build_current(at) if self._changes.get(at) else given for at, given in enumerate(self._given)]

    def _build_current(self, at: int) -> Message:
        changed: Message = replace_values(self._changes[at], self._given[at])
        return changed

    def _set_cost(self, at: int, cost: int) -> None:
        self.total += cost - self._costs[at]
        self._costs[at] = cost

    def _isolate(self, slot: Slot) -> Message:
        """A message that contains only this part: its role or type, and the member with the part or its list item."""
        message, key, item = self._given[slot.at], str(slot.where[0]), _find_item_index(slot)
        selector = "role" if "role" in message else "type"
        return {selector: message[selector], key: message[key] if item is None else [message[key][item]]}


def _find_item_index(slot: Slot) -> int | None:
    """The index of the list item of the message that contains a part."""
    item = slot.where[1] if len(slot.where) > 1 else None
    return item if isinstance(item, int) else None


def compute_path(slot: Slot, domain: Domain, blob: Buffer) -> str:
    """The path of a pruned part, derived from its content and owner: the same part always has the same path."""
    digest = hashlib.sha256(f"{domain}\0{slot.owner}\0".encode())
    digest.update(blob)
    return new_base(PRUNED_SLUG, UUID(bytes=digest.digest()[:16], version=4))


def replace_values(changes: Mapping[Location, Any], node: Any) -> Any:
    """A JSON value with other values at some locations; the copy shares everything else with it."""
    if () in changes:
        return changes[()]
    below: dict[Any, dict[Location, Any]] = {}
    for (step, *rest), value in changes.items():
        below.setdefault(step, {})[tuple(rest)] = value
    copy = node.copy()
    for step, inner in below.items():
        copy[step] = replace_values(inner, node[step])
    return copy
