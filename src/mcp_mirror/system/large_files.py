"""Removes large files without waiting until the system has freed their space, which takes 20 ms for 100 MB.

The space of a removed file is freed with its last descriptor or map. A thread keeps a descriptor until the maps are
gone, and closes it.
"""

import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

_LARGE: Final = 1 << 22
"""Bytes from which a file is large."""
_DELAY: Final = 0.2
"""Seconds in which the program drops its maps of a removed file."""
_MOST: Final = 64
"""Descriptors that wait; further ones are closed at once, so that they do not use up the handles of the process."""
_IDLE: Final = 5.0
"""Seconds without a removed file after which the thread ends."""


class _Closer:
    """Closes descriptors in a thread, each a moment after it was added."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[float, int]] = SimpleQueue()
        self._lock = threading.Lock()
        self._is_running = False

    def add(self, descriptor: int) -> None:
        """Close a descriptor soon."""
        if self._queue.qsize() >= _MOST:
            os.close(descriptor)
            return
        with self._lock:
            self._queue.put((time.monotonic() + _DELAY, descriptor))
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name="large-files", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                due, descriptor = self._queue.get(timeout=_IDLE)
            except Empty:
                with self._lock:
                    if self._queue.empty():
                        self._is_running = False
                        return
                continue
            time.sleep(max(0.0, due - time.monotonic()))
            os.close(descriptor)


_CLOSER: Final = _Closer()


def unlink_large(path: Path) -> None:
    """Remove a file if it exists. If it is large, a thread frees its space."""
    descriptor = -1
    if sys.platform != "win32":  # where open files cannot be removed
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY)
    path.unlink(missing_ok=True)
    if descriptor < 0:
        return
    status = os.fstat(descriptor)
    if status.st_size >= _LARGE and not status.st_nlink:
        _CLOSER.add(descriptor)
    else:
        os.close(descriptor)
