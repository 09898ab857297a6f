"""Direct requests over Streamable HTTP, and their responses; see `direct_path`.

A response is JSON, or an event stream from the first message before the result on. A 2025-11-25 client that disconnects
does not cancel its request; a 2026-07-28 client does.
"""

import asyncio
from functools import lru_cache
from typing import Final

import mcp_types as types
from mcp.server.streamable_http import REQUEST_CANCELLED, check_accept_headers
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS, decode_header_value
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.requests import Request
from starlette.types import Scope, Send

from mcp_mirror.payload.json_rpc import RequestId
from mcp_mirror.server.cancel_scopes import RequestScope
from mcp_mirror.server.client_channel import ClientResponse
from mcp_mirror.server.direct_path import TOOL_CALL, DirectPath, DirectRequest, Sender, write_response
from mcp_mirror.server.http.connections import find_connection
from mcp_mirror.server.http.exchange import BODY_FOLLOWS, cut_event, send_body, send_chunks
from mcp_mirror.server.http.graceful_shutdown import set_request_id
from mcp_mirror.server.http.session_streams import EVENT, EVENT_END, SessionStream
from mcp_mirror.server.request_context import HttpRequest
from mcp_mirror.server.sessions import Sessions
from mcp_mirror.system.shared_timer import SharedTimer
from mcp_mirror.types import Buffer, Segments

_SESSION_HEADER: Final = "mcp-session-id"
_JSON: Final = "application/json"
_REQUEST_CANCELLED: Final = types.ErrorData(code=REQUEST_CANCELLED, message="Request cancelled")
_PING_INTERVAL: Final = 15.0
"""Seconds of silence after which the response becomes an event stream with comments, so that proxies keep it open."""
_OK: Final = 200
_STREAM_HEADERS: Final = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"connection", b"keep-alive"),
    (b"x-accel-buffering", b"no"),
)
_PING: Final = b": ping\r\n\r\n"


class ResponseStream(SessionStream):
    """The response to one direct call: JSON, or an event stream from the first message before the outcome on."""

    def __init__(self, send: Send, sender: Sender, session_id: str | None, silence: SharedTimer) -> None:
        """Begin a response; the timer `silence` runs out for each one that was silent for the interval of pings."""
        super().__init__(sender.session)
        self._send = send
        self._sender = sender
        self._silence = silence
        self._headers = () if session_id is None else ((b"mcp-session-id", session_id.encode("latin-1")),)
        self._is_stream = False
        """The head of an event stream was sent."""
        self._ping: asyncio.Task[None] | None = None
        silence.start(self, self._start_ping)

    async def send_outcome(self, request_id: RequestId, outcome: Segments | types.ErrorData) -> None:
        """Send the result or the error of the call, and end the response."""
        message = write_response(request_id, outcome, has_nulls=not self._sender.caller.is_stateless)
        if self._lock is not None:
            async with self._lock:  # an event may be about to begin the stream
                if self._is_stream:
                    self.close()
                    await send_chunks(self._send, cut_event(EVENT, message, EVENT_END))
                    return
        self.close()
        status = _OK
        if self._sender.caller.is_stateless and isinstance(outcome, types.ErrorData):
            status = ERROR_CODE_HTTP_STATUS.get(outcome.code, _OK)
        length = str(sum(map(len, message))).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length), *self._headers]
        await self._send({"type": "http.response.start", "status": status, "headers": headers, BODY_FOLLOWS: True})
        await send_body(self._send, message)

    async def end(self) -> None:
        """End the response of a call without an outcome, with an event stream."""
        async with self.lock:
            await self._start_stream()
            self.close()
            await send_body(self._send, ())

    def close(self) -> None:
        """Send no more messages."""
        super().close()
        self._silence.cancel(self)

    async def _start_stream(self) -> None:
        if not self._is_stream:
            headers = [*_STREAM_HEADERS, *self._headers]
            await self._send({"type": "http.response.start", "status": _OK, "headers": headers})
            self._is_stream = True

    async def _write(self, event: bytes) -> None:
        """Write an event; see `SessionStream`."""
        await self._start_stream()
        await self._send({"type": "http.response.body", "body": event, "more_body": True})

    def _start_ping(self) -> None:
        if self._ping is None or self._ping.done():  # else the client does not read
            self._ping = asyncio.get_running_loop().create_task(self._send_event(_PING))
        self._silence.start(self, self._start_ping)


