"""Lines through file descriptors, for both ends of stdio: ours towards clients, and upstreams' towards us.

Reading waits for the descriptor and takes what is there. Writing puts a short line into the pipe at once and hands a
long one to a thread, which finishes it whatever becomes of the task that asked: half a line would be the end of the
connection. The descriptors stay blocking, since others may share them.
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
"""What a pipe is made to hold where the system lets us (Linux: 64 KiB by default)."""
_AT_ONCE: Final = 1 << 15
"""Bytes that are cut into lines at once."""
_SHORT: Final = 4096
"""POSIX's PIPE_BUF on Linux: a write up to it does not block once the pipe is writable."""


class LineSource:
    """Messages from a descriptor."""

    def __init__(self, descriptor: int, collector: SpoolCollector) -> None:
        self._descriptor = descriptor
        self._collector = collector
        self._lines: LineReader[Frame] = LineReader(collector)
        self._ready: deque[Frame] = deque()
        self._unread = memoryview(b"")
        """What was read and is not cut into lines yet."""
        self._ended = False
        self._pacer = Pacer(REST)
        self._waiting = anyio.CancelScope()
        self._pollable = sys.platform != "win32"
        self._buffer = bytearray(PIPE_BYTES if self._pollable else 0)
        """Reused: fresh memory for each read of a large message costs as much as reading it."""

    async def receive(self) -> Frame:
        """The next message.

        Raises:
            anyio.EndOfStream: There is none any more.
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
        """Read no more: who waits for a message hears of the end."""
        self._ended = True
        self._waiting.cancel()

    @property
    def is_choked(self) -> bool:
        """Whether a message past its bound is under way: what comes after it waits for its end."""
        return self._collector.is_dropping

    def close(self) -> None:
        """Drop what came of an unfinished message, and the descriptor."""
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
            except PermissionError:  # a regular file cannot be waited for, and need not be
                self._pollable = False
        self._take(self._buffer, os.readv(self._descriptor, [self._buffer]))

    def _take(self, data: bytes | bytearray, size: int) -> None:
        if not size:
            raise anyio.EndOfStream
        if data.find(b"\n", 0, size) < 0:
            self._lines.go_on(memoryview(data)[:size])
        else:
            self._unread = memoryview(bytes(memoryview(data)[:size]))

    def _cut(self) -> None:
        """Cut a slice into lines: what was read may be a million of them."""
        piece, self._unread = self._unread[:_AT_ONCE], self._unread[_AT_ONCE:]
        self._ready.extend(self._lines.feed(bytes(piece)))


class LineSink:
    """Messages to a descriptor."""

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
        """Write one line, newline and all; it is written whole even if the caller is cancelled meanwhile.

        Raises:
            OSError: The other end is gone.
        """
        if self._failure:
            raise self._failure
        if not self._writing and sum(len(segment) for segment in segments) < _SHORT and self._is_writable():
            self._write(segments)
            return
        assert self._queue is not None  # noqa: S101  # run() comes first
        done = anyio.Event()
        await self._queue.send((segments, done))
        await done.wait()
        if self._failure:
            raise self._failure

    def close(self) -> None:
        """Close the descriptor: the other end reads the end of the stream."""
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
    """What the SDK reads: each message is made when it is asked for, with no task and no queue between."""

    async def receive(self) -> SessionMessage | Exception:
        """The next message.

        Raises:
            anyio.EndOfStream: There is none any more.
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
    """What the SDK writes to: each message goes out in the task that sends it."""

    async def send(self, item: SessionMessage, /) -> None:
        """Send one message."""

    async def aclose(self) -> None:
        """Nothing to release: the transport closes its descriptors."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def wide_pipe() -> tuple[int, int]:
    """A pipe, its reading and its writing end, that holds 1 MiB where the system lets us."""
    reading, writing = os.pipe()
    if sys.platform == "linux":
        import fcntl  # noqa: PLC0415  # there is none on Windows

        with suppress(OSError):  # past /proc/sys/fs/pipe-user-pages-soft: the default does too
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return reading, writing
