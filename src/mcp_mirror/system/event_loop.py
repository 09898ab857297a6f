"""An asyncio event loop that measures its own stalls and collects garbage while the gateway serves clients.

A stall is a time in which the loop handles no new event, so no client gets an answer: the work of one pass of the loop,
plus the time by which the loop wakes too late. Time in which the operating system ran other programs is subtracted
where Linux reports it, so a busy machine is not mistaken for a slow gateway. An idle loop is never woken. The start of
the gateway, and commands that serve no client, are not measured: they import modules in the event loop.

A measured loop also collects garbage and releases freed memory, as it becomes idle: see `system/heap.py`.
"""

import asyncio
import logging
import os
import selectors
import sys
import threading
from collections import deque
from collections.abc import Coroutine, Generator, Mapping
from contextlib import suppress
from pathlib import PurePath
from time import monotonic
from typing import Any, Final, TypeVar

from mcp_mirror.system.heap import HeapCleanup
from mcp_mirror.system.name_lookups import look_up

_T = TypeVar("_T")
_logger = logging.getLogger(__name__)

BOUNDS: Final = (0.05, 0.1, 0.25, 1.0)
"""Seconds. Stalls longer than each of these are counted."""
_LOGGED: Final = 0.1
"""Seconds from which a stall is logged, at level info."""
_WARNED: Final = 1.0
"""Seconds from which a stall is logged as a warning."""
_LOG_INTERVAL: Final = 10.0
"""Seconds between two log lines while the loop is active."""
_TICK: Final = 0.05
"""Seconds between two wake-ups while the loop is active."""
_ACTIVE: Final = 1.0
"""Seconds after its last event in which a loop counts as active."""
_FRESH: Final = 0.01
"""Seconds after which the run queue delay is read again."""
_LOOK_INTERVAL: Final = 0.001
"""Seconds between two looks for events while callbacks are ready."""
_OVERDUE: Final = 1.0
"""Seconds by which a cleanup of the heap waits for a pass after which no event waits."""
_RECENT: Final = 20
"""Stalls that are kept with their time."""
_FRAMES: Final = 8
"""Functions that a log line names."""
_UNSEEN: Final = "an unknown place, as when another thread computes or the whole process is stopped"
"""In place of the functions, if the thread that looks for them could not run either."""


class Stalls:
    """The measurements of a loop. Only the loop's thread writes them; any thread may read them."""

    def __init__(self) -> None:
        self.since: float = monotonic()
        self.longest: float = 0.0
        """Seconds."""
        self.counts: dict[float, int] = dict.fromkeys(BOUNDS, 0)
        self.recent: deque[tuple[float, float]] = deque(maxlen=_RECENT)
        """Of each stall the seconds from the start of the loop to its end, and its own seconds."""

    def add(self, at: float, seconds: float) -> None:
        """Count a stall that ended at this monotonic time."""
        self.longest = max(self.longest, seconds)
        self.recent.append((at - self.since, seconds))
        for bound in BOUNDS:
            self.counts[bound] += seconds > bound

    def as_json(self) -> Mapping[str, Any]:
        """The measurements, for the status resource."""
        recent = [{"at_s": round(at, 3), "ms": round(1000 * seconds, 1)} for at, seconds in self.recent]
        return {
            "uptime_s": round(monotonic() - self.since, 3),
            "longest_stall_ms": round(1000 * self.longest, 1),
            "stalls_over_ms": {f"{1000 * bound:.0f}": count for bound, count in self.counts.items()},
            "recent_stalls": recent,
        }


class _Task(asyncio.Task[_T]):
    """A task that leaves no garbage when it is cancelled.

    A function that catches the error of a cancelled task, such as one of anyio's task groups, is in its traceback and
    has it in a variable: a circle, which keeps what the functions of the task had in their variables.
    """

    def exception(self) -> BaseException | None:
        """Return the exception of the task.

        Raises:
            asyncio.CancelledError: The task was cancelled. The error loses its traceback in the next pass of the loop.
        """
        try:
            return super().exception()
        except asyncio.CancelledError as error:
            if not self.get_loop().is_closed():
                self.get_loop().call_soon(error.with_traceback, None)
            raise


