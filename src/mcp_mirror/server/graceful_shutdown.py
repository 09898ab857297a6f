"""Graceful shutdown of the HTTP server: open requests are answered, new requests get a 503, listen streams end.

A listen stream (a GET, or a `subscriptions/listen` request) would keep the server open, because the client ends it.
"""

from typing import Final

import anyio
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_SUBSCRIPTION: Final = b"subscriptions/listen"
_SHUTDOWN_BODY: Final = {"jsonrpc": "2.0", "id": None, "error": {"code": -32603, "message": "The gateway is stopping."}}


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
            await JSONResponse(_SHUTDOWN_BODY, 503, {"connection": "close"})(scope, receive, send)
        elif is_listen_request(scope):
            stream = ListenStream(receive, send, self._shutdown)
            await self._app(scope, stream.receive, stream.send)
            await stream.end()
        else:
            await self._app(scope, receive, send)


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

    async def receive(self) -> Message:
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

    async def send(self, message: Message) -> None:
        """Forward an ASGI message of the application."""
        self._is_open = message["type"] == "http.response.start" or bool(message.get("more_body", False))
        await self._send(message)

    async def end(self) -> None:
        """Complete the response if the application left it open after the event."""
        if self._is_open and self._is_ended.is_set():
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
