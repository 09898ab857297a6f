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
from typing import Final

import anyio
import anyio.to_thread
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from mcp_mirror.errors import WireError
from mcp_mirror.faces.postbox import Postbox
from mcp_mirror.models import Segments
from mcp_mirror.wire import LineReader, Overlong, RequestId, recover_id

_READ: Final = 1 << 18
_WRITE: Final = 1 << 18

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

    async def read(self, source: int, session: MemoryObjectSendStream[Incoming]) -> None:
        """Hand lines to the SDK until the input ends."""
        lines = LineReader(self._max_bytes)
        async with session:
            async for chunk in _chunks(source):
                for line in lines.feed(chunk):
                    if (message := await self._open(line)) is not None:
                        await session.send(message)

    async def write(self, messages: MemoryObjectReceiveStream[SessionMessage]) -> None:
        """Write what the SDK sends."""
        async with messages:
            async for message in messages:
                frame = message.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
                try:
                    await self._send(self._postbox.outbound(frame))
                except OSError:  # the client has gone; its end of the input ends the session
                    return

    async def _open(self, line: bytes | Overlong) -> SessionMessage | None:
        try:
            if isinstance(line, Overlong):
                raise WireError(f"A message of {line.size:,} bytes is over `server.max_message_bytes`.")  # noqa: TRY301
            frame = bytes(self._postbox.inbound(line))
        except WireError as error:
            await self._refuse(
                types.PARSE_ERROR, str(error), recover_id(line.head if isinstance(line, Overlong) else line)
            )
            return None
        try:
            return SessionMessage(types.jsonrpc_message_adapter.validate_json(frame, by_name=False))
        except ValueError:
            reason = "The message is not a JSON-RPC request, notification or response."
            await self._refuse(types.INVALID_REQUEST, reason, recover_id(frame))
            return None

    async def _refuse(self, code: int, reason: str, identity: RequestId | None) -> None:
        error = types.JSONRPCError(jsonrpc="2.0", id=identity, error=types.ErrorData(code=code, message=reason))
        await self._send((error.model_dump_json(exclude_unset=True).encode(),))

    async def _send(self, segments: Segments) -> None:
        async with self._lock:
            await anyio.to_thread.run_sync(_write_line, self._sink, segments)


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
    """A newline may stand between tokens of a payload; as a space it means the same and does not end the line."""
    pending: list[bytes] = []
    size = 0
    for segment in segments:
        for at in range(0, len(segment), _WRITE):
            pending.append(bytes(segment[at : at + _WRITE]).replace(b"\n", b" "))
            size += len(pending[-1])
            if size >= _WRITE:
                _write_all(sink, b"".join(pending))
                pending, size = [], 0
    _write_all(sink, b"".join((*pending, b"\n")))


def _write_all(sink: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(sink, view) :]


@contextmanager
def _claimed_streams() -> Iterator[tuple[int, int]]:
    """Private duplicates of standard input and output; the public ones lead away from the wire meanwhile."""
    sys.stdout.flush()
    source, sink = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.dup2(2, 1)
    os.close(nowhere)
    try:
        yield source, sink
    finally:
        os.dup2(sink, 1)
