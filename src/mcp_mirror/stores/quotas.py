"""Quotas, the eviction policy and the removal of expired values, for all stores.

The store evicts values of a namespace that is over its own quota. When the whole store is full, it evicts from the
namespace with the most values or bytes. A namespace within its fair share (the quota divided by the number of
namespaces with values) never loses a value to another. `Eviction` decides for the stores in memory and on disk; in
Redis `store.lua` applies the same rules.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import msgspec

from mcp_mirror.errors import StoreError
from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.types import Descriptor

NAMESPACE_TOMBSTONES: Final = 2_000
"""Limit of tombstones per namespace, so that one principal cannot displace the tombstones of others."""
MAX_TOMBSTONES: Final = 20_000
"""Limit of tombstones of all namespaces together."""
TOMBSTONE_LIFETIME: Final = 30 * 86_400.0
"""Seconds for which a tombstone is kept."""
EXPIRED_PER_PUT: Final = 2
"""Expired values that a put removes although it does not need their room, so that a store cannot grow by them."""
REMOVED_PER_STEP: Final = 64
"""Values that a put removes at once, as in `store.lua`: the other callers are served before it removes more."""
EXPIRED_PER_BATCH: Final = 500
"""Maximum of expired values that one batch removes."""
BATCH_SECONDS: Final = 0.001
"""Seconds after which a batch ends early: a put may wait for a batch."""
_IDLE: Final = 2.0
"""Seconds between searches for expired values while values are stored or removed."""
_LONGEST_IDLE: Final = 16
"""The longest time between searches otherwise, as a multiple of `_IDLE`: each search wakes an idle gateway."""
_PAUSE: Final = 0.01
"""Minimum of seconds between batches."""
_PAUSE_PART: Final = 3
"""The pause after a batch as a multiple of its duration."""


class SpaceUsage(msgspec.Struct, frozen=True):
    """The number and bytes of values of one namespace or of the whole store."""

    values: int = 0
    bytes: int = 0

    def has_reached(self, most: int, most_bytes: int) -> bool:
        """Whether there are values, and as many as `most`, or more bytes than `most_bytes`."""
        return self.values > 0 and (self.values >= most or self.bytes > most_bytes)

    def without_value(self, size: int) -> "SpaceUsage":
        """The same without one value of `size` bytes."""
        return SpaceUsage(self.values - 1, self.bytes - size)


class Eviction(msgspec.Struct):
    """Decides, value by value, which namespace makes room for a new value."""

    policy: StorePolicy
    """The quotas, with those of the owner."""
    namespace: str
    """The owner of the new value."""
    size: int
    """Bytes of the new value."""
    usage: dict[str, SpaceUsage]
    """The present usage by namespace; at least of the owner, and of all if the store is full."""
    total: SpaceUsage
    """The present usage of the whole store."""
    evicted: int = 0
    """Values that `evict` has removed."""

    def make_room(self, expire: Callable[[str | None], tuple[str, int] | None], evict: Callable[[str], int]) -> bool:
        """Remove some expired values, then some of the least recently used ones of crowded namespaces.

        `expire` removes an expired value of a namespace, or of any for None, and returns the namespace and the bytes of
        the value; None without one. `evict` removes the least recently used value of a namespace and returns its bytes.

        Returns:
            Whether there is room now. If not, plan again after others were served.

        Raises:
            StoreError: The value fits only at the cost of another namespace's fair share.
        """
        policy, is_checked = self.policy, False
        for _ in range(REMOVED_PER_STEP):
            own, total = self.usage.get(self.namespace, SpaceUsage()), self.total
            is_crowded = own.has_reached(policy.share_values, policy.share_bytes - self.size)
            is_full = total.has_reached(policy.max_values, policy.max_bytes - self.size)
            if not is_crowded and not is_full:
                return True
            removed = None if is_checked else expire(None if is_full else self.namespace)
            if removed is None:
                if not is_checked:
                    self._check()
                is_checked = True
                crowded = self.namespace if is_crowded else self._find_largest()
                removed = crowded, evict(crowded)
                self.evicted += 1
            namespace, size = removed
            self.total = total.without_value(size)
            if left := self.usage.get(namespace):
                self.usage[namespace] = left.without_value(size)
        return False

    def _check(self) -> None:
        """Refuse a value that does not fit beside the fair shares of the others, which have no expired values left."""
        others = [used.bytes for name, used in self.usage.items() if name != self.namespace and used.values]
        fair = self.policy.max_bytes // (len(others) + 1)
        free = self.policy.max_bytes - sum(min(held, fair) for held in others)
        if self.size > free:
            raise build_reserved_error(self.size, free, self.policy)

    def _find_largest(self) -> str:
        """The namespace with the most bytes, or values if only their number is the limit, including the new value.

        Among equals it is the owner of the new value, then the last in alphabetical order.
        """
        exceeds_bytes, own = self.total.bytes + self.size > self.policy.max_bytes, self.namespace
        kind, added = ("bytes", self.size) if exceeds_bytes else ("values", 1)
        ranks = (
            (getattr(used, kind) + added * (name == own), name == own, name)
            for name, used in self.usage.items()
            if used.values
        )
        return max(ranks)[-1]


def refuse_oversized(size: int, policy: StorePolicy) -> None:
    """Raise a `StoreError` for a value that would not fit into an empty store. The message names the limit."""
    bounds = (
        ("store.max_value_bytes", policy.max_value_bytes, "limit of one value"),
        ("store.max_bytes", policy.max_bytes, "limit of the store"),
        ("namespace_bytes", policy.share_bytes, "limit of one principal"),  # a key of `store` and of `auth.principals`
    )
    for name, bound, kind in bounds:
        if size > bound:
            raise StoreError(
                f"The result has {size:,} bytes; the {kind} is {bound:,} (`{name}`). Request less from the tool."
            )


def build_reserved_error(size: int, free: int, policy: StorePolicy) -> StoreError:
    """The error for a value of `size` bytes that fits only at the cost of other namespaces' fair shares."""
    return StoreError(
        f"The result has {size:,} bytes, and only {free:,} of the store's {policy.max_bytes:,} (`store.max_bytes`) are "
        "not reserved for other principals. Request less from the tool, or delete stored values."
    )


