"""One of the sixteen combinations, running: an SDK client, a gateway and an upstream, all real processes.

The messages that the client receives are kept as they came over the wire, before the SDK reads them.
"""

import asyncio
import contextlib
import itertools
import json
import os
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import astuple, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import anyio
from gateway_processes import client_transport, forked_python, forked_upstream, start_command
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import (
    INVALID_REQUEST,
    CallToolResult,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    ElicitResult,
    ErrorData,
    ListRootsResult,
    Root,
    TextContent,
)
from pydantic import ValidationError
from tests.end_to_end.conftest import serve_gateway

OLD: Final = "2025-11-25"
NEW: Final = "2026-07-28"
BOUND: Final = 60.0
"""Seconds that a step may take."""
_UPSTREAM: Final = str(Path(__file__).with_name("upstream.py"))
Elicited = ElicitRequestFormParams | ElicitRequestURLParams


@dataclass(frozen=True, slots=True)
class Combination:
    """The protocol versions and transports of the client and the upstream."""

    client: str
    client_wire: str
    upstream: str
    wire: str

    def __str__(self) -> str:
        return f"client-{self.client[:4]}-{self.client_wire}-upstream-{self.upstream[:4]}-{self.wire}"

    @property
    def is_suspended(self) -> bool:
        """Whether the gateway suspends calls until the client brings answers."""
        return self.client == NEW and self.upstream == OLD


_EACH: Final = ((OLD, NEW), ("stdio", "http"))
ALL: Final = tuple(Combination(*parts) for parts in itertools.product(*_EACH, *_EACH))
CHOSEN: Final = tuple(
    each
    for each in ALL
    if "ALL_COMBINATIONS" in os.environ or astuple(each).count(NEW) % 2 == astuple(each).count("http") % 2
)
"""Half of them, with all combinations of any three parameters (an orthogonal array of strength 3). `make soak` uses
all."""
SAMPLE: Final = frozenset(CHOSEN) - {Combination(OLD, "http", NEW, "stdio"), Combination(NEW, "stdio", OLD, "http")}
"""Combinations of `make test`, with all combinations of any two parameters; `make test-slow` has the other two."""


@dataclass(slots=True)
class User:
    """The user who answers input requests."""

    requests: list[str] = field(default_factory=list)
    refusal: str = ""
    """`decline` or `cancel` a form, or answer with an `error`."""
    is_away: bool = False
    """The user never answers."""

    async def elicit(self, _: object, params: Elicited) -> ElicitResult | ErrorData:
        self.requests.append(params.mode)
        if self.is_away:
            await anyio.sleep_forever()
        if self.refusal == "error":
            return ErrorData(code=INVALID_REQUEST, message="Not now")
        if self.refusal:
            return ElicitResult(action=self.refusal)  # type: ignore[arg-type]  # one of the two
        return ElicitResult(action="accept", content={"name": "Ada"} if params.mode != "url" else None)

    async def sample(self, _: object, params: CreateMessageRequestParams) -> CreateMessageResult:
        self.requests.append("sampling")
        (message,) = params.messages
        assert isinstance(message.content, TextContent)
        content = TextContent(text=f"{message.content.text} Because.")
        return CreateMessageResult(role="assistant", content=content, model="tiny", stop_reason="endTurn")

    async def list_roots(self, _: object) -> ListRootsResult:
        self.requests.append("roots")
        return ListRootsResult(roots=[Root(uri="file:///home/ada", name="home")])  # type: ignore[arg-type]  # a URL


