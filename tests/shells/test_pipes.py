"""Lines over pipes: messages that are taken on arrival, and messages that a task receives."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from mcp_mirror.payload.pipes import LineSource
from mcp_mirror.payload.spool import Frame, Spool
from mcp_mirror.settings.policies import WirePolicy

BOUND = 20


@dataclass
class Pipe:
    """A source, and the messages that it gave to its callback."""

    source: LineSource
    writing: int
    taken: list[Frame] = field(default_factory=list)
    refuses: bytes = b"?"
    """`take` does not handle messages that begin with this."""

    def take(self, frame: Frame) -> bool:
        assert isinstance(frame, bytes)
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
        source = LineSource(reading, spool.collector())
        pipe = Pipe(source, writing)
        source.take = pipe.take
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


async def test_messages_after_one_that_was_not_taken_keep_their_order(pipe: Pipe) -> None:
    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_write_when_waiting, pipe, (b"a", b"?b", b"c"))
            received = [await pipe.source.receive(), await pipe.source.receive()]
    assert (pipe.taken, received) == ([b"a"], [b"?b", b"c"])
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
    assert len(pipe.taken) < 10
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
    def fail(_frame: Frame) -> bool:
        raise RuntimeError("broken")

    pipe.source.take = fail
    with anyio.fail_after(BOUND):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_write_when_waiting, pipe, (b"a",))
            with pytest.raises(RuntimeError, match="broken"):
                await pipe.source.receive()
    pipe.source.close()


async def _write_when_waiting(pipe: Pipe, lines: list[bytes] | tuple[bytes, ...]) -> None:
    await anyio.wait_all_tasks_blocked()
    pipe.write(*lines)
