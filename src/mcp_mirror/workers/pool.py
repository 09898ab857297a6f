"""Worker processes that principals share fairly: queues, concurrency limits, deadlines and memory limits.

Work that locks the interpreter, or that cannot be interrupted, runs in a worker process, which the pool kills at the
deadline. The pool must not know the kinds of work.
"""

import os
import pickle
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import anyio
import msgspec
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from mcp_mirror.system import import_path
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.system.fair_queue import FairQueue
from mcp_mirror.system.resources import explain_shortage
from mcp_mirror.workers import child
from mcp_mirror.workers.child import LENGTH, do_nothing, pack

DIED: Final = (anyio.BrokenResourceError, anyio.EndOfStream, anyio.IncompleteRead, OSError)
"""The exceptions that `WorkerProcess.request` raises if the process ends."""
_PROGRAM: Final = (
    f"from {import_path.__name__} import prefer_own_libraries as prefer; prefer(); from {child.__name__} import main"
)
_STATM_DATA: Final = 5
"""The field of /proc/PID/statm with the pages that RLIMIT_DATA counts."""


class WorkerProcess:
    """A worker process for pickled tasks: the first one starts it, and the next one after its end restarts it."""

    def __init__(self, child_watchdog: ChildWatchdog, memory: int | None = None) -> None:
        """Create the worker without starting its process.

        The process may allocate `memory` bytes of data; None for no limit.
        """
        self._child_watchdog = child_watchdog
        self._memory = memory
        self._process: Process | None = None
        self._answers: BufferedByteReceiveStream | None = None

    @property
    def is_running(self) -> bool:
        """Whether the process was started and has not ended."""
        return self._process is not None and self._process.returncode is None

    @property
    def keeps_memory(self) -> bool:
        """Whether the process keeps over half of its memory after a task (Linux).

        Libraries keep what they free, and the limit counts it: the next task would fail at a part of the limit.
        """
        if self._memory is None or self._process is None or sys.platform != "linux":
            return False
        try:
            data_pages = int(Path(f"/proc/{self._process.pid}/statm").read_text(encoding="ascii").split()[_STATM_DATA])
        except (OSError, IndexError):  # the process has ended
            return False
        return 2 * data_pages * os.sysconf("SC_PAGE_SIZE") > self._memory

    async def request(self, message: object) -> Any:
        """Send a request and wait for its response.

        After a cancelled request, close the worker: the next request would read the response of this one.
        """
        if self._process is None or self._answers is None or self._process.returncode is not None:
            await self.aclose()
            argv = [sys.executable, "-P", "-c", f"{_PROGRAM}; main({self._memory})"]  # -P: not from the current folder
            with anyio.CancelScope(shield=True):  # a cancelled start would leave its pipes open
                # A separate session: after Ctrl-C in the terminal, it still serves the calls of the graceful shutdown.
                process = await anyio.open_process(argv, stderr=subprocess.DEVNULL, start_new_session=True)
            self._process = process
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


Answer = TypeVar("Answer")
Run = Callable[[Callable[[], Any], float | None], Awaitable[Any]]

_SHARE: Final = 2.0
"""Seconds that a task may keep its process while another principal waits for one."""
_START: Final = 30.0
"""Seconds that a process may take to start."""
_ENDED_AT_START: Final = (
    "the process ended. Check the limits of the gateway (`ulimit -a`) and the memory of the machine"
)
_NO_ANSWER_AT_START: Final = f"it did not answer within {_START:g} s. Try again when the machine is less busy"


class PoolError(Exception):
    """A task has no result."""


class TransientPoolError(PoolError):
    """The task is not the cause: it may succeed later."""


class BusyPoolError(TransientPoolError):
    """No process became free in time."""


class DeadlineError(PoolError):
    """The task took longer than its deadline; its process was killed."""


class PreemptedError(TransientPoolError):
    """The task was stopped because another principal waited; its process was killed."""


class StartError(TransientPoolError):
    """The process did not start; the message names the cause and what to try."""


class WorkerDiedError(PoolError):
    """The process ended during the task, for example at its memory limit."""


class PoolSize(msgspec.Struct, frozen=True):
    """The limits of a pool."""

    processes: int
    """Processes that run at once."""
    per_principal: int
    """Concurrency limit of one principal; below `processes`, so that one principal cannot occupy all of them."""
    memory: int | None = None
    """Bytes of data that one process may allocate; None: no limit."""
    preempts: bool = True
    """A principal that waits stops a long task of another one."""


class _Task(msgspec.Struct, eq=False):
    principal: str
    began: float
    scope: anyio.CancelScope
    is_preempted: bool = False


