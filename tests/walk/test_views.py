"""Results of tools with a view (MCP Apps): whole for clients that show views, captured for others."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.walk.conftest import Configured, OpenLines

SHOWS_VIEWS = {"extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]}}}
LARGE = json.dumps({"text": "word " * 5_000})


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
    tmp_path: Path,
    case: tuple[dict[str, Any], dict[str, Any], bool],
) -> None:
    capabilities, keys, is_whole = case
    tools = tmp_path / "tools.json"
    tool = {"name": "page", "inputSchema": {"type": "object"}, "_meta": {"ui": {"resourceUri": "ui://page"}}}
    tools.write_text(json.dumps([tool]))
    config = configured({"views": raw("ok", "--tools", str(tools), **keys)})
    async with open_lines(config) as client:
        await client.greet(**capabilities)
        [listed] = [
            one
            for one in json.loads(await client.request("tools/list"))["result"]["tools"]
            if one["name"] == "page_mirrored"
        ]
        assert listed["_meta"] == tool["_meta"]
        shown = await client.text("page_mirrored", json.loads(LARGE))
        assert (shown.count("word ") >= 5_000) is is_whole
        assert shown.startswith('"page-') is not is_whole
