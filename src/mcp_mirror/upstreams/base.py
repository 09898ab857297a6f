"""One connection to an upstream: the SDK's session for the protocol, and the way past it for payloads.

What a result means is not known here: a call gives the members of the result as the bytes that came.
"""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

import anyio
import mcp_types as types
import msgspec
from mcp import Client, MCPError
from mcp.client import IncomingMessage, Transport
from mcp.shared.subscriptions import ToolsListChanged
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from mcp_mirror.errors import UpstreamError, WireError
from mcp_mirror.models import Buffer, Segments
from mcp_mirror.policies import UpstreamPolicy
from mcp_mirror.upstreams.bypass import Arrival, Bypass
from mcp_mirror.upstreams.redaction import Redactor
from mcp_mirror.wire import (
    MARK,
    open_array,
)

RawTool = dict[str, Any]
"""A tool as its upstream lists it, unknown members included."""

_MAX_PAGES: Final = 1000
_STUCK: Final = 1.0
"""Seconds beyond a request's time after which an upstream counts as one that does not read."""
_RESULT: Final[TypeAdapter[types.CallToolResult | types.InputRequiredResult]] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)


Mode = Literal["auto", "legacy"]
"""`auto`: ask which protocol era the server is of; `legacy`: shake hands as in the 2025 era."""

OpenTransport = Callable[[Bypass], AbstractAsyncContextManager[Any]]
"""Makes a transport, single use, that sends and receives through a bypass."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What an upstream said of itself when it was connected."""

    tools: tuple[RawTool, ...]
    instructions: str | None
    protocol_version: str
    server: str
    problems: tuple[str, ...] = ()
    """What is wrong with the listing, a sentence each, for an operator."""


class SessionLostError(UpstreamError):
    """The server does not know the session, so it has not carried out the request: it may be sent in a new one."""


@dataclass(slots=True)
class Connection:
    """A session with one upstream. Errors of every kind come out as `UpstreamError` that names it."""

    name: str
    client: Client
    timeout: float
    """Seconds that a request may take when nothing else is said."""
    bypass: Bypass = field(repr=False)
    redactor: Redactor = field(repr=False)

    @property
    def announces_changes(self) -> bool:
        """Whether changes of the tool list come on a stream that must be asked for."""
        tools = self.client.server_capabilities.tools
        modern = self.client.protocol_version in MODERN_PROTOCOL_VERSIONS
        return modern and tools is not None and bool(tools.list_changed)

    async def list_tools(self) -> Listing:
        """All tools, page by page."""
        tools: list[RawTool] = []
        problems: list[str] = []
        if self.client.server_capabilities.tools is not None:
            async for page in self._pages(problems):
                tools += page
        info = self.client.server_info
        server = f"{info.name} {info.version}".strip() if info else "unnamed"
        version = self.client.protocol_version
        return Listing(tuple(tools), self.client.instructions, version, server, tuple(problems))

    async def call_tool(
        self,
        tool: str,
        arguments: Segments,
        *,
        headers: Mapping[str, Any],
        timeout: float | None = None,  # noqa: ASYNC109  # the SDK's own clock tells the upstream to stop
    ) -> Arrival:
        """Call a tool with arguments that are already JSON text.

        Args:
            tool: The name by which the upstream knows it.
            arguments: A JSON object.
            headers: The arguments that the SDK mirrors into HTTP headers, parsed.
            timeout: Seconds; None for the upstream's own.

        Raises:
            UpstreamError: The upstream answered with a protocol error, not in time, or is gone.
        """
        seconds = timeout or self.timeout
        token = self.bypass.open(arguments)
        params = types.CallToolRequestParams(name=tool, arguments=dict(headers), _meta=_marked(token))
        try:
            async with self._bounded(f"{tool!r}", seconds, token):
                result = await self._send_call(types.CallToolRequest(params=params), seconds)
            if isinstance(result, types.InputRequiredResult):
                raise UpstreamError(f"{self.name!r} asks for the user's input to run {tool!r}: that is not relayed.")
            if (arrival := self.bypass.take(token)) is None:
                raise UpstreamError(f"Upstream {self.name!r} answered {tool!r} under another request's id.")
            return arrival
        finally:
            self.bypass.close(token)

    async def _send_call(self, request: types.CallToolRequest, seconds: float) -> object:
        try:
            return await self.client.session.send_request(request, _RESULT, seconds)
        except MCPError as error:
            if error.code != types.HEADER_MISMATCH:
                raise
        await self.list_tools()  # the schema that its headers come from has changed: learn it, send again
        return await self.client.session.send_request(request, _RESULT, seconds)

    async def each_change(self) -> AsyncIterator[None]:
        """Yield whenever the upstream says, on a stream of its own, that its tools changed.

        The first time when it listens to us: what changed before that was not announced.
        """
        async with self.client.listen(tools_list_changed=True) as changes:
            yield
            async for event in changes:
                if isinstance(event, ToolsListChanged):
                    yield

    async def _pages(self, problems: list[str]) -> AsyncIterator[list[RawTool]]:
        """Each page's tools; where the pages do not come to an end, those that came."""
        cursor: str | None = None
        seen: set[str | None] = set()
        while cursor not in seen and len(seen) < _MAX_PAGES:
            seen.add(cursor)
            token = self.bypass.open()
            try:
                async with self._bounded("tools/list", self.timeout, token):
                    params = types.PaginatedRequestParams(cursor=cursor, _meta=_marked(token))
                    page = await self.client.session.list_tools(params=params)
                arrival = self.bypass.take(token)
                yield _read_tools(arrival.get("tools", b"[]") if isinstance(arrival, Mapping) else b"[]")
            finally:
                self.bypass.close(token)
            cursor = page.next_cursor
            if cursor is None:
                return
        problems.append(f"Upstream {self.name!r} lists its tools on pages without an end: those after are not served.")

    @asynccontextmanager
    async def _bounded(self, what: str, seconds: float, token: str) -> AsyncIterator[None]:
        """The one place where a request's foreign errors become ours, and where one that cannot be sent ends."""
        try:
            with anyio.move_on_after(seconds + _STUCK) as scope:
                yield
            if scope.cancelled_caught:
                self.bypass.ended.set()
                raise UpstreamError(f"Upstream {self.name!r} does not read what it is sent; it is started anew.")  # noqa: TRY301
        except UpstreamError:
            raise
        except Exception as error:  # noqa: BLE001  # whatever a server can do must cost one request alone
            if self.bypass.was_forgotten(token):
                message = f"Upstream {self.name!r} had forgotten our session during {what}; try again in a moment."
                raise SessionLostError(message) from None
            if is_closed(error):
                self.bypass.ended.set()
            said = _explain(error, what, seconds, self.redactor)
            raise UpstreamError(f"Upstream {self.name!r} {said}.") from None


