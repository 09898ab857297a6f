"""A 2026-07-28 HTTP upstream with a tool that mirrors an argument into a header, which the SDK's server checks."""

import asyncio
import socket
import sys
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server import Server

SCHEMA = {
    "type": "object",
    "properties": {"region": {"type": "string", "x-mcp-header": "Region"}, "rest": {}},
    "required": ["region"],
}


async def list_tools(_context: Any, _params: Any) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[types.Tool(name="route", input_schema=SCHEMA)])


async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    header = context.request.headers.get("mcp-param-region")
    text = f"header={header} argument={(params.arguments or {})['region']}"
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)])


async def main() -> None:
    server: Server[Any] = Server("annotated", on_list_tools=list_tools, on_call_tool=call_tool)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sys.stdout.write(f"{listening.getsockname()[1]}\n")
        sys.stdout.flush()
        config = uvicorn.Config(server.streamable_http_app(), log_level="error")
        await uvicorn.Server(config).serve(sockets=[listening])


asyncio.run(main())
