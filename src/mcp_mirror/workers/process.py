"""A process of ours that answers questions on its standard streams: what would hold the interpreter lock runs there.

What goes to the process and back is pickled; what the questions mean is not known here.
"""

import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from mcp_mirror.system.child_watchdog import ChildWatchdog

_LENGTH: Final = struct.Struct(">Q")

DIED: Final = (anyio.BrokenResourceError, anyio.EndOfStream, anyio.IncompleteRead, OSError)
"""What an exchange raises where the process ends meanwhile."""


class WorkerProcess:
    """Starts the process when it is first needed and keeps it; one that ended is started again."""

    def __init__(self, module: str, child_watchdog: ChildWatchdog, memory: int | None = None) -> None:
        """Start nothing yet.

        Args:
            module: Whose `main` runs in the process.
            child_watchdog: Ends the process where we are gone.
            memory: What `main` is called with: bytes of data that the process may allocate, None for no limit.
        """
        self._module = module
        self._child_watchdog = child_watchdog
        self._memory = memory
        self._process: Process | None = None
        self._answers: BufferedByteReceiveStream | None = None

    @property
    def is_running(self) -> bool:
        """Whether the process was started and has not ended."""
        return self._process is not None and self._process.returncode is None

    async def channel(self, question: object) -> Any:
        """Ask, and wait for the answer. Who gives up waiting closes the worker: the answer would be the next one's."""
        if self._process is None or self._answers is None or self._process.returncode is not None:
            await self.aclose()
            argv = [sys.executable, "-c", f"from {self._module} import main; main({self._memory})"]
            # In a session of its own: a Ctrl-C in the terminal leaves it to the calls that are answered still.
            self._process = await anyio.open_process(argv, stderr=subprocess.DEVNULL, start_new_session=True)
            self._child_watchdog.hold(self._process.pid)
            assert self._process.stdout is not None  # noqa: S101  # opened with pipes
            self._answers = BufferedByteReceiveStream(self._process.stdout)
        assert self._process.stdin is not None  # noqa: S101  # opened with pipes
        await self._process.stdin.send(_packed(question))
        (size,) = _LENGTH.unpack(await self._answers.receive_exactly(_LENGTH.size))
        return pickle.loads(await self._answers.receive_exactly(size))  # noqa: S301  # from a process of ours

    async def aclose(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            with anyio.CancelScope(shield=True):
                await process.aclose()
            self._child_watchdog.release(process.pid)


def answer_questions(answer: Callable[[Any], object]) -> None:
    """What runs in the process: questions on standard input are answered until it ends."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while head := source.read(_LENGTH.size):
        question = pickle.loads(source.read(_LENGTH.unpack(head)[0]))  # noqa: S301  # from the process that started us
        sink.write(_packed(answer(question)))
        sink.flush()


def _packed(message: object) -> bytes:
    data = pickle.dumps(message)
    return _LENGTH.pack(len(data)) + data
