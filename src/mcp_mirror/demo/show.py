"""The command `mcp-mirror demo`: three calls through a real gateway, and what a model reads of each.

Server, gateway and client are real processes. The calls are scripted, because the demo needs no model.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import anyio
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import CallToolResult, TextContent
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from mcp_mirror.paths import find_bases
from mcp_mirror.tokens import expected_estimator

_SERVER: Final = "mcp_mirror.demo.log_server"
_NEXT: Final = """\
Next:
  mcp-mirror install                    put it before the servers of your client
  mcp-mirror wrap -- npx -y SERVER      or before one server
  mcp-mirror check                      connect to every server and list its tools"""


def show() -> None:
    """Show what a model reads of three calls; needs no server of yours.

    The results are a small one, a large one, and one that is passed on to another tool.

    Example: mcp-mirror demo
    """
    anyio.run(_run, Console(soft_wrap=True))


async def _run(console: Console) -> None:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mcp-mirror-demo-") as folder:
        config = Path(folder) / "mirror.yaml"
        upstream = {"command": sys.executable, "args": ["-m", _SERVER]}
        config.write_text(json.dumps({"store": {"kind": "memory"}, "upstreams": {"shop": upstream}}))
        config.chmod(0o600)
        console.print("Starting a gateway with a small server for the logs of a shop ...\n", style="dim")
        gateway = StdioServerParameters(
            command=sys.executable, args=["-m", "mcp_mirror", "serve", "--config", str(config)]
        )
        direct = StdioServerParameters(command=sys.executable, args=["-m", _SERVER])
        async with Client(stdio_client(gateway)) as mirrored, Client(stdio_client(direct)) as plain:
            summary = await _make_calls(console, mirrored, plain)
    console.print(f"{summary} Time: {time.monotonic() - began:.1f} s.\n", highlight=False)
    console.print(_NEXT, highlight=False, markup=False)


async def _make_calls(console: Console, mirrored: Client, plain: Client) -> str:
    """Make and show the calls; return what a model reads of them, and what it would read without the gateway."""
    count = expected_estimator("default")
    day = {"day": "monday"}
    log = _text_of(await plain.call_tool("read_log", day))
    tokens: list[int] = []
    direct_tokens: list[int] = []

    async def show_call(title: str, tool: str, arguments: dict[str, Any], direct: dict[str, Any]) -> str:
        text = _text_of(await mirrored.call_tool(f"{tool}_mirrored", arguments))
        own, whole = count(text.encode()), count(_text_of(await plain.call_tool(tool, direct)).encode())
        console.print(title, style="bold", highlight=False)
        console.print(f"  call  {tool}_mirrored({json.dumps(arguments)})", highlight=False, markup=False)
        console.print(Panel(Text(text), title="the model reads", title_align="left", expand=False), soft_wrap=False)
        console.print(f"  {own:,} tokens; the server's result has {whole:,}\n", style="dim", highlight=False)
        tokens.append(own)
        direct_tokens.append(whole)
        return text

    await show_call("1  A small result comes as it is", "list_days", {}, {})
    notice = await show_call("2  A large result stays in the gateway; the model reads a path", "read_log", day, day)
    [path] = find_bases(notice)
    await show_call(
        "3  The path goes to another tool, which gets the whole log", "count_errors", {"log": path}, {"log": log}
    )
    return (
        f"The model reads {sum(tokens):,} tokens. Without the gateway it reads {sum(direct_tokens):,} and writes "
        f"{count(log.encode()):,} to pass the log on."
    )


def _text_of(result: CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))
