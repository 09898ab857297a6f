"""The servers of one run: the gateway with its upstreams behind it, or the same upstreams without it.

Real processes over stdio, in a folder of their own. It must not know models or checks.
"""

import json
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO

import anyio
import httpx2
import mcp_types as types
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from mcp_mirror.config import load_config
from mcp_mirror.errors import UpstreamError
from mcp_mirror.evals.conversation import Call, Made, Result, Tool, Witnessed
from mcp_mirror.settings.policies import Config, HttpEndpoint, StdioEndpoint, UpstreamPolicy

WITNESS: Final = "EVAL_WITNESS"
"""The environment variable that names the file to which a server writes each call that reached it, a JSON line each:
tool, arguments, result."""
_LONGEST: Final = 600.0
"""Seconds that one request to the gateway may take; upstreams have their own `timeout`."""
_TOLD: Final = 500
"""Characters of a server's standard error that are told where it does not start."""


@dataclass(frozen=True, slots=True)
class Place:
    """The folder of one run, and what the configuration's variables stand for."""

    folder: Path
    cases: Path
    """The folder of the case's file: `${CASES}`."""

    @property
    def files(self) -> Path:
        """Where the servers are started: `${WORK}`."""
        return self.folder / "files"

    @property
    def config(self) -> Path:
        """The gateway's configuration."""
        return self.folder / "mirror.yaml"

    @property
    def witness(self) -> Path:
        """What reached the upstreams."""
        return self.folder / "witness.jsonl"

    @property
    def log(self) -> Path:
        """The servers' standard error."""
        return self.folder / "stderr.log"

    @property
    def said(self) -> str:
        """The end of it."""
        return self.log.read_text(errors="replace").strip()[-_TOLD:]

    @property
    def environ(self) -> dict[str, str]:
        """The environment of the gateway and of what reads its configuration."""
        own = {"CASES": str(self.cases.absolute()), "WORK": str(self.files), WITNESS: str(self.witness)}
        return {"PYTHON": sys.executable, **os.environ, **own}

    def prepare(self, config: Mapping[str, Any], files: Mapping[str, str]) -> Config:
        """Write the configuration and the files.

        Raises:
            ConfigError: The configuration cannot be used.
        """
        self.files.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            path = self.files / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
        self.config.write_text(json.dumps(_witnessed(config), indent=1))
        return load_config(self.config, self.environ)


def _witnessed(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with each program started in the run's folder and told where to write its calls."""
    upstreams = config.get("upstreams")
    if not isinstance(upstreams, dict):
        return dict(config)
    told = {name: _told(one) if isinstance(one, dict) and "command" in one else one for name, one in upstreams.items()}
    return {**config, "upstreams": told}


def _told(upstream: Mapping[str, Any]) -> dict[str, Any]:
    return {"cwd": "${WORK}", **upstream, "env": {WITNESS: f"${{{WITNESS}}}", **(upstream.get("env") or {})}}


@dataclass(slots=True)
class Stage:
    """Servers that run, as one list of tools."""

    place: Place
    tools: tuple[Tool, ...]
    instructions: str
    clients: Mapping[str, Client]
    """By the names of their tools."""
    suffix: str = ""
    """What twins' names add to their tools'."""
    _read: int = field(default=0)

    def name_of(self, name: str) -> str:
        """The upstream's own name of a tool that is called by this one."""
        return name.removesuffix(self.suffix) if self.suffix else name

    def listed_as(self, name: str) -> str:
        """The name under which a tool is listed; its own where it is not."""
        names = {tool.name for tool in self.tools}
        return twin if (twin := name + self.suffix) in names else name

    async def make(self, call: Call) -> Made:
        """Make a call; what the server refuses is an error that the model reads.

        Raises:
            UpstreamError: The connection is lost.
        """
        if (client := self.clients.get(call.name)) is None:
            return Made(Result(call, f"There is no tool {call.name!r}.", is_error=True))
        started = time.perf_counter()
        try:
            answered = await client.call_tool(call.name, dict(call.arguments))
        except MCPError as error:
            if error.error.code == types.CONNECTION_CLOSED:
                raise UpstreamError(f"The connection to the server was lost in {call.name!r}: {error}") from None
            result = Result(call, f"Error: {error}", is_error=True)
        except ValueError as error:  # what cannot be sent, such as a number that is none
            result = Result(call, f"Error: {error}", is_error=True)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
            raise UpstreamError(f"The connection to the server was lost in {call.name!r}.") from error
        else:
            result = Result(call, text_of(answered), is_error=bool(answered.is_error))
        return Made(result, self._witnessed(), time.perf_counter() - started)

    def _witnessed(self) -> tuple[Witnessed, ...]:
        """What has reached the upstreams since the last look."""
        if not self.place.witness.exists():
            return ()
        with self.place.witness.open("rb") as file:
            file.seek(self._read)
            lines = file.read().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith(b"\n")]
        self._read += sum(map(len, whole))
        return tuple(Witnessed(**json.loads(line)) for line in whole)


