"""Lines over file descriptors, for both sides of stdio: clients and upstreams.

The event loop reads when the descriptor is readable. It also writes a line that cannot block: a short one, or one that
fits into an empty pipe or socket. A thread writes the others, and finishes them even if the sending task is cancelled,
because half a line would break the connection. A daemon thread, as the process must end although the other end does not
read. The descriptors stay blocking, since other processes may share them.
"""

import asyncio
import errno
import os
import select
import socket
import stat
import sys
import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TypeVar

import anyio
import anyio.lowlevel
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from anyio.streams.memory import MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from mcp_mirror.payload.floods import REST
from mcp_mirror.payload.framing import LineReader
from mcp_mirror.payload.json_rpc import chunks_of, line_of, replace_line_breaks
from mcp_mirror.payload.spool import Frame, SpoolCollector
from mcp_mirror.system.fair_turns import wait_for_turn
from mcp_mirror.system.pages import Pages
from mcp_mirror.system.slices import Pacer
from mcp_mirror.types import Buffer, Segments

_READ_AT_ONCE: Final = 1 << 18
"""Bytes of one read: a piece of a long message that is handled in a pass of the event loop."""
_AT_ONCE: Final = 1 << 15
"""Bytes that are split into lines at once."""
_TAKEN_AT_ONCE: Final = 16
"""Messages that are taken on arrival from one read; a task receives the others, so that they cannot block the loop."""
_SHORT: Final = 4096
"""PIPE_BUF of Linux: a write up to this size does not block once the pipe is writable."""
_WRITTEN_AT_ONCE: Final = 1 << 17
"""Bytes that the event loop writes at once."""
_WIDE: Final = 1 << 19
"""Capacity from which the pages of mapped files are written to a pipe, and not copies."""
_PAGES_BYTES: Final = 1 << 18
"""Bytes of a mapped file that are written at once."""
_SOCKET_OVERHEAD: Final = 4
"""Bytes of a socket's buffer that a byte may take, with the system's own data about packets."""


