"""Values in a Redis or Valkey server: several gateways behind a load balancer share one memory.

What stands where, and how much must go, is `redis_records`; how the server is spoken to, `redis_link`. This module
must not know either the server's client library or its errors.
"""

import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import unquote

import anyio.to_thread

from mcp_mirror.errors import StoreError
from mcp_mirror.payload.spool import map_file, write_all
from mcp_mirror.settings.policies import StorePolicy
from mcp_mirror.stores.base import Tombstone
from mcp_mirror.stores.encryption import CHUNK as SEALED
from mcp_mirror.stores.encryption import Encryptor, Envelope, within
from mcp_mirror.stores.pieces import cut
from mcp_mirror.stores.quotas import make_tombstone, refuse_oversized
from mcp_mirror.stores.redis.commands import Command, RedisCommands
from mcp_mirror.stores.redis.connection import Read, RedisLink, WriteRefusedError
from mcp_mirror.stores.redis.eviction import EvictionPlan, RedisEviction
from mcp_mirror.stores.redis.records import (
    CHUNK,
    Entry,
    Keys,
    Piece,
    RedisRecords,
    encoded,
    pieces_of,
    read_entry,
    sealed_pieces_of,
)
from mcp_mirror.types import Buffer, Descriptor, FileSpan, Segments, Span, StoreStats, Traffic

_STAGED: Final = 1800
"""Seconds after which the chunks of a value that was never finished are gone."""
_PAGE: Final = 256
"""Cards that are read at once."""
_SPOOLED: Final = 16 << 20
"""Bytes from which on a value is read into a file, which is mapped, and not into memory."""

_DAMAGED: Final = (
    "The store's accounts in Redis are damaged: the server may have removed keys by itself. Set its `maxmemory-policy` "
    "to noeviction, and delete the keys that begin with `store.prefix`."
)


