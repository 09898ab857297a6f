"""Results of tools with a view (MCP Apps): whole for clients that show views, captured for others."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.conftest import SHOWS_VIEWS, Configured, OpenLines

LARGE = json.dumps({"text": "word " * 5_000})
RENAMED = "page.of/text"
"""Its twin has another name, because not all clients accept this one."""
TOOL: dict[str, Any] = {
    "name": "page",
    "inputSchema": {"type": "object"},
    "_meta": {"ui": {"resourceUri": "ui://page"}},
}


@pytest.fixture
def tools(tmp_path: Path) -> str:
    """The file with the tools of the upstream."""
    path = tmp_path / "tools.json"
    path.write_text(json.dumps([TOOL, {**TOOL, "name": RENAMED}]))
    return str(path)


@pytest.mark.parametrize(
    "case",
    [
        (SHOWS_VIEWS, {}, True),
        ({}, {}, False),
        ({"extensions": {"io.modelcontextprotocol/other": {}}}, {}, False),
        (SHOWS_VIEWS, {"overrides": {"page": {"capture": "auto"}}}, False),
        ({}, {"overrides": {"page": {"capture": "never"}}}, True),
    ],
)
async def test_a_result_with_a_view_is_whole_only_for_a_client_that_shows_views(
    configured: Configured,
    raw: Any,
    open_lines: OpenLines,
    tools: str,
    case: tuple[dict[str, Any], dict[str, Any], bool],
) -> None:
    capabilities, keys, is_whole = case
    config = configured({"views": raw("ok", "--tools", tools, **keys)})
    async with open_lines(config) as client:
        await client.greet(**capabilities)
        [listed] = [
            one
            for one in json.loads(await client.request("tools/list"))["result"]["tools"]
            if one["name"] == "page_mirrored"
        ]
        assert listed["_meta"] == TOOL["_meta"]
        shown = await client.text("page_mirrored", json.loads(LARGE))
        assert (shown.count("word ") >= 5_000) is is_whole
        assert shown.startswith('"page-') is not is_whole


@pytest.mark.parametrize("name", ["page", RENAMED])
@pytest.mark.parametrize("shows_views", [True, False])
async def test_a_view_calls_a_tool_by_the_name_that_its_server_knows(
    configured: Configured, raw: Any, open_lines: OpenLines, tools: str, name: str, *, shows_views: bool
) -> None:
    config = configured({"views": raw("ok", "--tools", tools)})
    async with open_lines(config) as client:
        await client.greet(**(SHOWS_VIEWS if shows_views else {}))
        shown = await client.text(name, json.loads(LARGE))
        assert (shown.count("word ") >= 5_000) is shows_views
        assert shown.startswith(f"Unknown tool '{name}'") is not shows_views
        assert (await client.text("none", {})).startswith("Unknown tool 'none'")


@pytest.mark.parametrize("name", ["page", RENAMED])
async def test_a_view_calls_no_tool_whose_name_several_servers_have(
    configured: Configured, raw: Any, open_lines: OpenLines, tools: str, name: str
) -> None:
    config = configured({upstream: raw("ok", "--tools", tools) for upstream in ("a", "b")})
    async with open_lines(config) as client:
        await client.greet(**SHOWS_VIEWS)
        assert (await client.text(name, {})).startswith(f"Unknown tool '{name}'")
