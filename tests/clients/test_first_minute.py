"""The first minute of a user: from one command of uvx to the first call of a wrapped server."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from notices import path_in

ROOT = Path(__file__).parents[2]
FILESYSTEM = ROOT / "tests/node/node_modules/@modelcontextprotocol/server-filesystem/dist/index.js"
UNREACHABLE = ("error sending request", "Failed to fetch", "dns error", "No solution found")
BOUND = 60
"""Seconds from the command to the first call."""


def server(name: str, *args: str) -> dict[str, Any]:
    return {"command": str(Path(sys.executable).with_name(name)), "args": list(args)}


@pytest.mark.slow
@pytest.mark.skipif(not FILESYSTEM.exists(), reason="the filesystem server is not installed: make node")
async def test_one_command_and_the_first_call_take_less_than_a_minute(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=300)
    [wheel] = tmp_path.glob("*.whl")
    documents = tmp_path / "documents"
    documents.mkdir()
    text = "".join(f"{line} of a long file\n" for line in range(4_000))
    (documents / "long.txt").write_text(text)
    subprocess.run(["git", "init", "-q", str(documents)], check=True)
    file = tmp_path / "Claude" / "claude_desktop_config.json"
    file.parent.mkdir()
    servers = {
        "files": {"command": "node", "args": [str(FILESYSTEM), str(documents)]},
        "clock": server("mcp-server-time"),
        "git": server("mcp-server-git", "--repository", str(documents)),
    }
    file.write_text(json.dumps({"mcpServers": servers}, indent=2))
    folders = dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"), str(tmp_path))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, **folders, "PATH": path, "UV_CACHE_DIR": str(tmp_path / "uv")}
    began = time.monotonic()
    command = ["uvx", "--python", sys.executable, "--from", str(wheel), "mcp-mirror", "install", "--all", "--yes"]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300, env=environ, cwd=tmp_path)
    if ran.returncode and any(words in ran.stderr for words in UNREACHABLE):
        pytest.skip("no package index can be reached")
    assert ran.returncode == 0, ran.stderr
    assert "wrapped: files, clock, git" in ran.stdout + ran.stderr
    installed = time.monotonic()
    async with AsyncExitStack() as stack, asyncio.timeout(300):
        entries = json.loads(file.read_text())["mcpServers"]
        assert list(entries) == list(servers)
        started = [
            StdioServerParameters(command=entry["command"], args=entry["args"], env=environ)
            for entry in entries.values()
        ]
        clients = [Client(stdio_client(parameters)) for parameters in started]
        files, clock, git = await asyncio.gather(*map(stack.enter_async_context, clients))
        called = await files.call_tool("read_text_file", {"path": str(documents / "long.txt")})
        first = time.monotonic()
        memory_path = path_in(called.content[0].text)  # type: ignore[union-attr]
        assert memory_path
        passed = await files.call_tool("write_file", {"path": str(documents / "copy.txt"), "content": memory_path})
        assert not passed.is_error, passed
        assert (documents / "copy.txt").read_text() == text
        assert not (await git.call_tool("git_status", {"repo_path": str(documents)})).is_error
        assert not (await clock.call_tool("get_current_time", {"timezone": "Europe/Berlin"})).is_error
    print(f"install: {installed - began:.1f} s, first call: {first - began:.1f} s")
    assert first - began < BOUND