class LineSource:
    """Reads messages from a descriptor.

    A message that arrives while a task waits in `receive` is first given to `take`. If that returns True, the message
    has been handled, and the task does not wake.
    """

    def __init__(
        self, descriptor: int, collector: SpoolCollector, take: Callable[[Frame], bool] = lambda _frame: False
    ) -> None:
        self._descriptor = descriptor
        self._collector = collector
        self._take_message = take
        self._sender = f"descriptor {descriptor}"
        self._lines: LineReader[Frame] = LineReader(collector)
        self._ready: deque[Frame] = deque()
        self._unread = memoryview(b"")
        """Bytes that were read and not yet split into lines."""
        self._ended = False
        self._pacer = Pacer(REST)
        self._interrupt: Callable[[], object] = lambda: None
        """Ends the current wait."""
        self._arrival: asyncio.Future[None] | None = None
        """Done when bytes were read or reading failed; None while no task waits."""
        self._watching_loop: asyncio.AbstractEventLoop | None = None
        """The loop that watches the descriptor. It does so between reads too, because each change is a system call."""
        self._is_regular_file = False
        self._buffer = bytearray(_READ_AT_ONCE if sys.platform != "win32" else 0)
        """Reused, because new memory for each read of a large message costs as much as the read."""
        self._thread = _DaemonThread()
        """Reads on Windows."""

    async def receive(self) -> Frame:
        """Wait for the next message; `anyio.EndOfStream` if the stream has ended."""
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
        self._interrupt()

    def close(self) -> None:
        """Discard all unfinished and unread messages and close the descriptor: `receive` raises `anyio.EndOfStream`."""
        self._ended = True
        self._unwatch()
        self._thread.close()
        self._collector.close()
        os.close(self._descriptor)
        # Tracebacks of ended tasks refer to this object in cycles, which the garbage collector finds late.
        self._buffer, self._unread = bytearray(), memoryview(b"")
        self._ready.clear()

    async def _read(self) -> None:
        """Wait for the next bytes, or for `end`.

        Raises:
            anyio.EndOfStream: The stream has ended.
            OSError: The descriptor cannot be read.
        """
        if self._collector.size:  # of a message that has begun to arrive
            await wait_for_turn(self._sender)
        if self._ended:
            raise anyio.EndOfStream
        if sys.platform == "win32":
            with anyio.CancelScope() as scope:
                self._interrupt = scope.cancel
                data = await self._thread.run(partial(os.read, self._descriptor, _READ_AT_ONCE))
                self._take(data, len(data))
        else:
            await self._read_when_readable(asyncio.get_running_loop())
        if self._ended:
            raise anyio.EndOfStream

    async def _read_when_readable(self, loop: asyncio.AbstractEventLoop) -> None:
        arrival = self._arrival = loop.create_future()
        self._interrupt = partial(_finish, arrival)
        try:
            if self._is_regular_file or not self._watch(loop):
                await anyio.lowlevel.checkpoint()  # such a file may have no end
                self._take(self._buffer, os.readv(self._descriptor, [self._buffer]))
            else:
                await arrival
        finally:
            self._arrival = None

    def _watch(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Watch the descriptor; False for a regular file, which is always readable."""
        if self._watching_loop is None:
            try:
                loop.add_reader(self._descriptor, self._on_readable)
            except PermissionError:
                self._is_regular_file = True
                return False
            self._watching_loop = loop
        return True

    def _unwatch(self) -> None:
        if self._watching_loop is not None:
            self._watching_loop.remove_reader(self._descriptor)
            self._watching_loop = None

    def _on_readable(self) -> None:
        if self._arrival is None or self._arrival.done():
            self._unwatch()  # until a task waits again
            return
        try:
            self._take(self._buffer, os.readv(self._descriptor, [self._buffer]))
            if 0 < len(self._unread) <= _AT_ONCE:
                self._cut()
            taken = 0
            while self._ready and taken < _TAKEN_AT_ONCE and self._take_message(self._ready[0]):
                self._ready.popleft()
                taken += 1
        except Exception as error:  # noqa: BLE001  # the waiting task raises it
            self._arrival.set_exception(error)
        else:
            if self._ready or self._unread or self._collector.size:
                self._arrival.set_result(None)

    def _take(self, data: bytes | bytearray, size: int) -> None:
        if not size:
            raise anyio.EndOfStream
        view, end = memoryview(data)[:size], data.find(b"\n", 0, size)
        if end < 0:
            self._collector.add(view)
            return
        if 0 < end == size - 1 <= self._collector.whole_bytes and not self._collector.size:
            self._ready.append(bytes(view[:end]))  # most messages: one line in one read
            return
        if end > _AT_ONCE:  # the rest of a long message, of which no copy is needed
            self._collector.add(view[:end])
            view = view[end:]
        self._unread = memoryview(bytes(view))

    def _cut(self) -> None:
        """Split one slice into lines: one read may contain a million of them."""
        piece, self._unread = self._unread[:_AT_ONCE], self._unread[_AT_ONCE:]
        self._ready.extend(self._lines.feed(bytes(piece)))


def _finish(arrival: "asyncio.Future[None]") -> None:
    if not arrival.done():
        arrival.set_result(None)


class LineSink:
    """Writes messages to a descriptor.

    `on_failure` is called if held lines could not be written, because the other end is closed.
    """

    def __init__(self, descriptor: int, on_failure: Callable[[], object] = lambda: None) -> None:
        self._descriptor = descriptor
        self._on_failure = on_failure
        self._queue: MemoryObjectSendStream[tuple[Segments, anyio.Event]] | None = None
        self._writing: anyio.Event | None = None
        """Set when the thread has written its line; None while it has none."""
        self._pieces = 0
        """The number of pieces that the thread has written."""
        self._closing = threading.Lock()
        """Held while the event loop and the thread agree on who closes the descriptor."""
        self._is_in_use = False
        """The thread uses the descriptor, also after `run` is cancelled."""
        self._closed = threading.Event()
        self._failure: OSError | None = None
        self._poll: select.poll | None = None
        """Tells whether the descriptor is writable; made at the first use, because Windows has none."""
        self._capacity: int | None = None
        """Bytes that the empty pipe or socket takes without blocking; None before the first use."""
        self._held: list[bytes] = []
        """Short lines for which there is room, and which are written together."""
        self._held_size = 0

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Write long lines, until cancelled."""
        self._queue, queue = anyio.create_memory_object_stream[tuple[Segments, anyio.Event]](0)
        thread = _DaemonThread()
        task_status.started()
        with self._queue, queue, closing(thread):
            async for segments, done in queue:
                self._write_held()
                self._writing = done
                try:
                    await thread.run(partial(self._write, segments))
                except OSError as error:
                    self._failure = error
                finally:
                    self._writing = None
                    done.set()

    async def finish(self, patience: float) -> None:
        """Wait until the thread has written its line, or the other end has not read for so many seconds."""
        while (writing := self._writing) is not None:
            pieces = self._pieces
            with anyio.move_on_after(patience):
                await writing.wait()
            if pieces == self._pieces:
                return

    async def send(self, segments: Segments) -> None:
        """Write one line, also if the caller is cancelled; OSError if the other end or the sink is closed."""
        if self.send_at_once(segments):
            return
        assert self._queue is not None  # noqa: S101  # run() opens it
        done = anyio.Event()
        try:
            await self._queue.send((segments, done))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):  # `run` was cancelled
            raise BrokenPipeError(errno.EPIPE, "The sink is closed") from None
        await done.wait()
        if self._failure:
            raise self._failure

    def send_at_once(self, segments: Segments, *, may_wait: bool = False) -> bool:
        """Write one line with its newline if that cannot block; return whether it was written.

        `may_wait`: a short line may be held until the event loop has run the ready tasks. Lines that are sent in the
        meantime are written with it: each write wakes the reader.

        Raises:
            OSError: The other end or the sink is closed.
        """
        size = sum(map(len, segments)) + 1
        if not self._held or self._held_size + size > _SHORT:
            if self._held:
                self._write_held()
            if self._failure:
                raise self._failure
            if self._writing is not None or not self._has_room(size):
                return False
        line = b"".join(segments).replace(b"\n", b" ").replace(b"\r", b" ") + b"\n"  # as `line_of`, in one piece
        if self._held or (may_wait and size <= _SHORT):
            self._hold(line)
        else:
            self._write_all(line)
        return True

    def _hold(self, line: bytes) -> None:
        if not self._held:
            asyncio.get_running_loop().call_soon(self._write_held)
        self._held.append(line)
        self._held_size += len(line)

    def _write_held(self) -> None:
        """Write the held lines. There was room for them when the first was held, and nothing else writes."""
        if not self._held:
            return
        lines, self._held, self._held_size = b"".join(self._held), [], 0
        try:
            self._write_all(lines)
        except OSError as error:
            self._failure = error
            self._on_failure()

    def close(self) -> None:
        """Close the descriptor, so that the other end reads the end of the stream.

        If the thread is writing a line, it closes the descriptor: another file could get the number, and the rest of
        the line.
        """
        self._write_held()
        self._failure = self._failure or BrokenPipeError(errno.EPIPE, "The sink is closed")
        with self._closing:
            self._closed.set()
            if not self._is_in_use:
                os.close(self._descriptor)

    def _has_room(self, size: int) -> bool:
        """Whether a line of this size can be written without blocking; False on Windows, which does not tell."""
        if sys.platform == "win32":
            return False
        if size <= _SHORT:
            if self._poll is None:
                self._poll = select.poll()
                self._poll.register(self._descriptor, select.POLLOUT)
            return bool(self._poll.poll(0))
        if self._capacity is None:
            self._capacity = _measure_capacity(self._descriptor)
        return size <= min(self._capacity, _WRITTEN_AT_ONCE) and not _count_unread(self._descriptor)

    def _write(self, segments: Segments) -> None:
        """Write a line in the thread, up to the end of a piece if the sink is closed."""
        with self._closing:
            if self._closed.is_set():
                return
            self._is_in_use = True
        try:
            is_wide = (self._capacity or 0) >= _WIDE
            for piece in _cut_line(segments) if is_wide else line_of(segments):
                if self._closed.is_set():
                    break
                if isinstance(piece, Pages):
                    piece.write(self._descriptor)
                else:
                    self._write_all(piece)
                self._pieces += 1
        finally:
            with self._closing:
                self._is_in_use = False
                if self._closed.is_set():
                    os.close(self._descriptor)

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]


