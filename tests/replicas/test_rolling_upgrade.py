"""Gateways of an earlier version are replaced one by one while clients store values."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest
from cluster import BOUND, MISSING, REPLICAS, Cluster, start_cluster
from journeys import Writers, add_up, make, retrieve

ROOT = Path(__file__).parents[2]
PREVIOUS = "43e9b2736c4b07c74fc5d39ccb404dd71f96cf78"
"""The commit of the earlier version."""


@pytest.fixture
def previous_sources(tmp_path: Path) -> Path:
    """The package of the earlier version, from the history of this checkout."""
    git = shutil.which("git")
    command = [str(git), "-C", str(ROOT), "archive", PREVIOUS, "src"]
    archived = subprocess.run(command, capture_output=True, check=False) if git else None
    if archived is None or archived.returncode:
        pytest.skip("the history of this checkout does not have the earlier version")
    with tarfile.open(fileobj=BytesIO(archived.stdout)) as archive:
        archive.extractall(tmp_path / "previous", filter="data")
    return tmp_path / "previous" / "src"


async def replace_gateway(cluster: Cluster, replica: str, writers: Writers) -> None:
    """Replace a gateway by one of the present version, while the writers write before, between and after."""
    await asyncio.to_thread(cluster.shut_down, replica)
    await writers.grown(8)
    cluster.launch(replica)
    await cluster.in_rotation(*REPLICAS)
    await writers.grown(8)


@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
@pytest.mark.timeout(240)
@pytest.mark.slow
async def test_gateways_are_upgraded_one_by_one_without_a_lost_value(tmp_path: Path, previous_sources: Path) -> None:
    async with start_cluster(tmp_path, previous_sources) as cluster:
        writers = Writers(cluster)
        async with writers.at_work():
            await writers.grown(8)
            for replica in REPLICAS:
                await replace_gateway(cluster, replica, writers)
            # Gateways of the present version are replaced without a failed call: they wait until the proxy knows.
            before = writers.failures
            for replica in REPLICAS:
                await replace_gateway(cluster, replica, writers)
            assert writers.failures == before
        async with cluster.client() as (client, trail):
            for path, name in writers.acknowledged.items():
                assert await retrieve(client, f"{path}/name") == name
            assert set(trail.of()) == set(REPLICAS)


@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
@pytest.mark.timeout(240)
@pytest.mark.slow
async def test_two_versions_use_the_values_of_each_other(tmp_path: Path, previous_sources: Path) -> None:
    async with start_cluster(tmp_path, previous_sources) as cluster:
        await asyncio.to_thread(cluster.shut_down, "two")
        cluster.launch("two")
        await cluster.in_rotation(*REPLICAS)
        async with (
            asyncio.timeout(2 * BOUND),
            cluster.client(cluster.url_of("one")) as (earlier, _),
            cluster.client(cluster.url_of("two")) as (present, _),
        ):
            for maker, user in ((earlier, present), (present, earlier)):
                path = await make(maker)
                assert await add_up(user, path) == await add_up(maker, path)
