"""Lines over pipes: messages that are taken on arrival, and messages that a task receives."""

import fcntl
import os
import socket
import stat
import sys
import termios
import tracemalloc
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from mcp_mirror.payload.pipes import LineSink, LineSource
from mcp_mirror.payload.spool import Frame, Spool
from mcp_mirror.settings.policies import WirePolicy
from mcp_mirror.system.mapped_files import map_file

BOUND = 20


def _count_unread(descriptor: int) -> int:
    unread = array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, unread)
    return unread[0]


@dataclass
class Pipe:
    """A source, and the messages that it gave to its callback."""

    source: LineSource = field(init=False)
    writing: int
    taken: list[Frame] = field(default_factory=list)
    refuses: bytes = b"?"
    """`take` does not handle messages that begin with this."""
    failure: Exception | None = None

    def take(self, frame: Frame) -> bool:
        assert isinstance(frame, bytes)
        if self.failure:
            raise self.failure
        if frame.startswith(self.refuses):
            return False
        self.taken.append(frame)
        return True

    def write(self, *lines: bytes) -> None:
        os.write(self.writing, b"".join(line + b"\n" for line in lines))


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Pipe]:
    reading, writing = os.pipe()
    with Spool(WirePolicy(), tmp_path) as spool:
        pipe = Pipe(writing)
        pipe.source = LineSource(reading, spool.collector(), pipe.take)
        yield pipe
        os.close(writing)


async def test_a_waiting_task_receives_only_messages_that_were_not_taken(pipe: Pipe) -> None:
    received: list[Frame] = []

    async def receive() -> None:
        received.append(await pipe.source.receive())

    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receive)
            await anyio.wait_all_tasks_blocked()
            for line in (b"a", b"b", b"?c"):
                pipe.write(line)
                while line not in (*pipe.taken, *received):
                    await anyio.lowlevel.checkpoint()
    assert (pipe.taken, received) == ([b"a", b"b"], [b"?c"])
    pipe.source.close()


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="has no file without an end")
async def test_a_file_without_an_end_does_not_stop_other_tasks(tmp_path: Path) -> None:
    with Spool(WirePolicy(), tmp_path) as spool:
        source = LineSource(os.open("/dev/zero", os.O_RDONLY), spool.collector())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(source.receive)
            await anyio.lowlevel.checkpoint()  # the source begins to read
            tasks.cancel_scope.cancel()
        source.close()


async def test_a_pass_of_the_event_loop_reads_parts_of_few_long_messages(tmp_path: Path) -> None:
    pipes = [os.pipe() for _ in range(12)]
    with Spool(WirePolicy(), tmp_path) as spool, anyio.fail_after(BOUND):
        sources = [LineSource(reading, spool.collector()) for reading, _ in pipes]
        async with anyio.create_task_group() as tasks:
            for source, (_, writing) in zip(sources, pipes, strict=True):
                tasks.start_soon(source.receive)
                os.write(writing, b"the beginning of a long message")
            while any(_count_unread(reading) for reading, _ in pipes):
                await anyio.lowlevel.checkpoint()
            for _, writing in pipes:
                os.write(writing, b"x" * 60_000)
            unread = [len(pipes)]
            while unread[-1]:
                await anyio.lowlevel.checkpoint()
                unread.append(sum(_count_unread(reading) > 0 for reading, _ in pipes))
            tasks.cancel_scope.cancel()
        for source in sources:
            source.close()
    for _, writing in pipes:
        os.close(writing)
    assert max(before - after for before, after in pairwise(unread)) <= 5


