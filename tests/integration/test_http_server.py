"""The HTTP server at its shutdown: it resets no client that has connected, and its socket can be used again."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import TYPE_CHECKING

import anyio
import pytest

from mcp_mirror.server.http.server import HttpServer, listen

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

BOUND = 30
REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


class Crowded(socket.socket):
    """A listening socket to which a client connects in the last moment: after the server has emptied the queue."""

    late: socket.socket | None = None

    def close(self) -> None:
        if self.late is None:
            self.late = socket.socket()
            self.late.settimeout(0)
            self.late.connect_ex(self.getsockname())
        super().close()


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 204})
        await send({"type": "http.response.body"})
        return
    while (message := await receive())["type"] != "lifespan.shutdown":
        await send({"type": f"{message['type']}.complete"})
    await send({"type": "lifespan.shutdown.complete"})


async def serve(listening: socket.socket, closing: anyio.Event) -> None:
    await asyncio.wait_for(HttpServer(app).serve_until(closing, listening), BOUND)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems cannot ignore attempts to connect")
async def test_a_client_that_connects_in_the_last_moment_is_not_reset() -> None:
    listening, closing = Crowded(fileno=listen("127.0.0.1", 0).detach()), anyio.Event()
    closing.set()
    await serve(listening, closing)
    assert listening.late is not None
    with listening.late as late, pytest.raises(ConnectionRefusedError):
        await asyncio.wait_for(asyncio.get_running_loop().sock_sendall(late, REQUEST), BOUND)


async def test_a_server_takes_over_the_socket_of_one_that_has_ended() -> None:
    closing, again = anyio.Event(), anyio.Event()
    closing.set()
    with listen("127.0.0.1", 0) as listening:
        await serve(listening.dup(), closing)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve, listening.dup(), again)
            reader, writer = await asyncio.wait_for(asyncio.open_connection(*listening.getsockname()), BOUND)
            writer.write(REQUEST)
            assert (await asyncio.wait_for(reader.readline(), BOUND)).startswith(b"HTTP/1.1 204")
            writer.close()
            again.set()
