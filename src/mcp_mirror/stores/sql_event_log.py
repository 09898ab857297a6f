"""The event log of the stores in memory and on disk: tables of SQLite."""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from mcp_mirror.stores.event_log import DAY, HOUR, KEPT_SECONDS, SumKey, Sums, count_daily_calls, fair_share

_CURSOR_DIGITS: Final = 19
_MAX_CURSOR: Final = (1 << 63) - 1
_COLUMNS: Final = tuple(field.name for field in msgspec.structs.fields(Sums))

TABLES: Final = f"""
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


class SqlEventLog:
    """An `EventLog` in tables of SQLite. A subclass opens the database, and may run the statements in a thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Create the log without opening the database; the clock returns seconds since the epoch."""
        self._clock = clock
        self._connection: sqlite3.Connection | None = None
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
        """Close the database."""
        if self._connection:
            self._connection.close()
            self._connection = None

    async def _run(self, function: Callable[..., T], *arguments: Any) -> T:
        return function(*arguments)

    def _open(self) -> sqlite3.Connection:
        """The connection to the database, which has the tables."""
        raise NotImplementedError

    def _select(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        return self._open().execute(query, arguments).fetchall()

    def _select_sums(self, namespace: str, first: int) -> dict[SumKey, Sums]:
        rows = self._select(_SUMS, namespace, first)
        return {(hour, upstream, tool): Sums(*numbers) for hour, upstream, tool, *numbers in rows}

    def _append(self, namespace: str, entries: Sequence[bytes], sums: Mapping[SumKey, Sums], keep: int) -> None:
        now = self._clock()
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


class MemoryEventLog(SqlEventLog):
    """An `EventLog` in memory, for a store that its gateway loses."""

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            self._connection.executescript(TABLES)
        return self._connection

    def __del__(self) -> None:
        self.close()
