"""One connection to an upstream: the SDK's session for the protocol, and the way past it for payloads.

What a result means is not known here: a call gives the members of the result as the bytes that came.
"""

import json
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast

import anyio
import mcp_types as types
from mcp import Client, MCPError
from mcp.client import IncomingMessage, Transport
from mcp.shared.subscriptions import ToolsListChanged
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from mcp_mirror.errors import UpstreamError, WireError
from mcp_mirror.models import Buffer, Segments
from mcp_mirror.wire import MARK, RequestId, find_mark, lift_result, open_message, splice

RawResult = Mapping[str, Buffer]
"""The members of a `tools/call` result, each as the bytes that came."""

RawTool = dict[str, Any]
"""A tool as its upstream lists it, unknown members included."""

_MAX_PAGES: Final = 1000
_RESULT: Final[TypeAdapter[types.CallToolResult | types.InputRequiredResult]] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)


@dataclass(slots=True)
class _Passage:
    """One request whose payload goes past the SDK."""

    arguments: Segments | None
    ids: list[RequestId] = field(default_factory=list)
    """The ids it was sent under: one a send."""
    members: RawResult = field(default_factory=dict)


class Bypass:
    """The payloads of one connection on their way past the SDK.

    A call leaves its arguments under a token and marks its request with it; the transport splices them into the
    outgoing bytes, learns the request's id, and lifts the result out of the response with that id.
    """

    def __init__(self) -> None:
        self.ended = anyio.Event()
        """Set by the transport when nothing more can come."""
        self._passages: dict[str, _Passage] = {}
        self._awaited: dict[RequestId, _Passage] = {}

    def open(self, arguments: Segments | None = None) -> str:
        """A token for one request; with the arguments to splice into it, if it is a call."""
        token = secrets.token_hex(16)
        self._passages[token] = _Passage(arguments)
        return token

    def close(self, token: str) -> None:
        """Forget a request, answered or not."""
        for identity in self._passages.pop(token).ids:
            self._awaited.pop(identity, None)

    def take(self, token: str) -> RawResult:
        """What was lifted out of the answer; empty where nothing was."""
        return self._passages[token].members

    def outbound(self, frame: bytes) -> Segments:
        """The bytes to send for a message of the SDK's. A frame may be sent again (an auth retry, a redirect)."""
        marked = find_mark(frame)
        passage = self._passages.get(marked.token) if marked else None
        if marked is None or passage is None or marked.id is None:
            return (frame,)
        self._awaited[marked.id] = passage
        passage.ids.append(marked.id)
        return splice(marked, {} if passage.arguments is None else {"arguments": passage.arguments})

    def inbound(self, frame: Buffer) -> Buffer:
        """The message that the SDK is to see for a frame that came.

        Raises:
            WireError: The frame is no JSON-RPC message.
        """
        message = open_message(frame)
        passage = self._awaited.get(message.id) if isinstance(message.id, int | str) else None
        if passage is None:
            return frame
        lifted = lift_result(message, "tools/list" if passage.arguments is None else "tools/call")
        if lifted is None:
            return frame
        passage.members = lifted.members
        return lifted.stub

    def awaits(self, identity: RequestId | None) -> bool:
        """Whether a request with this id is under way."""
        return identity in self._awaited


OpenTransport = Callable[[Bypass], AbstractAsyncContextManager[Any]]
"""Makes a transport, single use, that sends and receives through a bypass."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What an upstream said of itself when it was connected."""

    tools: tuple[RawTool, ...]
    instructions: str | None
    protocol_version: str
    server: str


