"""The Redis store: values in a Redis or Valkey server, shared by several gateways.

A put makes room and enters the value in one optimistic transaction (`WATCH`), so that quotas are exact with several
writers. Large values are written in chunks before, and become visible with the transaction. See `records` for the keys,
`commands` for the commands, `eviction` for the removals, `listings` for lists and `connection` for the server.

With `store.blobs`, large values are objects in a bucket, and the transaction refers to them (see `objects`).
"""

import logging
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import unquote

import anyio.to_thread
import msgspec

from mcp_mirror.errors import StoreError
from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.stores.base import ObjectMissingError, Tombstone, cut
from mcp_mirror.stores.encryption import (
    CHANGED,
    HEAD,
    SEALED_CHUNK,
    EncryptedEventLog,
    Encryptor,
    Envelope,
    clamp_span,
    sealed_span,
)
from mcp_mirror.stores.encryption import CHUNK as SEALED
from mcp_mirror.stores.event_log import EventLog
from mcp_mirror.stores.quotas import ExpirySweeper, make_tombstone, refuse_oversized
from mcp_mirror.stores.records import RecordCodec
from mcp_mirror.stores.redis.commands import Command, RedisCommands, Removal, sum_fields
from mcp_mirror.stores.redis.connection import Read, RedisConnection, WriteRefusedError
from mcp_mirror.stores.redis.event_log import RedisEventLog
from mcp_mirror.stores.redis.eviction import EvictionPlan, RedisEviction, read_usage
from mcp_mirror.stores.redis.listings import RedisListings
from mcp_mirror.stores.redis.objects import ObjectRegistry
from mcp_mirror.stores.redis.records import (
    CHUNK,
    ChunkRange,
    KeyNames,
    StoredValue,
    ValueRecord,
    build_name,
    encode_name,
    find_chunk_ranges,
    pack_record,
    read_stored_value,
    unpack_record,
)
from mcp_mirror.system.files import map_file, write_all
from mcp_mirror.types import Buffer, Descriptor, FileSpan, Segments, Span, StoreTotals, Traffic

if TYPE_CHECKING:
    from mcp_mirror.stores.s3 import S3Blobs

_logger = logging.getLogger(__name__)

_STAGED: Final = 1800
"""Seconds after which the chunks of an unfinished put expire."""
OBJECT_BYTES: Final = 64 << 10
"""Bytes above which a value is an object, if there is a bucket."""
_UPLOAD_PIECE: Final = 1 << 20
_OBJECT_PIECE: Final = 128 * SEALED_CHUNK
"""Bytes of an object that one request reads."""
_SPOOLED: Final = 16 << 20
"""Bytes above which a value is read into a memory-mapped file."""

_NO_BLOBS: Final = (
    "The value is an object in a bucket, and this gateway has no `store.blobs`. Give all gateways of a store the same "
    "`store` section."
)
_LOST: Final = (
    "The object of a stored value is missing: a lifecycle rule of the bucket or another program removed it. Call the "
    "tool that created the value again, and correct the rule."
)
_REMOVED_BY_SERVER: Final = (
    "The store's Redis server has removed a stored value by itself. Set its `maxmemory-policy` to noeviction, and its "
    "`maxmemory` well above `store.max_bytes`: the gateways evict values themselves."
)
_DAMAGED: Final = (
    "The store's accounts in Redis are damaged: the server may have removed keys by itself. Set its `maxmemory-policy` "
    "to noeviction, and delete the keys that begin with `store.prefix`."
)


