"""Readiness with stores that fail or hang, and during a shutdown."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import anyio
import httpx2
import pytest
from starlette.responses import PlainTextResponse
from waiting import until

from mcp_mirror.errors import StoreError
from mcp_mirror.server.http.graceful_shutdown import ShutdownMiddleware
from mcp_mirror.server.http.probes import ProbeMiddleware, Readiness
from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.stores.memory import MemoryStore

if TYPE_CHECKING:
    from pathlib import Path

    from mcp_mirror.stores.base import Store


@dataclass
class FaultyStore:
    """A store that fails, or hangs until it is released."""

    store: Store
    released: anyio.Event = field(default_factory=anyio.Event)
    is_failing: bool = False
    lookups: int = 0

    async def describe(self, namespace: str, base: str) -> Any:
        self.lookups += 1
        await self.released.wait()
        if self.is_failing:
            raise StoreError("It is away.")
        return await self.store.describe(namespace, base)


@pytest.fixture
def store(tmp_path: Path) -> FaultyStore:
    return FaultyStore(MemoryStore(StorePolicy(), lambda: 0.0, lambda: tmp_path))


def build_readiness(store: FaultyStore, shutdown: anyio.Event | None = None) -> Readiness:
    addresses: list[Readiness] = []
    addresses.append(Readiness(cast("Store", store), cast("Any", ()), shutdown or anyio.Event(), addresses))
    return addresses[0]


async def get(readiness: Readiness, url: str, path: str = "/mcp") -> tuple[int, str]:
    app = ProbeMiddleware(PlainTextResponse("the application"), path, readiness)
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://gateway") as http:
        response = await http.get(url)
        return response.status_code, response.text


async def test_a_hanging_store_makes_probes_fail_in_time_and_gets_one_lookup(store: FaultyStore) -> None:
    readiness = build_readiness(store)
    async with readiness.running():
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                for _ in range(10):
                    tasks.start_soon(readiness.is_ready)
            assert not await readiness.is_ready()
        assert store.lookups == 1
        store.released.set()
        with anyio.fail_after(20):
            while not await readiness.is_ready():
                await anyio.lowlevel.checkpoint()


async def test_a_failing_store_is_asked_again_after_a_second(store: FaultyStore) -> None:
    store.released.set()
    store.is_failing = True
    readiness = build_readiness(store)
    async with readiness.running():
        assert not await readiness.is_ready()
        assert not await readiness.is_ready()
        assert store.lookups == 1
        store.is_failing = False
        await until(readiness.is_ready)


async def test_a_gateway_that_shuts_down_is_alive_and_not_ready(store: FaultyStore) -> None:
    store.released.set()
    shutdown = anyio.Event()
    readiness = build_readiness(store, shutdown)
    async with readiness.running():
        assert await get(readiness, "/readyz") == (200, "ok")
        shutdown.set()
        assert await get(readiness, "/readyz") == (503, "not ready")
        assert await get(readiness, "/healthz") == (200, "ok")


async def test_an_mcp_endpoint_at_the_path_of_a_probe_keeps_its_meaning(store: FaultyStore) -> None:
    readiness = build_readiness(store)
    assert await get(readiness, "/healthz", path="/healthz") == (200, "the application")


async def test_a_shutdown_waits_for_three_probes_and_for_none_if_nothing_probes(store: FaultyStore) -> None:
    store.released.set()
    shutdown = anyio.Event()
    readiness = build_readiness(store, shutdown)
    async with readiness.running():
        with anyio.fail_after(1):
            await readiness.wait_until_noticed(3600)
        assert await readiness.is_ready()
        shutdown.set()
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(readiness.wait_until_noticed, 3600)
                for _ in range(3):
                    await anyio.lowlevel.checkpoint()
                    assert not await readiness.is_ready()


@pytest.mark.parametrize(("headers", "status"), [({}, 503), ({"Mcp-Session-Id": "one"}, 404)])
async def test_a_request_during_a_shutdown_is_rejected_and_a_session_ended(
    headers: dict[str, str], status: int
) -> None:
    shutdown = anyio.Event()
    transport = httpx2.ASGITransport(ShutdownMiddleware(PlainTextResponse("the application"), shutdown))
    async with httpx2.AsyncClient(transport=transport, base_url="http://gateway") as http:
        assert (await http.post("/mcp", headers=headers)).status_code == 200
        shutdown.set()
        refused = await http.post("/mcp", headers=headers)
    assert refused.status_code == status
    assert refused.json()["error"]["message"].startswith("The gateway is stopping")


@dataclass(eq=False)
class Exchange:
    """The server's side of a request."""

    scope: dict[str, Any]
    sent: list[Any] = field(default_factory=list)

    async def receive(self) -> Any:
        return {"type": "http.request", "body": b""}

    async def send(self, message: Any) -> None:
        self.sent.append(message)


async def test_a_served_request_leaves_nothing_to_the_garbage_collector() -> None:
    app = ShutdownMiddleware(PlainTextResponse("the application"), anyio.Event())
    exchange = Exchange({"type": "http", "method": "POST", "headers": []})
    remains = weakref.ref(exchange)
    gc.disable()
    try:
        await app(exchange.scope, exchange.receive, exchange.send)
        assert exchange.sent
        del exchange
        assert remains() is None
    finally:
        gc.enable()
