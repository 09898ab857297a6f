"""The directory of a process within a folder that several gateways share.

Each process locks a file in its directory. The system frees the lock when the process ends, so that the next
process detects and removes directories of killed processes.
"""

import errno
import os
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from mcp_mirror.system.files import NO_LOCKS, identify_file, open_lock, try_lock

_PREFIX: Final = "live-"
_LOCK: Final = "lock"
PROCESS_DIR_NAMES: Final = (f"{_PREFIX}*", _LOCK)
"""Globs of the names of process directories and of the folder lock."""
_LOCK_TIMEOUT: Final = 10.0
"""Seconds to wait while another process opens the same folder."""
_PAUSE: Final = 0.02


class ProcessDir:
    """The directory of this process within a shared folder, on the same file system."""

    def __init__(self, folder: Path) -> None:
        self.path: Final = folder / f"{_PREFIX}{secrets.token_hex(8)}"
        self._lock_path: Final = self.path / _LOCK
        self._folder = folder
        self._lock: int | None = None
        self._file: tuple[int, int] = (0, 0)
        """Identifies the locked file, which may be removed."""

    @property
    def is_in_place(self) -> bool:
        """Whether the directory with the locked file still has its name."""
        return self._lock is not None and identify_file(self._lock_path) == self._file

    @property
    def is_shared(self) -> bool:
        """Whether another living process uses the folder."""
        return any(other != self.path and not _is_dead(other) for other in self._folder.glob(f"{_PREFIX}*"))

    def create(self) -> None:
        """Create the directory if it is not in place, and remove those of dead processes, within `lock_folder`."""
        if self.is_in_place:
            return
        self._unlock()
        for other in self._folder.glob(f"{_PREFIX}*"):
            if other != self.path and _is_dead(other):
                shutil.rmtree(other, ignore_errors=True)
        self.path.mkdir(mode=0o700, exist_ok=True)  # a spool in it may have created it again
        self._lock = open_lock(self._lock_path)
        try_lock(self._lock)
        self._file = identify_file(self._lock_path)

    def remove(self) -> None:
        """Remove the directory with its content."""
        self._unlock()
        shutil.rmtree(self.path, ignore_errors=True)

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder, so that one process at a time opens it.

    Raises:
        OSError: Another process keeps the lock for too long, the folder is not writable or cannot be locked, or another
            user has replaced it.
    """
    found = folder.lstat()
    if stat.S_ISLNK(found.st_mode) or (sys.platform != "win32" and found.st_uid != os.geteuid()):
        raise OSError(errno.ESTALE, "another user has replaced its folder")
    file = open_lock(folder / _LOCK)
    try:
        _wait_for_lock(file)
        yield
    finally:
        os.close(file)


def _wait_for_lock(file: int) -> None:
    until = time.monotonic() + _LOCK_TIMEOUT
    while True:
        try:
            return try_lock(file)
        except OSError as error:
            if error.errno in NO_LOCKS:
                raise
            if time.monotonic() > until:
                raise OSError(errno.EBUSY, "another process is opening it") from None
        time.sleep(_PAUSE)


def _is_dead(directory: Path) -> bool:
    """Whether the process of a directory has ended: its lock is free."""
    try:
        file = os.open(directory / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        try_lock(file)
    except OSError:
        return False
    finally:
        os.close(file)
    return True
