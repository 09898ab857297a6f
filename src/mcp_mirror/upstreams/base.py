"""One connection to an upstream: the SDK's session for the protocol, and the way past it for payloads.

What a result means is not known here: a call gives the members of the result as the bytes that came.
"""

import json
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

import anyio
import mcp_types as types
import msgspec
from mcp import Client, MCPError
from mcp.client import IncomingMessage, Transport
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.subscriptions import ToolsListChanged
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from mcp_mirror.errors import UpstreamError, WireError
from mcp_mirror.frames import Overlong
from mcp_mirror.models import Buffer, Segments
from mcp_mirror.policies import UpstreamPolicy
from mcp_mirror.spool import Frame, SpooledFrame
from mcp_mirror.upstreams.redaction import Redactor
from mcp_mirror.wire import (
    MARK,
    Message,
    RequestId,
    array_of,
    find_mark,
    join,
    lift_result,
    open_array,
    open_message,
    recover_id,
    splice,
)

RawResult = Mapping[str, Buffer]
"""The members of a `tools/call` result, each as the bytes that came."""

Arrival = RawResult | SpooledFrame
"""A result as it arrived: its members, or the whole response, unread, in a file."""

RawTool = dict[str, Any]
"""A tool as its upstream lists it, unknown members included."""

_MAX_PAGES: Final = 1000
_REMEMBERED: Final = 256
_STUCK: Final = 1.0
"""Seconds beyond a request's time after which an upstream counts as one that does not read."""
_EMPTY_RESULT: Final[Mapping[str, Any]] = {"content": [], "resultType": "complete"}
_HEADER: Final = b'"x-mcp-header"'
"""In the tools from whose schemas the SDK computes headers: the others it need not know."""
_SDK_READS: Final = frozenset({"content", "isError", "resultType", "tools", "nextCursor", "ttlMs", "cacheScope"})
_RESULT: Final[TypeAdapter[types.CallToolResult | types.InputRequiredResult]] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)


@dataclass(slots=True)
class _Passage:
    """One request whose payload goes past the SDK."""

    arguments: Segments | None
    ids: list[RequestId] = field(default_factory=list)
    """The ids it was sent under: one a send."""
    arrival: Arrival | None = None
    """None: no result of its has come."""
    forgotten: bool = False
    """The server does not know the session that it was sent in, so it was not carried out."""


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
        self._over: deque[RequestId] = deque(maxlen=_REMEMBERED)
        """Ids of requests that are answered or given up: what comes for them is for nobody."""

    def __len__(self) -> int:
        """How many requests are under way."""
        return len(self._passages)

    def open(self, arguments: Segments | None = None) -> str:
        """A token for one request; with the arguments to splice into it, if it is a call."""
        token = secrets.token_hex(16)
        self._passages[token] = _Passage(arguments)
        return token

    def close(self, token: str) -> None:
        """Forget a request, answered or not."""
        passage = self._passages.pop(token)
        for identity in passage.ids:
            self._awaited.pop(identity, None)
            self._over.append(identity)
        if isinstance(passage.arrival, SpooledFrame):
            passage.arrival.discard()

    def take(self, token: str) -> Arrival | None:
        """What was lifted out of the answer; None where nothing was."""
        arrival, self._passages[token].arrival = self._passages[token].arrival, None
        return arrival

    def was_forgotten(self, token: str) -> bool:
        """Whether the server refused the request for want of its session."""
        return self._passages[token].forgotten

    def forgotten(self, identity: RequestId) -> None:
        """Told by the transport that the server does not know the session that this request was sent in."""
        if passage := self._awaited.get(coerce_request_id(identity)):
            passage.forgotten = True
        self.ended.set()

    def outbound(self, frame: bytes) -> Segments:
        """The bytes to send for a message of the SDK's. A frame may be sent again (an auth retry, a redirect)."""
        marked = find_mark(frame)
        passage = self._passages.get(marked.token) if marked else None
        if marked is None or passage is None or marked.id is None:
            return (frame,)
        identity = coerce_request_id(marked.id)
        self._awaited[identity] = passage
        passage.ids.append(identity)
        return splice(marked, {} if passage.arguments is None else {"arguments": passage.arguments})

    def inbound(self, frame: Frame) -> Buffer | None:
        """The message that the SDK is to see for a frame that came; None where there is nothing to see.

        Raises:
            WireError: The frame is no JSON-RPC message, or too large.
        """
        if isinstance(frame, Overlong):
            raise WireError(f"A message of {frame.size:,} bytes is over `limits.max_message_bytes`.")
        return self._spooled(frame) if isinstance(frame, SpooledFrame) else self._opened(frame)

    def _spooled(self, frame: SpooledFrame) -> Buffer | None:
        """A large answer to a call goes on unread to the caller; one that comes too late goes nowhere."""
        identity = identity_of(frame)
        key = None if identity is None else coerce_request_id(identity)
        passage = self._awaited.get(key) if key is not None else None
        if passage is not None and passage.arguments is not None:
            passage.arrival = frame
            return msgspec.json.encode({"jsonrpc": "2.0", "id": identity, "result": _EMPTY_RESULT})
        with frame:
            return None if key in self._over else self._opened(bytes(frame.view))

    def _opened(self, frame: bytes) -> Buffer:
        message = open_message(frame)
        identity = coerce_request_id(message.id) if isinstance(message.id, int | str) else None
        passage = self._awaited.get(identity) if identity is not None else None
        if passage is None:
            return _nothing(message) if identity in self._over else frame
        lifted = lift_result(_without_extras(message), "tools/list" if passage.arguments is None else "tools/call")
        if lifted is None or not isinstance(message.result, dict):
            return frame
        passage.arrival = {key: memoryview(raw) for key, raw in message.result.items()}
        return lifted.stub

    def awaits(self, identity: RequestId | None) -> bool:
        """Whether a request with this id is under way."""
        return identity is not None and coerce_request_id(identity) in self._awaited


def identity_of(frame: Frame) -> RequestId | None:
    """The id of a message that was not opened, if it stands first or last in it."""
    if isinstance(frame, SpooledFrame):
        first = recover_id(frame.head)
        return recover_id(frame.tail) if first is None else first
    return recover_id(frame.head if isinstance(frame, Overlong) else frame)


def _without_extras(message: Message) -> Message:
    """The message with no more in its result than the SDK acts on: it would stumble over what it does not know."""
    if not isinstance(message.result, dict):
        return message
    read = {key: raw for key, raw in message.result.items() if key in _SDK_READS}
    if tools := read.get("tools"):
        annotated = [raw for raw in open_array(memoryview(tools)) or () if _HEADER in bytes(raw)]
        read["tools"] = msgspec.Raw(join(array_of(annotated)))
    return msgspec.structs.replace(message, result=read)


def _nothing(message: Message) -> bytes:
    """What the SDK sees of a large answer that nobody waits for any more."""
    return msgspec.json.encode({"jsonrpc": "2.0", "id": message.id, "result": {}})


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
            said = self.redactor.clean(_explain(error, what, seconds))
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


def _explain(error: Exception, what: str, seconds: float) -> str:
    match error:
        case MCPError(error=types.ErrorData(code=types.REQUEST_TIMEOUT)) if error.message.endswith(" timed out"):
            return f"did not answer {what} within {seconds:g} s; try again or raise its `timeout`"
        case MCPError() if is_closed(error) or error.message.startswith("SSE stream "):
            return f"closed the connection during {what}; try again in a moment"
        case MCPError():
            return f"refused {what}: {error.error.message[:500].rstrip('.')} (error {error.error.code})"
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
