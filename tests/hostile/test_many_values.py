"""Many stored values: lists, statistics and mistyped paths cost a bounded amount of work for every principal."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.hostile.conftest import FULL
from tests.integration.conftest import memory_over
from tests.load import slowness

from mcp_mirror.memory.lookup_errors import unknown_path_error
from mcp_mirror.memory.resources import list_values
from mcp_mirror.settings.store import StoreKind, StorePolicy
from mcp_mirror.stores.disk.store import DiskStore
from mcp_mirror.stores.memory import MemoryStore
from mcp_mirror.stores.redis.store import RedisStore
from mcp_mirror.types import Descriptor, Member, Provenance, Span

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from redis_process import RedisProcess
    from tests.integration.conftest import MemoryOver

    from mcp_mirror.stores.base import Store

__all__ = ["memory_over"]

VALUES = 20_000 if FULL else 3_000
ASKERS = 4
ROUNDS = 5
MEDIAN = 0.1
"""Seconds for four askers at once on a busy machine; on an idle one it is a tenth of that."""


def based(number: int) -> str:
    return f"grid-{number * 2654435761 % (1 << 32):08x}-89ab-4cde-8f01-23456789abcd"


@asynccontextmanager
async def opened(kind: str, test: pytest.FixtureRequest, folder: Path) -> AsyncIterator[Store]:
    redis: dict[str, Any] = {}
    if kind == "redis":
        server: RedisProcess = test.getfixturevalue("redis_server")
        redis = {"url": server.url, "prefix": f"{folder}:"}
    policy = StorePolicy(kind=cast("StoreKind", kind), fsync=False, **redis)
    stores: dict[str, Callable[[], Any]] = {
        "memory": lambda: MemoryStore(policy, time.time, lambda: folder),
        "disk": lambda: DiskStore(policy, time.time, folder / "store"),
        "redis": lambda: RedisStore(policy, time.time, lambda: folder),
    }
    async with stores[kind]() as store:
        yield store


async def fill(store: Store, namespace: str, count: int) -> None:
    members = tuple(Member(f"key {number}", Span(number, 2)) for number in range(20))
    now = time.time()

    async def put(number: int) -> None:
        made = now + number / VALUES
        known = Descriptor(based(number), "object", 9, 1, members, made, made + 9e5, Provenance("up", "grid", "0" * 64))
        await store.put(namespace, known, (b'{"a":[1]}',))

    for start in range(0, count, 50):
        await asyncio.gather(*(put(number) for number in range(start, start + 50)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "disk", "redis"])
@pytest.mark.timeout(600)
async def test_four_askers_of_many_values_wait_for_none_of_them(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, memory_over: MemoryOver
) -> None:
    async with opened(kind, request, tmp_path) as store:
        await fill(store, "me", VALUES)
        await fill(store, "you", VALUES)
        memory = memory_over(store)
        text = f"{based(VALUES // 2)[:-1]}0"

        async def mistyped() -> None:
            assert based(VALUES // 2) in str(await unknown_path_error(store, "me", text))

        async def page() -> None:
            assert len((await list_values(memory, "me", based(VALUES // 2)))[0]) == 100

        async def stats() -> None:
            assert (await store.stats("me")).values == VALUES

        for name, ask in (("a mistyped path", mistyped), ("a page", page), ("statistics", stats)):
            times = await measured(ask)
            print(f"{kind}, {VALUES:,} values, {name}: {1000 * times[0]:.1f} ms, at most {1000 * times[-1]:.1f} ms")  # noqa: T201  # for runs with -s
            assert times[len(times) // 2] < MEDIAN * slowness(), name


async def measured(ask: Callable[[], Awaitable[None]]) -> list[float]:
    """Seconds that each of some askers at once waits, sorted."""

    async def time_one() -> float:
        began = time.perf_counter()
        await ask()
        return time.perf_counter() - began

    rounds = [await asyncio.gather(*(time_one() for _ in range(ASKERS))) for _ in range(ROUNDS)]
    return sorted(took for one in rounds for took in one)