def _create_task(
    loop: asyncio.AbstractEventLoop, function: Generator[Any, None, _T] | Coroutine[Any, Any, _T], **options: Any
) -> _Task[_T]:
    return _Task(function, loop=loop, **options)


class MeasuredLoop(asyncio.SelectorEventLoop):
    """A selector event loop that can measure its stalls; see `measure_stalls`."""

    def __init__(self) -> None:
        self.stalls: Stalls = Stalls()
        self.watch: _Watch = _Watch(self.stalls)
        super().__init__(_MeasuredSelector(self.watch))
        self.set_task_factory(_create_task)

    async def getaddrinfo(
        self,
        host: str | bytes | None,
        port: str | bytes | int | None,
        *,
        family: int = 0,
        type: int = 0,  # noqa: A002  # as the base class
        proto: int = 0,
        flags: int = 0,
    ) -> Any:
        """Look up the addresses of a host. At its end, a loop waits for the threads of its own lookups."""
        return await asyncio.wrap_future(look_up(host, port, family, type, proto, flags))

    def run_forever(self) -> None:
        """Run until stopped."""
        try:
            super().run_forever()
        finally:
            if self.watch.is_running:
                self.watch.stop()


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new loop: one that can measure, except on Windows, where a selector loop cannot start processes."""
    return asyncio.new_event_loop() if sys.platform == "win32" else MeasuredLoop()


def measure_stalls() -> None:
    """Measure the stalls of the running loop from now on, if it can. The gateway calls this when it begins to serve."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, MeasuredLoop) and not loop.watch.is_running:
        loop.watch.start()


def expect_growth(blocks: int) -> None:
    """Tell a measured loop that so many new blocks of memory are in use: it expects no garbage there."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, MeasuredLoop) and loop.watch.is_running:
        loop.watch.cleanup.expect_growth(blocks)


def find_stalls() -> Stalls | None:
    """Return the stalls of the running loop; None if it does not measure them."""
    loop = asyncio.get_running_loop()
    return loop.stalls if isinstance(loop, MeasuredLoop) and loop.watch.is_running else None


class _MeasuredSelector(selectors.DefaultSelector):
    """Reports where a pass of the loop begins and ends: a pass is what happens between two reads of events.

    Callbacks that become ready in a pass run in the same pass, because each look for events is a system call. A loop
    that is busy for longer looks for events every millisecond.
    """

    def __init__(self, watch: "_Watch") -> None:
        super().__init__()
        self._watch = watch
        self._was_active = True
        self._next_look = 0.0
        """The monotonic time from which to look for events while callbacks are ready."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        watch = self._watch
        if not watch.is_running:
            return super().select(timeout)
        entered = monotonic()
        if timeout is not None and timeout <= 0 and entered < self._next_look:
            return []
        is_active = watch.is_active(entered)
        becomes_idle = self._was_active and not is_active
        if becomes_idle or entered >= watch.cleanup.next_check:
            if self._clean_up(entered, is_active=is_active, may_wait=timeout is None or timeout > 0):
                timeout = 0.0  # finalizers may have scheduled callbacks
            entered = monotonic()
        self._was_active = is_active
        watch.end_pass(entered)
        if is_active and (timeout is None or timeout > _TICK):
            timeout = _TICK
        ready = super().select(timeout)
        began = monotonic() if timeout is None else min(monotonic(), entered + timeout)
        watch.begin_pass(began, has_events=bool(ready))
        self._next_look = began + _LOOK_INTERVAL
        return ready

    def _clean_up(self, now: float, *, is_active: bool, may_wait: bool) -> bool:
        """Clean up the heap if no event waits, or it is overdue; return whether garbage was collected."""
        cleanup = self._watch.cleanup
        is_quiet = may_wait and not super().select(0)
        if is_active and not is_quiet and now < cleanup.next_check + _OVERDUE:
            return False
        if is_quiet:  # the pass is over, and the cleanup delays only what comes now
            self._watch.end_pass(now)
            self._watch.begin_pass(now, has_events=False)
        return cleanup.run(now, is_idle=not is_active, is_quiet=is_quiet)