def _cut_line(segments: Segments) -> Iterator[bytes | Pages]:
    """As `line_of`, with the parts of mapped files that have no line break as their pages."""
    copied: list[Buffer] = []
    for segment in segments:
        if (pages := Pages.of(segment)) is None:
            copied.append(segment)
            continue
        for part in pages.cut(_PAGES_BYTES):
            if part.has_line_break():
                copied.append(part.view)
                continue
            yield from map(replace_line_breaks, chunks_of(copied))
            copied.clear()
            yield part
    yield from line_of(tuple(copied))


T = TypeVar("T")


class _DaemonThread:
    """A thread for which the process does not wait when it ends, as it does for the threads of anyio."""

    def __init__(self) -> None:
        self._work: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._has_started = False

    async def run(self, work: Callable[[], T]) -> T:
        """Run work after the work before, and return its result or raise its error.

        If the caller is cancelled, the work continues.
        """
        if not self._has_started:
            threading.Thread(target=self._run, name="mcp-mirror-pipe", daemon=True).start()
            self._has_started = True
        ended: Future[T] = Future()
        ended.set_running_or_notify_cancel()
        self._work.put((work, ended))
        return await asyncio.wrap_future(ended)

    def close(self) -> None:
        """End the thread after its work."""
        self._work.put(None)

    def _run(self) -> None:
        while (given := self._work.get()) is not None:
            work, ended = given
            try:
                ended.set_result(work())
            except Exception as error:  # noqa: BLE001  # the caller raises it
                ended.set_exception(error)
            del given, work, ended  # they would keep the line in memory