async def test_a_closed_source_keeps_no_memory_for_messages(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with Spool(WirePolicy(), tmp_path) as spool:
        tracemalloc.start()
        try:
            source = LineSource(reading, spool.collector())
            os.write(writing, b"?\n" * 20_000)
            with anyio.fail_after(BOUND):
                assert await source.receive() == b"?"
            source.close()
            assert tracemalloc.get_traced_memory()[0] < 20_000
        finally:
            tracemalloc.stop()
            os.close(writing)


async def test_a_closed_source_does_not_wait_for_another_pipe_with_its_number(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with Spool(WirePolicy(), tmp_path) as spool:
        source = LineSource(reading, spool.collector())
        source.close()
        other = os.pipe()
        if reading not in other:
            os.dup2(other[0], reading)
        with anyio.fail_after(1), pytest.raises(anyio.EndOfStream):
            await source.receive()
    for descriptor in {*other, writing, reading}:
        os.close(descriptor)


async def test_messages_after_one_that_was_not_taken_keep_their_order(pipe: Pipe) -> None:
    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_write_when_waiting, pipe, (b"a", b"?b", b"c"))
            received = [await pipe.source.receive(), await pipe.source.receive()]
    assert (pipe.taken, received) == ([b"a"], [b"?b", b"c"])
    pipe.source.close()


@pytest.mark.parametrize("size", [32_767, 32_768, 32_769, 60_000])
async def test_a_long_message_and_others_of_one_read_are_received(pipe: Pipe, size: int) -> None:
    lines = [b"?" * size, b"?b", b"?" * 100]
    pipe.write(*lines)
    with anyio.fail_after(BOUND):
        assert [await pipe.source.receive() for _ in lines] == lines
    pipe.source.close()


async def test_many_messages_of_one_read_are_not_all_taken_at_once(pipe: Pipe) -> None:
    lines = [b"%d" % number for number in range(100)]
    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_write_when_waiting, pipe, lines)
            received = [await pipe.source.receive()]
        while len(pipe.taken) + len(received) < len(lines):
            received.append(await pipe.source.receive())
    assert pipe.taken + received == lines
    assert len(pipe.taken) < len(lines) / 2
    pipe.source.close()


async def test_without_a_waiting_task_nothing_is_taken(pipe: Pipe) -> None:
    pipe.write(b"a", b"b")
    with anyio.fail_after(BOUND):
        await anyio.wait_all_tasks_blocked()
        assert pipe.taken == []
        pipe.write(b"?c")
        received = [await pipe.source.receive()]
    assert [*pipe.taken, *received] == [b"a", b"b", b"?c"]
    pipe.source.close()


async def test_an_error_of_the_callback_reaches_the_waiting_task(pipe: Pipe) -> None:
    pipe.failure = RuntimeError("broken")
    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_write_when_waiting, pipe, (b"a",))
            with pytest.raises(RuntimeError, match="broken"):
                await pipe.source.receive()
    pipe.source.close()


async def _write_when_waiting(pipe: Pipe, lines: list[bytes] | tuple[bytes, ...]) -> None:
    await anyio.wait_all_tasks_blocked()
    pipe.write(*lines)


@pytest.fixture(params=["pipe", "socket"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[int, int]]:
    """The reading and the writing end of a pipe, or of a pair of sockets, as some clients use."""
    if request.param == "pipe":
        yield os.pipe()
        return
    reading, writing = socket.socketpair()
    yield reading.detach(), writing.detach()


@pytest.fixture
def wide_ends(ends: tuple[int, int]) -> tuple[int, int]:
    """A pipe or a socket pair that takes a megabyte."""
    if sys.platform == "linux" and stat.S_ISFIFO(os.fstat(ends[1]).st_mode):
        fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, 1 << 20)
    return ends


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how much a pipe takes")
async def test_a_line_that_fits_into_an_empty_pipe_is_written_at_once(ends: tuple[int, int]) -> None:
    reading, writing = ends
    sink = LineSink(writing)  # without `run`, so no thread can write
    with anyio.fail_after(BOUND):
        for size in (10, 4096, 20_000, 50_000):
            await sink.send((b"x" * size, b"\n\ry"))
            received = b""
            while not received.endswith(b"\n"):
                received += os.read(reading, 1 << 20)
            assert received == b"x" * size + b"  y\n"
    sink.close()
    os.close(reading)


@pytest.mark.parametrize("size", [3000, 50_000, 200_000])
async def test_lines_for_a_slow_reader_wait_and_arrive_whole(ends: tuple[int, int], size: int) -> None:
    reading, writing = ends
    sink = LineSink(writing)
    lines = [b"%d" % (number % 10) * size for number in range(40)]
    sent: list[bytes] = []

    async def send() -> None:
        for line in lines:
            await sink.send((line,))
            sent.append(line)

    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as tasks:
            await tasks.start(sink.run)
            tasks.start_soon(send)
            for _ in range(3 if size < 4096 else 200):
                await anyio.lowlevel.checkpoint()
            if size > 4096:
                assert len(sent) < len(lines)  # and the event loop was not blocked
            received = b""
            while received.count(b"\n") < len(lines):
                received += await anyio.to_thread.run_sync(os.read, reading, 1 << 20)
            tasks.cancel_scope.cancel()
    assert received.splitlines() == lines
    sink.close()
    os.close(reading)