class _Watch:
    """Measures the passes of a running loop. A thread finds out which functions run in long ones, and logs them."""

    def __init__(self, stalls: Stalls) -> None:
        self._stalls = stalls
        self._began: float | None = None
        """When the current pass began; None between passes."""
        self._last_event = 0.0
        self._waited, self._read_at = 0.0, 0.0
        """Seconds that the loop's thread has waited for a processor, and when that was read."""
        self._file = -1
        self._thread_id = 0
        self._unlogged: list[tuple[float, str]] = []
        """Stalls with the functions that ran; bounded by the intervals of the log."""
        self._sample = (0.0, "")
        """The beginning of the last pass that was looked into, and its functions."""
        self._is_wanted, self._is_over = threading.Event(), threading.Event()
        self.cleanup: Final = HeapCleanup()
        self.is_running = False

    def start(self) -> None:
        """Start to measure in the running pass of this thread's loop."""
        self._thread_id = threading.get_ident()
        with suppress(OSError):
            self._file = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        self._is_over.clear()
        self._is_wanted.set()
        self._thread = threading.Thread(target=self._look, name="event-loop-watch", daemon=True)
        self._thread.start()
        self.cleanup.start(monotonic())
        self._began = monotonic()  # what came before does not count
        self._read_wait(self._began)
        self.is_running = True

    def stop(self) -> None:
        """Stop to measure, and log the last stalls."""
        self.is_running = False
        self._is_over.set()
        self._is_wanted.set()
        self._thread.join()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def is_active(self, now: float) -> bool:
        return now - self._last_event < _ACTIVE

    def begin_pass(self, at: float, *, has_events: bool) -> None:
        self._began = at
        if has_events:
            self._last_event = at
        if not self._is_wanted.is_set():
            self._is_wanted.set()

    def end_pass(self, at: float) -> None:
        began, self._began = self._began, None
        waited = self._read_wait(at) if at - self._read_at > _FRESH else 0.0
        if began is None:
            return
        seconds = at - began - waited
        if seconds <= BOUNDS[0]:
            return
        self._stalls.add(at, seconds)
        if seconds > _LOGGED:
            self._unlogged.append((seconds, self._sample[1] if self._sample[0] == began else _UNSEEN))

    def _read_wait(self, now: float) -> float:
        """Return the seconds since the last reading in which this thread was ready, but another program ran."""
        if self._file < 0:
            return 0.0
        before = self._waited
        self._waited = int(os.pread(self._file, 64, 0).split()[1]) / 1e9
        self._read_at = now
        return self._waited - before

    def _look(self) -> None:
        """Sample the functions of long passes and log them, while the loop is active."""
        logged = 0.0
        while not self._is_over.is_set():
            self._is_wanted.wait()
            self._is_over.wait(_TICK)
            began, now = self._began, monotonic()
            if began is not None and now - began > _TICK and self._sample[0] != began:
                self._sample = (began, _list_functions(self._thread_id))
            is_idle = began is None and not self.is_active(now)
            if self._unlogged and (is_idle or now - logged > _LOG_INTERVAL or self._is_over.is_set()):
                self._log()
                logged = now
            if is_idle:
                self._is_wanted.clear()

    def _log(self) -> None:
        found, self._unlogged = self._unlogged, []
        seconds, where = max(found)
        level = logging.WARNING if seconds > _WARNED else logging.INFO
        stalls = f"{len(found)} time{'' if len(found) == 1 else 's'}"
        text = "The event loop stalled %s, at most for %.0f ms, in %s. No client got an answer during a stall."
        _logger.log(level, text, stalls, 1000 * seconds, where)


def _list_functions(thread_id: int) -> str:
    """Return the innermost functions that a thread runs, without those of asyncio."""
    frame, found = sys._current_frames().get(thread_id), list[str]()  # noqa: SLF001  # the only way
    while frame is not None and len(found) < _FRAMES:
        code = frame.f_code
        if PurePath(code.co_filename).parent.name != "asyncio":
            found.append(f"{PurePath(code.co_filename).name}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return ", ".join(found) or "an unknown place"