class DirectHttp:
    """Answers direct requests over HTTP."""

    def __init__(self, direct_path: DirectPath, sessions: Sessions) -> None:
        self._direct_path = direct_path
        self._sessions = sessions
        self._silence = SharedTimer(_PING_INTERVAL)

    async def answer(self, body: Buffer, request: HttpRequest, send: Send) -> bool:
        """Answer a POST request if it is a direct one; return False, with nothing sent, if the SDK must handle it."""
        opened = self._direct_path.open_request(body)
        if opened is None or not _is_acceptable(opened, request):
            return False
        sender = self._direct_path.find_sender(opened, request)
        if sender is None or self._sessions.is_anonymous(request.namespace):
            return False
        set_request_id(request.scope, opened.id)
        session_id = request.headers.get(_SESSION_HEADER) if sender.session else None
        response = ResponseStream(send, sender, session_id, self._silence)
        try:
            outcome = await self._run(opened, sender, response, request.scope)
            if outcome is not None:
                await response.send_outcome(opened.id, outcome)
            elif sender.session is None:  # the client has disconnected: no one reads a response
                return True
            elif self._sessions.find(request.session_key) is sender.session:  # the client has cancelled the request
                await response.send_outcome(opened.id, _REQUEST_CANCELLED)
            else:  # the session has ended
                await response.end()
        finally:
            response.close()
        return True

    async def _run(
        self, opened: DirectRequest, sender: Sender, response: ResponseStream, scope: Scope
    ) -> Segments | types.ErrorData | None:
        """Return the outcome of a request; None without one, because the client or the end of its session cancelled it.

        A 2026-07-28 client cancels its request when it disconnects. A 2025-11-25 client only reads no more of it.
        """
        session = sender.session
        cancel = session.direct_requests.open(opened.id) if session else RequestScope()
        end = response.close if session else cancel.cancel
        if connection := find_connection(scope):
            connection.watch_disconnect(end)
        outcome: Segments | types.ErrorData | None = None
        try:
            with cancel:
                outcome = await self._direct_path.answer(opened, sender, response)
        finally:
            if connection:
                connection.unwatch_disconnect(end)
            if session:
                session.direct_requests.close(opened.id, cancel)
        return None if cancel.cancel_called else outcome

    def apply(self, message: types.JSONRPCMessage, request: HttpRequest) -> bool:
        """Apply a message, without its payload, to the direct requests of its session, also to those that have ended.

        Return whether it was the response to a request for one of them. The SDK must handle all other messages.
        """
        session = self._sessions.find(request.session_key)
        if session is None:
            return False
        session.direct_requests.apply(message)
        if isinstance(message, ClientResponse) and (future := session.client_responses.get(message.id)) is not None:
            if not future.done():
                future.set_result(message)
            return True
        return False


def _is_acceptable(opened: DirectRequest, request: HttpRequest) -> bool:
    """Whether the SDK would accept the headers of a request."""
    headers = request.headers
    if len(headers) < len(request.scope["headers"]) or not _accepts_both(headers.get("accept", "")):
        return False
    if headers["content-type"].partition(";")[0].strip() != _JSON:
        return False
    version = headers.get("mcp-protocol-version")
    if not opened.envelope:
        return version is None or version in HANDSHAKE_PROTOCOL_VERSIONS
    # The SDK has accepted the envelope before; what is left to compare are the headers.
    return (
        version == opened.meta.get(types.PROTOCOL_VERSION_META_KEY)
        and headers.get("mcp-method") == opened.method
        and (opened.method != TOOL_CALL or decode_header_value(headers.get("mcp-name")) == opened.name)
    )


@lru_cache(32)
def _accepts_both(accept: str) -> bool:
    """Whether an `Accept` header admits JSON and event streams."""
    request = Request({"type": "http", "headers": [(b"accept", accept.encode("latin-1"))]})
    return all(check_accept_headers(request))