@pytest.mark.parametrize("is_read", [True, False])
async def test_the_end_waits_for_a_line_as_long_as_its_reader_reads(ends: tuple[int, int], *, is_read: bool) -> None:
    reading, writing = ends
    sink, line = LineSink(writing), b"x" * (5 << 20)
    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as tasks:
            await tasks.start(sink.run)
            tasks.start_soon(sink.send, (line,))
            received = await anyio.to_thread.run_sync(os.read, reading, 1)  # the thread writes
            tasks.start_soon(sink.finish, BOUND if is_read else 0.01)
            while is_read and not received.endswith(b"\n"):
                received += await anyio.to_thread.run_sync(os.read, reading, 1 << 20)
            if not is_read:
                await sink.finish(0.01)
            tasks.cancel_scope.cancel()
    assert received == (line + b"\n" if is_read else b"x")
    sink.close()
    os.close(reading)


@pytest.mark.parametrize("breaks", [(), (0,), (70_000, 300_000), (262_144,), (600_000, 2_999_999)])
async def test_a_mapped_file_arrives_whole_in_one_line(
    wide_ends: tuple[int, int], tmp_path: Path, breaks: tuple[int, ...]
) -> None:
    reading, writing = wide_ends
    content = bytearray(b"".join(b"%d," % number for number in range(500_000))[:3_000_000])
    for at in breaks:
        content[at : at + 1] = b"\n" if at % 2 else b"\r"
    (tmp_path / "file").write_bytes(content)
    whole = map_file(tmp_path / "file")
    (tmp_path / "file").unlink()
    segments = (b'{"a":', whole[:10], b"\r", whole, b",", whole[100_001:], whole[1_000_000:1_000_010], b"}\n")
    sink, received = LineSink(writing), b""
    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as tasks:
            await tasks.start(sink.run)
            tasks.start_soon(sink.send, segments)
            while received.count(b"\n") < 1:
                received += await anyio.to_thread.run_sync(os.read, reading, 1 << 18)
            tasks.cancel_scope.cancel()
    assert received == b"".join(segments).replace(b"\n", b" ").replace(b"\r", b" ") + b"\n"
    sink.close()
    os.close(reading)


async def test_a_reader_that_closes_within_a_mapped_file_is_an_error(
    wide_ends: tuple[int, int], tmp_path: Path
) -> None:
    reading, writing = wide_ends
    (tmp_path / "file").write_bytes(bytes(5 << 20))
    sink = LineSink(writing)
    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as tasks:
            await tasks.start(sink.run)
            async with anyio.create_task_group() as sending:

                async def send() -> None:
                    with pytest.raises(OSError):  # noqa: PT011  # EPIPE, or ECONNRESET of a socket
                        await sink.send((map_file(tmp_path / "file"),))

                sending.start_soon(send)
                await anyio.to_thread.run_sync(os.read, reading, 1)  # the thread writes
                os.close(reading)
            tasks.cancel_scope.cancel()
    sink.close()


async def test_lines_that_wait_for_a_stopped_sink_fail(ends: tuple[int, int]) -> None:
    reading, writing = ends
    sink, failures = LineSink(writing), list[OSError]()

    async def send() -> None:
        try:
            await sink.send((b"x" * (5 << 20),))
        except OSError as error:
            failures.append(error)

    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as senders:
            async with anyio.create_task_group() as tasks:
                await tasks.start(sink.run)
                for _ in range(3):
                    senders.start_soon(send)
                await anyio.to_thread.run_sync(os.read, reading, 1)  # the thread writes the first
                tasks.cancel_scope.cancel()
            senders.start_soon(send)
    assert len(failures) == 3
    sink.close()
    os.close(reading)


