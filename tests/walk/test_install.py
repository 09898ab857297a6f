"""The gateway installed in a client: the command in its file serves the servers that stood there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from notices import path_in

if TYPE_CHECKING:
    from pathlib import Path

    from tests.walk.conftest import Run


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path))


async def test_what_is_installed_serves_the_clients_servers(chemist: dict[str, Any], run: Run, tmp_path: Path) -> None:
    file = tmp_path / "Claude" / "claude_desktop_config.json"
    before = {"scale": 2, "mcpServers": {"chemist": chemist}}
    file.parent.mkdir()
    file.write_text(json.dumps(before))
    ended = await run("install", "claude-desktop")
    assert ended.code == 0, ended.err
    path = path_in(await call(file, "make_grid_mirrored", size=30))
    assert await call(file, "total_mirrored", grid=f"{path}/grid") == "1188000.0"  # the client was started anew
    assert (await run("uninstall", "claude-desktop")).code == 0
    assert json.loads(file.read_text()) == before


async def call(file: Path, tool: str, **arguments: Any) -> str:
    """What a client that starts the only server in this file reads of a call; the client ends then."""
    [entry] = json.loads(file.read_text())["mcpServers"].values()
    home = {"HOME": str(file.parents[1]), "XDG_DATA_HOME": str(file.parents[1])}
    async with Client(stdio_client(StdioServerParameters(**entry, env=home))) as client:
        [block] = (await client.call_tool(tool, arguments)).content
        assert block.type == "text"
        return block.text
