"""Where a stored value is looked into: at once if it is small, in a thread, or in a process of its own.

What takes long must neither hold up other calls nor go on for ever. A thread's task asks now and then whether its time
is over; a process is killed. What is asked is not known here.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, Protocol, TypeVar

import anyio
import anyio.to_thread

from mcp_mirror.errors import MirrorError, ToolError
from mcp_mirror.payload.spool import map_file
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.types import Buffer, FileSpan
from mcp_mirror.workers.pool import BusyPoolError, DeadlineError, Pool, PoolSize, PreemptedError, WorkerDiedError

Answer_co = TypeVar("Answer_co", covariant=True)

_AT_ONCE: Final = 1 << 16
"""Bytes up to which a value is looked into without leaving the event loop."""
_IN_THREAD: Final = 1 << 23
"""Bytes from which on one that is in a file is looked into by a process."""
_GRACE: Final = 1.0
"""Seconds that a process gets to end by itself when its time is over."""
_SIZE: Final = PoolSize(processes=3, per_principal=2, memory=2 << 30)
"""One principal leaves a process to others. The memory is beside the files that a process maps."""


class Query(Protocol[Answer_co]):
    """A question about a value; it can be pickled, and so can its answer."""

    def __call__(self, blob: Buffer, is_over: Callable[[], bool], /) -> Answer_co:
        """Find the answer."""


@dataclass(frozen=True, slots=True)
class _QueryJob:
    place: FileSpan | bytes
    query: Query[Any]
    seconds: float

    def __call__(self) -> object:
        """Find the answer, in a process."""
        return _answer(self)


class _Gone:
    """The file is not there any more."""


class QueryRunner:
    """Runs inquiries, in processes where needed."""

    def __init__(self, child_watchdog: ChildWatchdog) -> None:
        self._pool = Pool(child_watchdog, _SIZE)

    async def ask(
        self, blob: Buffer, file: FileSpan | None, query: Query[Answer_co], seconds: float, principal: str
    ) -> Answer_co:
        """Find the answer, wherever that is best done.

        Args:
            blob: The value.
            file: Where it also is.
            query: What to find out.
            seconds: How long that may take.
            principal: Who asks: principals share the processes fairly.

        Raises:
            ToolError: What the inquiry raises, or the time is over.
        """
        if file and len(blob) > _IN_THREAD:
            answer = await self._ask_process(_QueryJob(file, query, seconds), principal)
            if not isinstance(answer, _Gone):
                return answer  # type: ignore[no-any-return]  # what the inquiry gave
        if len(blob) <= _AT_ONCE:
            return _found(blob, query, seconds)
        return await anyio.to_thread.run_sync(_found, blob, query, seconds)

    async def ask_apart(
        self, blob: Buffer, file: FileSpan | None, query: Query[Answer_co], seconds: float, principal: str
    ) -> Answer_co:
        """As `ask`, always in a process: for what does not ask whether its time is over."""
        answer = await self._ask_process(_QueryJob(file or bytes(blob), query, seconds), principal)
        if isinstance(answer, _Gone):
            answer = await self._ask_process(_QueryJob(bytes(blob), query, seconds), principal)
        return answer  # type: ignore[no-any-return]  # what the inquiry gave

    async def aclose(self) -> None:
        """End the processes."""
        await self._pool.aclose()

    async def _ask_process(self, question: _QueryJob, principal: str) -> Any:
        seconds = question.seconds
        try:
            answer = await self._pool.ask(principal, question, seconds + _GRACE, seconds + _GRACE)
        except BusyPoolError:
            raise ToolError(
                f"Other queries of large values have run for {seconds:g} s (`memory_tools.timeout`). Try again in a "
                "moment."
            ) from None
        except PreemptedError:
            raise ToolError(
                "The query was stopped because another principal was waiting. Query a smaller part of the value."
            ) from None
        except DeadlineError:
            raise ToolError(
                f"That takes longer than {seconds:g} s (`memory_tools.timeout`). Take a part of the value."
            ) from None
        except WorkerDiedError:
            raise ToolError("The process that looks into values died. Take a part of the value.") from None
        if isinstance(answer, MirrorError):
            raise answer
        return answer


def _found(blob: Buffer, query: Query[Answer_co], seconds: float) -> Answer_co:
    end = monotonic() + seconds
    try:
        return query(blob, lambda: monotonic() > end)
    except RecursionError:
        raise ToolError("That is nested too deep. Take a path below.") from None
    except MemoryError:
        raise ToolError("That takes too much memory. Take a part of the value, or ask for less.") from None


# What runs in the other process.


def _answer(question: _QueryJob) -> object:
    sys.set_int_max_str_digits(0)  # of this process alone, which is killed where one takes too long
    try:
        place = question.place
        blob = place if isinstance(place, bytes) else _mapped(place)
        return _found(blob, question.query, question.seconds)
    except MirrorError as error:
        return error
    except OSError:
        return _Gone()
    except Exception as error:  # noqa: BLE001  # the asker must hear of it, whatever it is
        return ToolError(f"The value cannot be looked into: {type(error).__name__}.")


def _mapped(place: FileSpan) -> memoryview:
    return map_file(place.path)[place.span.start : place.span.stop]
