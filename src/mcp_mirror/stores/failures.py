"""Converts errors of the system and of SQLite into store errors that name the fix."""

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from mcp_mirror.errors import StoreError
from mcp_mirror.system.files import NO_LOCKS

_FULL: Final = (
    "Its disk is full: free some space there, or delete values with `mcp-mirror values clear`. A lower "
    "`store.max_bytes` prevents this."
)
_REFUSED: Final = (
    "The system refused to write because of a quota of this user, a limit of the size of files or a fault of the disk: "
    "free some space there, delete values with `mcp-mirror values clear`, or check the system's log."
)
_READ_ONLY: Final = (
    "Its folder, or a file in it, is not writable: make it writable, or choose another folder (`store.path`)."
)
_HANDLES: Final = "No file handle is free: raise the limit of open files (`ulimit -n`), or call again later."
_UNOPENED: Final = (
    "Its index cannot be opened: check that its folder exists and that this user may read and write the files in it, "
    "and that file handles are free (`ulimit -n`)."
)
_CORRECT: Final = "correct that, or choose another folder (`store.path`)."
_MISPLACED: Final = (
    "A file is in the place of a folder, or a folder in that of a file, or a link leads nowhere, as to a disk that is "
    f"not mounted: {_CORRECT}"
)
_FAULTY: Final = "Its disk reports an error: check the system's log, or choose another folder (`store.path`)."
_BUSY: Final = "Another gateway keeps it locked: call again later."
_OPENING: Final = "Another gateway is still opening it: end that gateway if it hangs, and try again."
_WITHOUT_LOCKS: Final = "Its file system has no locks: choose a folder on a local disk (`store.path`)."
_DAMAGED: Final = (
    "Its disk failed at reading, or its index is damaged: restart the gateway, which checks the index and sets a "
    "damaged one aside."
)

_BY_ERRNO: Final = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EROFS: _READ_ONLY,
    errno.EACCES: _READ_ONLY,
    errno.EPERM: _READ_ONLY,
    errno.EMFILE: _HANDLES,
    errno.ENFILE: _HANDLES,
    errno.EEXIST: _MISPLACED,
    errno.ENOTDIR: _MISPLACED,
    errno.EISDIR: _MISPLACED,
    **dict.fromkeys(NO_LOCKS, _WITHOUT_LOCKS),
    errno.EIO: _FAULTY,
    errno.EFBIG: _REFUSED,
    errno.EBUSY: _OPENING,
}
_BY_SQLITE: Final = {
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_PERM: _READ_ONLY,
    sqlite3.SQLITE_CANTOPEN: _UNOPENED,
    sqlite3.SQLITE_IOERR: _FAULTY,
    sqlite3.SQLITE_IOERR_WRITE: _REFUSED,  # any error but a full disk
    sqlite3.SQLITE_IOERR_SHMSIZE: _FULL,
    sqlite3.SQLITE_BUSY: _BUSY,
    sqlite3.SQLITE_LOCKED: _BUSY,
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
}
_UNDECODABLE: Final = "Could not decode to UTF-8"
"""The beginning of Python's error about a text that SQLite has read."""
_PRIMARY: Final = 0xFF
"""The bits of the primary code in an extended error code of SQLite."""


def is_damage(error: sqlite3.Error) -> bool:
    """Whether an error means that the index is damaged, or that its disk failed at reading."""
    return _explain(error) == _DAMAGED


def is_full(error: OSError | sqlite3.Error) -> bool:
    """Whether an error means that the disk, or perhaps a quota, is full."""
    return (_BY_ERRNO.get(error.errno or 0) if isinstance(error, OSError) else _explain(error)) in (_FULL, _REFUSED)


def is_busy(error: sqlite3.Error) -> bool:
    """Whether an error means that another process has the lock."""
    return _explain(error) == _BUSY


@contextmanager
def as_store_errors(subject: str = "The store") -> Iterator[None]:
    """Raise errors of the system and of SQLite as `StoreError`, with the failed subject and the fix."""
    try:
        yield
    except OSError as error:
        reported = f"The system reports: {error.strerror or error}: {_CORRECT}"
        fix = _BY_ERRNO.get(error.errno or 0, reported)
        raise StoreError(f"{subject} failed. {fix}") from error
    except sqlite3.Error as error:
        raise StoreError(f"{subject} failed. {_explain(error)}") from error


def _explain(error: sqlite3.Error) -> str:
    if str(error).startswith(_UNDECODABLE):
        return _DAMAGED
    code = getattr(error, "sqlite_errorcode", 0)  # errors that Python itself raises have no code
    return _BY_SQLITE.get(code) or _BY_SQLITE.get(code & _PRIMARY, f"SQLite reports: {error}.")
