"""Large values of the Redis store as objects in a bucket: which objects are needed, and which must go.

    <prefix>1:bucket                the folder of this store's objects in the bucket, chosen at random
    <prefix>1:objects               set: the objects of values
    <prefix>1:uploads               sorted set: objects that are being written, by the time at which that is given up
    <prefix>1:garbage               set: objects without a value, until they are removed

An object is in `uploads` before its first byte is written. The transaction that makes its value visible moves it to
`objects`, and only from `uploads`; the one that removes the value moves it to `garbage`. A killed gateway leaves its
object in `uploads`, from which another gateway moves it to `garbage` later. So every object is in one of the three, as
long as Redis keeps its data; a daily search of the bucket finds the others.
"""

import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from mcp_mirror.stores.redis.commands import Command, RedisCommands
from mcp_mirror.stores.redis.connection import Read, RedisConnection

if TYPE_CHECKING:
    from mcp_mirror.stores.s3 import S3Blobs

_UPLOAD_SECONDS: Final = 1800
"""Seconds after which an upload is given up."""
_AT_ONCE: Final = 16
"""Objects that one batch removes."""
_SEARCH_SECONDS: Final = 86_400
"""Seconds between two searches for objects that Redis does not know."""
_YOUNG: Final = 3600.0
"""Seconds for which such an object is kept."""


class ObjectRegistry:
    """Keeps the objects of a bucket and the index in Redis consistent."""

    def __init__(
        self, redis: RedisConnection, commands: RedisCommands, objects: "S3Blobs", clock: Callable[[], float]
    ) -> None:
        self._redis, self._commands, self._objects, self._clock = redis, commands, objects, clock
        self._keys = commands.keys

    async def check(self) -> None:
        """List objects; raise a `StoreError` if the bucket is not available."""
        async for _ in self._objects.list(await self._find_folder()):
            return

    async def begin_upload(self) -> str:
        """Choose the name of a new object, and record its upload."""
        name = f"{await self._find_folder()}/{secrets.token_hex(16)}"
        uploads = self._keys.of("uploads")
        begin = ("ZADD", uploads, self._clock() + _UPLOAD_SECONDS, name)
        await self._redis.run([begin, *self._commands.restart_expiry("uploads", "bucket")])
        return name

    async def give_up(self, name: str) -> None:
        """Mark the object of a failed put for removal, unless its value is visible because only a reply was lost."""

        async def plan(read: Read) -> Iterable[Command] | None:
            if await read("ZSCORE", self._keys.of("uploads"), name) is None:
                return None
            return self._commands.discard_uploads([name])

        await self._redis.transact(plan)

    async def remove_garbage(self) -> int:
        """Remove a batch of objects without a value. Returns the number of removed objects.

        Raises:
            StoreError: Redis or the object store failed; the objects are removed later.
        """
        await self._give_up_old_uploads()
        await self._search()
        garbage = self._keys.of("garbage")
        [found] = await self._redis.run([("SRANDMEMBER", garbage, _AT_ONCE)])
        if not found:
            return 0
        await self._objects.remove([name.decode() for name in found])
        await self._redis.run([("SREM", garbage, *found)])
        return len(found)

    async def _find_folder(self) -> str:
        key = self._keys.of("bucket")
        _, folder = await self._redis.run([("SET", key, secrets.token_hex(8), "NX"), ("GET", key)])
        return str(folder.decode())

    async def _give_up_old_uploads(self) -> None:
        uploads = self._keys.of("uploads")

        async def plan(read: Read) -> Iterable[Command] | None:
            old = await read("ZRANGE", uploads, "-inf", self._clock(), "BYSCORE", "LIMIT", 0, _AT_ONCE)
            return self._commands.discard_uploads([name.decode() for name in old]) if old else None

        await self._redis.transact(plan)

    async def _search(self) -> None:
        """Once a day, mark objects for removal that Redis does not know: it lost data, or an upload finished late."""
        searched = self._keys.of("searched")
        [is_due] = await self._redis.run([("SET", searched, 1, "NX", "EX", _SEARCH_SECONDS)])
        if not is_due:
            return
        old = self._clock() - _YOUNG
        async for page in self._objects.list(await self._find_folder()):
            if names := [name for name, created in page if created < old]:
                await self._discard_unknown(names)

    async def _discard_unknown(self, names: Sequence[str]) -> None:
        async def plan(read: Read) -> Iterable[Command] | None:
            uploads = await read("ZMSCORE", self._keys.of("uploads"), *names)
            values = await read("SMISMEMBER", self._keys.of("objects"), *names)
            unknown = [
                name for name, upload, value in zip(names, uploads, values, strict=True) if upload is None and not value
            ]
            return self._commands.discard_uploads(unknown) if unknown else None

        await self._redis.transact(plan)
