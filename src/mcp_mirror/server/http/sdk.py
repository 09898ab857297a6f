"""Requests over Streamable HTTP that the SDK answers, with payloads carried past it; see `pending_payloads`.

The SDK gets each body without its parameters. Results are spliced into the SDK's JSON bodies and server-sent events.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Final

import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_mirror.payload.framing import DiscardedFrame
from mcp_mirror.payload.json_rpc import PAYLOAD_MARK
from mcp_mirror.payload.spool import Frame, discard_after, frame_id
from mcp_mirror.server.auth.principals import build_scope_entries
from mcp_mirror.server.client_channel import RequestStream, SdkStream, Session
from mcp_mirror.server.http.connections import LimitedProtocol, find_connection
from mcp_mirror.server.http.direct import DirectHttp
from mcp_mirror.server.http.event_streams import EventStreams
from mcp_mirror.server.http.exchange import cut_event, replay_body, send_body, send_chunks
from mcp_mirror.server.http.graceful_shutdown import set_request_id
from mcp_mirror.server.http.rejected_requests import UNKNOWN_SESSION, RejectedError, build_busy_response, reject
from mcp_mirror.server.http.session_streams import SessionStream, offer_stream
from mcp_mirror.server.pending_payloads import LiftedMessage, PendingPayloads
from mcp_mirror.server.repeated_ids import RepeatedIds
from mcp_mirror.server.request_context import HttpRequest
from mcp_mirror.server.sdk_messages import refuse_response
from mcp_mirror.server.server import MirrorServer

_MARK: Final = PAYLOAD_MARK.encode()
_DATA: Final = b"data: "
_BAD_REQUEST: Final = 400
_NOT_FOUND: Final = 404
_OUTCOMES: Final = {400: "malformed message", 404: UNKNOWN_SESSION, 405: "method not allowed", 406: "not acceptable"}
"""The outcome of a request that the SDK rejects in the audit log, by its status."""


class SdkHttp:
    """Answers requests with the SDK's application."""

    def __init__(self, app: ASGIApp, direct_http: DirectHttp, server: MirrorServer) -> None:
        self._app = app
        self._direct_http = direct_http
        self._sessions = server.handlers.sessions
        self._pending_payloads = server.handlers.pending_payloads
        self._rejected_requests = server.rejected_requests
        self._event_streams = EventStreams(app)
        self._repeated_ids = RepeatedIds()
        self._new_sessions: dict[int, str] = {}
        """The namespaces of the requests whose sessions have not begun yet, by the identity of the request."""

    async def serve(self, request: HttpRequest, receive: Receive, send: Send) -> None:
        """Serve a request without a message: GET opens the event stream of a session, DELETE ends a session."""
        watched = self._watch_session(request, send)
        if request.scope["method"] == "GET":
            await self._event_streams.serve(request.scope, request.session_key, receive, watched)
        else:
            await self._app(request.scope, receive, watched)

    async def answer(self, body: Frame, request: HttpRequest, receive: Receive, send: Send) -> None:
        """Answer a message, the body of a POST request.

        Raises:
            RejectedError: The body is not a JSON-RPC message or could not be read, or there are too many sessions.
        """
        with discard_after(body):
            lifted = await self._lift_params(body, request)
        try:
            if self._direct_http.apply(lifted.message, request):
                accepted = Response(status_code=202, headers={"mcp-session-id": request.headers["mcp-session-id"]})
                await accepted(request.scope, receive, send)
                return
            if isinstance(lifted.message, types.JSONRPCRequest):
                set_request_id(request.scope, lifted.message.id)
                self._check_new_session(lifted.message, request)
            await self._pass_to_sdk(lifted, request, receive, send)
        finally:
            self._new_sessions.pop(id(request), None)
            self._pending_payloads.discard(lifted.token)

    async def _lift_params(self, body: Frame, request: HttpRequest) -> LiftedMessage:
        """Lift the parameters out of a body; an error answers the request to the client whose response is rejected."""
        try:
            session = self._sessions.find(request.session_key)
            return await self._pending_payloads.lift_params(body, request.namespace, session)
        except MCPError as failure:
            error = failure.error
        status = 413 if isinstance(body, DiscardedFrame) else 400
        if error.code == types.INTERNAL_ERROR:
            status = 503
        if (refused := refuse_response(body, error)) is None:
            raise reject(status, error.code, error.message, frame_id(body))
        if not self._direct_http.apply(refused, request):
            message = refused.model_dump_json(exclude_unset=True).encode()
            scope = _with_length(request.scope, len(message))
            await self._app(scope, replay_body(message, _receive_nothing), _ignore_response)
        raise reject(status, error.code, error.message)

    def _check_new_session(self, message: types.JSONRPCRequest, request: HttpRequest) -> None:
        """Count the session that a request is to begin until it has begun, or the request has ended."""
        if "mcp-session-id" in request.headers or message.method != "initialize":
            return
        namespace, limit = request.namespace, self._pending_payloads.limits.traffic.sessions_per_principal
        beginning = sum(one == namespace for one in self._new_sessions.values())
        if self._sessions.count(namespace) + beginning >= limit:
            raise RejectedError(build_busy_response(429, "sessions_per_principal", limit, "sessions are open"))
        self._new_sessions[id(request)] = namespace

    async def _pass_to_sdk(self, lifted: LiftedMessage, request: HttpRequest, receive: Receive, send: Send) -> None:
        """Give the SDK the message without its parameters, under an id of its own, and send the SDK's response."""
        stub, message = lifted.stub, lifted.message
        # A 2025-11-25 client that disconnects does not cancel its request. If the SDK noticed it, the response would go
        # to the next request with this id.
        further = _receive_nothing if request.session_key else receive
        with self._repeated_ids.replaced(message, request.session_key) as (own_message, ids):
            if own_message is not message:
                stub = own_message.model_dump_json(by_alias=True, exclude_unset=True).encode()
            writer = _ResponseWriter(self._pending_payloads, self._watch_session(request, send), ids)
            scope, replay = _with_length(request.scope, len(stub)), replay_body(stub, further)
            if isinstance(message, types.JSONRPCRequest):
                with writer.watching(request.scope):
                    await self._app(offer_stream(scope, writer.open_stream), replay, writer.send)
            else:
                await _send_late(self._app, scope, replay, writer.send)

    def _watch_session(self, request: HttpRequest, send: Send) -> Send:
        """Return a `send` that records the session which a response of the SDK creates or does not know.

        It reports requests that the SDK rejects. To 2026-07-28 clients, errors of MCP have statuses too.
        """
        is_modern = request.headers.get("mcp-protocol-version") in MODERN_PROTOCOL_VERSIONS

        async def watch(message: Message) -> None:
            if message["type"] == "http.response.start":
                status = message["status"]
                if status in _OUTCOMES and not (is_modern and status <= _NOT_FOUND):
                    self._rejected_requests.report_response(status, _OUTCOMES[status], request.namespace)
                if status == _NOT_FOUND and _is_json(message):
                    self._sessions.end(request.session_key)
                session_id = Headers(raw=message["headers"]).get("mcp-session-id")
                if session_id is not None and status < _BAD_REQUEST:
                    self._new_sessions.pop(id(request), None)
                    self._sessions.add_http_session(request.namespace, session_id, request.upstream)
            await send(message)

        return watch


