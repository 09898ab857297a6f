"""The event streams of 2025-11-25 sessions: the responses to GET requests, one in each session.

The SDK refuses a second stream while the first is open, as the other SDKs' servers do, and the SDKs' clients give up
after two refusals. A client that has changed its network opens a stream minutes before the gateway learns of the end of
the earlier connection. So a further stream replaces the open one.
"""

from typing import Final

import anyio
import mcp_types as types
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_mirror.server.http.connections import find_connection
from mcp_mirror.server.http.exchange import replay_body
from mcp_mirror.server.http.graceful_shutdown import ListenStream
from mcp_mirror.server.http.rejected_requests import build_error_response

_OK: Final = 200
_CONFLICT: Final = 409


class EventStreams:
    """Serves the event streams of all sessions with the SDK's application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._open: dict[str, _EventStream] = {}
        """The open stream of each session, by the session's key."""

    async def serve(self, scope: Scope, key: str, receive: Receive, send: Send) -> None:
        """Serve a GET request, and end an earlier stream of the session with this key if the SDK accepts the request.

        The key contains the principal, so the request has the credentials of the earlier one.
        """
        # Without `Last-Event-ID`: events have no ids, and the SDK would not respond to one.
        headers = [header for header in scope["headers"] if header[0] != b"last-event-id"]
        scope = {**scope, "headers": headers}
        while not await self._try_serve(scope, key, receive, send):
            if (earlier := self._open.get(key)) is None:
                reason = "Another request opens the event stream of this session at the same time. Try again."
                await build_error_response(_CONFLICT, types.INVALID_REQUEST, reason)(scope, receive, send)
                return
            await earlier.end()

    async def _try_serve(self, scope: Scope, key: str, receive: Receive, send: Send) -> bool:
        """Serve a request to its end. Return False without a response if the session has an open stream."""
        stream = _EventStream(scope)

        async def run(scope: Scope, receive: Receive, send: Send) -> None:
            async def forward(message: Message) -> None:
                if message["type"] == "http.response.start":
                    stream.is_refused = message["status"] == _CONFLICT
                    if message["status"] == _OK:
                        self._open[key] = stream
                if not stream.is_refused:
                    await send(message)

            try:
                await self._app(scope, receive, forward)
            finally:
                if self._open.get(key) is stream:
                    del self._open[key]
                stream.has_ended.set()

        receive = replay_body(b"", receive)  # a refused attempt has taken the body
        await ListenStream(receive, send, stream.is_replaced).serve(run, scope)
        return not stream.is_refused


class _EventStream:
    """The response to one GET request."""

    def __init__(self, scope: Scope) -> None:
        self._connection = find_connection(scope)
        self.is_refused = False
        """Whether the session has another stream; then the SDK's response was not sent."""
        self.is_replaced = anyio.Event()
        """Set when the stream is to end."""
        self.has_ended = anyio.Event()
        """Set when the SDK accepts another stream of the session."""

    async def end(self) -> None:
        """End the stream, and wait until the SDK accepts another one."""
        self.is_replaced.set()
        await self.has_ended.wait()
        if self._connection is not None and self._connection.flow.write_paused:
            self._connection.drop()  # the end of the response would wait behind what the client does not read
