"""The dashboard and the alerts, with a real Prometheus server that scrapes a real gateway."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from mcp import Client
from redis_process import free_port
from tests.end_to_end.conftest import BOUND

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Configured, Serve

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "mcp-mirror.json").read_text())
ALERTS = DEPLOY / "prometheus" / "alerts.yaml"
PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
needs_prometheus = pytest.mark.skipif(
    PROMETHEUS is None or PROMTOOL is None,
    reason="Prometheus is not installed (Debian and Ubuntu: apt-get install prometheus)",
)
VARIABLES = {"$__rate_interval": "30s", "$__range": "1m", "$job": ".*"}
LARGE = json.dumps({"content": [{"type": "text", "text": "a line of text\n" * 2000}]})


def read_expressions() -> list[str]:
    expressions = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    for name, value in VARIABLES.items():
        expressions = [one.replace(name, value) for one in expressions]
    return expressions


def test_panels_have_different_ids_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (column, line)
        for place in (panel["gridPos"] for panel in panels)
        for column in range(place["x"], place["x"] + place["w"])
        for line in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(column for column, _ in cells) < 24


@needs_prometheus
def test_promtool_accepts_the_alerts() -> None:
    assert PROMTOOL is not None
    checked = subprocess.run([PROMTOOL, "check", "rules", str(ALERTS)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


@asynccontextmanager
async def running_prometheus(target: str, folder: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """Run Prometheus with the alerts, and yield a client of its API."""
    assert PROMETHEUS is not None
    config, port = folder / "prometheus.yml", free_port()
    scrape = {"job_name": "mcp-mirror", "static_configs": [{"targets": [target]}]}
    settings = {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}}
    config.write_text(json.dumps({**settings, "rule_files": [str(ALERTS)], "scrape_configs": [scrape]}))
    command = (f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}")
    process = await asyncio.create_subprocess_exec(
        PROMETHEUS, *command, f"--web.listen-address=127.0.0.1:{port}", stdout=DEVNULL, stderr=DEVNULL
    )
    try:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=BOUND) as api:
            yield api
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), BOUND)


async def query(api: httpx2.AsyncClient, expression: str) -> list[Any]:
    """The samples of an expression; none while Prometheus starts."""
    with suppress(httpx2.TransportError):
        response = await api.get("/query", params={"query": expression})
        if response.status_code == 200:
            return list(response.json()["data"]["result"])
        assert response.status_code == 503, response.text
    return []


async def make_calls(url: str) -> None:
    async with Client(url) as client:
        for _ in range(3):
            await client.call_tool("say_mirrored", {"result": LARGE})
        with suppress(Exception):
            await client.call_tool("refuse_mirrored", {})
        with suppress(Exception):
            await client.call_tool("unknown", {})
    async with httpx2.AsyncClient(timeout=BOUND) as http:
        await http.post(url, headers={"host": "evil.example"})


@needs_prometheus
@pytest.mark.slow
async def test_each_dashboard_expression_has_data_and_an_alert_is_pending(
    serve: Serve, configured: Configured, raw: Any, tmp_path: Path
) -> None:
    port = free_port()
    upstreams = {"raw": raw(), "broken": {"command": "/nonexistent"}}
    server = {"metrics": f"127.0.0.1:{port}"}
    async with (
        serve(configured(upstreams, server=server)) as served,
        running_prometheus(f"127.0.0.1:{port}", tmp_path) as api,
        asyncio.timeout(2 * BOUND),
    ):
        missing = read_expressions()
        assert len(missing) > 30
        while missing:
            await make_calls(served.url)
            found = await asyncio.gather(*(query(api, one) for one in missing))
            missing = [one for one, samples in zip(missing, found, strict=True) if not samples]
            await asyncio.sleep(0.5)
        groups = (await api.get("/rules")).json()["data"]["groups"]
        rules = {rule["name"]: rule for group in groups for rule in group["rules"]}
        assert {rule["health"] for rule in rules.values()} == {"ok"}
        assert rules["McpMirrorUpstreamDown"]["state"] == "pending"
        assert rules["McpMirrorStoreDown"]["state"] == "inactive"


@needs_prometheus
async def test_promtool_accepts_the_metrics(serve: Serve, configured: Configured, raw: Any) -> None:
    assert PROMTOOL is not None
    port = free_port()
    async with serve(configured({"raw": raw()}, server={"metrics": f"127.0.0.1:{port}"})) as served:
        await make_calls(served.url)
        async with httpx2.AsyncClient(timeout=BOUND) as http:
            text = (await http.get(f"http://127.0.0.1:{port}/metrics")).text
    check = await asyncio.create_subprocess_exec(PROMTOOL, "check", "metrics", stdin=PIPE, stdout=PIPE, stderr=PIPE)
    _, problems = await asyncio.wait_for(check.communicate(text.encode()), BOUND)
    assert (check.returncode, problems) == (0, b"")
