"""Worker processes that principals share fairly: queues, concurrency limits, deadlines and memory limits.

Work that locks the interpreter or cannot be interrupted runs in a worker process. The pool kills the process at the
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
from typing import Any, Final, Self, TypeVar, cast

import anyio
import msgspec
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from mcp_mirror.errors import MirrorError
from mcp_mirror.system import import_path
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.system.fair_queue import FairQueue
from mcp_mirror.system.resources import explain_shortage
from mcp_mirror.workers import child
from mcp_mirror.workers.child import LENGTH, Failure, do_nothing, pack

_DIED: Final = (anyio.BrokenResourceError, anyio.EndOfStream, anyio.IncompleteRead, OSError)
"""The exceptions of the pipes of a process that has ended, or that cannot start."""
_PROGRAM: Final = (
    f"from {import_path.__name__} import prefer_own_libraries as prefer; prefer(); from {child.__name__} import main"
)
_STATM_DATA: Final = 5
"""The field of /proc/PID/statm with the pages that RLIMIT_DATA counts."""


class _Worker:
    """A running worker process for pickled tasks."""

    def __init__(self, process: Process, child_watchdog: ChildWatchdog, memory: int | None) -> None:
        assert process.stdin is not None  # noqa: S101  # opened with pipes
        assert process.stdout is not None  # noqa: S101  # as above
        self._process = process
        self._tasks = process.stdin
        self._answers = BufferedByteReceiveStream(process.stdout)
        self._child_watchdog = child_watchdog
        self._memory = memory
        child_watchdog.add(process.pid)

    @classmethod
    async def start(cls, child_watchdog: ChildWatchdog, memory: int | None) -> Self:
        """Start a process, which may allocate `memory` bytes of data; None for no limit.

        Raises:
            OSError: The system refuses another process.
        """
        argv = [sys.executable, "-P", "-c", f"{_PROGRAM}; main({memory})"]  # -P: not from the current folder
        with anyio.CancelScope(shield=True):  # a cancelled start would leave its pipes open
            # A separate session: after Ctrl-C in the terminal, it still serves the calls of the graceful shutdown.
            process = await anyio.open_process(argv, stderr=subprocess.DEVNULL, start_new_session=True)
        return cls(process, child_watchdog, memory)

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.returncode is None

    @property
    def keeps_memory(self) -> bool:
        """Whether the process keeps over half of its memory after a task (Linux).

        Libraries keep what they free, and the limit counts it: the next task would fail at a part of the limit.
        """
        if self._memory is None or sys.platform != "linux":
            return False
        try:
            data_pages = int(Path(f"/proc/{self._process.pid}/statm").read_text(encoding="ascii").split()[_STATM_DATA])
        except (OSError, IndexError):  # the process has ended
            return False
        return 2 * data_pages * os.sysconf("SC_PAGE_SIZE") > self._memory

    async def run(self, task: Callable[[], Any]) -> Any:
        """Run a task and return its result.

        If this fails or is cancelled, kill the process: the next task would get the result of this one.
        """
        try:
            await self._tasks.send(pack(task))
            (size,) = LENGTH.unpack(await self._answers.receive_exactly(LENGTH.size))
            return pickle.loads(await self._answers.receive_exactly(size))  # noqa: S301  # from the gateway's process
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Kill the process."""
        if self.is_running:
            self._process.kill()
        with anyio.CancelScope(shield=True):
            await self._process.aclose()
        self._child_watchdog.remove(self._process.pid)


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


