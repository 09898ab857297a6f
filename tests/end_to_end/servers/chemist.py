"""An upstream on the SDK, both protocol versions: makes, measures and echoes values. `chemist.py stdio|http|sse`."""

import asyncio
import contextlib
import socket
import sys
from typing import Any

import uvicorn
from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("chemist", version="1.2", instructions="Ask for grids.", log_level="ERROR")


@server.tool()
def make_grid(size: int, name: str = "grid") -> dict[str, Any]:
    """A cube of numbers."""
    grid = [[[x + y + z + 0.5 for z in range(size)] for y in range(size)] for x in range(size)]
    return {"name": name, "grid": grid, "meta": {"shape": [size] * 3, "a/b": {"~": "deep"}}}


@server.tool()
def total(grid: list[list[list[float]]]) -> float:
    """The sum of a grid."""
    return sum(value for plane in grid for row in plane for value in row)


@server.tool()
def combine(first: dict[str, Any], second: dict[str, Any], options: dict[str, Any] | None = None) -> str:
    """What two grids and the options are called."""
    return f"{first['name']}+{second['name']}+{options}"


@server.tool()
def write(length: int) -> str:
    """A long text."""
    return "word " * (length // 5)


@server.tool()
def measure(text: str) -> int:
    """The length of a text."""
    return len(text)


@server.tool()
def shout(text: str) -> str:
    """The text in capitals."""
    return text.upper()


@server.tool()
async def grow(name: str, ctx: Context[Any]) -> str:
    """Add a tool and say so."""
    server.add_tool(shout, name=name)
    await ctx.notify_tools_changed()
    with contextlib.suppress(Exception):
        await ctx.session.send_tool_list_changed()
    return "grown"


async def serve(app: Any) -> None:
    with socket.create_server(("127.0.0.1", int(sys.argv[2]) if len(sys.argv) > 2 else 0)) as listening:
        sys.stdout.write(f"{listening.getsockname()[1]}\n")
        sys.stdout.flush()
        config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
        await uvicorn.Server(config).serve(sockets=[listening])


if __name__ == "__main__":
    match sys.argv[1]:
        case "http":
            asyncio.run(serve(server.streamable_http_app()))
        case "sse":
            asyncio.run(serve(server.sse_app()))
        case _:
            server.run("stdio")
