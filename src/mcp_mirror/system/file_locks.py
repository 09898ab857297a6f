"""Locks of files between processes. The system frees a lock when its process ends."""

import errno
import os
import sys
from pathlib import Path
from typing import Final

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

NO_LOCKS: Final = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS})
"""The errors of file systems that cannot lock files, such as some of networks."""


def try_lock(file: int) -> None:
    """Lock an open file until its descriptor is closed.

    Raises:
        OSError: Another process has locked the file, or the file system cannot lock files (`NO_LOCKS`).
    """
    if sys.platform == "win32":
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
    else:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def open_lock(path: Path) -> int:
    """Open a file to be locked, which only this user can open; create it if it does not exist.

    Raises:
        OSError: The path is a link, or cannot be opened or created.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
