"""The view of `memory_list` (MCP Apps): its resource, its data, and the view in a host with the official bridge."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.dashboard.browsing import NODE, NODE_MODULES, SHOTS, find_missing, open_browser
from tests.dashboard.samples import HOSTILE
from tests.end_to_end.conftest import SHOWS_VIEWS, open_lines
from waiting import until

from mcp_mirror.gateway.gateway import VIEW_URI
from mcp_mirror.server.memory_view import OVERVIEW, VIEW_TYPE, read_view

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Configured, OpenLines

__all__ = ["open_lines"]

LARGE = json.dumps({"content": [{"type": "text", "text": "word " * 5_000}]})


async def ask(client: Any, method: str, **params: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(await client.request(method, json.dumps(params)))
    return answer


async def list_tool(client: Any) -> dict[str, Any]:
    [found] = [one for one in (await ask(client, "tools/list"))["result"]["tools"] if one["name"] == "memory_list"]
    return dict(found)


async def test_only_clients_that_show_views_get_the_view(
    configured: Configured, raw: Any, open_lines: OpenLines
) -> None:
    async with open_lines(configured({"raw": raw()})) as client:
        await client.greet()
        assert "_meta" not in await list_tool(client)
        listed = (await ask(client, "resources/list"))["result"]["resources"]
        assert VIEW_URI not in [one["uri"] for one in listed]
        answer = await ask(client, "tools/call", name="memory_list", arguments={})
        assert "_meta" not in answer["result"]
    async with open_lines(configured({"raw": raw()})) as client:
        await client.greet(**SHOWS_VIEWS)
        assert (await list_tool(client))["_meta"] == {"ui": {"resourceUri": VIEW_URI}}
        listed = (await ask(client, "resources/list"))["result"]["resources"]
        [view] = [one for one in listed if one["uri"] == VIEW_URI]
        assert view["mimeType"] == VIEW_TYPE
        [content] = (await ask(client, "resources/read", uri=VIEW_URI))["result"]["contents"]
        assert (content["mimeType"], content["text"]) == (VIEW_TYPE, read_view())
        assert "http://" not in content["text"].replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in content["text"]


async def test_the_view_gets_figures_that_the_model_does_not_read(
    configured: Configured, raw: Any, open_lines: OpenLines
) -> None:
    async with open_lines(configured({"raw": raw()})) as client:
        await client.greet(**SHOWS_VIEWS)
        await client.text("say_mirrored", {"result": LARGE})
        response = await until(
            lambda: ask(client, "tools/call", name="memory_list", arguments={}),
            lambda found: json.loads(found["result"]["_meta"][OVERVIEW])["total"]["calls"],
        )
    result = response["result"]
    overview = json.loads(result["_meta"][OVERVIEW])
    assert OVERVIEW not in json.dumps(result["content"])
    assert overview["values"] == 1
    assert overview["total"]["kept_out"] > 1_000
    assert {"say_mirrored"} <= {one["name"] for one in overview["by_tool"]}
    assert [one["type"] for one in overview["lineage"]["nodes"]].count("value") == 1


def overview_of(**changes: Any) -> dict[str, Any]:
    money = {"avoided": 3.64, "shown": 0.006, "step_cost": 0.012, "net": 3.62}
    made = {"id": "call 1", "type": "call", "call": "1", "tool": "list_orders_mirrored", "upstream": "crm"}
    used = {"id": "call 2", "type": "call", "call": "2", "tool": "build_report_mirrored", "upstream": "reports"}
    path = "list_orders-5f0a3c52-0c1e-4a52-8f2b-000000000001"
    value = {"id": "value a", "type": "value", "path": path, "kind": "array", "bytes": 208_000, "removed": False}
    nodes = [{**made, "outcome": "stored"}, value, {**used, "outcome": "error"}]
    edges = [
        {"source": "call 1", "target": "value a", "part": ""},
        {"source": "value a", "target": "call 2", "part": "/0"},
    ]
    overview = {
        "values": 6, "bytes": 417_000, "days": 7, "model": "claude-sonnet",
        "total": {"calls": 55, "kept_out": 809_800, "sent": 9_700, "steps": 2, **money},
        "by_tool": [{"name": "list_orders_mirrored", "calls": 46, "kept_out": 753_700}],
        "lineage": {"nodes": nodes, "edges": edges, "cut": False},
        **changes,
    }  # fmt: skip
    return {"content": [{"type": "text", "text": "list"}], "_meta": {OVERVIEW: json.dumps(overview)}}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script of the host, bundled with the official packages."""
    bundle = tmp_path_factory.mktemp("host") / "host.js"
    entry = NODE_MODULES.parent / "host-of-views.mjs"
    entry.write_text((Path(__file__).parent / "host.mjs").read_text())
    try:
        rolldown = NODE_MODULES / "rolldown" / "bin" / "cli.mjs"
        command: list[str | Path] = [NODE, rolldown, entry, "--format", "iife", "-o", bundle]
        subprocess.run(command, check=True, capture_output=True, timeout=120, cwd=NODE_MODULES.parent)
    finally:
        entry.unlink()
    return bundle


@pytest.mark.slow
@pytest.mark.skipif(bool(find_missing()), reason=find_missing() or "-")
@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_the_view_works_in_a_host_with_the_official_bridge(host: Path, theme: str) -> None:
    async with open_browser() as browser:
        await browser("open", url="about:blank")
        await browser("script", path=str(host))
        script_arguments = [read_view(), overview_of(), overview_of(values=7), theme]
        started = await browser("evaluate", code=f"startHost(...{json.dumps(script_arguments)})")
        assert started["name"] == "mcp-mirror"
        await browser("frameWait", selector="svg g", text="list_orders_mirrored")
        [text] = await browser("frameText", selector="#content")
        for figure in ("809,800", "$3.62", "claude-sonnet", "753,700"):
            assert figure in text
        if SHOTS:
            await browser("shot", path=str(Path(SHOTS) / f"app-{theme}.png"))
        assert await browser("evaluate", code="host.sizes.at(-1) > 200")
        await browser("frameClick", selector="button")
        await browser("frameWait", selector=".card b", text="7")
        assert await browser("evaluate", code="host.calls[0].name") == "memory_list"
        assert await browser("problems") == []


@pytest.mark.slow
@pytest.mark.skipif(bool(find_missing()), reason=find_missing() or "-")
async def test_the_view_shows_hostile_names_as_text(host: Path) -> None:
    nodes = [{"id": HOSTILE, "type": "call", "call": HOSTILE, "tool": HOSTILE, "upstream": HOSTILE, "outcome": HOSTILE}]
    hostile = overview_of(
        model=HOSTILE,
        by_tool=[{"name": HOSTILE, "calls": 1, "kept_out": 1}],
        lineage={"nodes": nodes, "edges": [], "cut": False},
    )
    async with open_browser() as browser:
        await browser("open", url="about:blank")
        await browser("script", path=str(host))
        script_arguments = [read_view(), hostile, {"content": []}, "light"]
        await browser("evaluate", code=f"startHost(...{json.dumps(script_arguments)})")
        await browser("frameWait", selector="td", text="<img")
        assert await browser("frameText", selector="main img, main script, main iframe") == []
        await browser("frameClick", selector="button")
        await browser("frameWait", selector="p", text="has no figures")
        assert await browser("problems") == []