class RedisStore:
    """A `Store` whose values several processes share."""

    def __init__(self, policy: StorePolicy, clock: Callable[[], float], folder: Callable[[], Path]) -> None:
        """Connect when first used.

        Args:
            policy: Which server, how much is kept and for how long.
            clock: Seconds since the epoch.
            folder: Where large values are read into files; asked for with the first one.

        Raises:
            StoreError: There is no usable address.
        """
        if policy.url is None:
            raise StoreError("`store.kind: redis` wants `store.url`, such as redis://127.0.0.1:6379/0.")
        self._policy = policy
        self._clock = clock
        self._folder = folder
        self._link = RedisLink(policy.url)
        self._keys = Keys(policy.prefix)
        self._encryptor = Encryptor(policy.encryption)
        self._redis_records = RedisRecords(self._encryptor)
        self._redis_commands = RedisCommands(self._keys, policy, self._redis_records)
        self._eviction = RedisEviction(self._redis_commands, clock)

    async def __aenter__(self) -> Self:
        """Say in the log whether the server is there; one that is not may come later."""
        with suppress(StoreError):
            await self._link.run([("PING",)])
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disconnect."""
        await self._link.aclose()

    async def put(self, namespace: str, descriptor: Descriptor, blob: Segments, file: FileSpan | None = None) -> None:  # noqa: ARG002  # the bytes go to another machine
        """Keep a value, at the cost of those used longest ago; visible from one moment on, with all its bytes."""
        refuse_oversized(size := sum(len(segment) for segment in blob), self._policy)
        entry = Entry(_name(namespace, descriptor.base), secrets.token_hex(8), size)
        envelope = self._encryptor.new_envelope(namespace, descriptor.base)
        card = self._redis_records.write(entry.name, descriptor, envelope)
        if size <= CHUNK:
            await self._enter(entry, descriptor.created, card, await _sealed(envelope, b"".join(blob), entry, 0))
            return
        try:
            for number, chunk in enumerate(cut(blob, CHUNK)):
                kept = await _sealed(envelope, chunk, entry, number)
                await self._link.run([self._redis_commands.stage(entry, number, kept, _STAGED)])
            await self._enter(entry, descriptor.created, card, None)
        except BaseException:
            await self._unstage(entry)
            raise

    async def describe(self, namespace: str, base: str) -> Descriptor | Tombstone | None:
        """What is known about a value."""
        name = _name(namespace, base)
        entry, used, [card] = await self._lookup(name, ("GET", self._keys.card(name)))
        known = self._redis_records.read(name, card) if card else None
        if not isinstance(known, Descriptor):
            return known
        if entry is None or used is None:
            return make_tombstone(known, "expired", known.expires)
        if self._is_over(used):
            return make_tombstone(known, "expired", used + self._policy.lifetime)
        now = self._clock()
        is_whole, _ = await self._use(entry, now)
        return self._with_expiry(known, now) if is_whole else make_tombstone(known, "evicted", now)

    async def read(self, namespace: str, base: str, span: Span | None = None) -> Buffer | None:
        """The bytes, no more of them than were asked for; many of them mapped from a file that has no name.

        Of a value that is sealed, whole chunks of its envelope are fetched, and opened in memory.
        """
        name = _name(namespace, base)
        entry, used, [head] = await self._lookup(name, self._redis_commands.look(name))
        if entry is None or used is None or self._is_over(used) or not head:
            return None
        if envelope := self._encryptor.envelope_of(namespace, base, head):
            return await self._read_sealed(entry, envelope, within(entry.size, span))
        pieces = pieces_of(entry, Span(0, entry.size) if span is None else span)
        is_whole, parts = await self._use(entry, self._clock(), *pieces[:1])
        if not is_whole or not pieces:
            return b"" if is_whole else None
        if sum(piece.length for piece in pieces) > _SPOOLED:
            return await self._spool(entry, pieces, parts[0])
        rest = [await self._fetch(entry, piece) for piece in pieces[1:]]
        read = [part for part in (*parts, *rest) if part is not None]
        return b"".join(read) if len(read) == len(pieces) else None

    async def _read_sealed(self, entry: Entry, envelope: Envelope, span: Span) -> Buffer | None:
        pieces = sealed_pieces_of(entry, span)
        is_whole, parts = await self._use(entry, self._clock(), *pieces[:1])
        if not is_whole:
            return None
        if not entry.size:
            [card] = await self._link.run([("GET", self._keys.card(entry.name))])
            self._redis_records.check_empty(entry.name, card)
        reader = envelope.range_reader(entry.size, span)
        for number, piece in enumerate(pieces):
            part = parts[0] if number == 0 else await self._fetch(entry, piece)
            if part is None:
                return None
            await anyio.to_thread.run_sync(reader.add, part)
        return reader.take()

    async def _use(self, entry: Entry, now: float, *pieces: Piece) -> tuple[bool, Sequence[bytes]]:
        """Put a value's expiry off and read parts of it; whether all of it is there, and they."""
        fetches = [self._redis_commands.fetch(entry, piece) for piece in pieces]
        try:
            told = await self._link.run(
                [*self._redis_commands.keep(entry), *self._redis_commands.use(entry, now), *fetches]
            )
        except WriteRefusedError:  # what is there can be read still
            told = await self._link.run([*self._redis_commands.find(entry), *fetches])
        parts = told[len(told) - len(fetches) :]
        is_read = all(len(part) == piece.length for part, piece in zip(parts, pieces, strict=True))
        return is_read and all(told[: entry.chunks]), parts

    async def file_of(self, namespace: str, base: str) -> FileSpan | None:  # noqa: ARG002  # as every store
        """None: no value is in a file."""
        return None

    async def delete(self, namespace: str, base: str) -> bool:
        """Forget a value, without a tombstone."""
        name = _name(namespace, base)

        async def plan(read: Read) -> Iterable[Command] | None:
            entry = read_entry(name, await read("HGET", self._keys.ledger, f"v:{name}"))
            used = await read("ZSCORE", self._keys.order, name)
            if entry is None or used is None or self._is_over(used):
                return None
            return self._redis_commands.next_turn(), *self._redis_commands.remove(entry, None)

        try:
            return await self._link.transact(self._keys.turn, plan) is not None
        except WriteRefusedError:  # to keep accounts takes memory: make some first, at once
            entry, _, _ = await self._lookup(name)
            if entry is None:
                return False
            await self._link.run([("DEL", self._keys.card(name), *self._keys.blobs(entry))])
            return await self._link.transact(self._keys.turn, plan) is not None

    async def list(
        self, namespace: str, *, after: str | None = None, label: str = "", limit: int | None = None
    ) -> tuple[Descriptor, ...]:
        """A page of what is kept, the newest first."""
        begin, listed, at = encoded(namespace), list[Descriptor](), 0
        made = self._keys.made_of(begin, label)
        await self._complete_orders(begin)
        if after is not None:
            base = encoded(after)
            used, rank = await self._link.run([("ZSCORE", self._keys.order_of(begin), base), ("ZREVRANK", made, base)])
            if used is None or self._is_over(float(used)) or rank is None:
                raise LookupError(after)
            at = rank + 1
        while limit is None or len(listed) < limit:
            wanted = _PAGE if limit is None else min(limit - len(listed), _PAGE)
            [bases] = await self._link.run([("ZRANGE", made, at, at + wanted - 1, "REV")])
            listed += await self._known(begin, [base.decode() for base in bases])
            at += len(bases)
            if len(bases) < wanted:
                break
        return tuple(listed)

    async def _known(self, begin: str, bases: Sequence[str]) -> Sequence[Descriptor]:
        """What is known about some values of a namespace, without those that are gone; names are encoded."""
        if not bases:
            return ()
        names = [f"{begin}:{base}" for base in bases]
        scores, redis_records = await self._link.run(
            [("ZMSCORE", self._keys.order_of(begin), *bases), ("MGET", *map(self._keys.card, names))]
        )
        uses = [None if used is None or self._is_over(float(used)) else float(used) for used in scores]
        known = [
            (self._redis_records.readable(name, card), used)
            for name, card, used in zip(names, redis_records, uses, strict=True)
            if used is not None
        ]
        return [self._with_expiry(one, used) for one, used in known if one]

    async def bases_near(self, namespace: str, text: str, limit: int) -> tuple[str, ...]:
        """The bases that stand next to a text in alphabetical order."""
        begin, place = encoded(namespace), encoded(text)
        names = self._keys.names_of(begin)
        await self._complete_orders(begin)
        below, above = await self._link.run(
            [
                ("ZRANGE", names, f"({place}", "-", "BYLEX", "REV", "LIMIT", 0, limit),
                ("ZRANGE", names, f"[{place}", "+", "BYLEX", "LIMIT", 0, limit),
            ]
        )
        return await self._living(begin, [*reversed(below), *above])

    async def newest(self, namespace: str, limit: int) -> tuple[str, ...]:
        """The bases of what was made last, the newest first."""
        begin = encoded(namespace)
        await self._complete_orders(begin)
        [bases] = await self._link.run([("ZRANGE", self._keys.made_of(begin), 0, limit - 1, "REV")])
        return await self._living(begin, bases)

    async def _living(self, begin: str, bases: Sequence[bytes]) -> tuple[str, ...]:
        """Those of some bases that have not expired, decoded."""
        if not bases:
            return ()
        [scores] = await self._link.run([("ZMSCORE", self._keys.order_of(begin), *bases)])
        uses = zip(bases, scores, strict=True)
        return tuple(unquote(one.decode()) for one, used in uses if used is not None and not self._is_over(float(used)))

    async def stats(self, namespace: str) -> StoreStats:
        """How much is kept, and the tokens that were counted."""
        begin = encoded(namespace)
        last = self._clock() - self._policy.lifetime
        fields = self._redis_commands.account_fields(begin)[2:]
        kept, expired, counted = await self._link.run(
            [
                ("HMGET", self._keys.ledger, *fields),
                ("ZRANGE", self._keys.order_of(begin), "-inf", last, "BYSCORE"),
                self._redis_commands.read_traffic(begin),
            ]
        )
        values, size = (int(number or 0) for number in kept)
        if expired:
            names = [f"{begin}:{base.decode()}" for base in expired]
            [records] = await self._link.run([("HMGET", self._keys.ledger, *(f"v:{name}" for name in names))])
            gone = [entry for entry in map(read_entry, names, records) if entry]
            values, size = values - len(gone), size - sum(entry.size for entry in gone)
        return StoreStats(values, size, Traffic(*(int(number or 0) for number in counted)))

    async def _complete_orders(self, begin: str) -> None:
        """Bring up to date the orders that lists are read by, where a gateway of an earlier version has written."""
        keys = self._keys
        order, names = keys.order_of(begin), keys.names_of(begin)
        while True:
            kept, listed = await self._link.run([("ZCARD", order), ("ZCARD", names)])
            if kept == listed:
                return
            repaired = await self._link.transact(keys.turn, partial(self._plan_orders, begin))
            if repaired is None:
                return

    async def _plan_orders(self, begin: str, read: Read) -> Iterable[Command] | None:
        """Place values that are in no order, and take out of the orders those that are gone: a bounded number."""
        kept = {base.decode() for base in await read("ZRANGE", self._keys.order_of(begin), 0, -1)}
        listed = {base.decode() for base in await read("ZRANGE", self._keys.names_of(begin), 0, -1)}
        missing, gone = sorted(kept - listed)[:_PAGE], sorted(listed - kept)[:_PAGE]
        if not missing and not gone:
            return None
        names = [f"{begin}:{base}" for base in missing]
        redis_records = await read("MGET", *map(self._keys.card, names)) if names else ()
        commands: list[Command] = [self._redis_commands.next_turn()]
        for base, name, card in zip(missing, names, redis_records, strict=True):
            known = self._redis_records.readable(name, card)
            commands += self._redis_commands.place(begin, base, known.created if known else 0.0)
        for base in gone:
            commands += self._redis_commands.displace(begin, base)
        return commands

    async def count(self, namespace: str, traffic: Traffic) -> None:
        """Count tokens."""
        await self._link.run(self._redis_commands.count(encoded(namespace), traffic))

    async def namespaces(self) -> frozenset[str]:
        """Whose tokens it has counted: whoever keeps values here has had answers."""
        [names] = await self._link.run([("SMEMBERS", self._keys.namespaces)])
        return frozenset(unquote(name.decode()) for name in names)

    async def labels(self, namespace: str | None = None) -> frozenset[str]:
        """The tool labels of what a namespace keeps; else of all that is kept or remembered, none during an outage."""
        if namespace is not None:
            return await self._own_labels(encoded(namespace))
        with suppress(StoreError):
            return await self._all_labels()
        return frozenset()

    async def _all_labels(self) -> frozenset[str]:
        [labels] = await self._link.run([("SMEMBERS", self._keys.labels)])
        return frozenset(label.decode() for label in labels)

    async def _own_labels(self, begin: str) -> frozenset[str]:
        await self._complete_orders(begin)
        labels = sorted(await self._all_labels() - {""})
        there = await self._link.run([("EXISTS", self._keys.made_of(begin, label)) for label in labels])
        return frozenset(label for label, is_there in zip(labels, there, strict=True) if is_there)

    async def _enter(self, entry: Entry, made: float, card: bytes, blob: Buffer | None) -> None:
        """Make room, and the value visible, as one; where much must go, in several steps before that."""
        room = EvictionPlan()

        async def plan(read: Read) -> Iterable[Command] | None:
            nonlocal room
            room = await self._eviction.make_room(read, entry)
            if room.is_in:  # an answer was lost on its way
                return None
            if blob is None and await read("EXISTS", *self._keys.blobs(entry)) != entry.chunks:
                raise StoreError("The value took too long to reach the store. Call the tool again.")
            entering = self._redis_commands.enter(entry, card, blob, (made, self._clock())) if room.fits else ()
            return self._redis_commands.next_turn(), *room.commands, *entering

        while True:
            await self._link.transact(self._keys.turn, plan)
            if room.fits:
                return
            if not room.commands:
                raise StoreError(_DAMAGED)

    async def _unstage(self, entry: Entry) -> None:
        """Take back what was brought in of a value that cannot be kept; what cannot be taken back expires."""
        with suppress(StoreError):
            if self._link.is_up:
                await self._link.run([("UNLINK", *self._keys.blobs(entry))])

    async def _lookup(self, name: str, *more: Command) -> tuple[Entry | None, float | None, Sequence[Any]]:
        """Where a value is and when it was used last, None where it is gone; and what else was asked for."""
        record, used, *rest = await self._link.run(
            [("HGET", self._keys.ledger, f"v:{name}"), ("ZSCORE", self._keys.order, name), *more]
        )
        return (None if used is None else read_entry(name, record)), used, rest

    def _is_over(self, used: float) -> bool:
        return used + self._policy.lifetime <= self._clock()

    async def _spool(self, entry: Entry, pieces: Sequence[Piece], first: Buffer) -> Buffer | None:
        """A large range in a file, which goes with its last reader."""
        path = self._folder() / secrets.token_hex(16)
        try:
            return map_file(path) if await self._write(path, entry, pieces, first) else None
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise StoreError(f"A large value could not be read into a file: {reason}. Make room there.") from None
        finally:
            with suppress(OSError):  # some systems keep a file that is mapped; it goes with its folder
                path.unlink()

    async def _write(self, path: Path, entry: Entry, pieces: Sequence[Piece], first: Buffer) -> bool:
        """Bring a range into a file; False where it has gone meanwhile."""
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            await anyio.to_thread.run_sync(write_all, file, first)
            for piece in pieces[1:]:
                if (part := await self._fetch(entry, piece)) is None:
                    return False
                await anyio.to_thread.run_sync(write_all, file, part)
            return True
        finally:
            os.close(file)

    async def _fetch(self, entry: Entry, piece: Piece) -> bytes | None:
        """A part of a value; None where it has gone meanwhile."""
        [part] = await self._link.run([self._redis_commands.fetch(entry, piece)])
        return part if len(part) == piece.length else None

    def _with_expiry(self, known: Descriptor, used: float) -> Descriptor:
        return replace(known, expires=used + self._policy.lifetime)


async def _sealed(envelope: Envelope | None, chunk: Buffer, entry: Entry, number: int) -> Buffer:
    """A chunk of a value as it is kept."""
    if envelope is None:
        return chunk
    first = number * (entry.chunk // SEALED)
    return await anyio.to_thread.run_sync(lambda: b"".join(envelope.seal((chunk,), entry.size, first)))


def _name(namespace: str, base: str) -> str:
    return f"{encoded(namespace)}:{encoded(base)}"