@dataclass(slots=True)
class Connection:
    """A session with one upstream. Errors of every kind come out as `UpstreamError` that names it."""

    name: str
    client: Client
    timeout: float
    """Seconds that a request may take when nothing else is said."""
    bypass: Bypass = field(repr=False)

    @property
    def announces_changes(self) -> bool:
        """Whether changes of the tool list come on a stream that must be asked for."""
        tools = self.client.server_capabilities.tools
        modern = self.client.protocol_version in MODERN_PROTOCOL_VERSIONS
        return modern and tools is not None and bool(tools.list_changed)

    async def list_tools(self) -> Listing:
        """All tools, page by page."""
        tools: list[RawTool] = []
        if self.client.server_capabilities.tools is not None:
            async for page in self._pages():
                tools += page
        info = self.client.server_info
        server = f"{info.name} {info.version}".strip() if info else "unnamed"
        return Listing(tuple(tools), self.client.instructions, self.client.protocol_version, server)

    async def call_tool(
        self,
        tool: str,
        arguments: Segments,
        *,
        headers: Mapping[str, Any],
        timeout: float | None = None,  # noqa: ASYNC109  # the SDK's own clock tells the upstream to stop
    ) -> RawResult:
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
        request = types.CallToolRequest(params=params)
        try:
            with self._translated_errors(f"{tool!r}", seconds):
                try:
                    result = await self.client.session.send_request(request, _RESULT, seconds)
                except MCPError as error:
                    if error.code != types.HEADER_MISMATCH:
                        raise
                    await self.list_tools()  # the schema that its headers come from has changed: learn it, send again
                    result = await self.client.session.send_request(request, _RESULT, seconds)
            if isinstance(result, types.InputRequiredResult):
                raise UpstreamError(f"{self.name!r} asks for the user's input to run {tool!r}: that is not relayed.")
            return self.bypass.take(token)
        finally:
            self.bypass.close(token)

    async def each_change(self) -> AsyncIterator[None]:
        """Yield whenever the upstream says, on a stream of its own, that its tools changed."""
        async with self.client.listen(tools_list_changed=True) as changes:
            async for event in changes:
                if isinstance(event, ToolsListChanged):
                    yield

    async def _pages(self) -> AsyncIterator[list[RawTool]]:
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            token = self.bypass.open()
            try:
                with self._translated_errors("tools/list", self.timeout):
                    params = types.PaginatedRequestParams(cursor=cursor, _meta=_marked(token))
                    page = await self.client.session.list_tools(params=params)
                yield [tool for tool in json.loads(bytes(self.bypass.take(token).get("tools", b"[]"))) if tool]
            finally:
                self.bypass.close(token)
            cursor = page.next_cursor
            if cursor is None:
                return
        raise UpstreamError(f"{self.name!r} lists its tools on more than {_MAX_PAGES} pages: the rest is not served.")

    def _translated_errors(self, what: str, seconds: float) -> "_Translation":
        return _Translation(self.name, what, seconds, self.bypass)


def _marked(token: str) -> types.RequestParamsMeta:
    meta: Any = {MARK: token}
    return cast("types.RequestParamsMeta", meta)


@dataclass(frozen=True, slots=True)
class _Translation:
    """The one place where a connection's foreign errors become ours."""

    upstream: str
    what: str
    seconds: float
    bypass: Bypass

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        match error:
            case MCPError(error=types.ErrorData(code=types.REQUEST_TIMEOUT)):
                message = f"did not answer {self.what} within {self.seconds:g} s; try again or raise its `timeout`"
            case MCPError(error=types.ErrorData(code=types.CONNECTION_CLOSED)):
                message = f"closed the connection during {self.what}; try again in a moment"
            case MCPError(error=types.ErrorData(message="Session terminated")):
                self.bypass.ended.set()
                message = f"had forgotten our session during {self.what}; try again in a moment"
            case MCPError():
                message = f"refused {self.what}: {error.error.message[:500]} (error {error.error.code})"
            case ValidationError() | ValueError() | WireError():
                message = f"answered {self.what} with something that is not of the protocol's form"
            case _:
                return
        raise UpstreamError(f"Upstream {self.upstream!r} {message}.") from None


@asynccontextmanager
async def open_connection(
    name: str,
    open_transport: OpenTransport,
    timeout: float,  # noqa: ASYNC109  # a default that is handed on to each request
    on_tools_changed: Callable[[], None],
    client_info: types.Implementation,
) -> AsyncIterator[Connection]:
    """Connect, find out which protocol era the upstream speaks, and shake hands."""
    bypass = Bypass()

    async def notice_change(message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            on_tools_changed()

    transport: Transport = open_transport(bypass)
    client = Client(
        transport, read_timeout_seconds=timeout, message_handler=notice_change, client_info=client_info, cache=None
    )
    async with client:
        yield Connection(name, client, timeout, bypass)
