"""Our face on standard input and output: JSON-RPC lines, bytes only.

A line that is no message is answered with a JSON-RPC error, and the connection goes on. While we serve, whatever
else writes to standard output goes to standard error instead.
"""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Final, TextIO

import anyio
import anyio.to_thread
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from mcp_mirror.errors import MirrorError, WireError
from mcp_mirror.faces.postbox import Postbox
from mcp_mirror.models import Segments
from mcp_mirror.wire import LineReader, Overlong, RequestId, line_of, recover_id

_READ: Final = 1 << 18
_LINGER: Final = 1.0
"""Seconds after the end of the input that what was asked on it may still be answered."""

Incoming = SessionMessage | Exception
Streams = tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]


@asynccontextmanager
async def stdio_streams(postbox: Postbox, max_message_bytes: int) -> AsyncIterator[Streams]:
    """What the SDK reads and writes on this process's standard streams."""
    to_session, incoming = anyio.create_memory_object_stream[Incoming](0)
    outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    with _claimed_streams() as (source, sink):
        lock = anyio.Lock()
        async with anyio.create_task_group() as tasks:
            face = _Face(postbox, max_message_bytes, sink, lock)
            tasks.start_soon(face.read, source, to_session)
            tasks.start_soon(face.write, from_session)
            yield incoming, outgoing
            tasks.cancel_scope.cancel()


class _Face:
    def __init__(self, postbox: Postbox, max_message_bytes: int, sink: int, lock: anyio.Lock) -> None:
        self._postbox = postbox
        self._max_bytes = max_message_bytes
        self._sink = sink
        self._lock = lock
        self._open_requests: set[RequestId] = set()
        self._answered = anyio.Event()

    async def read(self, source: int, session: MemoryObjectSendStream[Incoming]) -> None:
        """Hand lines to the SDK until the input ends and what was asked on it is answered, or should have been."""
        lines = LineReader(self._max_bytes)
        async with session:
            async for chunk in _chunks(source):
                for line in lines.feed(chunk):
                    if (message := await self._open(line)) is not None:
                        self._note(message.message)
                        await session.send(message)
            with anyio.move_on_after(_LINGER):
                while self._open_requests:
                    await self._answered.wait()

    async def write(self, messages: MemoryObjectReceiveStream[SessionMessage]) -> None:
        """Write what the SDK sends."""
        async with messages:
            async for message in messages:
                frame = message.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
                try:
                    await self._send(self._postbox.outbound(frame))
                except OSError:  # the client has gone; its end of the input ends the session
                    return
                self._note(message.message)

    def _note(self, message: types.JSONRPCMessage) -> None:
        """Keep count of the requests that wait for an answer; a subscription's answer is its end."""
        if isinstance(message, types.JSONRPCRequest) and message.method != "subscriptions/listen":
            self._open_requests.add(message.id)
        elif isinstance(message, types.JSONRPCResponse | types.JSONRPCError) and message.id is not None:
            self._open_requests.discard(message.id)
        self._answered.set()
        self._answered = anyio.Event()

    async def _open(self, line: bytes | Overlong) -> SessionMessage | None:
        try:
            if isinstance(line, Overlong):
                raise WireError(f"A message of {line.size:,} bytes is over `server.max_message_bytes`.")  # noqa: TRY301
            frame, token = self._postbox.inbound(line)
        except WireError as error:
            identity = recover_id(line.head if isinstance(line, Overlong) else line)
            await self._refuse(types.PARSE_ERROR, str(error), identity)
            return None
        try:
            return SessionMessage(types.jsonrpc_message_adapter.validate_json(bytes(frame), by_name=False))
        except ValueError:
            self._postbox.discard(token)
            reason = "The message is not a JSON-RPC request, notification or response."
            await self._refuse(types.INVALID_REQUEST, reason, recover_id(line))
            return None

    async def _refuse(self, code: int, reason: str, identity: RequestId | None) -> None:
        error = types.JSONRPCError(jsonrpc="2.0", id=identity, error=types.ErrorData(code=code, message=reason))
        await self._send((error.model_dump_json(exclude_unset=True).encode(),))

    async def _send(self, segments: Segments) -> None:
        async with self._lock:
            # A client that reads no more must not keep us from stopping.
            await anyio.to_thread.run_sync(_write_line, self._sink, segments, abandon_on_cancel=True)


async def _chunks(source: int) -> AsyncIterator[bytes]:
    """What the input holds. A thread of its own reads it, so that a stop need not wait for the next byte."""
    loop = asyncio.get_running_loop()
    into, chunks = anyio.create_memory_object_stream[bytes](1)

    def pump() -> None:
        with suppress(OSError, RuntimeError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            while data := os.read(source, _READ):
                asyncio.run_coroutine_threadsafe(into.send(data), loop).result()
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(into.close)

    threading.Thread(target=pump, name="standard input", daemon=True).start()
    with chunks:
        async for chunk in chunks:
            yield chunk


def _write_line(sink: int, segments: Segments) -> None:
    for piece in line_of(segments):
        _write_all(sink, piece)


def _write_all(sink: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(sink, view) :]


@contextmanager
def _claimed_streams() -> Iterator[tuple[int, int]]:
    """Private duplicates of standard input and output; the public ones lead away from the wire meanwhile.

    Raises:
        MirrorError: There is no standard output to serve on.
    """
    has_input, has_output, has_errors = (stream is not None for stream in _standard_streams())
    if not has_output:
        raise MirrorError("Standard output is closed: there is nobody to serve. Use --http to serve over HTTP.")
    sys.stdout.flush()
    nowhere = os.open(os.devnull, os.O_RDWR)
    source = os.dup(0 if has_input else nowhere)  # a closed descriptor's number may be another's by now
    sink = os.dup(1)
    if has_input:
        os.dup2(nowhere, 0)
    os.dup2(2 if has_errors else nowhere, 1)
    try:
        yield source, sink
    finally:
        os.dup2(sink, 1)
        os.close(nowhere)


def _standard_streams() -> tuple[TextIO | None, TextIO | None, TextIO | None]:
    """None for one that was closed before we started."""
    return sys.stdin, sys.stdout, sys.stderr
