"""Limits of the process: open file handles, and the capacity of pipes.

The gateway raises its own limit of handles, and its child processes keep the limit that it started with. Each child
process costs a few handles, and each client connection costs one. Programs that call `select()` need the lower limit,
so children must not inherit the raised one.
"""

import errno
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

from mcp_mirror.errors import walk_causes

if sys.platform != "win32":
    import fcntl
    import resource

_PIPE_BYTES: Final = 1 << 20
"""Capacity of a pipe where the system permits it (Linux: 64 KiB by default)."""
_MOST: Final = 1 << 20
"""Handles that are always enough. Some systems have a hard limit of 10^9, and some have no limit."""
_RETRY: Final = 0.5
"""Seconds between two attempts to accept a connection while no handle is free. asyncio pauses for one second."""
_ACCEPTED_AT_ONCE: Final = 16
"""Connections that a pass of the event loop accepts, so that open ones do not wait for a flood of new ones."""
_ADVICE: Final = {
    errno.EMFILE: "the gateway has no free file handle. Close sessions, or raise its limit (`ulimit -n`)",
    errno.ENFILE: "the system has no free file handle. Close other programs, or raise `fs.file-max`",
    errno.EAGAIN: "the system refuses another process. Close sessions, or raise its limit (`ulimit -u`)",
    errno.ENOMEM: "the system has no free memory. Close sessions, or lower `limits.connections_per_upstream`",
}
"""The causes of a temporary shortage, each with a remedy."""

_TABLE: Final = 4096
"""Open files for which the process has room in its table from the start (Linux): 32 KiB."""

_inherited: list[int] = []
"""The soft limit that this process started with, once it is raised."""


def raise_handle_limit() -> None:
    """Raise the soft limit of open file handles to the hard limit, where the system has such limits."""
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    with suppress(OSError, ValueError):  # macOS refuses some values below its hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        _inherited[:] = [soft]


def enlarge_handle_table() -> None:
    """Make room for many open files (Linux). A process with threads waits 10 to 25 ms each time the table grows."""
    if sys.platform != "linux":
        return
    with suppress(OSError), open(os.devnull, "rb") as file:  # noqa: PTH123  # OSError: the limit is lower
        os.close(fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _TABLE - 1))


def restore_handle_limit(child: int) -> None:
    """Give a child process, by its id, the soft limit that this process started with (Linux)."""
    if sys.platform != "linux" or not _inherited:
        return
    with suppress(OSError, ValueError):  # it has ended already, or has another user
        _, hard = resource.prlimit(child, resource.RLIMIT_NOFILE)
        resource.prlimit(child, resource.RLIMIT_NOFILE, (_inherited[0], hard))


def check_free_handles(number: int) -> None:
    """Open as many files, and close them.

    Raises:
        OSError: Fewer handles are free.
    """
    with ExitStack() as files:
        for _ in range(number):
            files.enter_context(open(os.devnull, "rb"))  # noqa: PTH123  # not a file of a folder


def explain_shortage(error: BaseException) -> str | None:
    """Explain a shortage of handles, processes or memory, with a remedy; None for any other error."""
    for one in walk_causes(error):
        if isinstance(one, OSError) and one.errno in _ADVICE:
            return _ADVICE[one.errno]
    return None


class PatientListener(socket.socket):
    """A listening socket that tries `accept` once and then pauses while the system has no free handle.

    asyncio calls `accept` as often as the backlog is long, logs each failure and then waits for a second. After a few
    connections this socket also says that no other one waits; asyncio asks again in the next pass.
    """

    _paused_until = 0.0
    _accepted = 0

    def accept(self) -> tuple[socket.socket, object]:
        """Accept a connection; see `socket.socket.accept`.

        Raises:
            BlockingIOError: No connection waits, or the pause is not over.
        """
        if time.monotonic() < self._paused_until or self._accepted == _ACCEPTED_AT_ONCE:
            self._accepted = 0
            raise BlockingIOError
        try:
            accepted = super().accept()
        except OSError as error:
            self._accepted = 0
            if error.errno in _ADVICE and error.errno != errno.EAGAIN:
                self._paused_until = time.monotonic() + _RETRY
            raise
        self._accepted += 1
        return accepted


@contextmanager
def open_wide_pipes() -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Open the pipes for the standard input and output of a child, with a capacity of 1 MiB if the system permits it.

    Yields:
        The child's standard input and output, which are closed at the end of the context; the gateway's ends of these,
        which are closed if the context fails.

    Raises:
        OSError: No handles are free.
    """
    with ExitStack() as theirs, ExitStack() as ours:
        their_input, our_output = _open_wide_pipe()
        theirs.callback(os.close, their_input)
        ours.callback(os.close, our_output)
        our_input, their_output = _open_wide_pipe()
        theirs.callback(os.close, their_output)
        ours.callback(os.close, our_input)
        yield (their_input, their_output), (our_output, our_input)
        ours.pop_all()


def _open_wide_pipe() -> tuple[int, int]:
    reading, writing = os.pipe()
    if sys.platform == "linux":
        with suppress(OSError):  # over /proc/sys/fs/pipe-user-pages-soft: keep the default capacity
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return reading, writing