class WorkerPool:
    """A pool of worker processes, each started when it is first needed."""

    def __init__(
        self, child_watchdog: ChildWatchdog, size: PoolSize, prepare: Callable[[], None] | None = None
    ) -> None:
        """Create an empty pool.

        `prepare` is the first task of each process, outside all deadlines. It imports the module of its jobs there.
        """
        self._prepare = prepare or do_nothing
        self._child_watchdog = child_watchdog
        self._size = size
        self._idle: list[WorkerProcess] = []
        self._in_use = 0
        """Processes that start or run tasks."""
        self._returned = anyio.Event()
        """Set when a process is not in use any more, and then replaced."""
        self._running: list[_Task] = []
        self._places = FairQueue(size.processes)

    async def run(
        self, principal: str, task: Callable[[], Answer], seconds: float | None, max_wait: float | None = None
    ) -> Answer:
        """Run a task in a process and return its result; both can be pickled. Principals take turns.

        `seconds` is the deadline, without the start of the process, and `max_wait` the longest wait for a process; None
        for no limit. A PoolError names why the task has no result.
        """
        async with self.reserve(principal, max_wait) as run:
            return cast("Answer", await run(task, seconds))

    @asynccontextmanager
    async def reserve(self, principal: str, max_wait: float | None = None) -> AsyncIterator[Run]:
        """Reserve one process, as `run` does. Yields a function that runs a task there, within a number of seconds."""
        share = self._size.per_principal
        preempt = partial(self._preempt, principal) if self._size.preempts else do_nothing
        if not self._places.try_enter(principal, share) and not await self._places.wait(
            principal, share, max_wait, preempt, _SHARE
        ):
            raise BusyPoolError
        try:
            async with self._borrow_worker(max_wait) as worker:
                yield partial(self._run, worker, principal)
        except TimeoutError:
            raise DeadlineError from None
        except DIED:
            raise WorkerDiedError from None
        finally:
            self._places.release(principal)

    @asynccontextmanager
    async def _borrow_worker(self, max_wait: float | None) -> AsyncIterator[WorkerProcess]:
        """Take a running process for the duration of the context."""
        worker = await self._take_worker(max_wait)
        try:
            yield worker
            if worker.keeps_memory:
                await worker.aclose()
            self._idle.append(worker)
        except BaseException:  # the next task would read the result of this one
            await worker.aclose()
            raise
        finally:
            self._in_use -= 1
            self._wake_waiters()

    async def _take_worker(self, max_wait: float | None) -> WorkerProcess:
        """Return an idle process, or start one. If the system refuses another process, wait for one in use.

        Raises:
            StartError: No process can start, and none is in use.
            BusyPoolError: No process became free in time.
        """
        while True:
            worker = self._idle.pop() if self._idle else WorkerProcess(self._child_watchdog, self._size.memory)
            self._in_use += 1
            if worker.is_running or await self._try_start(worker):
                return worker
            if not self._idle:
                with anyio.move_on_after(max_wait) as waiting:
                    await self._returned.wait()
                if waiting.cancelled_caught:
                    raise BusyPoolError

    async def _try_start(self, worker: WorkerProcess) -> bool:
        """Start a process, and return whether it has started; if no other one is there, raise the cause."""
        try:
            await self._start(worker)
        except BaseException as error:
            await worker.aclose()
            self._in_use -= 1
            if not self._in_use:
                self._wake_waiters()  # they would wait forever; before that, they would only fail again
            if not isinstance(error, StartError) or not (self._in_use or self._idle):
                raise
            return False
        return True

    async def _start(self, worker: WorkerProcess) -> None:
        """Start a process and run its first task."""
        try:
            with anyio.fail_after(_START):
                await worker.request(self._prepare)
        except TimeoutError:  # an `OSError` too
            raise StartError(_NO_ANSWER_AT_START) from None
        except DIED as error:
            raise StartError(explain_shortage(error) or _ENDED_AT_START) from None

    def _wake_waiters(self) -> None:
        """Wake the tasks that wait for a process in use."""
        self._returned.set()
        self._returned = anyio.Event()

    async def aclose(self) -> None:
        """Stop the idle processes. Call it when no task runs."""
        while self._idle:
            await self._idle.pop().aclose()

    async def _run(self, worker: WorkerProcess, principal: str, work: Callable[[], Any], seconds: float | None) -> Any:
        with anyio.CancelScope() as scope:
            task = _Task(principal, anyio.current_time(), scope)
            self._running.append(task)
            try:
                with anyio.fail_after(seconds):
                    return await worker.request(work)
            finally:
                self._running.remove(task)
        if task.is_preempted:
            raise PreemptedError
        return None

    def _preempt(self, principal: str) -> None:
        """Stop the oldest task of another principal that has had its share, if it keeps this principal waiting."""
        if self._places.count_taken(principal) >= self._size.per_principal:
            return
        before = anyio.current_time() - _SHARE
        others = (one for one in self._running if one.principal != principal and not one.is_preempted)
        if (oldest := next(others, None)) and oldest.began <= before:
            oldest.is_preempted = True
            oldest.scope.cancel()
