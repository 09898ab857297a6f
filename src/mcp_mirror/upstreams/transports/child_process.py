"""The child process of an upstream: its start, its end, and what it prints on standard error."""

import math
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any, Final

import anyio
import anyio.to_thread
from anyio.abc import ByteReceiveStream, Process

from mcp_mirror.errors import UpstreamError
from mcp_mirror.settings.upstreams import StdioEndpoint
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.system.early_program import take_early
from mcp_mirror.system.resources import explain_shortage, open_wide_pipes, restore_handle_limit
from mcp_mirror.upstreams.transports.commands import build_environment, explain_failed_start, find_command
from mcp_mirror.upstreams.transports.server_output import ServerOutput, write_to_stderr

_STEPS: Final = ((None, 1.5), ("SIGTERM", 1.0), ("SIGKILL", 1.0))
"""How a child is stopped after its input is closed: the signals, and the seconds that it gets to exit."""
_STUCK_STEPS: Final = (("SIGTERM", 0.2), ("SIGKILL", 1.0))
"""The same for a child that neither reads nor ends its message: it does not see that its input is closed."""
_STARTING_STEPS: Final = ((None, 0.5), ("SIGTERM", 2.0), ("SIGKILL", 1.0))
"""The same for a child that has sent no message yet: an npx that is killed while it installs breaks its own cache.

Clients on the SDK kill a gateway 4 s after they close its input.
"""
_STDERR_SLICE: Final = 1 << 16
"""Bytes of standard error after which other tasks run."""
_STDERR_RATE: Final = 32 << 20
"""Bytes of standard error read per second; a child that writes more waits."""
PIPE_GONE: Final = (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)


class StartedProcess:
    """A child process that did not start in the event loop, with the members of `Process` that the transport uses."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None  # noqa: S101  # opened with a pipe
        self._process = process
        self.pid: Final = process.pid
        self.stderr: ByteReceiveStream | None = _PipeReader(process.stderr)

    async def wait(self) -> int:
        """Return the exit code, once the process has exited."""
        if (exited := _open_exit(self.pid)) is None:
            limiter = anyio.CapacityLimiter(math.inf)
            return await anyio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True, limiter=limiter)
        try:
            await anyio.wait_readable(exited)
        finally:
            os.close(exited)
        return self._process.wait()

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()

    async def aclose(self) -> None:
        """Nothing to release: the task that reads standard error closes it."""


def _open_exit(pid: int) -> int | None:
    """Return a descriptor that is readable once a child has exited; None on macOS and on Linux before 5.3."""
    if sys.platform == "linux":
        with suppress(AttributeError, OSError):
            return os.pidfd_open(pid)
    return None


class _PipeReader(ByteReceiveStream):
    """The reading end of a pipe. Only the task that reads may close it: the event loop watches the descriptor."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe

    async def receive(self, max_bytes: int = _STDERR_SLICE) -> bytes:
        await anyio.wait_readable(self._pipe)
        data = os.read(self._pipe.fileno(), max_bytes)
        if not data:
            raise anyio.EndOfStream
        return data

    async def aclose(self) -> None:
        self._pipe.close()


async def launch(endpoint: StdioEndpoint, child_watchdog: ChildWatchdog) -> tuple[Process | StartedProcess, int, int]:
    """Return the running child, and the gateway's ends of its standard input and output.

    Raises:
        UpstreamError: The command does not exist or cannot be started.
    """
    command = (endpoint.command, *endpoint.args)
    if endpoint.is_wrapped and (early := take_early(command)):
        if early.watchdog:
            child_watchdog.adopt(early.watchdog, early.process.pid)
        return StartedProcess(early.process), early.input, early.output
    try:
        with open_wide_pipes() as (theirs, ours):
            return await _start(endpoint, child_watchdog, *theirs), *ours
    except OSError as error:
        raise _build_shortage_error(endpoint, explain_shortage(error) or str(error.strerror)) from None


