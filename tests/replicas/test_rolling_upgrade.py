"""Gateways are replaced one by one while clients store values."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from cluster import MISSING, REPLICAS, Cluster, start_cluster
from journeys import Writers, retrieve

if TYPE_CHECKING:
    from pathlib import Path


async def replace_gateway(cluster: Cluster, replica: str, writers: Writers) -> None:
    """Replace a gateway, while the writers write before, between and after."""
    await asyncio.to_thread(cluster.shut_down, replica)
    await writers.grown(8)
    cluster.launch(replica)
    await cluster.in_rotation(*REPLICAS)
    await writers.grown(8)


@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
@pytest.mark.timeout(240)
@pytest.mark.slow
async def test_gateways_are_replaced_one_by_one_without_a_failed_call(tmp_path: Path) -> None:
    async with start_cluster(tmp_path) as cluster:
        writers = Writers(cluster)
        async with writers.at_work():
            await writers.grown(8)
            for replica in REPLICAS:
                await replace_gateway(cluster, replica, writers)
        assert writers.failures == 0
        async with cluster.client() as (client, trail):
            for path, name in writers.acknowledged.items():
                assert await retrieve(client, f"{path}/name") == name
            assert set(trail.of()) == set(REPLICAS)
