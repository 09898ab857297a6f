"""Values for a store in Redis, and a store whose values expire in a minute."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from store_errors import time_store_error

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
async def opened(server: RedisProcess, tmp_path: Path, **keys: Any) -> AsyncIterator[RedisStore]:
    """Open a store with the keys of a configuration; its prefix on the server is the folder of the test."""
    settings: Any = {"kind": "redis", "url": server.url, "prefix": f"{tmp_path}:", "ttl": 60.0} | keys
    policy = StorePolicy(**settings)
    async with RedisStore(policy, time.time, lambda: tmp_path) as store:
        yield store


def our_keys(server: RedisProcess, tmp_path: Path) -> dict[str, int]:
    return server.keys(str(tmp_path))


def check_accounts(server: RedisProcess, tmp_path: Path) -> tuple[int, int]:
    """The values, the orders, the sums and the blobs say the same; gives how many bytes and values are kept."""
    prefix = f"{tmp_path}:2:"
    names = [name.decode() for name in server.run("ZRANGE", f"{prefix}order", 0, -1)]
    records = {name: server.run("HMGET", f"{prefix}value:{name}", "mark", "size", "chunk") for name in names}
    kept = [key.removeprefix(f"{prefix}value:") for key in server.keys(f"{prefix}value:")]
    assert {name for name in kept if server.run("HEXISTS", f"{prefix}value:{name}", "mark")} == set(names)
    sums: dict[str, tuple[int, int]] = {}
    for name, (mark, number, chunk) in records.items():
        size = int(float(number))  # may be in scientific notation
        keys = [f"{prefix}blob:{name}:{mark.decode()}:{n}" for n in range(-(-size // int(chunk)))]
        assert sum(server.run("STRLEN", key) for key in keys) == size
        owner = name.partition(":")[0]
        values, total = sums.get(owner, (0, 0))
        sums[owner] = values + 1, total + size
    for owner, (values, total) in sums.items():
        assert server.run("ZCARD", f"{prefix}order:{owner}") == values
        assert int(server.run("ZSCORE", f"{prefix}values", owner)) == values
        assert int(server.run("ZSCORE", f"{prefix}bytes", owner)) == total
    assert server.run("ZCARD", f"{prefix}values") == len(sums)
    total = sum(total for _, total in sums.values())
    assert int(server.run("GET", f"{prefix}total") or 0) == total
    return total, len(records)


SECRETS = ("127.0.0.1", "redis://", "hunter2", "t-9", "HSET")
"""Texts that no error quotes."""


async def refused(use: Awaitable[object]) -> tuple[str, float]:
    return await time_store_error(use, SECRETS)