def _measure_capacity(descriptor: int) -> int:
    """Return the bytes that a pipe or a socket takes without blocking while it is empty; 0 if that is not known."""
    if sys.platform != "linux":
        return 0
    import fcntl  # noqa: PLC0415  # missing on Windows

    mode = os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(mode):
        return fcntl.fcntl(descriptor, fcntl.F_GETPIPE_SZ)
    if not stat.S_ISSOCK(mode):
        return 0
    with socket.socket(fileno=os.dup(descriptor)) as duplicate:
        return duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // _SOCKET_OVERHEAD


def _count_unread(descriptor: int) -> int:
    """Return the bytes in a pipe or a socket that the other side has not read, on Linux."""
    import fcntl  # noqa: PLC0415  # missing on Windows
    import termios  # noqa: PLC0415  # as above

    unread = array("i", [0])
    is_pipe = stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    fcntl.ioctl(descriptor, termios.FIONREAD if is_pipe else termios.TIOCOUTQ, unread)
    return unread[0]


class MessageStream(ObjectReceiveStream[SessionMessage | Exception]):
    """The stream that the SDK reads. `receive` builds each message on demand, without a task or a queue."""

    async def aclose(self) -> None:
        """Nothing to release: the transport closes its descriptors."""


class MessageSink(ObjectSendStream[SessionMessage]):
    """The stream that the SDK writes. The sending task itself writes each message."""

    async def send(self, item: SessionMessage) -> None:
        """Send one message."""

    async def aclose(self) -> None:
        """Nothing to release: the transport closes its descriptors."""
