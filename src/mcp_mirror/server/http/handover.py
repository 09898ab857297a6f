"""Several worker processes on one address: each request of a 2025-11-25 session reaches the worker of the session.

A worker adds its number to the ids of its sessions. A worker that reads the head of a request for a session of another
worker hands the connection over, with the bytes that it has read, through a Unix socket. The connection stays there, so
a client costs this once. Requests without a session are served by the worker that accepted their connection.
"""

import asyncio
import mmap
import re
import socket
import sys
import tempfile
from collections.abc import Callable
from typing import Final

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_mirror.system.patterns import lazy_pattern


class Worker(msgspec.Struct, frozen=True):
    """One of several worker processes, as its parent process has prepared it."""

    number: int
    listening: socket.socket
    """The worker's own listening socket on the common address."""
    inboxes: tuple[tuple[socket.socket, socket.socket], ...]
    """The reading and the writing end of each worker's Unix socket."""
    end: mmap.mmap
    """A byte of memory that all processes of the gateway share: 1 once the gateway shuts down."""

    @property
    def suffix(self) -> bytes:
        """The end of the ids of this worker's sessions."""
        return b"-w%d" % self.number


_HEADER: Final = b"mcp-session-id"
_SESSION_LINE: Final = lazy_pattern(rb"\r\n" + _HEADER + rb":[ \t]*[!-~]*-w(\d{1,4})[ \t]*\r\n", re.IGNORECASE)
_HEAD_END: Final = b"\r\n\r\n"
_INLINE: Final = 32 << 10
"""Bytes that fit into one datagram; more are passed on in a file."""
_IN_DATAGRAM: Final = b"d"
_IN_FILE: Final = b"f"


class ConnectionHandover:
    """Gives connections to other workers, and receives theirs."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._inbox = worker.inboxes[worker.number][0]
        self._tasks: set[asyncio.Task[object]] = set()
        self._create_protocol: Callable[[bytes], asyncio.Protocol] | None = None

    def find_owner(self, received: bytes | bytearray) -> int | None:
        """The other worker to which a request belongs; None if this worker serves it, or its head is incomplete."""
        end = received.find(_HEAD_END)
        if end < 0 or (line := _SESSION_LINE.search(received, 0, end + 2)) is None:
            return None
        number = int(line[1])
        return number if number != self._worker.number and number < len(self._worker.inboxes) else None

    def give(self, number: int, connection: int, received: bytes) -> bool:
        """Hand a connection over to a worker, with the bytes that were read and not served.

        The caller closes its own descriptor without a shutdown.

        Returns:
            False if the worker has not received the previous ones yet: try again later.

        Raises:
            OSError: The connection cannot be handed over.
        """
        outbox = self._worker.inboxes[number][1]
        try:
            if len(received) <= _INLINE:
                socket.send_fds(outbox, [_IN_DATAGRAM + received], [connection])
                return True
            with tempfile.TemporaryFile() as file:
                file.write(received)
                file.flush()
                socket.send_fds(outbox, [_IN_FILE], [connection, file.fileno()])
        except BlockingIOError:
            return False
        return True

    def start(self, create_protocol: Callable[[bytes], asyncio.Protocol]) -> None:
        """Receive connections from now on; a protocol begins with the bytes that were already read."""
        self._create_protocol = create_protocol
        asyncio.get_running_loop().add_reader(self._inbox.fileno(), self._receive, create_protocol)

    async def stop(self) -> None:
        """Receive the connections that wait, and no further ones: at a shutdown of the gateway, `give` then fails.

        If only this worker ends, further connections wait for its successor, which has the same socket.
        """
        if self._create_protocol is None or not self._worker.end[0]:
            return
        self._inbox.shutdown(socket.SHUT_RD)
        asyncio.get_running_loop().remove_reader(self._inbox.fileno())
        while self._receive(self._create_protocol):
            pass
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _receive(self, create_protocol: Callable[[bytes], asyncio.Protocol]) -> bool:
        """Receive a connection. Returns whether there was one."""
        if sys.platform != "linux":  # the only system with several workers
            raise NotImplementedError
        try:
            message, handles, _, _ = socket.recv_fds(self._inbox, 2 * _INLINE, 2, socket.MSG_CMSG_CLOEXEC)
        except (BlockingIOError, InterruptedError):
            return False
        if not handles:  # nothing is sent any more
            return False
        connection = socket.socket(fileno=handles[0])
        connection.settimeout(0)
        received = message[1:]
        if message[:1] == _IN_FILE:
            with open(handles[1], "rb") as file:  # noqa: PTH123  # a descriptor
                file.seek(0)
                received = file.read()
        loop = asyncio.get_running_loop()
        task = loop.create_task(loop.connect_accepted_socket(lambda: create_protocol(received), connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True


class WorkerSessions:
    """An ASGI middleware that adds the worker to the ids of its sessions, and removes it from those of requests."""

    def __init__(self, app: ASGIApp, worker: Worker) -> None:
        self._app = app
        self._suffix = worker.suffix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = message.get("headers", ())
                marked = [(name, value + self._suffix if name.lower() == _HEADER else value) for name, value in given]
                message = {**message, "headers": marked}
            await send(message)

        headers = [
            (name, value.removesuffix(self._suffix) if name == _HEADER else value) for name, value in scope["headers"]
        ]
        await self._app({**scope, "headers": headers}, receive, send_marked)
