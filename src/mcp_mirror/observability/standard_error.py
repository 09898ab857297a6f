"""Standard error of a gateway, written by a thread: a reader that hangs stops the log and not the gateway.

The pipe fills if the client does not read it, if a terminal's output is stopped, or if a log collector hangs. The next
write to it would then wait forever. Lines that find no room are lost and counted.
"""

import io
import logging
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from threading import Thread
from typing import Final

from mcp_mirror.core.amounts import format_count

_logger = logging.getLogger(__name__)

_MAX_LINES: Final = 1000
"""Lines in the queue. Further lines are lost."""
_STANDARD_ERROR: Final = 2
_END_TIMEOUT: Final = 1.0
"""Seconds that the end of the gateway waits for the last lines."""


class _BackgroundStream(io.TextIOBase):
    """A text stream whose lines a thread writes to a file descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: SimpleQueue[bytes | None] = SimpleQueue()
        self._lost = 0
        self._is_truncated = False
        """The last line is in part in a file whose disk was full then."""
        self._thread = Thread(target=self._write_all, name="standard error", daemon=True)
        self._thread.start()

    def write(self, text: str, /) -> int:
        """Write a text soon, or drop it."""
        if self._lines.qsize() < _MAX_LINES:
            self._report_lost()
            self._lines.put(text.encode(errors="backslashreplace"))
        else:
            self._lost += 1
        return len(text)

    def fileno(self) -> int:
        """The file descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return os.isatty(self._descriptor)

    def finish(self) -> None:
        """Write the waiting lines within a second."""
        self._lines.put(None)
        self._thread.join(_END_TIMEOUT)

    def _write_all(self) -> None:
        while (line := self._lines.get()) is not None:
            if not self._write_line(line):
                self._lost += 1
            elif self._lines.empty():
                self._report_lost()

    def _report_lost(self) -> None:
        """Log the number of lost lines, in the place of these lines."""
        lost, self._lost = self._lost, 0
        if lost:
            _logger.warning(
                "This log has lost %s: nothing read standard error, or its disk was full.", format_count(lost, "line")
            )

    def _write_line(self, line: bytes) -> bool:
        """Write a line, on a line of its own also after a truncated one; return whether that was possible."""
        rest = memoryview(b"\n" + line if self._is_truncated else line)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
                self._is_truncated = bool(rest)
        except OSError:  # nothing reads it any more, or its disk is full
            return False
        return True


@contextmanager
def writing_in_background() -> Iterator[None]:
    """Let a thread write what is printed on standard error during the context."""
    before, descriptor = sys.stderr, _find_descriptor()
    if descriptor is None:
        yield
        return
    sys.stderr = stream = _BackgroundStream(descriptor)
    try:
        yield
    finally:
        sys.stderr = before
        stream.finish()


def write_line(line: str) -> None:
    """Write a line to standard error. It is lost if nothing reads it, or if its disk is full.

    For processes that fork, and so have no thread that writes.
    """
    with suppress(OSError):
        if _has_room():
            # `print` writes the line break separately if standard error is not buffered, and lines of workers mix.
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()


def open_closed_stream() -> None:
    """Open the null device as standard error if that was closed at the start.

    Otherwise the first file that is opened would get its descriptor, and later what programs print.
    """
    if sys.stderr is not None:  # Python sets it to None if its descriptor was closed
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, _STANDARD_ERROR)
    if null != _STANDARD_ERROR:
        os.close(null)
    sys.stderr = open(_STANDARD_ERROR, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115


def _has_room() -> bool:
    """Whether a write to standard error would not wait for a reader."""
    descriptor = _find_descriptor()
    if descriptor is None or isinstance(sys.stderr, _BackgroundStream) or sys.platform == "win32":
        return True
    return bool(select.select((), (descriptor,), (), 0)[1])


def _find_descriptor() -> int | None:
    try:
        return sys.stderr.fileno()
    except (OSError, ValueError):  # it has none, such as in tests
        return None
