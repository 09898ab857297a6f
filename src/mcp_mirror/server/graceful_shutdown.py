"""The end of our face on Streamable HTTP: what is open is answered, nothing new is taken, idle streams end.

A stream on which a client only listens, a GET's or a subscription's, would never end by itself. What the requests and
their answers are is not known here.
"""

from typing import Final

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_SUBSCRIPTION: Final = "subscriptions/listen"
_LEAVING: Final = {"jsonrpc": "2.0", "id": None, "error": {"code": -32603, "message": "The gateway is stopping."}}


class ShutdownMiddleware:
    """Wraps an ASGI application that speaks MCP; `leaving` is set when we stop."""

    def __init__(self, app: ASGIApp, leaving: anyio.Event) -> None:
        self._app = app
        self._leaving = leaving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif self._leaving.is_set():
            await JSONResponse(_LEAVING, 503, {"connection": "close"})(scope, receive, send)
        elif only_listens(Request(scope)):
            stream = ListeningStream(receive, send, self._leaving)
            await self._app(scope, stream.receive, stream.send)
            await stream.end()
        else:
            await self._app(scope, receive, send)


def only_listens(request: Request) -> bool:
    """Whether a request opens a stream that would never end by itself.

    Its head alone tells: a client of the 2026 era must name the method there.
    """
    return request.method == "GET" or request.headers.get("mcp-method") == _SUBSCRIPTION


class ListeningStream:
    """A listening client, who has gone as far as the application knows once we leave it."""

    def __init__(self, receive: Receive, send: Send, leaving: anyio.Event) -> None:
        self._receive = receive
        self._send = send
        self._leaving = leaving
        self._open = False

    async def receive(self) -> Message:
        """What the client does next, or that it has gone."""
        message: Message = {"type": "http.disconnect"}

        async def hear() -> None:
            nonlocal message
            message = await self._receive()
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hear)
            await self._leaving.wait()
            tasks.cancel_scope.cancel()
        return message

    async def send(self, message: Message) -> None:
        """Pass a message of the application's on."""
        self._open = message["type"] == "http.response.start" or bool(message.get("more_body", False))
        await self._send(message)

    async def end(self) -> None:
        """Close the response in good order where the application let go of it."""
        if self._open and self._leaving.is_set():
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
