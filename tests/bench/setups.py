"""The contestants: real processes, each behind the SDK's own client."""

import asyncio
import json
import os
import struct
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

from mcp import Client, StdioServerParameters
from mcp_types import CallToolResult, TextContent
from notices import path_in
from process_tree import command_of

HERE = Path(__file__).parent
SERVER = str(HERE / "server.py")
PROXY_PYTHON = os.environ.get("BENCH_PROXY_PYTHON", "")
"""A Python that has FastMCP; empty: the proxy is left out."""

_PROXY = """
import sys
from fastmcp.server import create_proxy
server = {"command": sys.argv[1], "args": sys.argv[2:]}
create_proxy({"mcpServers": {"bench": server}}, name="proxy").run(show_banner=False, log_level="ERROR")
"""


_START: Final = 60.0
"""Seconds in which the bench server makes its grids and starts."""


def upstream(*forms: str) -> dict[str, Any]:
    """The bench server, its grids made before the first call."""
    return {"command": sys.executable, "args": [SERVER, *forms], "timeout": 3600}


class Stalls:
    """The longest stall of a gateway's event loop; `watched_gateway.py` measures it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.reset()

    def reset(self) -> None:
        """Forget the stalls so far."""
        with self.file.open("r+b" if self.file.exists() else "w+b") as file:
            file.write(struct.pack("d", 0.0))

    @property
    def longest(self) -> float:
        """The longest stall since the last reset, in milliseconds."""
        (seconds,) = struct.unpack("d", self.file.read_bytes())
        return float(1e3 * seconds)

    def __str__(self) -> str:
        return f"{self.longest:.1f} ms"


def gateway_argv(config: Path, *more: str, stalls: Stalls | None = None) -> list[str]:
    """Return the command of a gateway; with `stalls`, its longest stall is measured."""
    program = [str(HERE / "watched_gateway.py"), str(stalls.file)] if stalls else ["-m", "mcp_mirror"]
    return [sys.executable, *program, "serve", "--config", str(config), *more]


@contextmanager
def config_of(settings: dict[str, Any]) -> Iterator[Path]:
    """A configuration file of the gateway; JSON is YAML."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mirror.json"
        store = {"path": str(Path(folder) / "store"), **settings.get("store", {})}
        path.write_text(json.dumps({**settings, "store": store}))
        yield path


@asynccontextmanager
async def direct(*forms: str) -> AsyncIterator[Client]:
    """The SDK's client and the server, nothing between."""
    async with Client(StdioServerParameters(command=sys.executable, args=[SERVER, *forms]), mode="legacy") as client:
        await client.list_tools()
        yield client


@asynccontextmanager
async def through_mirror(settings: dict[str, Any], stalls: Stalls | None = None) -> AsyncIterator[tuple[Client, int]]:
    """The SDK's client and the gateway, with the gateway's process id."""
    before = set(_children(os.getpid()))
    suffix = settings.get("mirror", {}).get("suffix", "_mirrored")
    with config_of(settings) as path:
        command, *args = gateway_argv(path, stalls=stalls)
        async with Client(StdioServerParameters(command=command, args=args), mode="legacy") as client:
            async with asyncio.timeout(_START):
                while not any(tool.name.endswith(suffix) for tool in (await client.list_tools()).tools):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)  # a sampling interval
            (process,) = set(_children(os.getpid())) - before
            yield client, process


@asynccontextmanager
async def through_proxy(*forms: str) -> AsyncIterator[Client]:
    """The SDK's client and FastMCP's proxy."""
    command = StdioServerParameters(command=PROXY_PYTHON, args=["-c", _PROXY, sys.executable, SERVER, *forms])
    async with Client(command, mode="legacy") as client:
        await client.list_tools()
        yield client


def text_of(result: CallToolResult) -> str:
    """The one text of a result that must be no error."""
    block = result.content[0]
    assert isinstance(block, TextContent)
    assert not result.is_error, block.text
    return block.text


def path_of(result: CallToolResult) -> str:
    """The memory path in a notice."""
    return path_in(text_of(result))


def _children(process: int) -> list[int]:
    tasks = Path(f"/proc/{process}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def family(process: int) -> list[int]:
    """Return the process of a gateway and its worker processes, without its upstreams."""
    helpers = [child for child in _children(process) if "mcp_mirror.workers" in command_of(child)]
    return [process, *helpers]


def cpu_seconds(process: int) -> float:
    """User and system time of a gateway so far."""
    total = 0
    for member in family(process):
        fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")
