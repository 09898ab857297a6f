"""The transport to a child process: what happens to its descriptors when it closes."""

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from waiting import until

from mcp_mirror.payload.spool import Spool
from mcp_mirror.security.redaction import Redactor
from mcp_mirror.settings.policies import WirePolicy
from mcp_mirror.settings.upstreams import StdioEndpoint
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.system.early_program import start_early
from mcp_mirror.upstreams.transports.payloads import PayloadBypass
from mcp_mirror.upstreams.transports.server_output import ServerOutput
from mcp_mirror.upstreams.transports.stdio import StdioTransport

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="lists descriptors in /proc")
BOUND = 20


async def test_a_descriptor_of_a_closed_early_program_can_be_used_at_once(tmp_path: Path) -> None:
    with _lasting_grandchild(tmp_path) as command, ExitStack() as stack, anyio.fail_after(BOUND):
        before = _list_descriptors()
        start_early(command)
        descriptors = _list_descriptors() - before
        reused: list[tuple[int, anyio.Event]] = []

        async def reuse_closed() -> None:
            """Watch another pipe under the number of each closed descriptor, in the pass of the loop that closes it."""
            while True:
                for descriptor in sorted(descriptors - _list_descriptors()):
                    descriptors.remove(descriptor)
                    reused.append((stack.enter_context(_pipe_at(descriptor)), is_readable := anyio.Event()))
                    asyncio.get_running_loop().add_reader(descriptor, is_readable.set)
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as tasks:
            async with _open_wrapped(command):
                await _wait_for_session(tmp_path)
                tasks.start_soon(reuse_closed)
            tasks.cancel_scope.cancel()
        assert len(reused) >= 3  # the streams of the program
        for writing, is_readable in reused:
            os.write(writing, b"x")
            await is_readable.wait()


async def test_the_start_of_a_child_does_not_block_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    starts, continues = threading.Event(), threading.Event()

    class SlowPopen(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            starts.set()
            assert continues.wait(BOUND)
            super().__init__(*args, **options)

    async def open_and_close() -> None:
        async with _open_wrapped(("cat",)):
            pass

    monkeypatch.setattr(subprocess, "Popen", SlowPopen)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(open_and_close)
        await until(starts.is_set)
        continues.set()


@contextmanager
def _lasting_grandchild(folder: Path) -> Iterator[tuple[str, ...]]:
    """The command of a program; a process that it starts lasts longer, and has its standard error."""
    yield ("sh", "-c", f"setsid sleep 60 </dev/null >/dev/null & echo $! >{folder}/pid; exec cat")
    with suppress(ProcessLookupError):
        os.kill(int((folder / "pid").read_text()), signal.SIGKILL)


async def _wait_for_session(folder: Path) -> None:
    """Wait until the process has a session of its own, so that the end of the program does not end it."""
    while True:
        with suppress(OSError, ValueError):
            if os.getsid(process := int((folder / "pid").read_text())) == process:
                return
        await anyio.lowlevel.checkpoint()


@contextmanager
def _pipe_at(descriptor: int) -> Iterator[int]:
    """A pipe whose reading end has this number. Yields its writing end."""
    ends = os.pipe()
    reading, writing = (fcntl.fcntl(end, fcntl.F_DUPFD, 100) for end in ends)  # other numbers than those to use
    for end in ends:
        os.close(end)
    os.dup2(reading, descriptor)
    try:
        yield writing
    finally:
        asyncio.get_running_loop().remove_reader(descriptor)
        for end in (descriptor, reading, writing):
            os.close(end)


def _list_descriptors() -> set[int]:
    listed = {int(entry) for entry in os.listdir("/proc/self/fd")}  # noqa: PTH208  # it opens a descriptor of its own
    return {one for one in listed if Path(f"/proc/self/fd/{one}").is_symlink()}


@asynccontextmanager
async def _open_wrapped(command: tuple[str, ...]) -> AsyncIterator[None]:
    endpoint = StdioEndpoint(command[0], command[1:], is_wrapped=True)
    with Spool(WirePolicy()) as spool, ChildWatchdog() as child_watchdog:
        transport = StdioTransport("up", endpoint, spool, child_watchdog, ServerOutput(Redactor(endpoint)))
        async with transport.open(PayloadBypass()):
            yield
