"""What the system and SQLite report, in words that say what to do."""

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from mcp_mirror.errors import StoreError

_FULL: Final = "Its disk is full: free some space there, or lower `store.max_bytes`."
_SEALED: Final = "Its folder cannot be written to: make it writable, or choose another (`store.path`)."
_HANDLES: Final = "No file handle is free: raise the limit of open files (`ulimit -n`), or call again later."
_SHUT: Final = "Its index cannot be opened: see that its folder is there and file handles are free (`ulimit -n`)."
_FAULTY: Final = "Its disk reports an error: look into the system's log, or choose another folder (`store.path`)."
_BUSY: Final = "Another gateway that shares it does not let go of it: call again later."
_DAMAGED: Final = "Its index is damaged: start the gateway anew, which sets it aside and begins another."

_BY_ERRNO: Final = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EROFS: _SEALED,
    errno.EACCES: _SEALED,
    errno.EPERM: _SEALED,
    errno.EMFILE: _HANDLES,
    errno.ENFILE: _HANDLES,
    errno.EIO: _FAULTY,
    errno.EAGAIN: _BUSY,
}
_BY_SQLITE: Final = {
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_READONLY: _SEALED,
    sqlite3.SQLITE_PERM: _SEALED,
    sqlite3.SQLITE_CANTOPEN: _SHUT,
    sqlite3.SQLITE_IOERR: _FAULTY,
    sqlite3.SQLITE_IOERR_SHMSIZE: _FULL,
    sqlite3.SQLITE_BUSY: _BUSY,
    sqlite3.SQLITE_LOCKED: _BUSY,
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
}
_PRIMARY: Final = 0xFF
"""The bits of SQLite's error code that are no detail of it."""


def is_damage(error: sqlite3.Error) -> bool:
    """Whether an index can no longer be read, whoever tries."""
    return _said_of(error) == _DAMAGED


@contextmanager
def told(what: str = "The store") -> Iterator[None]:
    """Errors of the system and of SQLite become `StoreError`, which says what failed."""
    try:
        yield
    except OSError as error:
        said = _BY_ERRNO.get(error.errno or 0, f"The system says: {error.strerror or error}.")
        raise StoreError(f"{what} failed. {said}") from error
    except sqlite3.Error as error:
        raise StoreError(f"{what} failed. {_said_of(error)}") from error


def _said_of(error: sqlite3.Error) -> str:
    code = getattr(error, "sqlite_errorcode", 0)  # what Python itself raises has none
    return _BY_SQLITE.get(code) or _BY_SQLITE.get(code & _PRIMARY, f"SQLite says: {error}.")
