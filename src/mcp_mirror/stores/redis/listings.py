"""Lists and sums of the values in Redis: pages, searches by name, labels. They skip expired values."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final
from urllib.parse import unquote

import msgspec

from mcp_mirror.errors import StoreError
from mcp_mirror.stores.quotas import SpaceUsage
from mcp_mirror.stores.records import RecordCodec
from mcp_mirror.stores.redis.commands import RedisCommands, sum_fields, traffic_fields
from mcp_mirror.stores.redis.connection import RedisConnection
from mcp_mirror.stores.redis.eviction import read_usage
from mcp_mirror.stores.redis.records import StoredValue, ValueRecord, encode_name, read_stored_value
from mcp_mirror.types import Descriptor, StoreStats, Traffic

_PAGE: Final = 256
"""Records that are read at once."""
_FEW: Final = 1000
"""Unexpired values that are read for a list or a sum, if others have expired."""


class RedisListings:
    """The part of `RedisStore` that lists the values of namespaces."""

    def __init__(
        self,
        redis: RedisConnection,
        commands: RedisCommands,
        codec: RecordCodec[ValueRecord],
        clock: Callable[[], float],
    ) -> None:
        self._redis, self._commands, self._codec, self._clock = redis, commands, codec, clock
        self._lifetime = commands.lifetime
        self._keys = commands.keys

    async def list(
        self, namespace: str, *, after: str | None = None, label: str = "", limit: int | None = None
    ) -> tuple[Descriptor, ...]:
        """A page of the stored values, newest first."""
        owner, listed = encode_name(namespace), list[Descriptor]()
        made = self._keys.of("made", owner, *([encode_name(label)] if label else []))
        at = 0 if after is None else await self._find_rank(owner, made, after) + 1
        few = await self._find_few_unexpired(owner)
        if few:
            few = await self._sort_by_creation(made, few)
            places = {base: place for place, base in enumerate(few)}
            at = 0 if after is None else places[encode_name(after).encode()] + 1  # no longer there: a LookupError
        while limit is None or len(listed) < limit:
            wanted = _PAGE if limit is None else min(limit - len(listed), _PAGE)
            if few is None:
                [bases] = await self._redis.run([("ZRANGE", made, at, at + wanted - 1, "REV")])
            else:
                bases = few[at : at + wanted]
            listed += await self._read_descriptors(owner, [base.decode() for base in bases])
            at += len(bases)
            if len(bases) < wanted:
                break
        return tuple(listed)

    async def _find_rank(self, owner: str, made: str, after: str) -> int:
        """The place of a value in the set `made`, the newest first.

        Raises:
            LookupError: The value does not exist.
        """
        base = encode_name(after)
        used, rank = await self._redis.run([("ZSCORE", self._keys.of("order", owner), base), ("ZREVRANK", made, base)])
        if used is None or self._is_expired(float(used)) or rank is None:
            raise LookupError(after)
        return int(rank)

    async def _sort_by_creation(self, made: str, bases: Sequence[bytes]) -> Sequence[bytes]:
        """Those encoded bases that the set `made` contains, the newest first."""
        [scores] = await self._redis.run([("ZMSCORE", made, *bases)])
        created = {base: float(score) for base, score in zip(bases, scores, strict=True) if score is not None}
        return sorted(created, key=lambda base: (created[base], base), reverse=True)

    async def _read_descriptors(self, owner: str, bases: Sequence[str]) -> Sequence[Descriptor]:
        """The descriptors of those values that have not expired, given their encoded bases."""
        if not bases:
            return ()
        keys = [self._keys.of("card", owner, base) for base in bases]
        scores, records = await self._redis.run([("ZMSCORE", self._keys.of("order", owner), *bases), ("MGET", *keys)])
        found: list[Descriptor] = []
        for base, used, record in zip(bases, scores, records, strict=True):
            if used is None or self._is_expired(float(used)) or not record:
                continue
            value_record = self._codec.decode_or_report(unquote(owner), unquote(base), record)
            if value_record and not value_record.tombstone:
                found.append(msgspec.structs.replace(value_record.descriptor, expires=float(used) + self._lifetime))
        return found

    async def bases_near(self, namespace: str, text: str, limit: int) -> tuple[str, ...]:
        """The bases next to a text in alphabetical order."""
        owner, place = encode_name(namespace), encode_name(text)
        names = self._keys.of("names", owner)
        if (few := await self._find_few_unexpired(owner)) is not None:
            bases = sorted(one.decode() for one in few)
            at = bisect_left(bases, place)
            return tuple(unquote(one) for one in bases[max(at - limit, 0) : at + limit])
        below, above = await self._redis.run(
            [
                ("ZRANGE", names, f"({place}", "-", "BYLEX", "REV", "LIMIT", 0, limit),
                ("ZRANGE", names, f"[{place}", "+", "BYLEX", "LIMIT", 0, limit),
            ]
        )
        return await self._select_unexpired(owner, [*reversed(below), *above])

    async def newest(self, namespace: str, limit: int) -> tuple[str, ...]:
        """The bases of the newest values, newest first."""
        owner = encode_name(namespace)
        if await self._find_few_unexpired(owner) is not None:
            return tuple(known.base for known in await self.list(namespace, limit=limit))
        [bases] = await self._redis.run([("ZRANGE", self._keys.of("made", owner), 0, limit - 1, "REV")])
        return await self._select_unexpired(owner, bases)

    async def _find_few_unexpired(self, owner: str) -> Sequence[bytes] | None:
        """The encoded bases of all unexpired values, if values have expired and few have not; else None.

        A search in another order would pass by all the expired ones.
        """
        order, last = self._keys.of("order", owner), self._clock() - self._lifetime
        expired, kept = await self._redis.run([("ZCOUNT", order, "-inf", last), ("ZCOUNT", order, f"({last}", "+inf")])
        if not expired or kept > _FEW:
            return None
        [bases] = await self._redis.run([("ZRANGE", order, f"({last}", "+inf", "BYSCORE")])
        return list(bases)

    async def _select_unexpired(self, owner: str, bases: Sequence[bytes]) -> tuple[str, ...]:
        """The decoded bases of those values that have not expired."""
        if not bases:
            return ()
        [scores] = await self._redis.run([("ZMSCORE", self._keys.of("order", owner), *bases)])
        uses = zip(bases, scores, strict=True)
        return tuple(
            unquote(one.decode()) for one, used in uses if used is not None and not self._is_expired(float(used))
        )

    async def stats(self, namespace: str) -> StoreStats:
        """The number and bytes of the stored values, and the counted tokens."""
        owner = encode_name(namespace)
        few, last = await self._find_few_unexpired(owner), self._clock() - self._lifetime
        sums, expired, counted = await self._redis.run(
            [
                ("HMGET", self._keys.of("ledger"), *sum_fields(owner)),
                ("ZRANGE", self._keys.of("order", owner), "-inf", last if few is None else "-inf", "BYSCORE"),
                ("HMGET", self._keys.of("traffic"), *traffic_fields(owner)),
            ]
        )
        if few is None:
            [kept] = read_usage(sums)
            for value in await self._read_values(owner, expired):
                kept = kept.without_value(value.size)
        else:
            values = await self._read_values(owner, few)
            kept = SpaceUsage(len(values), sum(value.size for value in values))
        return StoreStats(kept.values, kept.bytes, Traffic(*(int(number or 0) for number in counted)))

    async def labels(self, namespace: str | None = None) -> frozenset[str]:
        """The tool labels of a namespace's values; those of all values and tombstones, or none during an outage."""
        if namespace is None:
            with suppress(StoreError):
                return await self._read_labels()
            return frozenset()
        owner = encode_name(namespace)
        labels = sorted(await self._read_labels() - {""})
        exist = await self._redis.run(
            [("EXISTS", self._keys.of("made", owner, encode_name(label))) for label in labels]
        )
        return frozenset(label for label, does_exist in zip(labels, exist, strict=True) if does_exist)

    async def _read_labels(self) -> frozenset[str]:
        """The tool labels of all values and tombstones."""
        [labels] = await self._redis.run([("SMEMBERS", self._keys.of("labels"))])
        return frozenset(label.decode() for label in labels)

    async def _read_values(self, owner: str, bases: Sequence[bytes]) -> Sequence[StoredValue]:
        """The values with these encoded bases."""
        if not bases:
            return ()
        names = [f"{owner}:{base.decode()}" for base in bases]
        [records] = await self._redis.run([("HMGET", self._keys.of("ledger"), *(f"v:{name}" for name in names))])
        return [value for value in map(read_stored_value, names, records) if value]

    def _is_expired(self, used: float) -> bool:
        return used + self._lifetime <= self._clock()