@dataclass(slots=True)
class RelaySetup:
    """A client, a gateway and an upstream."""

    combination: Combination
    client: Client
    user: User
    received: list[Any]
    """All received messages, as JSON."""

    async def call(self, tool: str, **arguments: Any) -> CallToolResult:
        return await asyncio.wait_for(self.client.call_tool(f"{tool}_mirrored", arguments), BOUND)

    async def text(self, tool: str, **arguments: Any) -> str:
        result = await self.call(tool, **arguments)
        (block,) = result.content
        assert isinstance(block, TextContent)
        assert not result.is_error, block.text
        return block.text

    async def wire(self, request: Callable[[], Awaitable[Any]]) -> Any:
        """Return the result of a request as it came over the wire."""
        before = len(self.received)
        with contextlib.suppress(ValidationError):
            await asyncio.wait_for(request(), BOUND)
        answers = [message for message in self.received[before:] if "id" in message and "method" not in message]
        return answers[-1]["result"]

    def notifications(self, method: str, since: int = 0) -> list[Any]:
        """Return the parameters of the notifications since a message."""
        return [message.get("params") for message in self.received[since:] if message.get("method") == method]


@asynccontextmanager
async def _recording(transport: AbstractAsyncContextManager[Any], received: list[Any]) -> AsyncIterator[Any]:
    """Yield a transport that records received messages."""
    async with transport as (read, write), anyio.create_task_group() as tasks:
        send, receive = anyio.create_memory_object_stream[Any](0)

        async def forward() -> None:
            async with send:
                async for message in read:
                    if isinstance(message, SessionMessage):
                        received.append(message.message.model_dump(by_alias=True, mode="json", exclude_unset=True))
                    try:
                        await send.send(message)
                    except anyio.BrokenResourceError:  # the client is closing and reads no more
                        return

        tasks.start_soon(forward)
        async with receive:
            yield receive, write
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def _upstream(combination: Combination) -> AsyncIterator[dict[str, Any]]:
    """Start an upstream; yield its entry in the configuration."""
    if combination.wire == "stdio":
        yield forked_upstream(_UPSTREAM, "stdio", combination.upstream)
        return
    command = forked_python(_UPSTREAM, "http", combination.upstream)
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE)
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), BOUND)
        yield {"url": f"http://127.0.0.1:{int(line)}/mcp"}
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await asyncio.wait_for(process.communicate(), BOUND)


@asynccontextmanager
async def _transport(client_wire: str, config: Path) -> AsyncIterator[AbstractAsyncContextManager[Any]]:
    """Start a gateway; yield the transport to it."""
    if client_wire == "stdio":
        process = await start_command("serve", "--config", str(config), stdin=PIPE, stdout=PIPE, stderr=DEVNULL)
        yield client_transport(process, BOUND)
        return
    async with serve_gateway(config) as served:
        yield streamable_http_client(served.url)


@asynccontextmanager
async def open_setup(
    combination: Combination,
    folder: Path,
    capabilities: tuple[str, ...],
    limits: Mapping[str, Any] = MappingProxyType({}),
    **server: Any,
) -> AsyncIterator[RelaySetup]:
    """Start a gateway with an upstream, and connect a client with some capabilities.

    Args:
        combination: The protocol versions and transports.
        folder: The folder for its configuration.
        capabilities: The capabilities of the client: `elicitation`, `sampling`, `roots`.
        limits: Settings of the gateway's `limits`.
        server: Settings of the gateway's `server`.
    """
    user, received = User(), list[Any]()
    callbacks: dict[str, Any] = {
        "elicitation": {"elicitation_callback": user.elicit},
        "sampling": {"sampling_callback": user.sample},
        "roots": {"list_roots_callback": user.list_roots},
    }
    keys = {key: call for name in capabilities for key, call in callbacks[name].items()}
    mode = "legacy" if combination.client == OLD else NEW
    async with _upstream(combination) as upstream:
        overrides = {"*": {"capture": "never"}, "grow": {"capture": "always"}}
        config = folder / "mirror.yaml"
        sections = {"server": server, "limits": dict(limits), "store": {"path": str(folder / "store")}}
        config.write_text(json.dumps({"upstreams": {"up": {**upstream, "overrides": overrides}}, **sections}))
        async with (
            _transport(combination.client_wire, config) as transport,
            Client(_recording(transport, received), mode=mode, **keys) as client,
        ):
            await asyncio.wait_for(client.list_tools(), BOUND)
            yield RelaySetup(combination, client, user, received)