def make_session_closer(app: ASGIApp, path: str) -> Callable[[str], Awaitable[None]]:
    """Return a function that ends a session of the SDK by its key, with a DELETE request like that of a client."""

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def close(key: str) -> None:
        session_id, _, namespace = key.partition(" ")
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "DELETE",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"host", b"localhost:0"), (b"mcp-session-id", session_id.encode("latin-1", "replace"))],
            **(build_scope_entries(namespace) if namespace else {}),
        }
        await app(scope, receive, _ignore_response)  # the SDK may have ended the session before

    return close


class _ResponseWriter:
    """Sends one response of the SDK, with pending results spliced in."""

    def __init__(self, pending_payloads: PendingPayloads, send: Send, ids: tuple[bytes, bytes] | None) -> None:
        """Send a response, with the second of two ids in place of the first."""
        self._pending_payloads = pending_payloads
        self._send = send
        self._ids = ids
        self._start: Message | None = None
        """The start of a JSON response, which is sent with the length of the body."""
        self._body: list[bytes] = []
        self._has_begun = asyncio.Event()
        """The head of an event stream was sent."""
        self._stream: _SdkResponse | None = None
        self._connection: LimitedProtocol | None = None

    @contextmanager
    def watching(self, scope: Scope) -> Iterator[None]:
        """Close the stream of a request in a session if its client disconnects in the context."""
        self._connection = find_connection(scope)
        try:
            yield
        finally:
            if self._connection and self._stream:
                self._connection.unwatch_disconnect(self._stream.close)
            self._stream = None  # a circle: the stream refers to the request, whose scope refers to this object

    def open_stream(self, session: Session, sdk_stream: SdkStream) -> RequestStream:
        """Return the stream of the request; see `find_stream`."""
        self._stream = _SdkResponse(session, sdk_stream, self._has_begun, self._send)
        if self._connection:
            self._connection.watch_disconnect(self._stream.close)
        return self._stream

    async def send(self, message: Message) -> None:
        """Send an ASGI message of the application."""
        if self._ids is not None and "body" in message:
            message = {**message, "body": message["body"].replace(*self._ids)}
        if message["type"] == "http.response.start":
            if _is_json(message):
                self._start = message
            else:
                await self._send(message)
                self._has_begun.set()
        elif self._start is not None:
            await self._send_json(self._start, message)
        elif self._stream is None:
            await self._send_event(message)
        else:
            async with self._stream.lock:
                await self._send_event(message)

    async def _send_json(self, start: Message, message: Message) -> None:
        self._body.append(message.get("body", b""))
        if message.get("more_body", False):
            return
        segments = self._pending_payloads.splice_result(b"".join(self._body))
        await self._send(_with_length(start, sum(map(len, segments))))
        await send_body(self._send, segments)

    async def _send_event(self, message: Message) -> None:
        body: bytes = message.get("body", b"")
        if _MARK not in body:
            await self._send(message)
            return
        lines = [self._splice_line(line) for line in body.splitlines(keepends=True)]
        await send_chunks(self._send, chain.from_iterable(lines), has_more=message.get("more_body", False))

    def _splice_line(self, line: bytes) -> Iterable[bytes]:
        if not line.startswith(_DATA) or _MARK not in line:
            return (line,)
        data = line.rstrip(b"\r\n")
        end = line[len(data) :]
        payload = self._pending_payloads.splice_result(data[len(_DATA) :])
        return cut_event(_DATA, payload, end)


