"""Values for a store in Redis, and a store whose values expire in a minute."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.stores.redis.store import RedisStore
from mcp_mirror.types import Descriptor, Provenance

if TYPE_CHECKING:
    from redis_process import RedisProcess


def descriptor(base: str, size: int = 1) -> Descriptor:
    """Return the descriptor of a text of some bytes that expires in a minute."""
    now = time.time()
    return Descriptor(base, "text", size, 1, (), now, now + 60, Provenance("up", "tool", "0" * 64))


async def put(store: RedisStore, base: str, blob: bytes = b'"x"', namespace: str = "me") -> None:
    """Store a text."""
    await store.put(namespace, descriptor(base, len(blob)), (blob,))


@asynccontextmanager
async def opened(server: "RedisProcess", tmp_path: Path, **keys: Any) -> AsyncIterator[RedisStore]:
    """Open a store with the keys of a configuration; its prefix on the server is the folder of the test."""
    settings: Any = {"kind": "redis", "url": server.url, "prefix": f"{tmp_path}:", "ttl": 60.0} | keys
    policy = StorePolicy(**settings)
    async with RedisStore(policy, time.time, lambda: tmp_path) as store:
        yield store