class RedisStore(RedisListings):
    """A `Store` in Redis."""

    def __init__(
        self,
        policy: StorePolicy,
        clock: Callable[[], float],
        folder: Callable[[], Path],
        objects: "S3Blobs | None" = None,
    ) -> None:
        """Configure the store. It connects with its first use.

        Args:
            policy: The server, the quotas and the lifetime.
            clock: Seconds since the epoch.
            folder: Returns the folder for files of large values. Called with the first file.
            objects: The bucket for large values; None to keep them in Redis.

        Raises:
            StoreError: The address is missing or not valid.
        """
        if policy.url is None:
            raise StoreError("`store.kind: redis` needs `store.url`, such as redis://127.0.0.1:6379/0.")
        self._policy, self._folder = policy, folder
        self._encryptor = Encryptor(policy.encryption)
        commands = RedisCommands(KeyNames(policy.prefix), policy.lifetime)
        codec = RecordCodec(pack_record, unpack_record, self._encryptor)
        super().__init__(RedisConnection(policy.url, commands), commands, codec, clock)
        self.events: Final[EventLog] = EncryptedEventLog(RedisEventLog(self._redis, self._keys, clock), self._encryptor)
        self._evicted = 0
        self._has_lost_values = False
        self._eviction = RedisEviction(commands, codec, policy, clock)
        self._objects = objects
        self._registry = objects and ObjectRegistry(self._redis, commands, objects, clock)
        self._sweeper = ExpirySweeper(self._remove_expired)

    async def __aenter__(self) -> Self:
        """Log whether the server is available. The store works without it until its first use."""
        with suppress(StoreError):
            await self._redis.run([("PING",)])
        self._sweeper.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._sweeper.stop()
        await self._redis.aclose()

    async def check(self) -> None:
        """Run an empty transaction, which a server that refuses writes refuses too, and list objects of the bucket."""

        async def plan(_: Read) -> Iterable[Command]:
            return ()

        await self._redis.transact(plan)
        if self._registry:
            await self._registry.check()

    async def put(self, namespace: str, descriptor: Descriptor, blob: Segments, file: FileSpan | None = None) -> None:  # noqa: ARG002  # the bytes go to another machine
        """Store a value. It becomes visible at once with all its bytes."""
        refuse_oversized(size := sum(len(segment) for segment in blob), self._policy.for_namespace(namespace))
        name = build_name(namespace, descriptor.base)
        envelope = self._encryptor.new_envelope(namespace, descriptor.base)
        record = self._codec.encode(ValueRecord(descriptor), envelope)
        if self._objects and self._registry and size > OBJECT_BYTES:
            mark = await self._registry.begin_upload()
            try:
                await self._objects.write(mark, _stream_blob(blob, size, envelope))
                await self._enter(StoredValue(name, mark, size, 0), descriptor.created, record, None)
            except BaseException:
                with suppress(StoreError), anyio.CancelScope(shield=True):  # the upload is given up later otherwise
                    await self._registry.give_up(mark)
                raise
            return
        value = StoredValue(name, secrets.token_hex(8), size)
        if size <= CHUNK:
            await self._enter(value, descriptor.created, record, await _seal_chunk(envelope, b"".join(blob), value, 0))
            return
        try:
            for number, chunk in enumerate(cut(blob, CHUNK)):
                stored = await _seal_chunk(envelope, chunk, value, number)
                await self._redis.run([("SET", self._keys.blob(value, number), stored, "EX", _STAGED)])
            await self._enter(value, descriptor.created, record, None)
        except BaseException:
            with suppress(StoreError), anyio.CancelScope(shield=True):  # the chunks expire otherwise
                if self._redis.is_up:
                    await self._redis.run([("UNLINK", *self._keys.blobs(value))])
            raise

    async def _enter(self, value: StoredValue, created: float, record: bytes, blob: Buffer | None) -> None:
        """Make room and the value visible in one transaction, after other transactions if many values must go."""
        room = EvictionPlan()

        async def plan(read: Read) -> Iterable[Command] | None:
            nonlocal room
            room = await self._eviction.make_room(read, value)
            if room.is_stored:
                return None
            if blob is None and not await self._has_arrived(read, value):
                raise StoreError("The value took too long to reach the store. Call the tool again.")
            entering = self._commands.enter(value, record, blob, created, self._clock()) if room.fits else ()
            return *room.commands, *entering

        while True:
            await self._redis.transact(plan)
            self._evicted += room.evicted
            if room.fits:
                return
            if not room.commands:
                raise StoreError(_DAMAGED)

    async def _has_arrived(self, read: Read, value: StoredValue) -> bool:
        """Whether the bytes of a large value are in the store, and no gateway has given them up."""
        if value.is_object:
            return await read("ZSCORE", self._keys.of("uploads"), value.mark) is not None
        return bool(await read("EXISTS", *self._keys.blobs(value)) == value.chunks)

    async def _remove_expired(self) -> int:
        """Remove a batch of expired values unless another gateway writes, and of objects without a value.

        Returns:
            0 if nothing was removed.
        """

        async def plan(read: Read) -> Iterable[Command] | None:
            return await self._eviction.remove_expired(read) or None

        removed = await self._redis.transact(plan, attempts=1)
        return int(removed) + (await self._registry.remove_garbage() if self._registry else 0)

    async def describe(self, namespace: str, base: str) -> Descriptor | Tombstone | None:
        """The descriptor or tombstone of a value."""
        name = build_name(namespace, base)
        value, used, [record] = await self._look_up(name, ("GET", self._keys.of("card", name)))
        if not record:
            return None
        value_record = self._codec.decode(namespace, base, record)
        if value_record.tombstone:
            return value_record.tombstone
        known, now = value_record.descriptor, self._clock()
        if value is None or used is None:
            if known.expires <= now:
                return make_tombstone(known, "expired", known.expires)
            self._warn_of_lost_values()
        elif self._is_expired(used):
            return make_tombstone(known, "expired", used + self._policy.lifetime)
        else:
            is_complete, _ = await self._use(value, now)
            if is_complete:
                return msgspec.structs.replace(known, expires=now + self._policy.lifetime)
            await self._report_foreign_removal(value)
        return make_tombstone(known, "evicted", now)

    async def _report_foreign_removal(self, value: StoredValue) -> None:
        """Log, once, that the bytes of a value are gone although no gateway has removed it."""
        present, _, _ = await self._look_up(value.name)
        if present is not None and present.mark == value.mark:
            self._warn_of_lost_values()

    def _warn_of_lost_values(self) -> None:
        if not self._has_lost_values:
            self._has_lost_values = True
            _logger.warning(_REMOVED_BY_SERVER)

    async def read(self, namespace: str, base: str, span: Span | None = None) -> Buffer | None:
        """The bytes of a value or of a range of it; a large range is a map of a file without a name."""
        name = build_name(namespace, base)
        value, used, [head] = await self._look_up(name, ("GETRANGE", self._keys.of("card", name), 0, HEAD - 1))
        if value is None or used is None or self._is_expired(used) or not head:
            return None
        envelope = self._encryptor.find_envelope(namespace, base, head)
        wanted = clamp_span(value.size, span)
        if value.is_object:
            return await self._read_object(value, wanted, envelope)
        if envelope and not value.size:
            await self._check_empty(namespace, base)
        return await self._read_chunks(value, wanted, envelope)

    async def _read_chunks(self, value: StoredValue, wanted: Span, envelope: Envelope | None) -> Buffer | None:
        """A range of a value in Redis; None if the value was removed since it was found."""
        ranges = find_chunk_ranges(value, wanted, is_sealed=envelope is not None)
        is_complete, first = await self._use(value, self._clock(), *ranges[:1])
        if not is_complete:
            return None

        async def stream() -> AsyncIterator[Buffer]:
            for part in first:
                yield part
            for one in ranges[1:]:
                yield await self._fetch(value, one)

        try:
            return await self._assemble(stream(), value, wanted, envelope)
        except _RemovedError:
            return None

    async def _check_empty(self, namespace: str, base: str) -> None:
        """Check that the authenticated record of an empty value has size 0, because it has no chunk to check."""
        [record] = await self._redis.run([("GET", self._keys.of("card", build_name(namespace, base)))])
        value_record = self._codec.decode(namespace, base, record) if record else None
        if value_record is None or value_record.tombstone or value_record.descriptor.size:
            raise StoreError(CHANGED)

    async def _read_object(self, value: StoredValue, wanted: Span, envelope: Envelope | None) -> Buffer | None:
        """A range of an object; None if the value was removed since it was found."""
        if self._objects is None:
            raise StoreError(_NO_BLOBS)
        await self._use(value, self._clock())
        stored = sealed_span(value.size, wanted) if envelope else wanted
        parts = _stream_object(self._objects, value.mark, stored)
        try:
            return await self._assemble(parts, value, wanted, envelope)
        except ObjectMissingError:
            present, _, _ = await self._look_up(value.name)
            if present is not None and present.mark == value.mark:
                raise StoreError(_LOST) from None
            return None

    async def _assemble(
        self, parts: AsyncIterator[Buffer], value: StoredValue, wanted: Span, envelope: Envelope | None
    ) -> Buffer:
        """The range of a value that consists of these parts, or whose encrypted chunks do."""
        if envelope:
            reader = envelope.range_reader(value.size, wanted)
            async for part in parts:
                await anyio.to_thread.run_sync(reader.add, part)
            return reader.take()
        if wanted.length > _SPOOLED:
            return await self._spool(parts)
        read = [part async for part in parts]
        return read[0] if len(read) == 1 else b"".join(read)

    async def _spool(self, parts: AsyncIterator[Buffer]) -> Buffer:
        """Write parts into a file that is removed with its last reader, and map it."""
        path = self._folder() / secrets.token_hex(16)
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                async for part in parts:
                    await anyio.to_thread.run_sync(write_all, file, part)
            finally:
                os.close(file)
            return map_file(path)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise StoreError(f"A large value could not be read into a file: {reason}. Make room there.") from None
        finally:
            with suppress(OSError):  # some systems keep a mapped file; it is removed with its folder
                path.unlink()

    async def _fetch(self, value: StoredValue, wanted: ChunkRange) -> bytes:
        [part] = await self._redis.run([self._commands.fetch(value, wanted)])
        if len(part) != wanted.length:
            raise _RemovedError
        return bytes(part)

    async def _use(self, value: StoredValue, now: float, *ranges: ChunkRange) -> tuple[bool, Sequence[bytes]]:
        """Extend a value's expiry and read parts of it. Returns whether all its chunks exist, and the parts."""
        fetches = [self._commands.fetch(value, one) for one in ranges]
        try:
            replies = await self._redis.run([*self._commands.use(value, now), *fetches])
        except WriteRefusedError:  # stored values stay readable
            replies = await self._redis.run([*(("EXISTS", key) for key in self._keys.blobs(value)), *fetches])
        parts = replies[len(replies) - len(fetches) :]
        is_read = all(len(part) == one.length for part, one in zip(parts, ranges, strict=True))
        return is_read and all(replies[: value.chunks]), parts

    async def file_of(self, namespace: str, base: str) -> FileSpan | None:  # noqa: ARG002  # as every store
        """None: values are not in files."""
        return None

    async def delete(self, namespace: str, base: str) -> bool:
        """Remove a value without a tombstone."""
        name = build_name(namespace, base)

        async def plan(read: Read) -> Iterable[Command] | None:
            value = read_stored_value(name, await read("HGET", self._keys.of("ledger"), f"v:{name}"))
            used = await read("ZSCORE", self._keys.of("order"), name)
            if value is None or used is None or self._is_expired(float(used)):
                return None
            return self._commands.remove([Removal(value)])

        try:
            return await self._redis.transact(plan)
        except WriteRefusedError:  # the transaction needs memory: free some first
            value, _, _ = await self._look_up(name)
            if value is None:
                return False
            await self._redis.run([("DEL", self._keys.of("card", name), *self._keys.blobs(value))])
            return await self._redis.transact(plan)

    async def totals(self) -> StoreTotals:
        """The number and bytes of all values, and the evictions of this process."""
        [sums] = await self._redis.run([("HMGET", self._keys.of("ledger"), *sum_fields(None))])
        [kept] = read_usage(sums)
        return StoreTotals(kept.values, kept.bytes, self._evicted)

    async def count(self, namespace: str, traffic: Traffic) -> None:
        """Add to the counted tokens."""
        await self._redis.run(self._commands.count(encode_name(namespace), traffic))

    async def namespaces(self) -> frozenset[str]:
        """The namespaces with stored values or counted tokens."""
        [names] = await self._redis.run([("SMEMBERS", self._keys.of("namespaces"))])
        return frozenset(unquote(name.decode()) for name in names)

    async def _look_up(self, name: str, *more: Command) -> tuple[StoredValue | None, float | None, Sequence[Any]]:
        """A value, the time of its last use, and the replies to further commands."""
        record, used, *replies = await self._redis.run(
            [("HGET", self._keys.of("ledger"), f"v:{name}"), ("ZSCORE", self._keys.of("order"), name), *more]
        )
        if used is None:
            return None, None, replies
        return read_stored_value(name, record), float(used), replies


