"""Where a stored value is looked into: at once if it is small, in a thread, or in a process of its own.

What takes long must neither hold up other calls nor go on for ever. A thread's task asks now and then whether its time
is over; a process is killed. What is asked is not known here.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, Protocol, TypeVar

import anyio
import anyio.to_thread

from mcp_mirror.errors import MirrorError, ToolError
from mcp_mirror.leash import Leash
from mcp_mirror.models import Buffer, FileSpan
from mcp_mirror.spool import map_file
from mcp_mirror.worker import DIED, Worker, answer_questions

Answer_co = TypeVar("Answer_co", covariant=True)

_AT_ONCE: Final = 1 << 16
"""Bytes up to which a value is looked into without leaving the event loop."""
_IN_THREAD: Final = 1 << 23
"""Bytes from which on one that is in a file is looked into by a process."""
_GRACE: Final = 1.0
"""Seconds that a process gets to end by itself when its time is over."""
_PROCESSES: Final = 2
_MEMORY: Final = 2 << 30
"""Bytes that such a process may take, beside the files that it maps."""


class Inquiry(Protocol[Answer_co]):
    """A question about a value; it can be pickled, and so can its answer."""

    def __call__(self, blob: Buffer, is_over: Callable[[], bool], /) -> Answer_co:
        """Find the answer."""


@dataclass(frozen=True, slots=True)
class _Question:
    place: FileSpan | bytes
    inquiry: Inquiry[Any]
    seconds: float


class _Gone:
    """The file is not there any more."""


class Inquirer:
    """Keeps the processes, which are started when they are first needed."""

    def __init__(self, leash: Leash) -> None:
        self._leash = leash
        self._idle: list[Worker] = []
        self._turns = anyio.Semaphore(_PROCESSES)

    async def ask(self, blob: Buffer, file: FileSpan | None, inquiry: Inquiry[Answer_co], seconds: float) -> Answer_co:
        """Find the answer, wherever that is best done.

        Args:
            blob: The value.
            file: Where it also is.
            inquiry: What to find out.
            seconds: How long that may take.

        Raises:
            ToolError: What the inquiry raises, or the time is over.
        """
        if file and len(blob) > _IN_THREAD:
            answer = await self._ask_process(_Question(file, inquiry, seconds))
            if not isinstance(answer, _Gone):
                return answer  # type: ignore[no-any-return]  # what the inquiry gave
        if len(blob) <= _AT_ONCE:
            return _found(blob, inquiry, seconds)
        return await anyio.to_thread.run_sync(_found, blob, inquiry, seconds)

    async def ask_apart(
        self, blob: Buffer, file: FileSpan | None, inquiry: Inquiry[Answer_co], seconds: float
    ) -> Answer_co:
        """As `ask`, always in a process: for what does not ask whether its time is over."""
        answer = await self._ask_process(_Question(file or bytes(blob), inquiry, seconds))
        if isinstance(answer, _Gone):
            answer = await self._ask_process(_Question(bytes(blob), inquiry, seconds))
        return answer  # type: ignore[no-any-return]  # what the inquiry gave

    async def aclose(self) -> None:
        """End the processes."""
        while self._idle:
            await self._idle.pop().aclose()

    async def _ask_process(self, question: _Question) -> Any:
        try:
            with anyio.fail_after(question.seconds + _GRACE):
                await self._turns.acquire()
        except TimeoutError:
            raise ToolError(
                f"Others look into large values, and have for {question.seconds:g} s (`memory_tools.timeout`). Try "
                "again in a moment."
            ) from None
        try:
            worker = self._idle.pop() if self._idle else Worker(__name__, self._leash)
            try:
                with anyio.fail_after(question.seconds + _GRACE):
                    answer = await worker.exchange(question)
            except TimeoutError:
                await worker.aclose()
                raise ToolError(
                    f"That takes longer than {question.seconds:g} s (`memory_tools.timeout`). Take a part of the value."
                ) from None
            except DIED:
                await worker.aclose()
                raise ToolError("The process that looks into values died. Take a part of the value.") from None
            except BaseException:
                await worker.aclose()
                raise
            self._idle.append(worker)
        finally:
            self._turns.release()
        if isinstance(answer, MirrorError):
            raise answer
        return answer


def _found(blob: Buffer, inquiry: Inquiry[Answer_co], seconds: float) -> Answer_co:
    end = monotonic() + seconds
    try:
        return inquiry(blob, lambda: monotonic() > end)
    except RecursionError:
        raise ToolError("That is nested too deep. Take a path below.") from None
    except MemoryError:
        raise ToolError("That takes too much memory. Take a part of the value, or ask for less.") from None


# What runs in the other process.


def main() -> None:
    """Answer questions on standard input until it ends."""
    _bound_memory()
    sys.set_int_max_str_digits(0)  # of this process alone, which is killed where one takes too long
    answer_questions(_answer)


def _bound_memory() -> None:
    if sys.platform != "win32":
        import resource  # noqa: PLC0415  # there is none on Windows

        with suppress(ValueError, OSError):  # a lower bound is set already
            resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))


def _answer(question: _Question) -> object:
    try:
        place = question.place
        blob = place if isinstance(place, bytes) else _mapped(place)
        return _found(blob, question.inquiry, question.seconds)
    except MirrorError as error:
        return error
    except OSError:
        return _Gone()
    except Exception as error:  # noqa: BLE001  # the asker must hear of it, whatever it is
        return ToolError(f"The value cannot be looked into: {type(error).__name__}.")


def _mapped(place: FileSpan) -> memoryview:
    return map_file(place.path)[place.span.start : place.span.stop]