class _SdkResponse(SessionStream):
    """The event stream of a request that the SDK answers, up to the outcome."""

    def __init__(self, session: Session, sdk_stream: SdkStream, has_begun: asyncio.Event, send: Send) -> None:
        """Create the stream, whose head the SDK sends."""
        super().__init__(session)
        self._sdk_stream = sdk_stream
        self._has_begun = has_begun
        self._send = send

    @property
    def is_closed(self) -> bool:
        """Whether the SDK may write the outcome, or the client has disconnected."""
        return self._is_closed or not self._sdk_stream.session.can_send_request

    async def _write(self, event: bytes) -> None:
        """Write an event; see `SessionStream`."""
        await self._has_begun.wait()
        await self._send({"type": "http.response.body", "body": event, "more_body": True})


async def _send_late(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Have the SDK take a notification or a response, and send the HTTP response when the SDK has taken it.

    The SDK answers such messages before it takes them, one in each pass of the event loop. A client that sends them
    faster would fill the memory with messages that wait.
    """
    parts: list[Message] = []
    is_complete = False

    async def keep(part: Message) -> None:
        nonlocal is_complete
        if not is_complete:  # the SDK sends a second response to a message that it could not take
            parts.append(part)
            is_complete = part["type"] == "http.response.body" and not part.get("more_body", False)

    await app(scope, receive, keep)
    for part in parts:
        await send(part)


def _is_json(start: Message) -> bool:
    return Headers(raw=start["headers"]).get("content-type", "").startswith("application/json")


def _with_length(head: Scope | Message, length: int) -> Scope | Message:
    """Return the head of a request or response with the length of another body."""
    headers = MutableHeaders(raw=list(head["headers"]))
    headers["content-length"] = str(length)
    del headers["transfer-encoding"]
    return {**head, "headers": headers.raw}


async def _receive_nothing() -> Message:
    """Wait until cancelled."""
    message: Message = await asyncio.get_running_loop().create_future()
    return message


async def _ignore_response(_message: Message) -> None:
    """Ignore a part of a response."""
