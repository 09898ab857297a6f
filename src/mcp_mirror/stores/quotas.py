"""How much a store takes, and who makes room. Every store obeys these rules; no store is known here.

A namespace over its own bound gives up its own values. When the whole store is full, the namespace that keeps the most
gives up values first, so that a namespace within its fair share (the bound divided by the number of namespaces that
keep values) never loses one to another.
"""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from mcp_mirror.errors import StoreError
from mcp_mirror.settings.policies import StorePolicy
from mcp_mirror.stores.base import Reason, Tombstone
from mcp_mirror.types import Descriptor

NAMESPACE_TOMBSTONES: Final = 2_000
"""Tombstones of one namespace, so that one principal's do not push out another's."""
MAX_TOMBSTONES: Final = 20_000
"""Tombstones of all namespaces together."""
REMEMBERED: Final = 30 * 86_400.0
"""Seconds for which a tombstone is kept."""
EXPIRED_AT_ONCE: Final = 100
"""Expired values that one change removes, so that no change takes long; the next change removes more."""


@dataclass(frozen=True, slots=True)
class Holding:
    """How much one namespace keeps, or all of them."""

    values: int = 0
    bytes: int = 0

    def less(self, size: int) -> "Holding":
        """The same without one value of `size` bytes."""
        return Holding(self.values - 1, self.bytes - size)


class Eviction:
    """Decides, value by value, which namespace makes room for a new value."""

    def __init__(
        self, policy: StorePolicy, namespace: str, size: int, holdings: Mapping[str, Holding], total: Holding
    ) -> None:
        """Plan nothing yet.

        Args:
            policy: The bounds.
            namespace: The owner of the new value.
            size: Bytes of the new value.
            holdings: What the namespaces keep: all of them where the store is full, else at least the owner.
            total: What all of them keep together.
        """
        self._policy = policy
        self._namespace = namespace
        self._size = size
        self._holdings = dict(holdings)
        self._total = total
        self._heaps: dict[str, list[tuple[int, bool, str]]] = {}

    def check(self) -> None:
        """Refuse a value that fits only at the cost of another namespace's fair share.

        Raises:
            StoreError: The value is too large for what the others leave.
        """
        others = [one.bytes for name, one in self._holdings.items() if name != self._namespace]
        fair = self._policy.max_bytes // (len(others) + 1)
        free = self._policy.max_bytes - sum(min(held, fair) for held in others)
        if self._size > free:
            raise StoreError(
                f"The result has {self._size:,} bytes and other principals leave {free:,} of the store's "
                f"{self._policy.max_bytes:,} (`store.max_bytes`). Ask the tool for less, or forget stored values."
            )

    def holder(self) -> str | None:
        """The namespace whose least recently used value must go next; None where the new value fits."""
        policy, own = self._policy, self._holdings.get(self._namespace, Holding())
        if own.values and (own.values >= policy.share_values or own.bytes + self._size > policy.share_bytes):
            return self._namespace
        if not self._total.values:
            return None
        if self._total.bytes + self._size > policy.max_bytes:
            return self._largest("bytes", self._size)
        if self._total.values >= policy.max_values:
            return self._largest("values", 1)
        return None

    def remove(self, namespace: str, size: int) -> None:
        """Count one value of `namespace` as gone."""
        self._total = self._total.less(size)
        if left := self._holdings.get(namespace):
            self._holdings[namespace] = left.less(size)

    def _largest(self, what: str, more: int) -> str | None:
        """The namespace that keeps the most, the new value included; the owner first among equals."""
        heap = self._heaps.get(what)
        if heap is None:
            heap = [self._rank(name, what, more) for name in self._holdings]
            heapq.heapify(heap)
            self._heaps[what] = heap
        while heap:
            name = heap[0][2]
            if not self._holdings[name].values:
                heapq.heappop(heap)
                continue
            rank = self._rank(name, what, more)
            if rank == heap[0]:
                return name
            heapq.heapreplace(heap, rank)  # it keeps less by now
        return None

    def _rank(self, name: str, what: str, more: int) -> tuple[int, bool, str]:
        is_own = name == self._namespace
        return -getattr(self._holdings[name], what) - is_own * more, not is_own, name


def refuse_oversized(size: int, policy: StorePolicy) -> None:
    """Refuse a value that would not fit into an empty store; any other fits once others have made room.

    Raises:
        StoreError: It is over a bound; the message names which.
    """
    bounds = (
        ("max_value_bytes", policy.max_value_bytes, "one value may have"),
        ("max_bytes", policy.max_bytes, "the store holds"),
        ("namespace_bytes", policy.share_bytes, "the values of one principal may have"),
    )
    for name, bound, said in bounds:
        if size > bound:
            raise StoreError(
                f"The result has {size:,} bytes and {said} {bound:,} (`store.{name}`). Ask the tool for less."
            )


def buried(descriptor: Descriptor, reason: Reason, at: float) -> Tombstone:
    """What is left of a value: where it came from, and no more."""
    return Tombstone(replace(descriptor, members=(), envelope=b"{}"), reason, at)
