"""Makes room in the Redis store: plans the removal of expired values, then of the least recently used ones.

The plan is made within a transaction: it reads, and returns commands. A change by another gateway voids both.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import unquote

import msgspec

from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.stores.base import Reason
from mcp_mirror.stores.quotas import (
    EXPIRED_PER_PUT,
    MAX_TOMBSTONES,
    NAMESPACE_TOMBSTONES,
    Eviction,
    SpaceUsage,
    make_tombstone,
)
from mcp_mirror.stores.records import RecordCodec
from mcp_mirror.stores.redis.commands import Command, RedisCommands, Removal, sum_fields
from mcp_mirror.stores.redis.connection import Read
from mcp_mirror.stores.redis.records import StoredValue, ValueRecord, read_stored_value, split_name

_AT_ONCE: Final = 32
"""Values that one transaction removes at most, so that it stays short."""
_PER_BATCH: Final = 16
"""Expired values that one transaction of the background task removes: a put may wait for it."""


class EvictionPlan(msgspec.Struct, frozen=True):
    """The removals before a value can be stored."""

    commands: tuple[Command, ...] = ()
    fits: bool = True
    """Whether the value fits after the removals. If not, run the removals and plan again.

    A plan without commands that does not fit means that the sums are wrong: the store is full without any value.
    """
    evicted: int = 0
    """Values among the removals that have not expired."""
    is_stored: bool = False
    """This put was already carried out: its reply was lost."""


class RedisEviction(msgspec.Struct, frozen=True):
    """Plans removals."""

    commands: RedisCommands
    codec: RecordCodec[ValueRecord]
    policy: StorePolicy
    clock: Callable[[], float]

    async def make_room(self, read: Read, value: StoredValue) -> EvictionPlan:
        """Plan the removals for a new value.

        Raises:
            StoreError: The value fits only at the cost of another namespace's fair share.
        """
        ledger = self.commands.keys.of("ledger")
        record, *sums = await read("HMGET", ledger, f"v:{value.name}", *sum_fields(None, value.namespace))
        before, (total, own) = read_stored_value(value.name, record), read_usage(sums)
        if before is not None and before.mark == value.mark:
            return EvictionPlan(is_stored=True)
        leaving = await self._find_expired(read, None, EXPIRED_PER_PUT)
        usage = {value.namespace: own}
        if total.values >= self.policy.max_values or total.bytes + value.size > self.policy.max_bytes:
            usage |= await self._read_all_usage(read)
        policy = self.policy.for_namespace(unquote(value.namespace))
        eviction = Eviction(policy, value.namespace, value.size, usage, total)
        for one in {*leaving, *([before] if before else ())}:
            eviction.remove(one.namespace, one.size)
        fits = await self._add_expired(read, eviction, leaving, before)
        if not fits and len(leaving) < _AT_ONCE:
            fits = await self._evict(read, eviction, leaving, before)
        replaced = self.commands.remove([Removal(before)]) if before and fits else ()
        removed = await self._replace_by_tombstones(read, {one: used for one, used in leaving.items() if one != before})
        oldest_use = self.clock() - self.policy.lifetime
        evicted = sum(used > oldest_use for one, used in leaving.items() if one != before)
        return EvictionPlan((*replaced, *removed), fits, evicted)

    async def remove_expired(self, read: Read) -> Sequence[Command]:
        """Plan the removal of a batch of expired values, for which callers do not wait."""
        return await self._replace_by_tombstones(read, await self._find_expired(read, None, _PER_BATCH))

    async def _find_expired(self, read: Read, namespace: str | None, most: int) -> dict[StoredValue, float]:
        return await self._find_least_recently_used(read, namespace, most, self.clock() - self.policy.lifetime)

    async def _add_expired(
        self, read: Read, eviction: Eviction, leaving: dict[StoredValue, float], before: StoredValue | None
    ) -> bool:
        """Add expired values to `leaving` until the new value fits. Returns whether it fits."""
        if eviction.choose_namespace() is None:
            return True
        owner = None if eviction.exceeds_total else eviction.namespace
        for value, used in (await self._find_expired(read, owner, _AT_ONCE + 1)).items():
            if len(leaving) >= _AT_ONCE or eviction.choose_namespace() is None:
                break
            if value != before and value not in leaving:
                leaving[value] = used
                eviction.remove(value.namespace, value.size)
        return eviction.choose_namespace() is None

    async def _evict(
        self, read: Read, eviction: Eviction, leaving: dict[StoredValue, float], before: StoredValue | None
    ) -> bool:
        """Add values to evict to `leaving`. Returns whether the new value fits then.

        Raises:
            StoreError: The value fits only at the cost of another namespace's fair share.
        """
        eviction.check()
        candidates: dict[str, Iterator[tuple[StoredValue, float]]] = {}
        while len(leaving) < _AT_ONCE:
            if (crowded := eviction.choose_namespace()) is None:
                return True
            if crowded not in candidates:
                oldest = await self._find_least_recently_used(read, crowded, _AT_ONCE + len(leaving) + 1)
                candidates[crowded] = iter([item for item in oldest.items() if item[0] not in {*leaving, before}])
            if (candidate := next(candidates[crowded], None)) is None:
                return False
            value, leaving[value] = candidate
            eviction.remove(crowded, value.size)
        return eviction.choose_namespace() is None

    async def _read_all_usage(self, read: Read) -> dict[str, SpaceUsage]:
        names = [name.decode() for name in await read("SMEMBERS", self.commands.keys.of("namespaces"))]
        sums = await read("HMGET", self.commands.keys.of("ledger"), *sum_fields(None, *names))
        _, *usage = read_usage(sums)
        return {name: one for name, one in zip(names, usage, strict=True) if one.values}

    async def _find_least_recently_used(
        self, read: Read, namespace: str | None, most: int, until: float | None = None
    ) -> dict[StoredValue, float]:
        """The least recently used values, oldest first, with the times of their last use.

        Args:
            read: Reads within the transaction.
            namespace: The encoded namespace; None for all.
            most: The number of values.
            until: Only values that were last used at or before this time.
        """
        keys = self.commands.keys
        order = keys.of("order") if namespace is None else keys.of("order", namespace)
        last = "+inf" if until is None else until
        found = await read("ZRANGE", order, "-inf", last, "BYSCORE", "LIMIT", 0, most, "WITHSCORES")
        if not found:
            return {}
        names = [one.decode() if namespace is None else f"{namespace}:{one.decode()}" for one in found[::2]]
        records = await read("HMGET", keys.of("ledger"), *(f"v:{name}" for name in names))
        values = map(read_stored_value, names, records)
        return {one: float(used) for one, used in zip(values, found[1::2], strict=True) if one}

    async def _replace_by_tombstones(self, read: Read, leaving: Mapping[StoredValue, float]) -> list[Command]:
        """Replace values by tombstones, and remove the oldest tombstones over their limits."""
        if not leaving:
            return []
        keys, now = self.commands.keys, self.clock()
        records = await read("MGET", *(keys.of("card", one.name) for one in leaving))
        commands = await self._trim_tombstones(read, [one.namespace for one in leaving])
        removals: list[Removal] = []
        for (value, used), record in zip(leaving.items(), records, strict=True):
            names = split_name(value.name)
            value_record = self.codec.decode_or_report(*names, record) if record else None
            if value_record is None or value_record.tombstone:
                removals.append(Removal(value))
                continue
            expired = used + self.policy.lifetime
            reason: Reason = "expired" if expired <= now else "evicted"
            tombstone = make_tombstone(value_record.descriptor, reason, min(expired, now))
            envelope = self.codec.encryptor.new_envelope(*names)
            encoded = self.codec.encode(ValueRecord(tombstone.descriptor, tombstone.reason, tombstone.at), envelope)
            removals.append(Removal(value, encoded, tombstone.at))
        return [*commands, *self.commands.remove(removals)]

    async def _trim_tombstones(self, read: Read, new: Sequence[str]) -> list[Command]:
        """Remove old tombstones over the limits. `new` contains the namespace of each new tombstone."""
        keys = self.commands.keys
        old: dict[str, None] = {}
        for namespace in sorted(set(new)):
            excess = await _find_oldest_beyond(
                read, keys.of("graves", namespace), NAMESPACE_TOMBSTONES - new.count(namespace)
            )
            old |= dict.fromkeys(f"{namespace}:{base}" for base in excess)
        old |= dict.fromkeys(await _find_oldest_beyond(read, keys.of("graves"), MAX_TOMBSTONES - len(new)))
        return list(self.commands.remove_tombstones(old))


async def _find_oldest_beyond(read: Read, key: str, limit: int) -> list[str]:
    """The oldest members of a sorted set beyond a limit."""
    excess = await read("ZCARD", key) - limit
    return [name.decode() for name in await read("ZRANGE", key, 0, excess - 1)] if excess > 0 else []


def read_usage(sums: Sequence[bytes | None]) -> list[SpaceUsage]:
    """Parse pairs of values and bytes."""
    return [SpaceUsage(*(int(number or 0) for number in pair)) for pair in zip(sums[::2], sums[1::2], strict=True)]
