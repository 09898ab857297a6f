"""The Redis store: values in a Redis or Valkey server, shared by several gateways.

Each operation is one call of a script in the server, so quotas and sums are exact with several writers (see
`store.lua`; `records` describes the keys). The bytes of large values are written in chunks before, or with
`store.blobs` as objects in a bucket (see `objects`), and become visible with the script.
"""

import logging
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import anyio
import msgspec

from mcp_mirror.core.amounts import format_bytes, format_count
from mcp_mirror.errors import StoreError
from mcp_mirror.paths import slug_of
from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.stores.base import ObjectMissingError, Tombstone
from mcp_mirror.stores.encryption import (
    CHANGED,
    HEAD,
    SEALED_CHUNK,
    EncryptedEventLog,
    Encryptor,
    Envelope,
    clamp_span,
    sealed_size,
    sealed_span,
)
from mcp_mirror.stores.event_log import EventLog
from mcp_mirror.stores.quotas import (
    EXPIRED_PER_PUT,
    MAX_TOMBSTONES,
    NAMESPACE_TOMBSTONES,
    TOMBSTONE_LIFETIME,
    ExpirySweeper,
    build_reserved_error,
    keep_origin,
    refuse_oversized,
)
from mcp_mirror.stores.records import RecordCodec
from mcp_mirror.stores.redis.connection import RedisConnection, decoding
from mcp_mirror.stores.redis.event_log import RedisEventLog
from mcp_mirror.stores.redis.objects import ObjectRegistry, check_object_name
from mcp_mirror.stores.redis.records import (
    CHUNK,
    FORMAT,
    OTHER_FORMATS,
    KeyNames,
    ReadableValue,
    StoredValue,
    decode_name,
    encode_name,
)
from mcp_mirror.stores.redis.transfer import assemble, cut_span, stream_pieces
from mcp_mirror.system.slices import Pacer
from mcp_mirror.types import Buffer, Descriptor, FileSpan, Segments, Span, StoreStats, StoreTotals, Traffic

if TYPE_CHECKING:
    from mcp_mirror.stores.s3 import S3Blobs

_logger = logging.getLogger(__name__)

_SCRIPT: Final = Path(__file__).with_name("store.lua")
OBJECT_BYTES: Final = 64 << 10
"""Bytes above which a value is not an argument or a reply of the script but written before, as an object if there is a
bucket. Exchanges share the line, and each has the same time."""
_STAGED: Final = 1800
"""Seconds after which the chunks of an unfinished put expire."""
_OBJECT_PIECE: Final = 128 * SEALED_CHUNK
"""Bytes of an object that one request reads."""
_EXPIRED_PER_BATCH: Final = 32
"""Expired values that one call of the background task removes: others wait for it."""
_PAGE: Final = 256
"""Values that one call of the script lists."""

_DAMAGED: Final = (
    "The store's accounts in Redis are damaged: the server may have removed keys by itself. Set its `maxmemory-policy` "
    "to noeviction, and delete the keys that begin with `store.prefix`."
)
_LATE: Final = "The value took too long to reach the store. Call the tool again."
_LOST: Final = (
    "The object of a stored value is missing: a lifecycle rule of the bucket or another program removed it. Call the "
    "tool that created the value again, and correct the rule."
)
_NO_BLOBS: Final = (
    "The value is an object in a bucket, and this gateway has no `store.blobs`. Give all gateways of a store the same "
    "`store` section."
)
_REMOVED_BY_SERVER: Final = (
    "The store's Redis server has removed a stored value by itself. Set its `maxmemory-policy` to noeviction, and its "
    "`maxmemory` well above `store.max_bytes`: the gateways evict values themselves."
)
_EVICTS: Final = (
    "The store's Redis server removes values by itself when its memory is full (`maxmemory-policy` %s). Set "
    "noeviction: the gateways evict values themselves."
)
_OTHER_FORMAT: Final = (
    "The store's Redis server has %s of format %s, and this mcp-mirror knows format %s: it does not find them. Use "
    "the mcp-mirror that stored them until they expire, or call the tools again."
)
_TOO_SMALL: Final = (
    "`maxmemory` of the store's Redis server is %s, and `store.max_bytes` %s. Set `maxmemory` well above: a full "
    "server refuses values."
)


