"""A worker process as the gateway sees it: it starts the process, and sends it pickled tasks.

This module must not know the meaning of the tasks.
"""

import pickle
import subprocess
import sys
from typing import Any, Final

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.workers import child
from mcp_mirror.workers.child import LENGTH, pack

DIED: Final = (anyio.BrokenResourceError, anyio.EndOfStream, anyio.IncompleteRead, OSError)
"""The exceptions that `WorkerProcess.request` raises if the process ends."""


class WorkerProcess:
    """A worker process, started by the first request and restarted by the next request after it ended."""

    def __init__(self, child_watchdog: ChildWatchdog, memory: int | None = None) -> None:
        """Create the worker without starting its process.

        Args:
            child_watchdog: Kills the process if the gateway dies.
            memory: Bytes of data that the process may allocate; None for no limit.
        """
        self._child_watchdog = child_watchdog
        self._memory = memory
        self._process: Process | None = None
        self._answers: BufferedByteReceiveStream | None = None

    @property
    def is_running(self) -> bool:
        """Whether the process was started and has not ended."""
        return self._process is not None and self._process.returncode is None

    async def request(self, message: object) -> Any:
        """Send a request and wait for its response.

        After a cancelled request, close the worker: the next request would read the response of this one.
        """
        if self._process is None or self._answers is None or self._process.returncode is not None:
            await self.aclose()
            argv = [sys.executable, "-c", f"from {child.__name__} import main; main({self._memory})"]
            # A separate session: after Ctrl-C in the terminal, it still serves the calls of the graceful shutdown.
            self._process = await anyio.open_process(argv, stderr=subprocess.DEVNULL, start_new_session=True)
            self._child_watchdog.add(self._process.pid)
            assert self._process.stdout is not None  # noqa: S101  # opened with pipes
            self._answers = BufferedByteReceiveStream(self._process.stdout)
        assert self._process.stdin is not None  # noqa: S101  # opened with pipes
        await self._process.stdin.send(pack(message))
        (size,) = LENGTH.unpack(await self._answers.receive_exactly(LENGTH.size))
        return pickle.loads(await self._answers.receive_exactly(size))  # noqa: S301  # from the gateway's own process

    async def aclose(self) -> None:
        """Kill the process."""
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            with anyio.CancelScope(shield=True):
                await process.aclose()
            self._child_watchdog.remove(process.pid)