class TaskError(PoolError):
    """The task raised an exception that is not a MirrorError; the message is the name of its class."""


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
        self._idle: list[_Worker] = []
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
        for no limit.

        Raises:
            PoolError: The task has no result; its class says why.
            MirrorError: The task raised it.
        """
        async with self.reserve(principal, max_wait) as run:
            return cast("Answer", await run(task, seconds))

    @asynccontextmanager
    async def reserve(self, principal: str, max_wait: float | None = None) -> AsyncIterator[Run]:
        """Reserve one process, as `run` does. Yields a function that runs a task there, within a number of seconds."""
        share = self._size.per_principal
        preempt = partial(self._preempt, principal) if self._size.preempts else None
        if not self._places.try_enter(principal, share) and not await self._places.wait(
            principal, share, max_wait, preempt, _SHARE
        ):
            raise BusyPoolError
        try:
            async with self._borrow_worker(max_wait) as worker:
                yield partial(self._run, worker, principal)
        finally:
            self._places.release(principal)

    @asynccontextmanager
    async def _borrow_worker(self, max_wait: float | None) -> AsyncIterator[_Worker]:
        """Take a running process for the duration of the context."""
        worker = await self._take_worker(max_wait)
        try:
            yield worker
        finally:
            if worker.is_running and worker.keeps_memory:
                await worker.aclose()
            if worker.is_running:
                self._idle.append(worker)
            self._in_use -= 1
            self._wake_waiters()

    async def _take_worker(self, max_wait: float | None) -> _Worker:
        """Return an idle process, or start one. If the system refuses another process, wait for one in use.

        Raises:
            StartError: No process can start, and none is in use.
            BusyPoolError: No process became free in time.
        """
        while True:
            self._in_use += 1
            try:
                return await self._take_idle() or await self._start_worker()
            except BaseException as error:
                self._in_use -= 1
                if not self._in_use:
                    self._wake_waiters()  # they would wait forever; before that, they would only fail again
                if not isinstance(error, StartError) or not (self._in_use or self._idle):
                    raise
            if not self._idle:
                with anyio.move_on_after(max_wait) as waiting:
                    await self._returned.wait()
                if waiting.cancelled_caught:
                    raise BusyPoolError

    async def _take_idle(self) -> _Worker | None:
        """Return an idle process that still runs; None without one."""
        while self._idle:
            worker = self._idle.pop()
            if worker.is_running:
                return worker
            await worker.aclose()
        return None

    async def _start_worker(self) -> _Worker:
        """Start a process and run its first task."""
        try:
            with anyio.fail_after(_START):
                worker = await _Worker.start(self._child_watchdog, self._size.memory)
                await worker.run(self._prepare)
        except TimeoutError:  # an `OSError` too
            raise StartError(_NO_ANSWER_AT_START) from None
        except _DIED as error:
            raise StartError(explain_shortage(error) or _ENDED_AT_START) from None
        return worker

    def _wake_waiters(self) -> None:
        """Wake the tasks that wait for a process in use."""
        self._returned.set()
        self._returned = anyio.Event()

    async def aclose(self) -> None:
        """Stop the idle processes. Call it when no task runs."""
        while self._idle:
            await self._idle.pop().aclose()

    async def _run(self, worker: _Worker, principal: str, work: Callable[[], Any], seconds: float | None) -> Any:
        """Run a task in a process, as one that may be preempted."""
        answer = None
        with anyio.CancelScope() as scope:
            task = _Task(principal, anyio.current_time(), scope)
            self._running.append(task)
            try:
                with anyio.fail_after(seconds):
                    answer = await worker.run(work)
            except TimeoutError:
                raise DeadlineError from None
            except _DIED:
                raise WorkerDiedError from None
            finally:
                self._running.remove(task)
        if task.is_preempted:
            raise PreemptedError
        if isinstance(answer, Failure):
            raise TaskError(answer.error)
        if isinstance(answer, MirrorError):
            raise answer
        return answer

    def _preempt(self, principal: str) -> None:
        """Stop the oldest task of another principal that has had its share, if it keeps this principal waiting."""
        if self._places.count_taken(principal) >= self._size.per_principal:
            return
        before = anyio.current_time() - _SHARE
        others = (one for one in self._running if one.principal != principal and not one.is_preempted)
        if (oldest := next(others, None)) and oldest.began <= before:
            oldest.is_preempted = True
            oldest.scope.cancel()
