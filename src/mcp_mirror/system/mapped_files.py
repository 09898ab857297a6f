"""Files that are memory-mapped, and the removal of large ones without a stall of the event loop."""

import mmap
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final
from weakref import WeakValueDictionary

from mcp_mirror.errors import ToolError
from mcp_mirror.types import Buffer, FileSpan

_LARGE: Final = 1 << 16
"""Bytes from which a file is large."""
_UNMAPPING: Final = 0.3
"""Seconds that Python may take to free a map after it has released the objects that belong to the map."""
_MAX_REMOVED: Final = 64
"""Files that the thread removes or keeps open; for further ones, there might be too few descriptors."""


class FileMap(mmap.mmap):
    """The map of a file that nothing changes any more."""

    file: "_MappedFile"


def map_file(path: Path | str) -> memoryview:
    """Memory-map a complete file for reading. The map stays readable after the file is removed.

    On Windows, which does not remove mapped files, the bytes are read into memory.
    """
    if sys.platform == "win32":
        return memoryview(Path(path).read_bytes())
    with Path(path).open("rb") as file:
        status = os.fstat(file.fileno())
        mapped = FileMap(file.fileno(), 0, access=mmap.ACCESS_READ)
    mapped.file = _mapped_files.setdefault((status.st_dev, status.st_ino), _MappedFile())
    return memoryview(mapped)


def unlink_large(path: Path) -> None:
    """Remove a file if it exists. A thread removes a large one, and ignores errors: the folder will be removed too.

    Removing its name waits for the journal of the file system, over 100 ms if the disk is busy. Freeing its space takes
    20 ms for 100 MB, or 120 ms for 1 MB where the system tells a busy disk which space is free.
    """
    with suppress(FileNotFoundError):
        if path.stat().st_size < _LARGE or not _remover.try_remove(path):
            path.unlink()


class _Remover:
    """Removes files in one thread: each start of a thread waits for a processor.

    The space of a removed file is freed with its last descriptor or map, and no other Python code runs while a map is
    freed. So the thread keeps a descriptor until the last map is gone, and closes it soon after.
    """

    def __init__(self) -> None:
        self._jobs = SimpleQueue[Callable[[], None]]()
        self._unmapped = deque[tuple[float, int]]()
        """Descriptors to close, each with the time for that. Only the thread uses them."""
        self._places = threading.BoundedSemaphore(_MAX_REMOVED)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def try_remove(self, path: Path) -> bool:
        """Remove a file in the thread; return False if the thread cannot start, or has too many files."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():  # a forked process has only the thread that forked
                thread = threading.Thread(target=self._run, name="mcp-mirror-remover", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the limit of the system, or the end of the program
                    return False
                self._thread = thread
        if not self._places.acquire(blocking=False):
            return False
        self._jobs.put(partial(self._unlink, path))
        return True

    def close_soon(self, descriptor: int) -> None:
        """Close the descriptor of a removed file in the thread, when its map is freed. Finalizers may call this."""
        self._jobs.put(partial(self._close_later, descriptor))

    def _run(self) -> None:
        while True:
            pause = max(0.0, self._unmapped[0][0] - time.monotonic()) if self._unmapped else None
            with suppress(Empty):
                self._jobs.get(timeout=pause)()
            while self._unmapped and self._unmapped[0][0] <= time.monotonic():
                self._close(self._unmapped.popleft()[1])

    def _unlink(self, path: Path) -> None:
        descriptor = None
        if sys.platform != "win32":  # where open files cannot be removed
            with suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY)
        with suppress(OSError):
            path.unlink()
        if descriptor is None:
            self._places.release()
            return
        status = os.fstat(descriptor)
        mapped = _mapped_files.get((status.st_dev, status.st_ino))
        if mapped is not None and not status.st_nlink:
            mapped.kept.append(descriptor)
        else:
            self._close(descriptor)

    def _close_later(self, descriptor: int) -> None:
        self._unmapped.append((time.monotonic() + _UNMAPPING, descriptor))

    def _close(self, descriptor: int) -> None:
        os.close(descriptor)
        self._places.release()


_remover: Final = _Remover()


class _MappedFile:
    """A file with maps, and the descriptors that keep its space until the last of them is gone."""

    def __init__(self) -> None:
        self.kept: list[int] = []
        self._close = _remover.close_soon  # the module has no names any more at the end of the program

    def __del__(self) -> None:
        for descriptor in self.kept:
            self._close(descriptor)


_mapped_files: Final = WeakValueDictionary[tuple[int, int], _MappedFile]()
"""By device and inode."""


class FileRemovedError(ToolError):
    """The file of a value was removed before a worker process read it."""


def map_span(value: FileSpan | Buffer) -> Buffer:
    """Memory-map a value that is in a file; other values are returned as they are."""
    return map_file(value.path)[value.span.start : value.span.stop] if isinstance(value, FileSpan) else value


def map_sent(value: FileSpan | Buffer) -> Buffer:
    """Memory-map a value as a worker process gets it; see `map_span`.

    Raises:
        FileRemovedError: The file no longer exists.
    """
    try:
        return map_span(value)
    except OSError:
        raise FileRemovedError("A file of the gateway was removed during the query. Try again.") from None