class _RemovedError(Exception):
    """A value was removed while it was read."""


async def _stream_blob(blob: Segments, size: int, envelope: Envelope | None) -> AsyncIterator[Buffer]:
    """The stored form of a value in pieces, encrypted in a thread."""
    for number, piece in enumerate(cut(blob, _UPLOAD_PIECE)):
        if envelope is None:
            yield piece
        else:
            first = number * (_UPLOAD_PIECE // SEALED)
            yield await anyio.to_thread.run_sync(_seal_piece, envelope, piece, size, first)


async def _stream_object(objects: "S3Blobs", mark: str, span: Span) -> AsyncIterator[Buffer]:
    """A range of an object, in parts of complete encrypted chunks."""
    for start in range(span.start, span.stop, _OBJECT_PIECE):
        yield await objects.read(mark, Span(start, min(_OBJECT_PIECE, span.stop - start)))


def _seal_piece(envelope: Envelope, piece: Buffer, size: int, first: int) -> bytes:
    return b"".join(envelope.seal((piece,), size, first))


async def _seal_chunk(envelope: Envelope | None, chunk: Buffer, value: StoredValue, number: int) -> Buffer:
    """The stored form of a chunk."""
    if envelope is None:
        return chunk
    first = number * (value.chunk // SEALED)
    return await anyio.to_thread.run_sync(_seal_piece, envelope, chunk, value.size, first)