def text_of(result: types.CallToolResult) -> str:
    """What a model reads of a result: structured content where there is some, as most clients do, else the blocks."""
    if result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(map(_block_text, result.content))


def _block_text(block: types.ContentBlock) -> str:
    if isinstance(block, types.TextContent):
        return block.text
    if isinstance(block, types.ImageContent | types.AudioContent):
        return f"[{block.type} {block.mime_type}, {len(block.data)} characters]"
    return block.model_dump_json(exclude_none=True, by_alias=True)


@asynccontextmanager
async def open_stage(place: Place, config: Config, *, gateway: bool) -> AsyncIterator[Stage]:
    """Start the servers that a prepared place's configuration names.

    Raises:
        UpstreamError: A server does not start or list; the message holds the end of what it said.
    """
    async with AsyncExitStack() as stack:
        log = stack.enter_context(place.log.open("w"))
        try:
            stage = await (_with_gateway if gateway else _without_gateway)(stack, place, config, log)
        except (MCPError, OSError, BaseExceptionGroup, anyio.ClosedResourceError) as error:
            raise UpstreamError(f"The servers do not start ({type(error).__name__}). {place.said}") from error
        yield stage


async def _with_gateway(stack: AsyncExitStack, place: Place, config: Config, log: TextIO) -> Stage:
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "mcp_mirror", "serve", "--config", str(place.config)],
        env=place.environ,
        cwd=str(place.files),
    )
    client = await stack.enter_async_context(Client(stdio_client(command, errlog=log), read_timeout_seconds=_LONGEST))
    tools = await _tools_of(client)
    clients = {tool.name: client for tool in tools}
    return Stage(place, tools, client.instructions or "", clients, config.mirror.suffix)


async def _without_gateway(stack: AsyncExitStack, place: Place, config: Config, log: TextIO) -> Stage:
    tools: dict[str, Tool] = {}
    clients: dict[str, Client] = {}
    said: list[str] = []
    for upstream in config.upstreams:
        client = await stack.enter_async_context(await _connection(stack, upstream, place, log))
        said.append(client.instructions or "")
        for tool in await _tools_of(client):
            if upstream.admits(tool.name) and tool.name not in tools:
                tools[tool.name], clients[tool.name] = tool, client
    return Stage(place, tuple(tools.values()), "\n\n".join(filter(None, said)), clients)


async def _connection(stack: AsyncExitStack, upstream: UpstreamPolicy, place: Place, log: TextIO) -> Client:
    endpoint, timeout = upstream.endpoint, upstream.timeout
    if isinstance(endpoint, HttpEndpoint):
        if endpoint.legacy_sse:
            return Client(sse_client(endpoint.url, headers=dict(endpoint.headers)), read_timeout_seconds=timeout)
        http = await stack.enter_async_context(httpx2.AsyncClient(headers=dict(endpoint.headers), timeout=timeout))
        return Client(streamable_http_client(endpoint.url, http_client=http), read_timeout_seconds=timeout)
    assert isinstance(endpoint, StdioEndpoint)  # noqa: S101  # no configuration has local functions
    command = StdioServerParameters(
        command=endpoint.command,
        args=list(endpoint.args),
        env={**place.environ, **endpoint.env},
        cwd=endpoint.cwd or str(place.files),
    )
    return Client(stdio_client(command, errlog=log), read_timeout_seconds=timeout)


async def _tools_of(client: Client) -> tuple[Tool, ...]:
    tools: list[Tool] = []
    cursor: str | None = None
    while True:
        page = await client.list_tools(cursor=cursor)
        tools += [Tool(tool.name, tool.description or "", tool.input_schema) for tool in page.tools]
        if (cursor := page.next_cursor) is None:
            return tuple(tools)
