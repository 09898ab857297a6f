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
import msgspec

from mcp_mirror.stores.disk.damage import is_sound
from mcp_mirror.stores.disk.process_dir import lock_folder
from mcp_mirror.stores.event_log import DAY, HOUR, KEPT_SECONDS, SumKey, Sums, count_daily_calls, fair_share
from mcp_mirror.stores.failures import as_store_errors, is_damage
from mcp_mirror.system.files import create_mapped, create_private, identify_file

_logger = logging.getLogger(__name__)

_LOCK_TIMEOUT: Final = 2.0
"""Seconds to wait for the write lock."""
_SPARE: Final = 4 << 20
"""Free bytes of the disk below which nothing is appended, because deleting values on a full disk needs some."""
_CURSOR_DIGITS: Final = 19
_MAX_CURSOR: Final = (1 << 63) - 1
_COLUMNS: Final = tuple(field.name for field in msgspec.structs.fields(Sums))

_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS calls (
    id INTEGER PRIMARY KEY AUTOINCREMENT, namespace TEXT NOT NULL, at REAL NOT NULL, entry BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS calls_own ON calls (namespace, id);
CREATE TABLE IF NOT EXISTS sums (
    namespace TEXT NOT NULL, hour INTEGER NOT NULL, upstream TEXT NOT NULL, tool TEXT NOT NULL,
    {", ".join(f"{name} INTEGER NOT NULL" for name in _COLUMNS)},
    PRIMARY KEY (namespace, hour, upstream, tool)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS days (
    namespace TEXT NOT NULL, day INTEGER NOT NULL, calls INTEGER NOT NULL,
    PRIMARY KEY (namespace, day)) WITHOUT ROWID;
"""
_APPEND: Final = "INSERT INTO calls (namespace, at, entry) VALUES (?, ?, ?)"
_TRIM: Final = """DELETE FROM calls WHERE namespace = :namespace AND id <= (
    SELECT id FROM calls WHERE namespace = :namespace ORDER BY id DESC LIMIT 1 OFFSET :keep)"""
_ADD_SUMS: Final = f"""INSERT INTO sums VALUES (?, ?, ?, ?{", ?" * len(_COLUMNS)})
    ON CONFLICT DO UPDATE SET {", ".join(f"{name} = {name} + excluded.{name}" for name in _COLUMNS)}"""  # noqa: S608  # ours
_ADD_DAY: Final = "INSERT INTO days VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET calls = calls + excluded.calls"
_READ: Final = """SELECT id, entry FROM calls WHERE namespace = ? AND id > ? AND id < ? ORDER BY id DESC LIMIT ?"""
_SUMS: Final = f"SELECT hour, upstream, tool, {', '.join(_COLUMNS)} FROM sums WHERE namespace = ? AND hour >= ?"  # noqa: S608  # ours
_DAYS: Final = "SELECT day, calls FROM days WHERE namespace = ? AND day >= ?"
_OWNERS: Final = """WITH RECURSIVE owners (name) AS (
        SELECT min(namespace) FROM {table}
        UNION SELECT (SELECT min(namespace) FROM {table} WHERE namespace > owners.name) FROM owners
        WHERE owners.name IS NOT NULL)
    SELECT name FROM owners WHERE name IS NOT NULL"""
"""The namespaces of a table: one index lookup for each."""

T = TypeVar("T")


class DiskEventLog:
    """An `EventLog` in a SQLite file."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        """Configure the log without opening it; the clock returns seconds since the epoch."""
        self._path, self._clock = path, clock
        self._lock = RLock()
        self._thread = anyio.CapacityLimiter(1)
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] = (0, 0)
        """Identifies the open file, which another process may have renamed."""
        self._owners: set[str] = set()
        """The namespaces with entries, of other processes as of the last sweep."""
        self._swept_at = 0.0
        """When old entries were last removed, in seconds since the epoch."""

    async def append(self, namespace: str, entries: Sequence[bytes], sums: Mapping[SumKey, Sums], *, keep: int) -> None:
        await self._run(self._append, namespace, entries, sums, keep)

    async def read(
        self, namespace: str, *, before: str | None = None, after: str | None = None, limit: int
    ) -> tuple[tuple[str, bytes], ...]:
        first, last = (min(max(int(cursor), 0), _MAX_CURSOR) for cursor in (after or "0", before or str(_MAX_CURSOR)))
        rows = await self._run(self._select, _READ, namespace, first, last, limit)
        return tuple((f"{row:0{_CURSOR_DIGITS}}", entry) for row, entry in rows)

    async def sums(self, namespace: str, since: float) -> Mapping[SumKey, Sums]:
        return await self._run(self._select_sums, namespace, int(since) // HOUR)

    async def daily_calls(self, namespace: str, since: float) -> Mapping[int, int]:
        return dict(await self._run(self._select, _DAYS, namespace, int(since) // DAY))

    async def namespaces(self) -> frozenset[str]:
        tables = [await self._run(self._select, _OWNERS.format(table=table)) for table in ("calls", "sums")]
        return frozenset(name for rows in tables for (name,) in rows)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._connection:
                self._connection.close()
                self._connection = None

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
                self._set_aside_if_damaged()
                return function(*arguments)

    def _select(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        return self._open().execute(query, arguments).fetchall()

    def _select_sums(self, namespace: str, first: int) -> dict[SumKey, Sums]:
        rows = self._select(_SUMS, namespace, first)
        return {(hour, upstream, tool): Sums(*numbers) for hour, upstream, tool, *numbers in rows}

    def _append(self, namespace: str, entries: Sequence[bytes], sums: Mapping[SumKey, Sums], keep: int) -> None:
        now = self._clock()
        if shutil.disk_usage(self._path.parent).free < _SPARE:
            raise OSError(errno.ENOSPC, "the rest is for deletions of values")
        with self._open() as change:  # commits, or rolls back
            change.execute("BEGIN IMMEDIATE")
            self._sweep(change, now)
            change.executemany(_APPEND, [(namespace, now, entry) for entry in entries])
            if entries:
                self._owners.add(namespace)
                room = fair_share(keep, len(self._owners))
                change.execute(_TRIM, {"namespace": namespace, "keep": room})
            change.executemany(
                _ADD_SUMS, [(namespace, *key, *msgspec.structs.astuple(one)) for key, one in sums.items()]
            )
            change.executemany(_ADD_DAY, [(namespace, *one) for one in count_daily_calls(sums).items()])

    def _sweep(self, change: sqlite3.Connection, now: float) -> None:
        """Once an hour: remove what is too old, and count the namespaces."""
        if abs(self._swept_at - now) <= HOUR:
            return
        last = now - KEPT_SECONDS
        change.execute("DELETE FROM calls WHERE at <= ?", (last,))
        change.execute("DELETE FROM sums WHERE hour <= ?", (int(last) // HOUR,))
        change.execute("DELETE FROM days WHERE day < ?", (int(last) // DAY,))
        self._owners = {name for (name,) in change.execute(_OWNERS.format(table="calls"))}
        self._swept_at = now

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
                connection.executescript(_TABLES)
            except BaseException:
                connection.close()
                raise
        self._file, self._swept_at = identify_file(self._path), 0.0
        self._connection = connection
        return connection

    def _set_aside_if_damaged(self) -> None:
        """Close the file, and rename it if it is damaged, unless another process has done so.

        OSError if the disk fails at reading.
        """
        damaged = self._file if self._connection else identify_file(self._path)
        self.close()
        with lock_folder(self._path.parent):
            if identify_file(self._path) != damaged or is_sound(self._path):
                return
            for end in ("", "-wal", "-shm"):
                path = self._path.with_name(f"{self._path.name}{end}")
                with suppress(FileNotFoundError):
                    path.replace(self._path.with_name(f"{self._path.name}.damaged-{int(time.time())}{end}"))
        _logger.warning("The event log %s is damaged. It was renamed, and the log starts again.", self._path)