async def _start(
    endpoint: StdioEndpoint, child_watchdog: ChildWatchdog, stdin: int, stdout: int
) -> Process | StartedProcess:
    """Start the child in a thread: on a busy machine it may take a second until the system runs the command."""
    options: Any = {"stdin": stdin, "stdout": stdout, "env": build_environment(endpoint), "cwd": endpoint.cwd}
    argv = [find_command(endpoint), *endpoint.args]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(argv, stderr=subprocess.PIPE, start_new_session=True, **options)  # noqa: S603

    process: Process | StartedProcess
    try:
        async with child_watchdog.start_lock:
            with anyio.CancelScope(shield=True):  # a cancelled start would leave its pipe open
                if sys.platform == "win32":
                    process = await anyio.open_process(argv, start_new_session=True, **options)
                else:
                    process = StartedProcess(await anyio.to_thread.run_sync(start))
    except (OSError, ValueError) as error:
        if shortage := explain_shortage(error):
            raise _build_shortage_error(endpoint, shortage) from None
        raise UpstreamError(explain_failed_start(endpoint, error)) from None
    restore_handle_limit(process.pid)
    return process


def _build_shortage_error(endpoint: StdioEndpoint, shortage: str) -> UpstreamError:
    return UpstreamError(f"Its command {endpoint.command!r} cannot start now: {shortage}.")


async def keep_errors(
    process: Process | StartedProcess, endpoint: StdioEndpoint, output: ServerOutput, is_read: anyio.Event
) -> None:
    """Read the standard error of a child to its end, and set `is_read`."""
    stderr = process.stderr
    assert stderr is not None  # noqa: S101  # opened with a pipe
    unpaced = 0
    try:
        async with stderr:
            while True:
                data = await stderr.receive()
                output.add(data)
                if endpoint.is_wrapped:
                    await write_to_stderr(data)
                unpaced += len(data)
                if unpaced >= _STDERR_SLICE:
                    await anyio.sleep(unpaced / _STDERR_RATE)
                    unpaced = 0
    except (anyio.EndOfStream, *PIPE_GONE):
        pass
    finally:
        is_read.set()  # also at a shutdown, which cancels this task: nothing reads the rest


class Child:
    """The child process, and the processes that it started in its group."""

    def __init__(self, process: Process | StartedProcess, child_watchdog: ChildWatchdog) -> None:
        self._process = process
        self._child_watchdog = child_watchdog
        self.exited: anyio.Event = anyio.Event()
        """Set when the child has exited."""
        self._is_stopped = False
        self.exit_code: int | None = None
        """See `ServerOutput.exit_code`; None also if `stop` ended the child with a signal."""
        child_watchdog.add(process.pid)

    async def reap(self) -> None:
        """Wait for the exit of the child, and kill the remaining processes of its group, so that its pipes end."""
        with anyio.CancelScope(shield=True):  # until `stop` has returned
            status = await self._process.wait()
            self.exit_code = None if self._is_stopped else status
            self._signal("SIGKILL")
            self._child_watchdog.remove(self._process.pid)  # from here on another process may have the number
            self.exited.set()

    async def stop(self, *, has_message: bool, is_stuck: bool) -> None:
        """Wait for the child to exit, then signal and at last kill its group, in the order of MCP's lifecycle.

        `has_message`: the child has sent a message. `is_stuck`: see `PayloadBypass.is_stuck`.
        """
        steps: Sequence[tuple[str | None, float]] = _STEPS if has_message else _STARTING_STEPS
        for name, grace in _STUCK_STEPS if is_stuck else steps:
            if name:
                self._is_stopped = True
                self._signal(name)
            with anyio.move_on_after(grace):
                await self.exited.wait()
            if self.exited.is_set():
                return

    async def close(self) -> None:
        """Close the remaining pipes."""
        with suppress(*PIPE_GONE):
            await self._process.aclose()

    def _signal(self, name: str) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if sys.platform == "win32":
                self._process.kill()
            else:
                os.killpg(self._process.pid, getattr(signal, name))
