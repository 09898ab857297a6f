"""Graceful shutdown of the HTTP server: open requests are answered, new requests get a 503, listen streams end.

A new request of a session gets a 404, because the session ends with this gateway: the client opens a new session, which
a proxy sends to another gateway.

A listen stream (a GET, or a `subscriptions/listen` request) would keep the server open, because the client ends it.
Requests that are open when the grace period ends are cancelled; their clients get an error with the cause.
"""

import asyncio
from typing import Final

import anyio
import mcp_types as types
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_mirror.payload.json_rpc import RequestId
from mcp_mirror.server.cancel_scopes import STOPPED, STOPPING
from mcp_mirror.server.http.rejected_requests import build_error_response

_RESPONSE: Final = "mcp_mirror.response"
"""The key in an ASGI scope of the open response."""
_LAST_WRITE: Final = 1.0
"""Seconds that the error for a cancelled request may take: its client may have stopped reading."""
_CLOSE: Final = (b"connection", b"close")
_SUBSCRIPTION: Final = b"subscriptions/listen"
_SESSION: Final = b"mcp-session-id"
_SESSION_ENDED: Final = (
    "The gateway is stopping, and this session has ended. Open a new session and repeat the request."
)


def _build_refusal(scope: Scope) -> JSONResponse:
    """Return the response to a request that arrives during the shutdown."""
    has_session = any(name == _SESSION for name, _ in scope["headers"])
    error = (404, types.INVALID_REQUEST, _SESSION_ENDED) if has_session else (503, types.INTERNAL_ERROR, STOPPING)
    response = build_error_response(*error)
    response.headers["connection"] = "close"
    return response


class ShutdownMiddleware:
    """An ASGI middleware that ends listen streams and rejects requests once `shutdown` is set."""

    def __init__(self, app: ASGIApp, shutdown: anyio.Event) -> None:
        self._app = app
        self._shutdown = shutdown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or reject it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif self._shutdown.is_set():
            await _build_refusal(scope)(scope, receive, send)
        elif is_listen_request(scope):
            await ListenStream(receive, send, self._shutdown).serve(self._app, scope)
        else:
            await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. The server cancels its task only at the end of the gateway."""
        response = scope[_RESPONSE] = OpenResponse(send)
        try:
            await self._app(scope, receive, response.send)
        except asyncio.CancelledError:
            with anyio.move_on_after(_LAST_WRITE, shield=True):
                await response.send_error()
            raise
        finally:
            # The owner of `send` has the scope too: only the garbage collector frees such a cycle.
            del scope[_RESPONSE]


def set_request_id(scope: Scope, request_id: RequestId) -> None:
    """Record the id of the JSON-RPC request in an HTTP request, for an error that answers it."""
    response: OpenResponse | None = scope.get(_RESPONSE)
    if response is not None:
        response.request_id = request_id


class OpenResponse:
    """The response to one request, which can end with an error."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.request_id: RequestId | None = None
        """The id of the JSON-RPC request; None if it is not known."""
        self._start: Message | None = None
        """The head of the response; None before the response begins."""
        self._is_complete = False

    async def send(self, message: Message) -> None:
        """Forward an ASGI message of the application."""
        if message["type"] == "http.response.start":
            self._start = message
        else:
            self._is_complete = not message.get("more_body", False)
        await self._send(message)

    async def send_error(self) -> None:
        """End the response with the error `STOPPED`, unless it is complete or has begun with a part of another body.

        The error of a known request has status 200, as the request's own errors have: clients with version 1 of the
        Python SDK end with an exception at status 503, and a proxy may send the request again.
        """
        message = types.JSONRPCError(jsonrpc="2.0", id=self.request_id, error=STOPPED)
        body = message.model_dump_json(exclude_unset=True).encode()
        if self._start is None:
            headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), _CLOSE]
            status = 503 if self.request_id is None else 200
            await self.send({"type": "http.response.start", "status": status, "headers": headers})
            await self.send({"type": "http.response.body", "body": body})
            return
        media_type = Headers(raw=self._start["headers"]).get("content-type", "")
        if media_type.startswith("text/event-stream") and not self._is_complete:
            # The empty line ends an event whose last part is missing.
            event = b"\r\n\r\nevent: message\r\ndata: " + body + b"\r\n\r\n"
            await self.send({"type": "http.response.body", "body": event, "more_body": False})


def is_listen_request(scope: Scope) -> bool:
    """Return whether a request opens a listen stream.

    The head is sufficient: 2026-07-28 clients must name the method in a header.
    """
    return scope["method"] == "GET" or (b"mcp-method", _SUBSCRIPTION) in scope["headers"]


class ListenStream:
    """A listen stream whose client seems to disconnect once an event is set, so that the application ends."""

    def __init__(self, receive: Receive, send: Send, is_ended: anyio.Event) -> None:
        self._receive = receive
        self._send = send
        self._is_ended = is_ended
        self._is_open = False
        """The response has begun, and its last part was not sent."""

    async def serve(self, app: ASGIApp, scope: Scope) -> None:
        """Serve the request, and complete the response if the application left it open after the event."""
        await app(scope, self._receive_until_end, self._forward)
        if self._is_open and self._is_ended.is_set():
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _receive_until_end(self) -> Message:
        """Return the next ASGI message of the client, or a disconnect once the event is set."""
        message: Message = {"type": "http.disconnect"}

        async def read() -> None:
            nonlocal message
            message = await self._receive()
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await self._is_ended.wait()
            tasks.cancel_scope.cancel()
        return message

    async def _forward(self, message: Message) -> None:
        self._is_open = message["type"] == "http.response.start" or bool(message.get("more_body", False))
        await self._send(message)
