"""The program of a worker process: it runs pickled tasks from its standard input, one after another.

Each import delays the first task of a process, so this module imports little, and modules of jobs only what jobs use.
"""

import gc
import os
import pickle
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from mcp_mirror.errors import MirrorError
from mcp_mirror.system.heap import keep_freed_memory
from mcp_mirror.types import FileSpan, Span

LENGTH: Final = struct.Struct(">Q")
"""The length in bytes that precedes each task and each result."""
_NEW_OBJECTS: Final = 100_000
"""New objects from which the garbage collector starts. From 700, it takes half of a task that makes many objects."""


class Failure(NamedTuple):
    """The result of a task that failed with an unexpected exception."""

    error: str
    """The name of the exception's class."""


def pack(message: object) -> bytes:
    """Pickle a task or a result, with its length before it."""
    data = pickle.dumps(message)
    return LENGTH.pack(len(data)) + data


def do_nothing() -> None:
    """Do nothing: the answer shows that the process has started."""


def put_in_file(data: bytes, path: str, at_most: int) -> FileSpan | bytes:
    """Write a result over `at_most` bytes to a new file; without a path, or on a full disk, return it."""
    if path and len(data) > at_most:
        with suppress(OSError):
            Path(path).write_bytes(data)
            return FileSpan(path, Span(0, len(data)))
    return data


def main(memory: int | None = None) -> None:
    """Run tasks from standard input until it ends. A task is a callable without arguments.

    `memory` is the number of bytes of data that this process may allocate.
    """
    if memory is not None and sys.platform != "win32":
        import resource  # noqa: PLC0415  # missing on Windows

        with suppress(ValueError, OSError):  # a lower limit is set already
            resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    gc.set_threshold(_NEW_OBJECTS)
    keep_freed_memory()
    source, sink = sys.stdin.buffer, _take_output()
    while head := source.read(LENGTH.size):
        task = pickle.loads(source.read(LENGTH.unpack(head)[0]))  # noqa: S301  # from the parent process
        sink.write(pack(_run(task)))
        sink.flush()


def _run(task: Callable[[], object]) -> object:
    """Return the result of a task, or the error that the pool raises."""
    try:
        return task()
    except MirrorError as error:
        return error
    except Exception as error:  # noqa: BLE001  # it would end the process
        return Failure(type(error).__name__)


def _take_output() -> BinaryIO:
    """Return standard output; from now on, what libraries print there is lost instead of among the responses."""
    sys.stdout.flush()
    sink = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)
    return sink
