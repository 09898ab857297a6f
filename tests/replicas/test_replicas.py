"""Several gateways share one memory: the journeys of `make replicas`, in short."""

from pathlib import Path

import pytest
from cluster import MISSING, start_cluster
from journeys import JOURNEYS, run_all


@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
@pytest.mark.timeout(240)
@pytest.mark.slow
async def test_replicas_behind_a_proxy_are_one_gateway_with_one_memory(tmp_path: Path) -> None:
    async with start_cluster(tmp_path) as cluster:
        assert len(await run_all(cluster, 6)) == len(JOURNEYS)
