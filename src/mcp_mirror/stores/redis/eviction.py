"""What must leave the Redis store before a value fits: what has expired, then what was used longest ago.

Reads within a transaction that is being planned, and gives commands; nothing is changed here.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mcp_mirror.stores.base import Tombstone
from mcp_mirror.stores.quotas import MAX_TOMBSTONES, NAMESPACE_TOMBSTONES, Eviction, Holding, make_tombstone
from mcp_mirror.stores.redis.commands import Command, RedisCommands
from mcp_mirror.stores.redis.connection import Read
from mcp_mirror.stores.redis.records import Entry, read_entry
from mcp_mirror.types import Descriptor

_AT_ONCE: Final = 32
"""Values of each sort that one transaction takes out."""

_Uses = Mapping[Entry, float]
"""Values, each with the time of its last use, the oldest first."""


@dataclass(frozen=True, slots=True)
class EvictionPlan:
    """What a transaction has to do before a value may come in."""

    commands: tuple[Command, ...] = ()
    fits: bool = True
    """Whether the value fits then; else the transaction makes what room it can, and another one goes on.

    Where it makes none, the accounts say that the store is full, and name no value that could go.
    """
    is_in: bool = False
    """This very value is in already."""


@dataclass(frozen=True, slots=True)
class RedisEviction:
    """Makes room."""

    redis_commands: RedisCommands
    clock: Callable[[], float]

    async def make_room(self, read: Read, entry: Entry) -> EvictionPlan:
        """What has to leave for `entry`. Others may change what is read here: then the transaction is void.

        Raises:
            StoreError: The value fits only at the cost of another namespace's fair share.
        """
        before, total, own = await self._accounts(read, entry)
        if before is not None and before.mark == entry.mark:
            return EvictionPlan(is_in=True)
        expired = await self._used(read, self.redis_commands.keys.order, self._expired_before())
        holdings = {entry.namespace: own}
        if self._is_full(total, entry.size):
            holdings |= await self._holdings(read)
        plan = Eviction(self.redis_commands.policy, entry.namespace, entry.size, holdings, total)
        for one in {*expired, *([before] if before else ())}:
            plan.remove(one.namespace, one.size)
        leaving, fits = dict(expired), plan.holder() is None
        if not fits and len(expired) < _AT_ONCE:
            plan.check()
            fits = await self._evict(read, plan, leaving, before)
        replaced = self.redis_commands.remove(before, None) if before and fits else ()
        burials = await self._burials(read, {one: used for one, used in leaving.items() if one != before})
        return EvictionPlan((*replaced, *burials), fits)

    async def _evict(self, read: Read, plan: Eviction, leaving: dict[Entry, float], before: Entry | None) -> bool:
        """Add what must go to `leaving`, a bounded number; whether the value fits then."""
        oldest: dict[str, deque[tuple[Entry, float]]] = {}
        for _ in range(_AT_ONCE):
            holder = plan.holder()
            if holder is None:
                return True
            if holder not in oldest:
                uses = await self._used(
                    read, self.redis_commands.keys.order_of(holder), most=_AT_ONCE + len(leaving) + 1
                )
                oldest[holder] = deque((one, used) for one, used in uses.items() if one not in leaving)
            while oldest[holder] and oldest[holder][0][0] == before:
                oldest[holder].popleft()
            if not oldest[holder]:
                return False
            one, used = oldest[holder].popleft()
            leaving[one] = used
            plan.remove(holder, one.size)
        return plan.holder() is None

    async def _accounts(self, read: Read, entry: Entry) -> tuple[Entry | None, Holding, Holding]:
        """The value that has this name now; how much is kept in all, and how much its namespace keeps."""
        fields = self.redis_commands.account_fields(entry.namespace)
        record, *told = await read("HMGET", self.redis_commands.keys.ledger, f"v:{entry.name}", *fields)
        total, own = _read_holdings(told)
        return read_entry(entry.name, record), total, own

    async def _holdings(self, read: Read) -> dict[str, Holding]:
        """How much each namespace keeps."""
        names = [name.decode() for name in await read("SMEMBERS", self.redis_commands.keys.namespaces)]
        _, *held = _read_holdings(
            await read("HMGET", self.redis_commands.keys.ledger, *self.redis_commands.account_fields(*names))
        )
        return {name: one for name, one in zip(names, held, strict=True) if one.values}

    def _is_full(self, total: Holding, size: int) -> bool:
        policy = self.redis_commands.policy
        return total.values >= policy.max_values or total.bytes + size > policy.max_bytes

    def _expired_before(self) -> float:
        return self.clock() - self.redis_commands.policy.lifetime

    async def _used(self, read: Read, order: str, until: float | None = None, most: int = _AT_ONCE) -> _Uses:
        """The values that were used longest ago, but no later than `until`."""
        last = "+inf" if until is None else until
        told = await read("ZRANGE", order, "-inf", last, "BYSCORE", "LIMIT", 0, most, "WITHSCORES")
        begin = order.removeprefix(self.redis_commands.keys.order).removeprefix(":")
        names = [f"{begin}:{name.decode()}" if begin else name.decode() for name in told[::2]]
        records = (
            await read("HMGET", self.redis_commands.keys.ledger, *(f"v:{name}" for name in names)) if names else ()
        )
        entries = map(read_entry, names, records)
        return {one: float(used) for one, used in zip(entries, told[1::2], strict=True) if one}

    async def _burials(self, read: Read, leaving: _Uses) -> list[Command]:
        if not leaving:
            return []
        redis_records = await read("MGET", *(self.redis_commands.keys.card(one.name) for one in leaving))
        commands = await self._clearance(read, [one.namespace for one in leaving])
        for (entry, used), card in zip(leaving.items(), redis_records, strict=True):
            known = self.redis_commands.redis_records.readable(entry.name, card)
            commands += self.redis_commands.remove(entry, self._tombstone(known, used) if known else None)
        return commands

    def _tombstone(self, known: Descriptor, used: float) -> Tombstone:
        expired = used + self.redis_commands.policy.lifetime
        return (
            make_tombstone(known, "expired", expired)
            if expired <= self.clock()
            else make_tombstone(known, "evicted", self.clock())
        )

    async def _clearance(self, read: Read, new: Sequence[str]) -> list[Command]:
        """Remove old tombstones where there are too many; `new` holds the namespace of each new one."""
        keys = self.redis_commands.keys
        old: dict[str, None] = {}
        for namespace in sorted(set(new)):
            found = await _beyond(read, keys.graves_of(namespace), new.count(namespace), NAMESPACE_TOMBSTONES)
            old |= dict.fromkeys(f"{namespace}:{base}" for base in found)
        old |= dict.fromkeys(await _beyond(read, keys.graves, len(new), MAX_TOMBSTONES))
        return [*self.redis_commands.clear([*old])]


async def _beyond(read: Read, graves: str, new: int, bound: int) -> list[str]:
    """The oldest tombstones that must go before `new` ones come."""
    excess = await read("ZCARD", graves) + new - bound
    return [name.decode() for name in await read("ZRANGE", graves, 0, excess - 1)] if excess > 0 else []


def _read_holdings(told: Sequence[bytes | None]) -> list[Holding]:
    return [Holding(*(int(number or 0) for number in pair)) for pair in zip(told[::2], told[1::2], strict=True)]
