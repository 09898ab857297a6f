"""Several gateways share one memory: the journeys of `make replicas`, in short."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from cluster import BOUND, MISSING, REPLICAS, start_cluster
from journeys import JOURNEYS, run_all
from mcp import Client
from waiting import until


@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
@pytest.mark.timeout(240)
@pytest.mark.slow
async def test_replicas_behind_a_proxy_are_one_gateway_with_one_memory(tmp_path: Path) -> None:
    async with start_cluster(tmp_path) as cluster:
        assert len(await run_all(cluster, 6)) == len(JOURNEYS)


def without_ready_gateways(folder: Path) -> list[str]:
    """The proxy's log lines of the moments from which no gateway was ready."""
    log = (folder / "haproxy.log").read_text()
    return [line for line in log.splitlines() if "backend 'gateways' has no server available" in line]


@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
@pytest.mark.timeout(240)
@pytest.mark.slow
async def test_calls_without_memory_continue_behind_the_proxy_without_redis(tmp_path: Path) -> None:
    async with start_cluster(tmp_path) as cluster, cluster.client(mode="legacy") as (client, _):
        assert not (await client.call_tool("measure_mirrored", {"text": "before"})).is_error
        lines = len(without_ready_gateways(tmp_path))
        cluster.redis.kill()
        await until(lambda: len(without_ready_gateways(tmp_path)) != lines)
        assert not (await client.call_tool("measure_mirrored", {"text": "without"})).is_error
        async with cluster.client() as (other, _):
            for _ in range(4):
                assert not (await other.call_tool("measure_mirrored", {"text": "without"})).is_error
        cluster.redis.start()
        await cluster.in_rotation(*REPLICAS)
        async with cluster.client() as (other, after), asyncio.timeout(BOUND):
            while set(after.of()) != set(REPLICAS):
                assert not (await other.call_tool("make_grid_mirrored", {"size": 2})).is_error


async def call_until(over: asyncio.Event, client: Client) -> int:
    """Call a tool that needs no memory, and return the number of calls."""
    calls = 0
    while not over.is_set():
        assert not (await client.call_tool("measure_mirrored", {"text": "without"})).is_error
        calls += 1
    return calls


@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
@pytest.mark.timeout(240)
@pytest.mark.slow
async def test_sessions_stay_at_their_gateways_while_these_become_ready(tmp_path: Path) -> None:
    async with start_cluster(tmp_path) as cluster, AsyncExitStack() as stack:
        clients = dict[str, Client]()
        while set(clients) != set(REPLICAS):
            client, trail = await stack.enter_async_context(cluster.client(mode="legacy"))
            clients[trail.of("initialize")[0]] = client
        over = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            calling = [tasks.create_task(call_until(over, client)) for client in clients.values()]
            for _ in range(3):
                lines = len(without_ready_gateways(tmp_path))
                cluster.redis.kill()
                await until(lambda: len(without_ready_gateways(tmp_path)) != lines)  # noqa: B023  # called at once
                cluster.redis.start()
                await cluster.in_rotation(*REPLICAS)
            over.set()
        assert all(task.result() > 3 for task in calling)
