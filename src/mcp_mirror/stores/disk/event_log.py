"""The event log of the disk store: a SQLite file of its own, shared by several processes.

A call in the log is worth less than a value. So a change waits for the system's cache and not for the disk: a killed
process loses nothing of it, and a crash of the machine may lose the newest calls. A damaged file is renamed, and the
log starts again. The file is opened with its first use.
"""

import errno
import logging
import shutil
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread

from mcp_mirror.stores.disk.process_dir import lock_folder
from mcp_mirror.stores.event_log import SumKey, Sums
from mcp_mirror.stores.failures import as_store_errors, is_damage
from mcp_mirror.stores.sql_event_log import TABLES, SqlEventLog
from mcp_mirror.system.files import create_mapped, create_private, identify_file

_logger = logging.getLogger(__name__)

_LOCK_TIMEOUT: Final = 2.0
"""Seconds to wait for the write lock."""
_SPARE: Final = 4 << 20
"""Free bytes of the disk below which nothing is appended, because deleting values on a full disk needs some."""
T = TypeVar("T")


class DiskEventLog(SqlEventLog):
    """An `EventLog` in a SQLite file."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        """Configure the log without opening it; the clock returns seconds since the epoch."""
        super().__init__(clock)
        self._path = path
        self._lock = RLock()
        self._thread = anyio.CapacityLimiter(1)
        self._file: tuple[int, int] = (0, 0)
        """Identifies the open file, which another process may have renamed."""

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            super().close()

    async def _run(self, function: Callable[..., T], *arguments: Any) -> T:
        return await anyio.to_thread.run_sync(partial(self._call, function, *arguments), limiter=self._thread)

    def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function; if the file is damaged, set it aside and run it again."""
        with self._lock, as_store_errors("The event log"):
            try:
                return function(*arguments)
            except sqlite3.Error as error:
                if not is_damage(error):
                    raise
                self._set_aside()
                return function(*arguments)

    def _append(self, namespace: str, entries: Sequence[bytes], sums: Mapping[SumKey, Sums], keep: int) -> None:
        if shutil.disk_usage(self._path.parent).free < _SPARE:
            raise OSError(errno.ENOSPC, "the rest is for deletions of values")
        super()._append(namespace, entries, sums, keep)

    def _open(self) -> sqlite3.Connection:
        """The connection to the file that has the log's name now."""
        if self._connection and self._file == identify_file(self._path):
            return self._connection
        self.close()
        with lock_folder(self._path.parent):
            create_private(self._path)
            create_mapped(self._path.with_name(f"{self._path.name}-shm"))
            connection = sqlite3.connect(
                self._path, timeout=_LOCK_TIMEOUT, isolation_level=None, check_same_thread=False
            )
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA temp_store = MEMORY")  # as in the index
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.executescript(TABLES)
            except BaseException:
                connection.close()
                raise
        self._file, self._swept_at = identify_file(self._path), 0.0
        self._connection = connection
        return connection

    def _set_aside(self) -> None:
        """Rename a damaged file, unless another process has done so."""
        damaged = self._file if self._connection else identify_file(self._path)
        self.close()
        with lock_folder(self._path.parent):
            if identify_file(self._path) != damaged:
                return
            for end in ("", "-wal", "-shm"):
                path = self._path.with_name(f"{self._path.name}{end}")
                with suppress(FileNotFoundError):
                    path.replace(self._path.with_name(f"{self._path.name}.damaged-{int(time.time())}{end}"))
        _logger.warning("The event log %s is damaged. It was renamed, and the log starts again.", self._path)
