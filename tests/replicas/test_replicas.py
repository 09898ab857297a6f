"""Several gateways share one memory: the journeys of `make replicas`, in short."""

import asyncio
from pathlib import Path

import pytest
from cluster import BOUND, MISSING, REPLICAS, start_cluster
from journeys import JOURNEYS, run_all


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
        async with asyncio.timeout(BOUND):
            while len(without_ready_gateways(tmp_path)) == lines:  # noqa: ASYNC110  # another process writes the file
                await asyncio.sleep(0.01)
        assert not (await client.call_tool("measure_mirrored", {"text": "without"})).is_error
        async with cluster.client() as (other, _):
            for _ in range(4):
                assert not (await other.call_tool("measure_mirrored", {"text": "without"})).is_error
        cluster.redis.start()
        await cluster.in_rotation(*REPLICAS)
        async with cluster.client() as (other, after):
            for _ in range(4):
                assert not (await other.call_tool("make_grid_mirrored", {"size": 2})).is_error
        assert set(after.of()) == set(REPLICAS)
