"""The probes `/healthz` and `/readyz` of a real gateway."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import signal
import sys
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from http_sessions import META
from mcp import Client
from redis_process import free_port
from samples import sample
from tests.end_to_end.conftest import BOUND
from waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from redis_process import RedisProcess
    from tests.end_to_end.conftest import Configured, Serve, Served

LIVE, READY, NOT_READY = (200, "ok"), (200, "ok"), (503, "not ready")
TOKEN_HASH = f"sha256:{'0' * 64}"


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(timeout=BOUND) as client:
        yield client


@pytest.fixture
def serve_probed(serve: Serve, http: httpx2.AsyncClient) -> Serve:
    """Starts the gateway on HTTP. At the end a probe sees the shutdown, for which the gateway would wait for 5 s."""

    @contextlib.asynccontextmanager
    async def serve_gateway(*args: Any) -> AsyncIterator[Served]:
        async with serve(*args) as served:
            yield served
            served.process.send_signal(signal.SIGTERM)
            await probe_until_the_end(http, served)

    return serve_gateway


def url_of(served: Served, path: str) -> str:
    return served.url.removesuffix("/mcp") + path


async def probe(http: httpx2.AsyncClient, served: Served, path: str, **headers: str) -> tuple[int, str]:
    """Status and body of a probe over a connection of its own."""
    response = await http.get(url_of(served, path), headers={"connection": "close", **headers})
    return response.status_code, response.text


async def await_readiness(http: httpx2.AsyncClient, served: Served, wanted: tuple[int, str]) -> None:
    await until(lambda: probe(http, served, "/readyz"), lambda found: found == wanted)


async def probe_until_the_end(http: httpx2.AsyncClient, served: Served) -> set[tuple[int, str]]:
    """Probe readiness until the gateway accepts no more connections, and return the different answers."""
    answers: set[tuple[int, str]] = set()
    with contextlib.suppress(httpx2.TransportError):
        async with asyncio.timeout(BOUND):
            while True:
                answers.add(await probe(http, served, "/readyz"))
    return answers


async def test_probes_need_neither_token_nor_host_and_show_no_details(
    serve_probed: Serve, configured: Configured, raw: Any, http: httpx2.AsyncClient
) -> None:
    auth = {"tokens": {"alice": TOKEN_HASH}}
    async with serve_probed(configured({"raw": raw()}, auth=auth)) as served:
        await await_readiness(http, served, READY)
        for host in ("10.1.2.3:8000", "evil.example.com"):
            assert await probe(http, served, "/healthz", host=host) == LIVE
            assert await probe(http, served, "/readyz", host=host) == READY
        head = await http.head(url_of(served, "/readyz"))
        assert (head.status_code, head.content, head.headers["cache-control"]) == (200, b"", "no-store")
        for method in ("POST", "DELETE", "OPTIONS"):
            assert (await http.request(method, url_of(served, "/healthz"))).status_code == 401
        assert (await http.get(url_of(served, "/healthz/"))).status_code == 401


async def test_a_gateway_is_ready_when_each_upstream_was_tried(
    serve_probed: Serve, configured: Configured, raw: Any, http: httpx2.AsyncClient, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    upstreams = {"slow": raw("ok", "--gate", str(gate)), "broken": {"command": "/nonexistent"}}
    async with serve_probed(configured(upstreams)) as served:
        assert await probe(http, served, "/healthz") == LIVE
        assert await probe(http, served, "/readyz") == NOT_READY
        gate.touch()
        await await_readiness(http, served, READY)


@pytest.mark.posix
async def test_a_reload_that_adds_a_slow_upstream_keeps_the_gateway_ready(
    serve_probed: Serve, configured: Configured, raw: Any, http: httpx2.AsyncClient, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    async with serve_probed(configured({"raw": raw()})) as served:
        await await_readiness(http, served, READY)
        configured({"raw": raw(), "slow": raw("ok", "--gate", str(gate))})
        served.process.send_signal(signal.SIGHUP)
        await until(lambda: b"slow (added)" in b"".join(served.stderr))
        assert await probe(http, served, "/readyz") == READY
        gate.touch()


async def test_a_gateway_is_ready_only_while_required_upstreams_are_connected(
    serve_probed: Serve, configured: Configured, raw: Any, http: httpx2.AsyncClient, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    start = shlex.join([sys.executable, *raw()["args"]])
    program = {"command": "/bin/sh", "args": ["-c", f"test -e {shlex.quote(str(gate))} && exec {start}"]}
    upstreams = {"raw": {**program, "required": True, "scope": "shared"}, "other": raw()}
    async with serve_probed(configured(upstreams)) as served, Client(served.url) as client:
        await await_readiness(http, served, READY)
        gate.unlink()
        await client.call_tool("raw_die_mirrored", {})
        await await_readiness(http, served, NOT_READY)
        assert await probe(http, served, "/healthz") == LIVE
        gate.touch()
        await await_readiness(http, served, READY)


@pytest.mark.parametrize("fault", sample(["kill", "pause"], "kill".__eq__))
async def test_a_gateway_without_its_store_is_not_ready(
    fault: str, serve_probed: Serve, configured: Configured, raw: Any, own_redis: RedisProcess, http: httpx2.AsyncClient
) -> None:
    config = configured({"raw": raw()}, store={"kind": "redis", "url": own_redis.url, "path": None})
    async with serve_probed(config) as served:
        await await_readiness(http, served, READY)
        getattr(own_redis, fault)()
        await await_readiness(http, served, NOT_READY)
        assert await probe(http, served, "/healthz") == LIVE
        own_redis.start() if fault == "kill" else own_redis.resume()
        await await_readiness(http, served, READY)


async def test_probes_are_answered_at_the_limits_of_requests(
    serve_probed: Serve, configured: Configured, raw: Any, http: httpx2.AsyncClient, tmp_path: Path
) -> None:
    started, end = tmp_path / "started", tmp_path / "end"
    limits = {"requests_per_principal": 1, "calls_per_minute": 1}
    async with serve_probed(configured({"raw": raw()}, limits=limits)) as served:
        await await_readiness(http, served, READY)
        params = {"name": "hang_mirrored", "arguments": {"started": str(started), "until": str(end)}}
        headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "hang_mirrored"}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {**params, "_meta": META}}
        accept = {"accept": "application/json, text/event-stream"}
        call = asyncio.create_task(http.post(served.url, json=body, headers={**accept, **headers}))
        await until(started.exists)
        assert (await http.post(served.url, json=body, headers={**accept, **headers})).status_code == 429
        for _ in range(5):
            assert await probe(http, served, "/readyz") == READY
        end.touch()
        assert (await call).status_code == 200


@pytest.mark.posix
@pytest.mark.skipif(sys.platform != "linux", reason="workers need Linux")
async def test_each_worker_answers_probes(
    serve_probed: Serve, configured: Configured, raw: Any, http: httpx2.AsyncClient
) -> None:
    async with serve_probed(configured({"raw": raw()}, store={"kind": "disk"}), "--workers", "2") as served:
        await await_readiness(http, served, READY)
        for _ in range(20):
            assert await probe(http, served, "/healthz") == LIVE


@pytest.mark.posix
async def test_a_probed_gateway_serves_until_the_probe_sees_the_shutdown(
    serve: Serve, configured: Configured, raw: Any, http: httpx2.AsyncClient
) -> None:
    async with serve(configured({"raw": raw()})) as served, Client(served.url) as client:
        await await_readiness(http, served, READY)
        served.process.send_signal(signal.SIGTERM)
        await await_readiness(http, served, NOT_READY)
        assert await probe(http, served, "/healthz") == LIVE
        assert not (await client.call_tool("hear_mirrored", {})).is_error
        assert await probe_until_the_end(http, served) <= {NOT_READY}
    assert await served.process.wait() == 0


@pytest.mark.posix
@pytest.mark.parametrize("noticed", ["neither", "endpoint", "metrics"])
async def test_probes_at_the_address_of_the_metrics_delay_the_shutdown_too(
    noticed: str, serve: Serve, configured: Configured, raw: Any, http: httpx2.AsyncClient
) -> None:
    port = free_port()
    config = configured({"raw": raw()}, server={"metrics": f"127.0.0.1:{port}"})

    async def probe_metrics() -> tuple[int, str]:
        response = await http.get(f"http://127.0.0.1:{port}/readyz")
        return response.status_code, response.text

    async with serve(config) as served, Client(served.url) as client:
        if noticed != "neither":
            await await_readiness(http, served, READY)
        await until(probe_metrics, lambda found: found == READY)
        served.process.send_signal(signal.SIGTERM)
        await until(probe_metrics, lambda found: found == NOT_READY)
        if noticed == "metrics":  # what probes the other address knows nothing yet
            assert [await probe_metrics() for _ in range(5)] == 5 * [NOT_READY]
        elif noticed == "endpoint":
            assert [await probe(http, served, "/readyz") for _ in range(5)] == 5 * [NOT_READY]
        assert not (await client.call_tool("hear_mirrored", {})).is_error
    assert await served.process.wait() == 0


@pytest.mark.posix
async def test_a_gateway_that_nothing_probes_shuts_down_at_once(
    serve: Serve, configured: Configured, raw: Any, http: httpx2.AsyncClient
) -> None:
    async with serve(configured({"raw": raw()}, server={"drain": 60})) as served:
        assert await probe(http, served, "/healthz") == LIVE
        served.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            assert await served.process.wait() == 0
