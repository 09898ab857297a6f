"""Lines over file descriptors, for both sides of stdio: clients and upstreams.

Reading waits until the descriptor is readable. A short line is written to the pipe directly; a thread writes a long
one, and finishes it even if the sending task is cancelled, because half a line would break the connection. The
descriptors stay blocking, since other processes may share them.
"""

import os
import select
import sys
from collections import deque
from contextlib import suppress
from typing import Final, Self

import anyio
import anyio.to_thread
from anyio.streams.memory import MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from mcp_mirror.payload.floods import REST, Pacer
from mcp_mirror.payload.framing import LineReader
from mcp_mirror.payload.json_rpc import line_of
from mcp_mirror.payload.spool import Frame, SpoolCollector
from mcp_mirror.types import Segments

PIPE_BYTES: Final = 1 << 20
"""Capacity of a pipe where the system permits it (Linux: 64 KiB by default)."""
_AT_ONCE: Final = 1 << 15
"""Bytes that are split into lines at once."""
_SHORT: Final = 4096
"""PIPE_BUF of Linux: a write up to this size does not block once the pipe is writable."""


class LineSource:
    """Reads messages from a descriptor."""

    def __init__(self, descriptor: int, collector: SpoolCollector) -> None:
        self._descriptor = descriptor
        self._collector = collector
        self._lines: LineReader[Frame] = LineReader(collector)
        self._ready: deque[Frame] = deque()
        self._unread = memoryview(b"")
        """Bytes that were read and not yet split into lines."""
        self._ended = False
        self._pacer = Pacer(REST)
        self._waiting = anyio.CancelScope()
        self._pollable = sys.platform != "win32"
        self._buffer = bytearray(PIPE_BYTES if self._pollable else 0)
        """Reused, because new memory for each read of a large message costs as much as the read."""

    async def receive(self) -> Frame:
        """Wait for the next message.

        Raises:
            anyio.EndOfStream: The stream has ended.
        """
        while not self._ready:
            if self._unread:
                self._pacer.begin()
                self._cut()
                if not self._ready:  # a flood of empty lines, or the rest of a message
                    await self._pacer.end()
            else:
                await self._read()
        return self._ready.popleft()

    def end(self) -> None:
        """Stop reading: `receive` raises `anyio.EndOfStream`."""
        self._ended = True
        self._waiting.cancel()

    @property
    def is_dropping(self) -> bool:
        """Whether the current message is over the size limit: later messages wait for its end."""
        return self._collector.is_dropping

    def close(self) -> None:
        """Discard an unfinished message and close the descriptor."""
        self._collector.close()
        os.close(self._descriptor)

    async def _read(self) -> None:
        with anyio.CancelScope() as self._waiting:
            if not self._ended:
                await self._read_some()
        if self._ended and not self._ready:
            raise anyio.EndOfStream

    async def _read_some(self) -> None:
        if sys.platform == "win32":
            data = await anyio.to_thread.run_sync(os.read, self._descriptor, PIPE_BYTES, abandon_on_cancel=True)
            self._take(data, len(data))
            return
        if self._pollable:
            try:
                await anyio.wait_readable(self._descriptor)
            except PermissionError:  # a regular file is always readable
                self._pollable = False
        self._take(self._buffer, os.readv(self._descriptor, [self._buffer]))

    def _take(self, data: bytes | bytearray, size: int) -> None:
        if not size:
            raise anyio.EndOfStream
        if data.find(b"\n", 0, size) < 0:
            self._lines.continue_line(memoryview(data)[:size])
        else:
            self._unread = memoryview(bytes(memoryview(data)[:size]))

    def _cut(self) -> None:
        """Split one slice into lines: one read may contain a million of them."""
        piece, self._unread = self._unread[:_AT_ONCE], self._unread[_AT_ONCE:]
        self._ready.extend(self._lines.feed(bytes(piece)))


class LineSink:
    """Writes messages to a descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._queue: MemoryObjectSendStream[tuple[Segments, anyio.Event]] | None = None
        self._writing = False
        self._failure: OSError | None = None

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Write long lines, until cancelled."""
        self._queue, queue = anyio.create_memory_object_stream[tuple[Segments, anyio.Event]](0)
        limiter = anyio.CapacityLimiter(1)
        task_status.started()
        with self._queue, queue:
            async for segments, done in queue:
                self._writing = True
                try:
                    await anyio.to_thread.run_sync(self._write, segments, abandon_on_cancel=True, limiter=limiter)
                except OSError as error:
                    self._failure = error
                finally:
                    self._writing = False
                    done.set()

    async def send(self, segments: Segments) -> None:
        """Write one line with its newline. The line is written whole even if the caller is cancelled.

        Raises:
            OSError: The other end is closed.
        """
        if self._failure:
            raise self._failure
        if not self._writing and sum(len(segment) for segment in segments) < _SHORT and self._is_writable():
            self._write(segments)
            return
        assert self._queue is not None  # noqa: S101  # run() opens it
        done = anyio.Event()
        await self._queue.send((segments, done))
        await done.wait()
        if self._failure:
            raise self._failure

    def close(self) -> None:
        """Close the descriptor, so that the other end reads the end of the stream."""
        os.close(self._descriptor)

    def _is_writable(self) -> bool:
        if sys.platform == "win32":
            return True
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        return bool(poll.poll(0))

    def _write(self, segments: Segments) -> None:
        for piece in line_of(segments):
            view = memoryview(piece)
            while view:
                view = view[os.write(self._descriptor, view) :]


class MessageStream:
    """The stream that the SDK reads. `receive` builds each message on demand, without a task or a queue."""

    async def receive(self) -> SessionMessage | Exception:
        """Wait for the next message.

        Raises:
            anyio.EndOfStream: The stream has ended.
        """
        raise anyio.EndOfStream

    async def aclose(self) -> None:
        """Nothing to release: the transport closes its descriptors."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class MessageSink:
    """The stream that the SDK writes. The sending task itself writes each message."""

    async def send(self, item: SessionMessage, /) -> None:
        """Send one message."""

    async def aclose(self) -> None:
        """Nothing to release: the transport closes its descriptors."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def open_wide_pipe() -> tuple[int, int]:
    """Open a pipe with a capacity of 1 MiB where the system permits it. Returns its reading and its writing end."""
    reading, writing = os.pipe()
    if sys.platform == "linux":
        import fcntl  # noqa: PLC0415  # missing on Windows

        with suppress(OSError):  # over /proc/sys/fs/pipe-user-pages-soft: keep the default capacity
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return reading, writing
