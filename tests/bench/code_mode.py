"""Measures FastMCP's CodeMode in its own environment; prints JSON. `scripts` runs it."""

import asyncio
import json
import statistics
import time
from typing import Any

from fastmcp import Client, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.experimental.transforms.code_mode import CodeMode

_CALLS = 50
_ROWS = 60_000
_GROUP_BY = (
    "orders = (await call_tool('rows', {}))['result']\n"
    "totals = {}\n"
    "for order in orders:\n"
    "    totals[order['user']] = totals.get(order['user'], 0) + order['cents']\n"
    "return sorted(totals.items())[:3]"
)


def build_server(*transforms: Any) -> FastMCP:
    """Return a server with two tools."""
    server = FastMCP("bench", transforms=list(transforms))

    def echo(text: str) -> str:
        return text

    def rows() -> list[dict[str, Any]]:
        return [{"id": n, "user": f"user {n % 977}", "cents": n * 7 % 1999, "note": "x" * 40} for n in range(_ROWS)]

    server.tool(echo)
    server.tool(rows)
    return server


async def measure() -> dict[str, float]:
    """Return seconds by name; 0 if the script failed."""
    small: list[float] = []
    script: list[float] = []
    async with Client(build_server()) as plain, Client(build_server(CodeMode())) as coded:
        for _ in range(_CALLS):
            small.append(await timed(plain, "echo", {"text": "x"}))
            script.append(await timed(coded, "execute", {"code": "return 1 + 1"}))
        try:
            group = min([await timed(coded, "execute", {"code": _GROUP_BY}) for _ in range(3)])
        except ToolError:  # the default limit of memory is too low for the rows
            group = 0
    return {"small": statistics.median(small), "script": statistics.median(script), "group": group}


async def timed(client: Client[Any], tool: str, arguments: dict[str, Any]) -> float:
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    await client.call_tool(tool, arguments)
    return time.perf_counter() - began


print(json.dumps(asyncio.run(measure())))  # noqa: T201  # the result
