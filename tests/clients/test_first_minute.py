"""The first minute of a user: from one command of uvx to the first call of a wrapped server."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
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
"""Seconds from the command to the first calls."""
PATIENCE = 300
TEXT = "".join(f"{line} of a long file\n" for line in range(4_000))


def server(name: str, *args: str) -> dict[str, Any]:
    return {"command": str(Path(sys.executable).with_name(name)), "args": list(args)}


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    """A folder with a long file, under version control."""
    folder = tmp_path / "documents"
    folder.mkdir()
    (folder / "long.txt").write_text(TEXT)
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    return folder


@pytest.fixture
def file(tmp_path: Path, documents: Path) -> Path:
    """The file of a client with three servers."""
    file = tmp_path / "Claude" / "claude_desktop_config.json"
    file.parent.mkdir()
    servers = {
        "files": {"command": "node", "args": [str(FILESYSTEM), str(documents)]},
        "clock": server("mcp-server-time"),
        "git": server("mcp-server-git", "--repository", str(documents)),
    }
    file.write_text(json.dumps({"mcpServers": servers}, indent=2))
    return file


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The environment of a user without data, and with an empty cache of uv."""
    folders = dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"), str(tmp_path))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, **folders, "PATH": path, "UV_CACHE_DIR": str(tmp_path / "uv")}


def build_wheel(folder: Path) -> Path:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=PATIENCE)
    [wheel] = folder.glob("*.whl")
    return wheel


def install(wheel: Path, folder: Path, environ: dict[str, str]) -> None:
    command = ["uvx", "--python", sys.executable, "--from", str(wheel), "mcp-mirror", "install", "--all", "--yes"]
    ran = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=PATIENCE, env=environ, cwd=folder
    )
    if ran.returncode and any(words in ran.stderr for words in UNREACHABLE):
        pytest.skip("no package index can be reached")
    assert ran.returncode == 0, ran.stderr
    assert "wrapped: files, clock, git" in ran.stdout + ran.stderr


@pytest.mark.slow
@pytest.mark.skipif(not FILESYSTEM.exists(), reason="the filesystem server is not installed: make node")
def test_one_command_and_the_first_calls_take_less_than_a_minute(
    tmp_path: Path, documents: Path, file: Path, environ: dict[str, str]
) -> None:
    wheel = build_wheel(tmp_path)
    began = time.monotonic()
    install(wheel, tmp_path, environ)
    installed = time.monotonic() - began
    entries = json.loads(file.read_text())["mcpServers"]
    assert list(entries) == ["files", "clock", "git"]

    async def call(name: str, tool: str, **arguments: str) -> str:
        entry = entries[name]
        started = StdioServerParameters(command=entry["command"], args=entry["args"], env=environ)
        async with asyncio.timeout(PATIENCE), Client(stdio_client(started)) as client:
            result = await client.call_tool(tool, arguments)
            assert not result.is_error, result
            return "".join(block.text for block in result.content if block.type == "text")

    async def call_all() -> str:
        notice, *_ = await asyncio.gather(
            call("files", "read_text_file", path=str(documents / "long.txt")),
            call("git", "git_status", repo_path=str(documents)),
            call("clock", "get_current_time", timezone="Europe/Berlin"),
        )
        return notice

    memory_path = path_in(asyncio.run(call_all()))
    seconds = time.monotonic() - began
    sys.stdout.write(f"installed after {installed:.1f} s, three calls answered after {seconds:.1f} s\n")
    assert memory_path
    asyncio.run(call("files", "write_file", path=str(documents / "copy.txt"), content=memory_path))
    assert (documents / "copy.txt").read_text() == TEXT
    assert seconds < BOUND