async def test_a_long_line_to_a_file_is_written_by_the_thread(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    sink = LineSink(descriptor)
    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as tasks:
            await tasks.start(sink.run)
            await sink.send((b"x" * 50_000,))
            tasks.cancel_scope.cancel()
    assert (tmp_path / "file").read_bytes() == b"x" * 50_000 + b"\n"
    sink.close()


async def test_short_lines_that_may_wait_are_written_together(ends: tuple[int, int]) -> None:
    reading, writing = ends
    sink = LineSink(writing)
    assert all(sink.send_at_once((b"%d" % number,), may_wait=True) for number in range(3))
    os.set_blocking(reading, False)
    with pytest.raises(BlockingIOError):
        os.read(reading, 100)
    await anyio.lowlevel.checkpoint()
    assert os.read(reading, 100) == b"0\n1\n2\n"
    sink.close()
    os.close(reading)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how much a pipe takes")
async def test_lines_keep_their_order_when_some_may_wait(ends: tuple[int, int]) -> None:
    reading, writing = ends
    sink = LineSink(writing)
    sizes = (10, 4000, 5, 20_000, 7)
    for size in sizes:
        assert sink.send_at_once((b"x" * size,), may_wait=True) is (size != sizes[3])
        if size == sizes[3]:  # too long for a pipe that is not empty
            assert os.read(reading, 1 << 16) == b"".join(b"x" * size + b"\n" for size in sizes[:3])
            assert sink.send_at_once((b"x" * size,))
            assert os.read(reading, 1 << 16) == b"x" * size + b"\n"
    sink.close()
    assert os.read(reading, 100) == b"x" * sizes[-1] + b"\n"
    os.close(reading)


async def test_a_closed_reader_of_held_lines_is_reported(ends: tuple[int, int]) -> None:
    reading, writing = ends
    failures: list[str] = []
    sink = LineSink(writing, lambda: failures.append("closed"))
    sink.send_at_once((b"x",), may_wait=True)
    os.close(reading)
    await anyio.lowlevel.checkpoint()
    assert failures == ["closed"]
    with pytest.raises(BrokenPipeError):
        sink.send_at_once((b"y",))
    sink.close()


@pytest.mark.parametrize("passes", range(5))
async def test_a_line_that_may_wait_is_not_written_into_a_long_one(ends: tuple[int, int], passes: int) -> None:
    reading, writing = ends
    sink = LineSink(writing)
    lines = [b"x" * 2_000_000, b"y" * 10]
    written: list[bool] = []

    async def send_short() -> None:
        for _ in range(passes):
            await anyio.lowlevel.checkpoint()
        written.append(sink.send_at_once((lines[1],), may_wait=True))

    received = b""
    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as tasks:
            await tasks.start(sink.run)
            tasks.start_soon(sink.send, (lines[0],))
            tasks.start_soon(send_short)
            await anyio.wait_all_tasks_blocked()
            while received.count(b"\n") < 1 + sum(written):
                received += await anyio.to_thread.run_sync(os.read, reading, 1 << 20)
            tasks.cancel_scope.cancel()
    assert sorted(received.splitlines()) == lines[: 1 + sum(written)]
    sink.close()
    os.close(reading)


async def test_a_closed_sink_writes_to_no_other_file_with_its_number(ends: tuple[int, int], tmp_path: Path) -> None:
    reading, writing = ends
    sink = LineSink(writing)
    await sink.send((b"first",))
    sink.close()
    other = os.open(tmp_path / "other", os.O_WRONLY | os.O_CREAT)
    assert other == writing
    for may_wait in (False, True):
        with pytest.raises(OSError, match="closed"):
            sink.send_at_once((b"late",), may_wait=may_wait)
    with anyio.fail_after(BOUND), pytest.raises(OSError, match="closed"):
        await sink.send((b"late",))
    await anyio.lowlevel.checkpoint()
    assert (tmp_path / "other").read_bytes() == b""
    assert os.read(reading, 100) == b"first\n"
    assert os.read(reading, 100) == b""
    os.close(other)
    os.close(reading)


async def test_a_long_line_is_written_to_no_other_file_after_close(ends: tuple[int, int], tmp_path: Path) -> None:
    reading, writing = ends
    sink = LineSink(writing)
    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as tasks:
            await tasks.start(sink.run)
            tasks.start_soon(sink.send, (b"x" * 5_000_000,))
            received = await anyio.to_thread.run_sync(os.read, reading, 1)  # the thread writes
            tasks.cancel_scope.cancel()
        sink.close()
        other = os.open(tmp_path / "other", os.O_WRONLY | os.O_CREAT)
        while data := await anyio.to_thread.run_sync(os.read, reading, 1 << 20):
            received += data
    assert received == b"x" * len(received)  # its beginning
    assert (tmp_path / "other").read_bytes() == b""
    os.close(other)
    os.close(reading)