def keep_origin(descriptor: Descriptor) -> Descriptor:
    """The part of a descriptor that remains after the removal of its value: the origin."""
    return msgspec.structs.replace(descriptor, members=(), other_members=b"{}", array=None)


class ExpirySweeper:
    """A background task that removes expired values."""

    def __init__(self, remove_batch: Callable[[], Awaitable[int]]) -> None:
        """Configure the task. `remove_batch` returns how many expired values it removed; it may raise `StoreError`."""
        self._remove_batch = remove_batch
        self._task: asyncio.Task[None] | None = None
        self._stopping, self._changed = asyncio.Event(), asyncio.Event()

    def start(self) -> None:
        """Start the task."""
        self._stopping.clear()
        self._task = asyncio.create_task(self._sweep())

    def note_put(self) -> None:
        """Search soon, because a value was stored."""
        self._changed.set()

    async def stop(self) -> None:
        """Stop the task. A batch is not cancelled: its thread or transaction would continue in a closed store."""
        self._stopping.set()
        self._changed.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _sweep(self) -> None:
        pause, quiet = _IDLE, 0.0
        while True:
            await _is_set_within(quiet, self._changed)
            if await _is_set_within(pause * random.uniform(0.75, 1.25), self._stopping):  # noqa: S311  # gateways take turns
                return
            self._changed.clear()
            removed, began = 0, time.monotonic()
            with suppress(StoreError):  # callers get the same error
                removed = await self._remove_batch()
            pause = max(_PAUSE, _PAUSE_PART * (time.monotonic() - began)) if removed else _IDLE
            quiet = 0.0 if removed else min(2 * quiet + _IDLE, (_LONGEST_IDLE - 1) * _IDLE)


async def _is_set_within(seconds: float, event: asyncio.Event) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
