"""Large values of the Redis store as objects in a bucket: which objects are needed, and which must go.

    <prefix>2:bucket                the folder of this store's objects in the bucket, chosen at random
    <prefix>2:objects               sorted set: the objects by their state

The state of an object is -1 if a value needs it, 0 if it must be removed, and during an upload the time at which that
is given up. An object is in the set before its first byte is written. The call that makes its value visible requires
an upload, and changes the state to -1; the removal of the value changes it to 0. A killed gateway leaves an upload,
which another gateway gives up later. So every object is in the set as long as Redis keeps its data; a daily search of
the bucket finds the others.
"""

import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from mcp_mirror.stores.redis.connection import Command, RedisConnection, decoding
from mcp_mirror.stores.redis.records import KeyNames
from mcp_mirror.system.patterns import lazy_pattern

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
_FOLDER: Final = lazy_pattern(r"[0-9a-f]{16}")
_NAME: Final = lazy_pattern(rf"{_FOLDER.pattern}/[0-9a-f]{{32}}")


def check_object_name(name: str) -> None:
    """Raise a `ValueError` for a name that no gateway chose: who can write to Redis must not reach other objects."""
    if not _NAME.fullmatch(name):
        raise ValueError


class ObjectRegistry:
    """Keeps the objects of a bucket and the index in Redis consistent."""

    def __init__(
        self, redis: RedisConnection, keys: KeyNames, objects: "S3Blobs", clock: Callable[[], float], expiry: int
    ) -> None:
        """Use the connection of a store; the clock returns seconds, and unused keys expire after `expiry` seconds."""
        self._redis, self._objects, self._clock = redis, objects, clock
        self._key, self._bucket, self._searched = keys.of("objects"), keys.of("bucket"), keys.of("searched")
        self._restart_expiry: Sequence[Command] = [("EXPIRE", key, expiry) for key in (self._key, self._bucket)]

    async def check(self) -> None:
        """List objects; raise a `StoreError` if the bucket is not available."""
        async for _ in self._objects.list(await self._find_folder()):
            return

    async def begin_upload(self) -> str:
        """Choose the name of a new object, and record its upload."""
        name = f"{await self._find_folder()}/{secrets.token_hex(16)}"
        await self._redis.run([("ZADD", self._key, self._clock() + _UPLOAD_SECONDS, name), *self._restart_expiry])
        return name

    async def give_up(self, *names: str | bytes) -> None:
        """Mark objects for removal, unless a value needs them."""
        await self._redis.run([("ZADD", self._key, "XX", "LT", 0, name) for name in names])

    async def remove_garbage(self) -> int:
        """Remove a batch of objects without a value, and return the number of removed objects.

        After a `StoreError`, they are removed later.
        """
        [late] = await self._redis.run([("ZRANGE", self._key, "(0", self._clock(), "BYSCORE", "LIMIT", 0, _AT_ONCE)])
        if late:
            await self.give_up(*late)
        [is_due] = await self._redis.run([("SET", self._searched, 1, "NX", "EX", _SEARCH_SECONDS)])
        if is_due:  # Redis may not know an object: it lost data, or an upload finished late
            old = self._clock() - _YOUNG
            async for page in self._objects.list(await self._find_folder()):
                if unknown := [("ZADD", self._key, "NX", 0, name) for name, created in page if created < old]:
                    await self._redis.run([*unknown, *self._restart_expiry])
        [found] = await self._redis.run([("ZRANGE", self._key, 0, 0, "BYSCORE", "LIMIT", 0, _AT_ONCE)])
        if found:
            names = (name.decode("utf-8", "replace") for name in found)
            if own := [name for name in names if _NAME.fullmatch(name)]:
                await self._objects.remove(own)
            await self._redis.run([("ZREM", self._key, *found)])
        return len(found)

    async def _find_folder(self) -> str:
        chosen = secrets.token_hex(8)
        _, folder, *_ = await self._redis.run(
            [("SET", self._bucket, chosen, "NX"), ("GET", self._bucket), *self._restart_expiry]
        )
        with decoding():
            name = str(folder.decode())
            if not _FOLDER.fullmatch(name):
                raise ValueError
        return name