class RedisStore:
    """A `Store` in Redis."""

    def __init__(
        self,
        policy: StorePolicy,
        clock: Callable[[], float],
        folder: Callable[[], Path],
        objects: "S3Blobs | None" = None,
    ) -> None:
        """Configure the store, which connects with its first use; the clock returns seconds since the epoch.

        `folder` returns the folder for files of large values. `objects` is the bucket for large values; None: Redis has
        them. StoreError if the address is missing or not valid.
        """
        if policy.url is None:
            raise StoreError("`store.kind: redis` needs `store.url`, such as redis://127.0.0.1:6379/0.")
        self._policy, self._clock, self._folder = policy, clock, folder
        self._keys = KeyNames(f"{policy.prefix}{FORMAT}")
        self._redis = RedisConnection(policy.url, _SCRIPT.read_text(encoding="utf-8"), self._keys.beginning)
        self._encryptor = Encryptor(policy.encryption)
        self._codec = RecordCodec(self._encryptor)
        self.events: Final[EventLog] = EncryptedEventLog(RedisEventLog(self._redis, self._keys, clock), self._encryptor)
        self._expiry = round(policy.lifetime + TOMBSTONE_LIFETIME)
        """Seconds after which all keys but those of bytes expire: they describe a value after it has expired."""
        self._settings = {
            "lifetime": policy.lifetime,
            "blob_milliseconds": str(max(int(policy.lifetime * 1000), 1)),
            "expiry": str(self._expiry),
            "max_tombstones": MAX_TOMBSTONES,
            "namespace_tombstones": NAMESPACE_TOMBSTONES,
        }
        self._objects = objects
        self._registry = objects and ObjectRegistry(self._redis, self._keys, objects, clock, self._expiry)
        self._sweeper = ExpirySweeper(self._remove_expired)
        self._evicted = 0
        self._has_lost_values = False

    async def __aenter__(self) -> Self:
        """Log whether the server is available, may lose values, and has values of another format.

        The store works without the server until its first use. StoreError without file handles for the bucket.
        """
        if self._objects:
            await self._objects.start()
        with suppress(StoreError):
            await self._check_server()
        self._sweeper.start()
        return self

    async def _check_server(self) -> None:
        """Log why the server may lose values, and that it has values of another format."""
        if (limit := await self._call("memory_limit")) and limit[1]:
            kind, most = limit[0].decode(), limit[1]
            if kind != "noeviction":
                _logger.warning(_EVICTS, kind)
            elif most < self._policy.max_bytes and not self._objects:
                _logger.warning(_TOO_SMALL, format_bytes(most), format_bytes(self._policy.max_bytes))
        since = self._clock() - self._policy.lifetime
        orders = (KeyNames(f"{self._policy.prefix}{number}").of("order") for number in OTHER_FORMATS)
        counts = await self._redis.run([("ZCOUNT", order, since, "+inf") for order in orders])
        for number, values in zip(OTHER_FORMATS, counts, strict=True):
            if values:
                _logger.warning(_OTHER_FORMAT, format_count(values, "value"), number, FORMAT)

    async def __aexit__(self, *_: object) -> None:
        await self._sweeper.stop()
        await self._redis.aclose()

    async def _call(self, operation: str, *blobs: Buffer, is_write: bool = False, **arguments: Any) -> Any:
        """Call an operation of the script, with the settings that all of them have; see `RedisConnection.call`.

        Names among the arguments are encoded. Arguments that are None are left out.
        """
        given = {name: value for name, value in arguments.items() if value is not None}
        return await self._redis.call(
            operation, {**self._settings, "now": self._clock(), **given}, *blobs, is_write=is_write
        )

    async def check(self) -> None:
        """Make a write without effect, and list objects of the bucket."""
        await self._call("check", is_write=True)
        if self._registry:
            await self._registry.check()

    async def put(self, namespace: str, descriptor: Descriptor, blob: Segments, file: FileSpan | None = None) -> None:
        """Store a value. It becomes visible at once with all its bytes."""
        refuse_oversized(size := sum(len(segment) for segment in blob), self._policy.for_namespace(namespace))
        base = descriptor.base
        envelope = self._encryptor.new_envelope(namespace, base)
        origin = self._codec.encode(keep_origin(descriptor), self._encryptor.new_envelope(namespace, base))
        records = self._codec.encode(descriptor, envelope), origin
        value = StoredValue(encode_name(namespace), encode_name(base), secrets.token_hex(8), size)
        if size <= OBJECT_BYTES:
            stored = [piece async for piece in stream_pieces(blob, OBJECT_BYTES, size, envelope)]
            await self._enter(value, namespace, descriptor, *records, b"".join(stored))
            return
        if self._registry:
            value = value._replace(mark=await self._registry.begin_upload(), chunk=0)
        try:
            await self._upload(value, blob, envelope)
            await self._enter(value, namespace, descriptor, *records)
        except BaseException:
            with suppress(StoreError), anyio.CancelScope(shield=True):  # the bytes expire otherwise
                if self._registry:
                    await self._registry.give_up(value.mark)
                elif self._redis.is_up:
                    await self._call("discard", **value._asdict())
            raise

    async def _upload(self, value: StoredValue, blob: Segments, envelope: Envelope | None) -> None:
        """Write the bytes of a large value, which is not visible yet."""
        chunks, number = stream_pieces(blob, CHUNK, value.size, envelope), 0
        if self._objects:
            await self._objects.write(value.mark, chunks)
            return
        async for chunk in chunks:
            await self._redis.run([("SET", self._keys.blob(value, number), chunk, "EX", _STAGED)], is_large=True)
            number += 1

    async def _enter(self, value: StoredValue, namespace: str, descriptor: Descriptor, *blobs: Buffer) -> None:
        """Make room and the value visible, in several calls if many values must go.

        `blobs` are its record, the record of its tombstone, and its bytes unless they are uploaded.
        """
        policy = self._policy.for_namespace(namespace)
        outcome = b"again"
        while outcome == b"again":
            outcome, evicted, *free = await self._call(
                "put",
                *blobs,
                is_write=True,
                **value._asdict(),
                created=descriptor.created,
                label=encode_name(slug_of(descriptor.base)) or None,
                max_values=policy.max_values,
                max_bytes=policy.max_bytes,
                share_values=policy.share_values,
                share_bytes=policy.share_bytes,
                expired_per_put=EXPIRED_PER_PUT,
            )
            self._evicted += evicted
        self._sweeper.note_put()
        if outcome == b"reserved":
            raise build_reserved_error(value.size, free[0], policy)
        if outcome != b"stored":
            raise StoreError(_LATE if outcome == b"late" else _DAMAGED)

    async def _remove_expired(self) -> int:
        """Remove a batch of expired values, and of objects without a value. Returns 0 if nothing was removed."""
        removed = await self._call("expire", is_write=True, most=_EXPIRED_PER_BATCH)
        return int(removed) + (await self._registry.remove_garbage() if self._registry else 0)

    async def describe(self, namespace: str, base: str, *, will_read: bool = False) -> Descriptor | Tombstone | None:
        """The descriptor or tombstone of a value. Only a value that can be described counts as used."""
        owner, name = encode_name(namespace), encode_name(base)
        most = OBJECT_BYTES if will_read else -1
        reply = await self._call("describe", owner=owner, base=name, most=most)
        if reply is None:
            return None
        record, reason, used, *rest = reply
        self._warn_of_lost_values(reason == b"lost")
        if reason:
            with decoding():
                at = float(used)
            known = self._codec.decode(namespace, base, record) if record else None
            return known and Tombstone(known, "expired" if reason == b"expired" else "evicted", at)
        mark, size, chunk, content = rest
        try:
            known = self._codec.decode(namespace, base, record)
        except StoreError:  # the value was not used, so it keeps the time of its last use
            indexes = (self._keys.of("order"), f"{owner}:{name}"), (self._keys.of("order", owner), name)
            with suppress(StoreError):
                await self._redis.run([("ZADD", key, "XX", "LT", used, member) for key, member in indexes])
            raise
        known = msgspec.structs.replace(known, expires=self._clock() + self._policy.lifetime)
        if not will_read:
            return known
        with decoding():
            value = StoredValue(owner, name, mark.decode(), size, chunk)
            if value.is_object:
                check_object_name(value.mark)
        return ReadableValue(**msgspec.structs.asdict(known), place=value, head=record[:HEAD], content=content)

    def _warn_of_lost_values(self, lost: int) -> None:
        """Log, once, that keys of values are gone although no gateway has removed them; `lost` is their number."""
        if lost and not self._has_lost_values:
            self._has_lost_values = True
            _logger.warning(_REMOVED_BY_SERVER)

    async def read(
        self, namespace: str, base: str, span: Span | None = None, known: Descriptor | None = None
    ) -> Buffer | None:
        """The bytes of a value or of a range of it; a large range is a map of a file without a name."""
        found = known if isinstance(known, ReadableValue) else await self.describe(namespace, base, will_read=True)
        if not isinstance(found, ReadableValue):
            return None
        value, envelope = found.place, self._encryptor.find_envelope(namespace, base, found.head)
        if envelope and not value.size and found.size:
            raise StoreError(CHANGED)  # an empty value has no chunk to authenticate
        wanted = clamp_span(value.size, span)
        try:
            parts = self._stream_stored(found, wanted, is_sealed=envelope is not None)
            return await assemble(parts, value.size, wanted, envelope, self._folder)
        except ObjectMissingError:
            present = await self.describe(namespace, base, will_read=True)
            if isinstance(present, ReadableValue) and present.place.mark != value.mark:  # the value was replaced
                return await self.read(namespace, base, span, present)
            if isinstance(present, ReadableValue) and value.is_object:
                raise StoreError(_LOST) from None
            return None

    async def _stream_stored(self, found: ReadableValue, wanted: Span, *, is_sealed: bool) -> AsyncIterator[Buffer]:
        """The stored form of a range, in parts of complete encrypted chunks if it is encrypted.

        Raises:
            ObjectMissingError: The object or a chunk does not exist, or the chunk is too short.
            StoreError: The object cannot be read.
        """
        value = found.place
        stored = sealed_span(value.size, wanted) if is_sealed else wanted
        if value.is_object:
            if self._objects is None:
                raise StoreError(_NO_BLOBS)
            for part in cut_span(stored, _OBJECT_PIECE):
                yield await self._objects.read(value.mark, part)
            return
        chunk = sealed_size(value.chunk) if is_sealed else value.chunk
        for part in cut_span(stored, chunk):
            number, start = divmod(part.start, chunk)
            last = start + part.length - 1
            if found.content is None:
                command = ("GETRANGE", self._keys.blob(value, number), start, last)
                [read] = await self._redis.run([command], is_large=part.length > OBJECT_BYTES)
            else:
                read = found.content[start : last + 1]
            if len(read) != part.length:
                raise ObjectMissingError("A chunk of a stored value does not exist.")
            yield read

    async def file_of(self, namespace: str, base: str) -> FileSpan | None:
        """None: values are not in files."""
        return None

    async def delete(self, namespace: str, base: str) -> bool:
        return bool(await self._call("delete", is_write=True, owner=encode_name(namespace), base=encode_name(base)))

    async def list(
        self, namespace: str, *, after: str | None = None, slug: str = "", limit: int | None = None
    ) -> tuple[Descriptor, ...]:
        listed: list[Descriptor] = []
        pacer = Pacer()
        place: dict[str, Any] = {} if after is None else {"after": encode_name(after)}
        tool = encode_name(slug) or None
        while limit is None or len(listed) < limit:
            most = _PAGE if limit is None else min(limit - len(listed), _PAGE)
            page = await self._call("list", owner=encode_name(namespace), slug=tool, most=most, **place)
            if page is None:
                raise LookupError(after)
            lost, end, rows = page
            self._warn_of_lost_values(lost)
            with decoding():
                for base, used, record in rows:
                    pacer.begin()
                    if known := self._codec.decode_brief(namespace, decode_name(base), record):
                        expires = float(used) + self._policy.lifetime
                        listed.append(msgspec.structs.replace(known, expires=expires))
                    await pacer.end()
                place = {"follows": end.decode()}
            if not end:
                break
        return tuple(listed[:limit])

    async def bases_near(self, namespace: str, text: str, limit: int) -> tuple[str, ...]:
        lost, bases = await self._call("near", owner=encode_name(namespace), text=encode_name(text), most=limit)
        self._warn_of_lost_values(lost)
        with decoding():
            return tuple(map(decode_name, bases))

    async def stats(self, namespace: str) -> StoreStats:
        size, part = 0, None
        while True:
            reply = await self._call("stats", owner=encode_name(namespace), part=part)
            values, more, sent, kept_out, *parts = reply
            size += more
            if not parts:
                with decoding():
                    return StoreStats(values, size, Traffic(int(sent), int(kept_out)))
            [part] = parts

    async def totals(self) -> StoreTotals:
        values, size = await self._redis.run([("ZCARD", self._keys.of("order")), ("GET", self._keys.of("total"))])
        with decoding():
            return StoreTotals(values, int(size or 0), self._evicted)

    async def count(self, namespace: str, traffic: Traffic) -> None:
        owner, key = encode_name(namespace), self._keys.of("traffic")
        await self._redis.run(
            [
                ("HINCRBY", key, f"sent:{owner}", traffic.sent),
                ("HINCRBY", key, f"kept:{owner}", traffic.kept_out),
                ("EXPIRE", key, self._expiry),
            ]
        )

    async def namespaces(self) -> frozenset[str]:
        owners, fields = await self._redis.run(
            [("ZRANGE", self._keys.of("values"), 0, -1), ("HKEYS", self._keys.of("traffic"))]
        )
        counted = (field.partition(b":")[2] for field in fields)
        with decoding():
            return frozenset(map(decode_name, {*owners, *counted}))

    async def slugs(self, namespace: str | None = None) -> frozenset[str]:
        """The slugs of a namespace's values; those of all values and tombstones, or none during an outage."""
        if namespace is None and not self._redis.is_up:  # as the start of a gateway has just found
            return frozenset()
        try:
            names = await self._call("slugs", owner=None if namespace is None else encode_name(namespace))
        except StoreError:
            if namespace is None:
                return frozenset()
            raise
        with decoding():
            return frozenset(map(decode_name, names))
