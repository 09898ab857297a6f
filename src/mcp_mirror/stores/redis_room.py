"""What must leave the Redis store before a value fits: what has expired, then what was used longest ago.

Reads within a transaction that is being planned, and gives commands; nothing is changed here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from mcp_mirror.models import Descriptor
from mcp_mirror.stores.base import Tombstone
from mcp_mirror.stores.quotas import MAX_TOMBSTONES, buried
from mcp_mirror.stores.redis_commands import Clerk, Command
from mcp_mirror.stores.redis_link import Read
from mcp_mirror.stores.redis_records import Entry, Usage, enough, read_entry

_AT_ONCE: Final = 32
"""Values of each sort that one transaction takes out."""

_Uses = Mapping[Entry, float]
"""Values, each with the time of its last use, the oldest first."""


@dataclass(frozen=True, slots=True)
class Room:
    """What a transaction has to do before a value may come in."""

    commands: tuple[Command, ...] = ()
    fits: bool = True
    """Whether the value fits then; else the transaction makes what room it can, and another one goes on.

    Where it makes none, the accounts say that the store is full, and name no value that could go.
    """
    is_in: bool = False
    """This very value is in already."""


@dataclass(frozen=True, slots=True)
class Usher:
    """Makes room."""

    clerk: Clerk
    clock: Callable[[], float]

    async def make_room(self, read: Read, entry: Entry) -> Room:
        """What has to leave for `entry`. Others may change what is read here: then the transaction is void."""
        before, usages = await self._accounts(read, entry)
        if before is not None and before.mark == entry.mark:
            return Room(is_in=True)
        leaving = dict(await self._used(read, self.clerk.keys.order, self._expired_before()))
        gone = {*leaving, *([before] if before else ())}
        for usage in usages:
            excess = usage.less(gone).excess(entry.size)
            oldest = await self._used(read, self.clerk.keys.order_of(usage.namespace)) if any(excess) else {}
            chosen = enough(excess, [one for one in oldest if one not in gone])
            leaving |= {one: oldest[one] for one in chosen}
            gone |= {*chosen}
        fits = not any(any(usage.less(gone).excess(entry.size)) for usage in usages)
        replaced = self.clerk.remove(before, None) if before else ()
        buried = await self._burials(read, {one: used for one, used in leaving.items() if one != before})
        return Room((*replaced, *buried), fits)

    async def _accounts(self, read: Read, entry: Entry) -> tuple[Entry | None, tuple[Usage, Usage]]:
        """The value that has this name now; how much its namespace keeps, and how much is kept in all."""
        fields = self.clerk.account_fields(entry.namespace)
        record, *told = await read("HMGET", self.clerk.keys.ledger, f"v:{entry.name}", *fields)
        return read_entry(entry.name, record), self.clerk.read_usages(entry.namespace, told)

    def _expired_before(self) -> float:
        return self.clock() - self.clerk.policy.lifetime

    async def _used(self, read: Read, order: str, until: float | None = None) -> _Uses:
        """The values that were used longest ago, but no later than `until`."""
        last = "+inf" if until is None else until
        told = await read("ZRANGE", order, "-inf", last, "BYSCORE", "LIMIT", 0, _AT_ONCE, "WITHSCORES")
        begin = order.removeprefix(self.clerk.keys.order).removeprefix(":")
        names = [f"{begin}:{name.decode()}" if begin else name.decode() for name in told[::2]]
        records = await read("HMGET", self.clerk.keys.ledger, *(f"v:{name}" for name in names)) if names else ()
        entries = map(read_entry, names, records)
        return {one: float(used) for one, used in zip(entries, told[1::2], strict=True) if one}

    async def _burials(self, read: Read, leaving: _Uses) -> list[Command]:
        if not leaving:
            return []
        cards = await read("MGET", *(self.clerk.keys.card(one.name) for one in leaving))
        commands = await self._clearance(read, len(leaving))
        for (entry, used), card in zip(leaving.items(), cards, strict=True):
            known = self.clerk.cards.readable(entry.name, card)
            commands += self.clerk.remove(entry, self._tombstone(known, used) if known else None)
        return commands

    def _tombstone(self, known: Descriptor, used: float) -> Tombstone:
        expired = used + self.clerk.policy.lifetime
        return buried(known, "expired", expired) if expired <= self.clock() else buried(known, "evicted", self.clock())

    async def _clearance(self, read: Read, new: int) -> list[Command]:
        """Old tombstones go where there are too many."""
        graves = self.clerk.keys.graves
        excess = await read("ZCARD", graves) + new - MAX_TOMBSTONES
        if excess <= 0:
            return []
        return [*self.clerk.clear([name.decode() for name in await read("ZRANGE", graves, 0, excess - 1)])]
