"""The arms: a task's servers directly, through the gateway, with its scripts, or with the suite's own scripts."""

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TextIO

import mcp_types as types
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client

from loca_suite import Environment
from mcp_mirror.evals.conversation import Call, MadeCall, Result, Tool
from mcp_mirror.evals.servers import RunFolder, start_servers

Arm = Literal["direct", "ptc", "mirror", "scripts", "search"]
ARMS: Final[Mapping[Arm, str]] = {
    "direct": "the suite's `react`: the servers' own tools",
    "ptc": "the suite's `ptc`: the same, and its tool that runs Python with calls of tools",
    "mirror": "`react` through mcp-mirror as it is installed by default, without `memory_run`",
    "scripts": "`react` through mcp-mirror with the extra `code`: with `memory_run`",
    "search": "the same with `mirror.listing: search`: the model searches for tools instead of reading all",
}
_SCRIPTS: Final = {"code": {"tools": "all"}}
_SETTINGS: Final[Mapping[Arm, Mapping[str, Any]]] = {
    "mirror": {"memory_tools": {"deny": ["memory_run"]}},
    "scripts": _SCRIPTS,
    "search": {**_SCRIPTS, "mirror": {"listing": "search"}},
}
_TIMEOUT: Final = 300.0
"""Seconds of one call, and of the start of a server; the suite's own limit is 120 for a call."""
_PTC: Final = "programmatic_tool_calling"
_PTC_TOOL: Final = f"{_PTC}_code_execution"
_PTC_PASSES: Final = 10
_PTC_HIDDEN: Final = frozenset({"tool_calls", "tool_results", "file_path", "needs_tool_execution"})
CLAIM: Final = "claim_done"


@dataclass(frozen=True, slots=True)
class OpenArm:
    """The running servers of an arm."""

    arm: Arm
    tools: Sequence[Tool]
    instructions: str
    make_call: Callable[[Call], Awaitable[MadeCall]]

    def find_name(self, server: str, tool: str) -> str:
        """The listed name of a server's tool.

        Raises:
            LookupError: The list has no such tool.
        """
        names = {listed.name for listed in self.tools}
        for name in (f"{tool}_mirrored", f"{server}_{tool}_mirrored", f"{server}_{tool}", tool):
            if name in names:
                return name
        raise LookupError(f"No tool {tool!r} of {server!r}: {sorted(names)}")


@asynccontextmanager
async def open_arm(arm: Arm, environment: Environment, folder: Path) -> AsyncIterator[OpenArm]:
    """Start the servers of an arm in the environment's present state.

    Args:
        arm: The arm.
        environment: The task's environment.
        folder: An empty folder for the configuration and the log.

    Raises:
        UpstreamError: A server does not start.
    """
    if arm in {"direct", "ptc"}:
        async with AsyncExitStack() as stack:
            log = stack.enter_context((folder / "stderr.log").open("w"))
            servers = await _connect_all(stack, _with_ptc(environment) if arm == "ptc" else environment.servers, log)
            calls = _run_script if arm == "ptc" else _make_call
            yield OpenArm(arm, servers.tools, servers.instructions, lambda call: calls(servers, call))
        return
    run_folder = RunFolder(folder, folder)
    upstreams = {
        name: {**server, "timeout": _TIMEOUT, "startup_timeout": _TIMEOUT}
        for name, server in environment.servers.items()
    }
    # On a busy machine a server may start later than the first list of tools, which a run reads only once.
    settings = _SETTINGS[arm]
    mirror = {**settings.get("mirror", {}), "startup_wait": _TIMEOUT}
    config = run_folder.prepare({**settings, "upstreams": upstreams, "mirror": mirror}, {})
    async with start_servers(run_folder, config, gateway=True, elicitation="none") as gateway:
        clients = {name: (client, name) for name, client in gateway.clients.items()}
        servers = _Servers(gateway.tools, gateway.instructions, clients)
        yield OpenArm(arm, servers.tools, servers.instructions, lambda call: _make_call(servers, call))


def _with_ptc(environment: Environment) -> Mapping[str, Mapping[str, Any]]:
    """The servers with the suite's server that runs scripts."""
    python = environment.servers["claim_done"]
    script = Path(python["args"][0]).parent.parent / _PTC / "server.py"
    workspace = str(environment.folder / "agent_workspace")
    arguments = [str(script), "--workspace", workspace]
    return {**environment.servers, _PTC: {**python, "args": arguments, "cwd": workspace}}


@dataclass(frozen=True, slots=True)
class _Servers:
    """Servers, or the gateway, with their tools."""

    tools: Sequence[Tool]
    instructions: str
    clients: Mapping[str, tuple[Client, str]]
    """The client and the own name of each tool."""


async def _connect_all(stack: AsyncExitStack, servers: Mapping[str, Mapping[str, Any]], log: TextIO) -> _Servers:
    """Start servers; their tools have the suite's names: `<server>_<tool>`."""
    tools: list[Tool] = []
    clients: dict[str, tuple[Client, str]] = {}
    for server, command in servers.items():
        parameters = StdioServerParameters(**command)
        client = await stack.enter_async_context(
            Client(stdio_client(parameters, errlog=log), read_timeout_seconds=_TIMEOUT)
        )
        for tool in (await client.list_tools()).tools:
            name = f"{server}_{tool.name}"
            tools.append(Tool(name, tool.description or "", tool.input_schema))
            clients[name] = client, tool.name
    return _Servers(tuple(tools), "", clients)


async def _make_call(servers: _Servers, call: Call) -> MadeCall:
    """Make a call. The model reads the text of the result, in every arm, as with the suite's own client."""
    if call.name not in servers.clients:
        return MadeCall(Result(call, f"Tool '{call.name}' not found.", is_error=True))
    client, name = servers.clients[call.name]
    started = time.perf_counter()
    try:
        answer = await client.call_tool(name, dict(call.arguments))
    except (MCPError, ValueError) as error:
        return MadeCall(Result(call, f"[Tool execution error: {error}]", is_error=True))
    text = "\n".join(block.text for block in answer.content if isinstance(block, types.TextContent))
    result = Result(call, text or "Tool execution completed with no output", is_error=bool(answer.is_error))
    return MadeCall(result, seconds=time.perf_counter() - started)


async def _run_script(servers: _Servers, call: Call) -> MadeCall:
    """Make a call. A script runs as in the suite's own loop.

    The suite's server runs a script with placeholders for the results of tools, the loop makes all calls that the
    script has requested, and the server runs the script again with these results: at most ten times, and each call in
    each pass.
    """
    made = await _make_call(servers, call)
    if call.name != _PTC_TOOL:
        return made
    try:
        state = json.loads(made.result.text)
        for _ in range(_PTC_PASSES):
            if not state.get("needs_tool_execution"):
                break
            results = {}
            for requested in state["tool_calls"]:
                inner = Call(requested["tool_call_id"], requested["tool_name"], requested["args"])
                results[inner.identity] = (await _make_call(servers, inner)).result.text
            again = Call(call.identity, call.name, {**call.arguments, "tool_results_cache": results})
            state = json.loads((await _make_call(servers, again)).result.text)
    except (ValueError, KeyError, TypeError) as error:
        return MadeCall(Result(call, f"Failed to parse programmatic tool calling result: {error}", is_error=True))
    shown = {key: value for key, value in state.items() if key not in _PTC_HIDDEN}
    return MadeCall(Result(call, json.dumps(shown, indent=2)), seconds=made.seconds)
