"""A process's own place in a folder that several share: what it leaves there when it is killed, the next one removes.

Whether a process lives is told by the lock that it holds on a file of its own, which the system frees with it.
"""

import errno
import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_PREFIX: Final = "live-"
_LOCK: Final = "lock"
LODGING_NAMES: Final = (f"{_PREFIX}*", _LOCK)
"""Globs of the names that lodgings put into the folder that they share."""
_PATIENCE: Final = 10.0
"""Seconds that another process may be opening the same folder."""
_PAUSE: Final = 0.02

if sys.platform == "win32":
    import msvcrt

    def _take(file: int) -> None:
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _take(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


class ProcessDir:
    """A folder of this process's own within a shared one; both have to be on one file system."""

    def __init__(self, folder: Path) -> None:
        self.path: Final = folder / f"{_PREFIX}{secrets.token_hex(8)}"
        self._folder = folder
        self._lock: int | None = None

    @property
    def is_shared(self) -> bool:
        """Whether another process lives in the folder too."""
        return any(other != self.path and not _is_dead(other) for other in self._folder.glob(f"{_PREFIX}*"))

    def enter(self) -> None:
        """Move in, and remove what the dead have left. To be called by one process at a time: see `alone_in`.

        Raises:
            OSError: The folder cannot be made.
        """
        for other in self._folder.glob(f"{_PREFIX}*"):
            if _is_dead(other):
                shutil.rmtree(other, ignore_errors=True)
        self.path.mkdir(mode=0o700)
        self._lock = _opened(self.path / _LOCK)
        _take(self._lock)

    def leave(self) -> None:
        """Remove the folder and all that is in it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        shutil.rmtree(self.path, ignore_errors=True)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes from opening the folder.

    Raises:
        OSError: One has been at it for too long, or the folder cannot be written to.
    """
    file = _opened(folder / _LOCK)
    try:
        _wait_for(file)
        yield
    finally:
        os.close(file)


def _wait_for(file: int) -> None:
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            return _take(file)
        except OSError:
            if time.monotonic() > until:
                raise OSError(errno.EAGAIN, "another process is opening it") from None
        time.sleep(_PAUSE)


def _is_dead(room: Path) -> bool:
    """Whether nobody holds the room's lock any more."""
    try:
        file = os.open(room / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    with suppress(OSError):
        _take(file)
        os.close(file)
        return True
    os.close(file)
    return False


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
