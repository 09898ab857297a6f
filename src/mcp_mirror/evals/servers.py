"""The servers of one run: the gateway with its upstreams, or the same upstreams without the gateway.

The servers are real processes in the folder of the run. This module must not know models or checks.
"""

import json
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, TextIO

import anyio
import httpx2
import mcp_types as types
import msgspec
from mcp import Client, MCPError, StdioServerParameters
from mcp.client import ClientRequestContext, Transport
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from mcp_mirror.config import Config, HttpEndpoint, StdioEndpoint, UpstreamPolicy, load_config
from mcp_mirror.errors import UpstreamError
from mcp_mirror.evals.cases import Elicitation
from mcp_mirror.evals.conversation import Call, Image, MadeCall, ReceivedCall, Result, Tool

WITNESS: Final = "EVAL_WITNESS"
"""The environment variable with the file in which a server records the calls that it receives: one JSON line per call,
with `tool`, `arguments` and `result`."""


class RunFolder:
    """The folder of one run, and the values of the configuration's variables."""

    def __init__(self, folder: Path, cases: Path) -> None:
        """Name the files; `cases` is the folder of the case file."""
        self.store: Path = folder / "store"
        self.files: Path = folder / "files"
        """The working directory of the servers: `${WORK}`."""
        self.config: Path = folder / "mirror.yaml"
        """The file with the gateway's configuration."""
        self.witness: Path = folder / "witness.jsonl"
        """The file in which upstreams record the calls that they receive."""
        self.log: Path = folder / "stderr.log"
        """The file with the servers' standard error."""
        own = {"CASES": str(cases.absolute()), "WORK": str(self.files), WITNESS: str(self.witness)}
        self.environ: dict[str, str] = {"PYTHON": sys.executable, **os.environ, **own}
        """The environment of the servers, which the configuration can use."""

    @property
    def server_output(self) -> str:
        """The end of the servers' standard error."""
        return self.log.read_text(errors="replace").strip()[-500:]

    def prepare(self, config: Mapping[str, Any], files: Mapping[str, str]) -> Config:
        """Write and load the configuration, and write the files; ConfigError if the configuration cannot be used.

        A run has a store of its own in its folder: otherwise models would read names of other values in errors.
        """
        self.files.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            path = self.files / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
        store = config.get("store") or {}
        own_store = {"path": str(self.store), **store} if isinstance(store, dict) else store
        self.config.write_text(json.dumps({**_with_recording(config), "store": own_store}, indent=1))
        return load_config(self.config, self.environ)


