"""One of the sixteen combinations, running: a client of the SDK's, a gateway and an upstream, all real.

What the client hears is kept as it came over the wire, before the SDK reads it.
"""

import asyncio
import contextlib
import itertools
import json
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import astuple, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import anyio
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
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
from under_test import gateway_command, serve_gateway

OLD: Final = "2025-11-25"
NEW: Final = "2026-07-28"
BOUND: Final = 60.0
"""Seconds that anything may take."""
_UPSTREAM: Final = str(Path(__file__).with_name("upstream.py"))
Elicited = ElicitRequestFormParams | ElicitRequestURLParams


@dataclass(frozen=True, slots=True)
class Combination:
    """Which client is before which upstream."""

    client: str
    face: str
    upstream: str
    wire: str

    def __str__(self) -> str:
        return f"client-{self.client[:4]}-{self.face}-upstream-{self.upstream[:4]}-{self.wire}"

    @property
    def is_held(self) -> bool:
        """Whether the gateway holds a call of the upstream's for the client to come back to."""
        return self.client == NEW and self.upstream == OLD


_EACH: Final = ((OLD, NEW), ("stdio", "http"))
ALL: Final = tuple(Combination(*parts) for parts in itertools.product(*_EACH, *_EACH))
CHOSEN: Final = tuple(
    each
    for each in ALL
    if "ALL_COMBINATIONS" in os.environ or astuple(each).count(NEW) % 2 == astuple(each).count("http") % 2
)
"""Half of them: whatever three of the four are, it is among them (an orthogonal array of strength 3). `make soak` takes
all."""


@dataclass(slots=True)
class Person:
    """Who answers what upstreams ask."""

    asked: list[str] = field(default_factory=list)
    refusal: str = ""
    """`decline` or `cancel` a form, or `error` on anything."""
    is_away: bool = False
    """Never answers."""

    async def elicit(self, _: object, params: Elicited) -> ElicitResult | ErrorData:
        self.asked.append(params.mode)
        if self.is_away:
            await anyio.sleep_forever()
        if self.refusal == "error":
            return ErrorData(code=INVALID_REQUEST, message="Not now")
        if self.refusal:
            return ElicitResult(action=self.refusal)  # type: ignore[arg-type]  # one of the two
        return ElicitResult(action="accept", content={"name": "Ada"} if params.mode != "url" else None)

    async def sample(self, _: object, params: CreateMessageRequestParams) -> CreateMessageResult:
        self.asked.append("sampling")
        (message,) = params.messages
        assert isinstance(message.content, TextContent)
        said = TextContent(text=f"{message.content.text} Because.")
        return CreateMessageResult(role="assistant", content=said, model="tiny", stop_reason="endTurn")

    async def list_roots(self, _: object) -> ListRootsResult:
        self.asked.append("roots")
        return ListRootsResult(roots=[Root(uri="file:///home/ada", name="home")])  # type: ignore[arg-type]  # a URL