def _read_tools(text: Buffer) -> list[RawTool]:
    """The tools of a page; what is no tool, or holds what cannot be passed on, is an empty one."""
    return [_read_tool(raw) for raw in open_array(text) or ()]


def _read_tool(raw: Buffer) -> RawTool:
    try:
        tool = json.loads(bytes(raw))
        msgspec.json.encode(tool)
    except (ValueError, RecursionError):
        return {}
    return tool if isinstance(tool, dict) else {}


def is_closed(error: BaseException) -> bool:
    """Whether it is the SDK's word that the connection has ended: servers use its code for errors of their own."""
    return isinstance(error, MCPError) and error.args[:2] == (types.CONNECTION_CLOSED, "Connection closed")


def _explain(error: Exception, what: str, seconds: float, redactor: Redactor) -> str:
    match error:
        case MCPError(error=types.ErrorData(code=types.REQUEST_TIMEOUT)) if error.message.endswith(" timed out"):
            return f"did not answer {what} within {seconds:g} s; try again or raise its `timeout`"
        case MCPError() if is_closed(error) or error.message.startswith("SSE stream "):
            return f"closed the connection during {what}; try again in a moment"
        case MCPError():
            return f"refused {what}: {redactor.quote(error.error.message)} (error {error.error.code})"
        case ValidationError() | ValueError() | WireError():
            return f"answered {what} with something that is not of the protocol's form"
    return f"failed during {what} ({type(error).__name__}); try again in a moment"


def _marked(token: str) -> types.RequestParamsMeta:
    meta: Any = {MARK: token}
    return cast("types.RequestParamsMeta", meta)


@asynccontextmanager
async def open_connection(
    policy: UpstreamPolicy,
    open_transport: OpenTransport,
    redactor: Redactor,
    on_tools_changed: Callable[[], None],
    client_info: types.Implementation,
    mode: Mode,
) -> AsyncIterator[Connection]:
    """Connect, find out which protocol era the upstream speaks, and shake hands."""
    bypass = Bypass()

    async def notice_change(message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            on_tools_changed()

    transport: Transport = open_transport(bypass)
    client = Client(
        transport,
        mode=mode,
        read_timeout_seconds=policy.timeout,
        message_handler=notice_change,
        client_info=client_info,
        cache=None,
    )
    async with client:
        yield Connection(policy.name, client, policy.timeout, bypass, redactor)
