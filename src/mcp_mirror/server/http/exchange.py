"""The exchange of one HTTP request and its response between a connection and the ASGI application."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final

import anyio.lowlevel
from starlette.types import Message, Receive, Send
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from mcp_mirror.payload.json_rpc import chunks_of, replace_line_breaks
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.types import Buffer, Segments

_HEADER: Final = lazy_pattern(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+: [^\x00-\x08\x0a-\x1f\x7f]*\r\n")
BODY_FOLLOWS: Final = "mcp_mirror.body_follows"
"""The key in an ASGI start of a response whose body follows at once, so nothing has to write the head before it."""
_WITHOUT_BODY: Final = (204, 304)
_WRITTEN_AT_ONCE: Final = 1 << 18
"""Bytes of small chunks of a body that are written together."""


class HeldFlow(FlowControl):
    """uvicorn's flow control of a connection, which can be held: no part of the program resumes reading then."""

    is_held = False

    def hold(self) -> None:
        """Pause reading until `release`."""
        self.pause_reading()
        self.is_held = True

    def release(self) -> None:
        """Resume reading."""
        self.is_held = False
        self.resume_reading()

    def resume_reading(self) -> None:
        """Resume reading if the connection is not held."""
        if not self.is_held:
            super().resume_reading()


class Exchange(RequestResponseCycle):
    """uvicorn's cycle of a request and its response, which writes a head together with the beginning of the body.

    uvicorn writes them one after the other: the client would wake for the head, and again for the body.
    """

    _head = b""
    """The head that waits for the body; empty if no head waits."""
    _has_body = True
    _is_chunked = False
    _missing: int | None = None
    """The number of bytes that are missing in the body; None if the head names no length."""

    def take_body(self) -> bytes | None:
        """Return the body if it is complete. The application has received no part of it, and then none comes."""
        if self.more_body or self.disconnected or not self.message_event.is_set():
            return None
        self.message_event.clear()
        self.flow.resume_reading()
        body, self.body = bytes(self.body), bytearray()
        return body

    async def send(self, message: Any) -> None:
        """Send an ASGI message of the application; its head waits until the event loop has run the ready tasks."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if message["type"] != ("http.response.body" if self.response_started else "http.response.start"):
            raise RuntimeError(f"The application sent {message['type']!r} at the wrong time.")
        if self.response_started:
            self._send_body(message.get("body", b""), has_more=message.get("more_body", False))
        else:
            self._head = self._build_head(message["status"], (*self.default_headers, *message.get("headers", ())))
            self.response_started, self.waiting_for_100_continue = True, False
            if BODY_FOLLOWS not in message:
                asyncio.get_running_loop().call_soon(self._flush)

    def _build_head(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
        lines, has_close = [STATUS_LINE[status]], False
        for name, value in headers:
            line = _write_header(name, value)
            if line.startswith(b"content-length:"):
                self._missing = int(value)
            elif line.startswith(b"connection:"):
                has_close = value.lower() == b"close"
            lines.append(line)
        self._has_body = self.scope["method"] != "HEAD" and status not in _WITHOUT_BODY
        if self._has_body and self._missing is None:
            if self.scope["http_version"] == "1.1":
                self._is_chunked = True
                lines.append(b"transfer-encoding: chunked\r\n")
            else:  # the end of the connection is that of the body
                self.keep_alive = False
        if has_close:
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append(b"connection: close\r\n")
        return b"".join((*lines, b"\r\n"))

    def _send_body(self, body: bytes, *, has_more: bool) -> None:
        if not self._has_body:
            body = b""
        elif self._is_chunked:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            body = chunk if has_more else chunk + b"0\r\n\r\n"
        elif self._missing is not None:
            self._missing -= len(body)
            if self._missing < 0 or (self._missing and not has_more):
                raise RuntimeError("The body of the response does not have the length that its head names.")
        self._write(body)
        if not has_more:
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()

    def _write(self, data: bytes) -> None:
        head, self._head = self._head, b""
        if head or data:
            self.transport.write(head + data)

    def _flush(self) -> None:
        if not self.transport.is_closing():
            self._write(b"")


def replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that returns the body first, and then the further messages of the client."""
    pending = [body]

    async def replay() -> Message:
        if pending:
            return {"type": "http.request", "body": pending.pop(), "more_body": False}
        return await receive()

    return replay


async def send_body(send: Send, segments: Iterable[Buffer]) -> None:
    """Send segments as the rest of a response's body."""
    await send_chunks(send, chunks_of(segments))


async def send_chunks(send: Send, chunks: Iterable[bytes], *, has_more: bool = False) -> None:
    """Send chunks as the rest of a response's body, or with `has_more` as a part of it.

    Small ones are joined. Other tasks run after each write: a client that reads fast takes all of them at once.
    """
    pending, size = list[bytes](), 0
    for chunk in chunks:
        if pending and size + len(chunk) > _WRITTEN_AT_ONCE:
            await send({"type": "http.response.body", "body": b"".join(pending), "more_body": True})
            await anyio.lowlevel.checkpoint()
            pending, size = [], 0
        pending.append(chunk)
        size += len(chunk)
    await send({"type": "http.response.body", "body": b"".join(pending), "more_body": has_more})


def cut_event(begin: bytes, message: Segments, end: bytes) -> Iterator[bytes]:
    """The chunks of an event with a message, without the message's line breaks."""
    return chain((begin,), map(replace_line_breaks, chunks_of(message)), (end,))


@lru_cache(1024)
def _write_header(name: bytes, value: bytes) -> bytes:
    line = b"%b: %b\r\n" % (name.lower(), value)
    if not _HEADER.fullmatch(line):
        raise RuntimeError(f"The application sent the invalid header {line!r}.")
    return line