@dataclass(slots=True)
class Desk:
    """A client with a gateway before an upstream."""

    combination: Combination
    client: Client
    person: Person
    heard: list[Any]
    """All that came, as JSON."""

    async def call(self, tool: str, **arguments: Any) -> CallToolResult:
        return await asyncio.wait_for(self.client.call_tool(f"{tool}_mirrored", arguments), BOUND)

    async def text(self, tool: str, **arguments: Any) -> str:
        result = await self.call(tool, **arguments)
        (block,) = result.content
        assert isinstance(block, TextContent)
        assert not result.is_error, block.text
        return block.text

    async def wire(self, request: Callable[[], Awaitable[Any]]) -> Any:
        """The result of a request as it came; what the SDK says of it does not matter."""
        before = len(self.heard)
        with contextlib.suppress(ValidationError):
            await asyncio.wait_for(request(), BOUND)
        answers = [message for message in self.heard[before:] if "id" in message and "method" not in message]
        return answers[-1]["result"]

    def told(self, method: str, since: int = 0) -> list[Any]:
        """Parameters of the notifications that came since."""
        return [message.get("params") for message in self.heard[since:] if message.get("method") == method]

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait for something that another process brings about."""
        async with asyncio.timeout(BOUND):
            while True:
                met = condition()
                if await met if isinstance(met, Awaitable) else met:
                    return
                await asyncio.sleep(0.01)


@asynccontextmanager
async def _listening(transport: AbstractAsyncContextManager[Any], heard: list[Any]) -> AsyncIterator[Any]:
    """A transport that keeps what comes."""
    async with transport as (read, write), anyio.create_task_group() as tasks:
        send, receive = anyio.create_memory_object_stream[Any](0)

        async def forward() -> None:
            async with send:
                async for message in read:
                    if isinstance(message, SessionMessage):
                        heard.append(message.message.model_dump(by_alias=True, mode="json", exclude_unset=True))
                    await send.send(message)

        tasks.start_soon(forward)
        async with receive:
            yield receive, write
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def _upstream(combination: Combination) -> AsyncIterator[dict[str, Any]]:
    """How a gateway reaches an upstream of the combination's."""
    if combination.wire == "stdio":
        yield {"command": sys.executable, "args": [_UPSTREAM, "stdio", combination.upstream]}
        return
    process = await asyncio.create_subprocess_exec(sys.executable, _UPSTREAM, "http", combination.upstream, stdout=PIPE)
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), BOUND)
        yield {"url": f"http://127.0.0.1:{int(line)}/mcp"}
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await asyncio.wait_for(process.wait(), BOUND)


@asynccontextmanager
async def _transport(face: str, config: Path) -> AsyncIterator[AbstractAsyncContextManager[Any]]:
    """The way to a new gateway."""
    if face == "stdio":
        command, *args = gateway_command(config)
        with Path(os.devnull).open("w") as nowhere:  # noqa: ASYNC230  # nothing is written there
            yield stdio_client(StdioServerParameters(command=command, args=args), errlog=nowhere)
        return
    async with serve_gateway(config) as url:
        yield streamable_http_client(url)


@asynccontextmanager
async def open_desk(
    combination: Combination,
    folder: Path,
    capabilities: tuple[str, ...],
    limits: Mapping[str, Any] = MappingProxyType({}),
    **server: Any,
) -> AsyncIterator[Desk]:
    """Start a gateway before an upstream, and connect a client that has some capabilities.

    Args:
        combination: Which.
        folder: Where its configuration goes.
        capabilities: What the client takes: `elicitation`, `sampling`, `roots`.
        limits: Settings of the gateway's `limits`.
        server: Settings of the gateway's `server`.
    """
    person, heard = Person(), list[Any]()
    callbacks: dict[str, Any] = {
        "elicitation": {"elicitation_callback": person.elicit},
        "sampling": {"sampling_callback": person.sample},
        "roots": {"list_roots_callback": person.list_roots},
    }
    keys = {key: call for name in capabilities for key, call in callbacks[name].items()}
    mode = "legacy" if combination.client == OLD else NEW
    async with _upstream(combination) as upstream:
        overrides = {"*": {"capture": "never"}, "grow": {"capture": "always"}}
        config = folder / "mirror.yaml"
        sections = {"server": server, "limits": dict(limits), "store": {"path": str(folder / "store")}}
        config.write_text(json.dumps({"upstreams": {"up": {**upstream, "overrides": overrides}}, **sections}))
        async with (
            _transport(combination.face, config) as transport,
            Client(_listening(transport, heard), mode=mode, **keys) as client,
        ):
            await asyncio.wait_for(client.list_tools(), BOUND)
            yield Desk(combination, client, person, heard)


@asynccontextmanager
async def kept(context: AbstractAsyncContextManager[Any]) -> AsyncIterator[Any]:
    """Enter and leave in one task, as the SDK's contexts want it, whichever tasks a fixture begins and ends in."""
    entered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    leaving = asyncio.Event()

    async def keep() -> None:
        try:
            async with context as value:
                entered.set_result(value)
                await leaving.wait()
        except BaseException as error:
            if entered.done():
                raise
            entered.set_exception(error)

    task = asyncio.create_task(keep())
    try:
        yield await asyncio.wait_for(asyncio.shield(entered), BOUND)
    finally:
        leaving.set()
        await asyncio.wait_for(task, BOUND)