def _with_recording(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with each program started in the run's folder, where it records its calls."""
    upstreams = config.get("upstreams")
    if not isinstance(upstreams, dict):
        return dict(config)
    recording = {
        name: {"cwd": "${WORK}", **upstream, "env": {WITNESS: f"${{{WITNESS}}}", **(upstream.get("env") or {})}}
        for name, upstream in upstreams.items()
        if isinstance(upstream, dict) and "command" in upstream
    }
    return {**config, "upstreams": {**upstreams, **recording}}


class User(msgspec.Struct):
    """The user, who answers each elicitation request in the same way: `accept` ticks the boxes of the form."""

    answer: Elicitation
    requests: list[str] = msgspec.field(default_factory=list)
    """The messages of the requests."""

    async def reply(self, context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        """Answer one request; a handler of the client."""
        del context
        self.requests.append(params.message)
        if self.answer == "decline" or not isinstance(params, types.ElicitRequestFormParams):
            return types.ElicitResult(action="decline")
        fields = params.requested_schema.get("properties", {})
        ticked: dict[str, str | int | float | bool | list[str] | None] = {
            name: True for name, field in fields.items() if field.get("type") == "boolean"
        }
        return types.ElicitResult(action="accept", content=ticked)


class Servers(msgspec.Struct):
    """Running servers with one list of tools."""

    run_folder: RunFolder
    tools: tuple[Tool, ...]
    instructions: str
    clients: Mapping[str, Client]
    """The client of each tool's server, by the name of the tool."""
    user: User
    suffix: str = ""
    """The suffix of twins; empty without the gateway."""
    _read: int = 0
    """Bytes of the record of calls that were read."""

    def name_of(self, name: str) -> str:
        """The upstream's name of a tool with this listed name."""
        return name.removesuffix(self.suffix)

    def listed_as(self, name: str) -> str:
        """The name under which a tool is listed: its twin's if the list has it, else its own."""
        names = {tool.name for tool in self.tools}
        return twin if (twin := name + self.suffix) in names else name

    async def make_call(self, call: Call) -> MadeCall:
        """Make a call. Errors of the server are results for the model; UpstreamError if the connection is lost."""
        if (client := self.clients.get(call.name)) is None:
            return MadeCall(Result(call, f"There is no tool {call.name!r}.", is_error=True))
        started = time.perf_counter()
        try:
            answered = await client.call_tool(call.name, dict(call.arguments))
        except (MCPError, ValueError) as error:  # ValueError: arguments that cannot be sent, such as NaN
            if isinstance(error, MCPError) and error.error.code == types.CONNECTION_CLOSED:
                raise UpstreamError(f"The connection to the server was lost in {call.name!r}: {error}") from None
            result = Result(call, f"Error: {error}", is_error=True)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
            raise UpstreamError(f"The connection to the server was lost in {call.name!r}.") from error
        else:
            blocks = (block for block in answered.content if isinstance(block, types.ImageContent))
            images = tuple(Image(block.mime_type, block.data) for block in blocks)
            result = Result(call, _text_of(answered), is_error=bool(answered.is_error), images=images)
        return MadeCall(result, self._received_calls(), time.perf_counter() - started)

    def _received_calls(self) -> tuple[ReceivedCall, ...]:
        """The calls that upstreams have recorded since the last call."""
        if not self.run_folder.witness.exists():
            return ()
        with self.run_folder.witness.open("rb") as file:
            file.seek(self._read)
            lines = file.read().splitlines(keepends=True)
        complete = [line for line in lines if line.endswith(b"\n")]
        self._read += sum(map(len, complete))
        return tuple(ReceivedCall(**json.loads(line)) for line in complete)


def _text_of(result: types.CallToolResult) -> str:
    """The text of a result for a model: structured content if present, as in most clients, else the blocks."""
    if result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    texts: list[str] = []
    for block in result.content:
        if isinstance(block, types.TextContent):
            texts.append(block.text)
        elif isinstance(block, types.ImageContent | types.AudioContent):
            texts.append(f"[{block.type} {block.mime_type}, {len(block.data)} characters]")
        else:
            texts.append(block.model_dump_json(exclude_none=True, by_alias=True))
    return "\n".join(texts)


@asynccontextmanager
async def start_servers(
    run_folder: RunFolder, config: Config, *, gateway: bool, elicitation: Elicitation = "none"
) -> AsyncIterator[Servers]:
    """Start the servers, as upstreams of the gateway or without it. `elicitation` is what the user answers.

    Raises:
        UpstreamError: A server does not start or does not list its tools; the message quotes its standard error.
    """
    command = ("-m", "mcp_mirror", "serve", "--config", str(run_folder.config))
    # Upstreams behind the gateway have a timeout of their own.
    itself = UpstreamPolicy("gateway", StdioEndpoint(sys.executable, command), timeout=600.0)
    upstreams = (itself,) if gateway else config.upstreams
    user = User(elicitation)
    tools: dict[str, Tool] = {}
    clients: dict[str, Client] = {}
    instructions: list[str] = []
    async with AsyncExitStack() as stack:
        log = stack.enter_context(run_folder.log.open("w"))
        try:
            for upstream in upstreams:
                transport = await _open_transport(upstream, run_folder, log, stack)
                reply = None if elicitation == "none" else user.reply
                client = Client(transport, read_timeout_seconds=upstream.timeout, elicitation_callback=reply)
                await stack.enter_async_context(client)
                instructions.append(client.instructions or "")
                for tool in await _tools_of(client):
                    if upstream.admits(tool.name) and tool.name not in tools:
                        tools[tool.name], clients[tool.name] = tool, client
        except (MCPError, OSError, BaseExceptionGroup, anyio.ClosedResourceError) as error:
            message = f"The servers do not start ({type(error).__name__}). {run_folder.server_output}"
            raise UpstreamError(message) from error
        text = "\n\n".join(filter(None, instructions))
        yield Servers(run_folder, tuple(tools.values()), text, clients, user, config.mirror.suffix if gateway else "")


async def _open_transport(
    upstream: UpstreamPolicy, run_folder: RunFolder, log: TextIO, stack: AsyncExitStack
) -> Transport:
    endpoint = upstream.endpoint
    if isinstance(endpoint, HttpEndpoint):
        headers = dict(endpoint.headers)
        if endpoint.legacy_sse:
            return sse_client(endpoint.url, headers=headers)
        http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=upstream.timeout))
        return streamable_http_client(endpoint.url, http_client=http)
    assert isinstance(endpoint, StdioEndpoint)  # noqa: S101  # no configuration has local functions
    command = StdioServerParameters(
        command=endpoint.command,
        args=list(endpoint.args),
        env={**run_folder.environ, **endpoint.env},
        cwd=endpoint.cwd or str(run_folder.files),
    )
    return stdio_client(command, errlog=log)


async def _tools_of(client: Client) -> tuple[Tool, ...]:
    tools: list[Tool] = []
    cursor: str | None = None
    while True:
        page = await client.list_tools(cursor=cursor)
        tools += [Tool(tool.name, tool.description or "", tool.input_schema) for tool in page.tools]
        if (cursor := page.next_cursor) is None:
            return tuple(tools)
