"""The index of the disk store in SQLite: one transaction per change, shared by several processes.

Blob files are adopted and removed only with the index's write lock, so no process removes a file that another process
has just started to use.
"""

import errno
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import Any, Final

import msgspec

from mcp_mirror.paths import slug_of
from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.stores.base import Tombstone, ValueKey
from mcp_mirror.stores.disk.blobs import BlobDraft, Blobs, name_of
from mcp_mirror.stores.disk.eviction import TOTALS, DiskEviction, Removal
from mcp_mirror.stores.disk.tables import create_tables
from mcp_mirror.stores.encryption import HEAD, MAGIC
from mcp_mirror.stores.failures import is_busy
from mcp_mirror.stores.quotas import BATCH_SECONDS, EXPIRED_PER_BATCH
from mcp_mirror.stores.records import RecordCodec
from mcp_mirror.system.files import create_mapped, create_private, identify_file
from mcp_mirror.types import Descriptor, Span, StoreTotals, Traffic

_LOCK_TIMEOUT: Final = 10_000
"""Milliseconds to wait for the write lock."""
_SHORT_LOCK_TIMEOUT: Final = 100
"""Milliseconds to wait for the write lock for a change that can be made later."""
_BUSY_TIMEOUT: Final = 20
"""Milliseconds in which a thread tries to get the write lock before it lets other threads read."""
_PAUSE: Final = 0.01
"""Seconds in which other threads read."""
_PAGE_BYTES: Final = 8192
"""Bytes of a page of a new index: of 4,096 bytes, a seventh stayed empty beside three rows with values of 1 KB."""
_LOG_PAGES: Final = 500
"""Pages of the log after which a change copies the log to the index, if no checkpoint has done so before.

Calls wait 2 ms for 4 MB.
"""
_VACUUMED: Final = 10_000
"""Free pages that are returned to the system at each start."""
_AHEAD: Final = 60.0
"""Seconds by which the written expiry of a used value exceeds its lifetime, so that not every use is a write."""
_AHEAD_PART: Final = 0.1
"""The maximum of these seconds as a part of the lifetime."""

_ALL: Final = 1 << 30
"""More bytes than any value in the index itself."""

_DESCRIBE: Final = "SELECT expires, descriptor FROM entries WHERE namespace = ? AND base = ?"
_TOMBSTONE: Final = "SELECT descriptor, reason, at FROM tombstones WHERE namespace = ? AND base = ?"
_FIND: Final = """SELECT expires, size, substr(content, ?, ?), entries.digest, start,
        CASE size WHEN 0 THEN descriptor ELSE substr(descriptor, 1, ?) END FROM entries
    LEFT JOIN blobs ON blobs.digest = entries.digest WHERE namespace = ? AND base = ?"""
_EXPIRED_ROW: Final = """SELECT rowid, namespace, base, descriptor, size, expires FROM entries
    WHERE namespace = ? AND base = ? AND expires <= ?"""
_SEALED_WITH: Final = "FROM entries WHERE substr(descriptor, 1, 1) = ? AND substr(descriptor, 2, ?) = ?"
_BLOBS: Final = "SELECT digest, start, held FROM blobs"
_SAME_FINGERPRINT: Final = "SELECT digest, start FROM blobs WHERE digest >= ? AND digest < ? LIMIT ?"
_MAX_COMPARED: Final = 4
"""Blobs with the same fingerprint that are compared with a new one."""
_COUNT: Final = """INSERT INTO traffic VALUES (?, ?, ?)
    ON CONFLICT (namespace) DO UPDATE SET sent = sent + excluded.sent, kept_out = kept_out + excluded.kept_out"""

_AMPLE: Final = 16 << 20
"""Free bytes of the disk below which each put first copies the log to the index."""
_CHANGE_BYTES: Final = 128 << 10
"""Bytes that one change may take beside the values in it."""
_ATTEMPTS: Final = 64
"""How often a put returns free pages to make room for a small value; each time may yield 128 KiB."""
_RETURNED: Final = 16
"""Free pages that are returned to the system at once on a nearly full disk: the log needs their space before."""
_SIZE: Final = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
"""The bytes of the index with the content of the log."""
_SIZE_AND_UNUSED: Final = f"SELECT ({_SIZE}), freelist_count FROM pragma_freelist_count"  # noqa: S608  # ours
"""The same, and the number of free pages."""

_EXPIRED_PER_STEP: Final = 10
"""Expired values that are removed between two looks at the clock."""
_FILES_AT_ONCE: Final = 16
"""Files that one change removes."""


class ValueLocation(msgspec.Struct, frozen=True):
    """The location of a value's bytes: in the index or in a blob."""

    size: int
    content: bytes
    """The requested bytes of a small value."""
    digest: str | None
    """The digest of a large value's blob."""
    start: int
    """The offset of a large value in its blob's file."""
    record: bytes
    """The head of the record; the complete record of an empty value."""


class Index:
    """Values by namespace and base. Safe for use from any thread.

    Methods raise errors of SQLite, and `OSError` of the folder.
    """

    def __init__(
        self, path: Path, policy: StorePolicy, clock: Callable[[], float], blobs: Blobs, records: RecordCodec
    ) -> None:
        self._path = path
        self._records = records
        self._policy = policy
        self._clock = clock
        self._blobs = blobs
        self._eviction = DiskEviction(policy, clock, records)
        self.lock: Final = RLock()
        """Locked while a thread uses the connection."""
        self._pending_uses: dict[ValueKey, float] = {}
        """Uses that are not written yet, because the written expiry is late enough."""
        self._evicted = 0
        self._open: sqlite3.Connection | None = None
        self._file: tuple[int, int] = (0, 0)
        """Identifies the open file, which may be removed or replaced."""
        self._synchronous = ""
        """The last `PRAGMA synchronous` of the open connection."""
        self._checkpointer: sqlite3.Connection | None = None
        """A second connection: others read and write while it copies the log to the index."""

    def open(self) -> bool:
        """Open or create the index; if it is open, close it before. Return whether it is new.

        StoreError if the index has another format.
        """
        self.close()
        create_private(self._path)
        create_mapped(self._path.with_name(f"{self._path.name}-shm"))
        connection = sqlite3.connect(
            self._path, timeout=_LOCK_TIMEOUT / 1000, isolation_level=None, check_same_thread=False
        )
        try:
            if not connection.execute("PRAGMA user_version").fetchone()[0]:  # only effective before the first table
                connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA temp_store = MEMORY")  # the folder of temporary files may be full
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
            is_new = create_tables(connection, self._path.parent)
            connection.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT}")
        except BaseException:
            connection.close()
            raise
        self._open, self._file, self._synchronous = connection, identify_file(self._path), "FULL"
        return is_new

    @property
    def is_in_place(self) -> bool:
        """Whether the open file still has the index's name."""
        return identify_file(self._path) == self._file

    def close(self) -> None:
        """Write pending uses, and close the index."""
        with self.lock:
            if self._checkpointer:
                self._checkpointer.close()
                self._checkpointer = None
            connection, self._open = self._open, None
            if connection is None:
                return
            with suppress(sqlite3.Error), connection:  # commits, or rolls back
                connection.execute("BEGIN IMMEDIATE")
                self._write_uses(connection)
            connection.close()

    def put(
        self, namespace: str, descriptor: Descriptor, record: bytes, content: bytes | None, draft: BlobDraft | None
    ) -> None:
        """Add a value, and evict the least recently used values if necessary.

        `record` is the encoded descriptor. A small value has `content`, its bytes, and a large one `draft`, its blob.

        Raises:
            BlobRemovedError: The blob was already stored when it was compared, but no longer is.
            OSError: The disk would be too full for a deletion.
        """
        self._check_space(len(record) + len(content or b""))
        try:
            while not self._put(namespace, descriptor, record, content, draft):
                time.sleep(_PAUSE)
        except BaseException:
            if draft and draft.path:  # if its file cannot be removed, the next start removes it
                place = (draft.digest, draft.start)
                with suppress(sqlite3.Error), self._change(is_durable=False) as change:
                    if not change.execute("SELECT 1 FROM blobs WHERE digest = ? AND start = ?", place).fetchone():
                        self._blobs.remove(name_of(*place))
            raise
        self._remove_doomed_files()

    def _put(
        self, namespace: str, descriptor: Descriptor, record: bytes, content: bytes | None, draft: BlobDraft | None
    ) -> bool:
        """Make room for a value, and add it in the same change if there is room. Return whether it was added."""
        with self._change() as change:
            key = (namespace, descriptor.base)
            for table in ("entries", "tombstones"):
                change.execute(f"DELETE FROM {table} WHERE namespace = ? AND base = ?", key)  # noqa: S608  # ours
            has_room, evicted = self._eviction.make_room(change, namespace, descriptor.size)
            if has_room:
                if draft:
                    self._blobs.adopt(draft)
                    place = (draft.digest, draft.start, draft.file_size)
                    change.execute("INSERT OR REPLACE INTO blobs VALUES (?, ?, ?)", place)
                    change.execute("DELETE FROM doomed WHERE digest = ? AND start = ?", place[:2])
                times = (descriptor.created, self._clock(), descriptor.expires)
                stored = (record, content, draft.digest if draft else None)
                row = (*key, descriptor.size, *times, *stored, slug_of(descriptor.base))
                change.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        self._evicted += evicted
        return has_room

    def find_blobs(self, fingerprint: str) -> list[tuple[str, int]]:
        """The digests and offsets of blobs with this fingerprint, at most four."""
        return self._read_rows(_SAME_FINGERPRINT, (fingerprint, f"{fingerprint}g", _MAX_COMPARED))

    def describe(self, namespace: str, base: str) -> Descriptor | Tombstone | None:
        """The descriptor or tombstone of a value, which counts as used."""
        row = self._record_use(_DESCRIBE, (namespace, base))
        if row is None:
            for record, reason, at in self._read_rows(_TOMBSTONE, (namespace, base)):
                known = self._records.decode(namespace, base, record)
                return Tombstone(known, reason, min(known.expires, at))  # it was noticed later than it expired
            return None
        known = self._records.decode(namespace, base, row[0])
        return msgspec.structs.replace(known, expires=self._clock() + self._policy.lifetime)

    def find(self, namespace: str, base: str, span: Span | None = None) -> ValueLocation | None:
        """The location of a value, which counts as used, with the bytes of `span` if the value is small."""
        first, length = span or (0, -1)
        row = self._record_use(_FIND, (namespace, base), (first + 1, length if span else _ALL, HEAD))
        if row is None:
            return None
        size, content, digest, start, record = row
        return ValueLocation(size, content or b"" if digest is None else b"", digest, start or 0, record)

    def delete(self, namespace: str, base: str, *, writes_uses: bool = True) -> bool:
        """Remove a value without a tombstone; with the pending uses of other values, which take space on the disk."""
        with self._change(writes_uses=writes_uses) as change:
            query = "DELETE FROM entries WHERE namespace = ? AND base = ? AND expires > ?"
            gone = change.execute(query, (namespace, base, self._clock())).rowcount
        self._remove_doomed_files()
        return gone > 0

    @contextmanager
    def without_checkpoints(self) -> Iterator[None]:
        """Changes in this context do not copy the log to the index, which takes space on a full disk."""
        pragma = "PRAGMA wal_autocheckpoint = {}"
        self._read_rows(pragma.format(0), ())
        try:
            yield
        finally:
            self._read_rows(pragma.format(_LOG_PAGES), ())

    def totals(self) -> StoreTotals:
        """The number and bytes of all values, and the evictions of this process."""
        values, size = self._read_rows(TOTALS, ())[0]
        return StoreTotals(values, size, self._evicted)

    def count(self, namespace: str, traffic: Traffic) -> None:
        """Add to the counted tokens, without waiting for the disk or long for another process."""
        with self._change(is_durable=False) as change:
            change.execute(_COUNT, (namespace, traffic.sent, traffic.kept_out))

    def reconcile(self) -> int:
        """Remove files without a value and values without their file; return the number of removed values.

        A file of the wrong size counts as missing: the machine stopped before the file was completely on the disk.
        """
        gone = 0
        if any(self._compare_files(self._read_rows(_BLOBS, ()))):  # without the write lock, which others may keep
            with self._change() as change:
                lost, unknown = self._compare_files(change.execute(_BLOBS))
                gone = change.executemany("DELETE FROM entries WHERE digest = ?", lost).rowcount if lost else 0
                for name in unknown:
                    self._blobs.remove(name)
        self._remove_doomed_files()
        with self.lock, suppress(sqlite3.Error):
            self._connection.executescript(f"PRAGMA incremental_vacuum({_VACUUMED})")  # `execute` frees only one page
        return gone

    def _compare_files(self, rows: Iterable[tuple[str, int, int]]) -> tuple[list[tuple[str]], AbstractSet[str]]:
        """The digests of blobs whose file is missing or has the wrong size, and the names of files without a blob."""
        known = {name_of(digest, start): (digest, size) for digest, start, size in rows}
        there = self._blobs.sizes()
        lost = [(digest,) for name, (digest, size) in known.items() if there.get(name) != size]
        return lost, there.keys() - known.keys()

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._open is None:
            raise sqlite3.ProgrammingError("the store is closed")
        return self._open

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Lock the index for the duration of the context, and yield the connection."""
        with self.lock:
            yield self._connection

    def _read_rows(self, query: str, parameters: tuple[Any, ...]) -> list[Any]:
        with self.reading() as connection:
            return connection.execute(query, parameters).fetchall()

    @contextmanager
    def _change(self, *, is_durable: bool = True, writes_uses: bool = True) -> Iterator[sqlite3.Connection]:
        """An atomic change. A durable change is on the disk afterwards, if `store.fsync` is set.

        A change that is not durable can also be made later, so it fails soon if another process has the write lock.
        While a change waits for that lock, other threads read.
        """
        until = time.monotonic() + (_LOCK_TIMEOUT if is_durable else _SHORT_LOCK_TIMEOUT) / 1000
        while True:
            with self.lock:
                connection = self._connection
                level = "FULL" if is_durable and self._policy.fsync else "NORMAL"
                if self._synchronous != level:  # SQLite compiles the statement each time
                    connection.execute(f"PRAGMA synchronous = {level}")
                    self._synchronous = level
                try:
                    connection.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError as error:
                    if not is_busy(error) or time.monotonic() > until:
                        raise
                else:
                    with connection:  # commits, or rolls back
                        if writes_uses:
                            self._write_uses(connection)
                        yield connection
                    if writes_uses:
                        self._pending_uses.clear()
                    return
            time.sleep(_PAUSE)

    def _record_use(self, query: str, key: ValueKey, parameters: tuple[int, ...] = ()) -> Any:
        """The row of an entry after its expiry, which is extended; None if the entry does not exist or has expired."""
        with self.reading() as connection:
            found = connection.execute(query, (*parameters, *key)).fetchall()
            if not found:
                return None
            (expires, *row), now = found[0], self._clock()
            if expires > now:
                self._pending_uses[key] = now
        if expires <= now:
            with self._change() as change:
                expired = [Removal(*expired_row) for expired_row in change.execute(_EXPIRED_ROW, (*key, now))]
                self._eviction.replace_by_tombstones(change, "expired", expired)
            self._remove_doomed_files()
            return None
        if expires < now + self._policy.lifetime:
            with suppress(sqlite3.Error), self._change(is_durable=False):  # a full disk must not prevent reading
                pass
        return row

    def count_foreign(self) -> int:
        """The number of values that are encrypted with keys that are not configured."""
        used = {key for (key,) in self._read_rows("SELECT key FROM seals", ())}
        foreign = 0
        for key in used - self._records.encryptor.key_ids:
            parameters = (MAGIC, len(key), key)
            [(left,)] = self._read_rows(f"SELECT count(*) {_SEALED_WITH}", parameters)
            foreign += left
            if not left:
                with suppress(sqlite3.Error), self._change(is_durable=False) as change:
                    unused = f"DELETE FROM seals WHERE key = ? AND NOT EXISTS (SELECT 1 {_SEALED_WITH})"  # noqa: S608  # ours
                    change.execute(unused, (key, *parameters))
        return foreign

    def _write_uses(self, change: sqlite3.Connection) -> None:
        """Write pending uses, before values expire by their last use."""
        lifetime = self._policy.lifetime
        ahead = lifetime + min(_AHEAD, lifetime * _AHEAD_PART)
        change.executemany(
            "UPDATE entries SET used = max(used, ?), expires = iif(expires < ?, ?, expires) "
            "WHERE namespace = ? AND base = ?",
            [(at, at + lifetime, at + ahead, *key) for key, at in self._pending_uses.items()],
        )

    def remove_expired(self, most: int = EXPIRED_PER_BATCH, *, writes_uses: bool = True) -> int:
        """Remove a batch of expired values, `most` at most, and of their files in two short changes.

        Returns the number of both. For `writes_uses` see `delete`.
        """
        with self.lock:
            if not self._eviction.find_expired(self._connection, None, 1):
                return self._remove_doomed_files()
        removed, end = 0, time.monotonic() + BATCH_SECONDS
        with self._change(is_durable=False, writes_uses=writes_uses) as change:
            while removed < most and time.monotonic() < end:
                step = min(most, _EXPIRED_PER_STEP)
                rows = self._eviction.find_expired(change, None, step)
                self._eviction.replace_by_tombstones(change, "expired", rows)
                removed += len(rows)
                if len(rows) < step:
                    break
        return removed + self._remove_doomed_files()

    def checkpoint(self) -> None:
        """Copy the log to the index. Calls do not wait for it, as they would for the checkpoints of SQLite itself."""
        self._open_checkpointer().execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def _check_space(self, size: int) -> None:
        """Raise an error for a value of this size that takes the space which the index needs to grow by its log.

        Without that space the log can only grow, and a deletion, which changes the index, needs still more of it.
        """
        for _ in range(_ATTEMPTS):
            if shutil.disk_usage(self._path.parent).free >= _AMPLE:
                return
            with suppress(sqlite3.Error):
                self.checkpoint()
            [(total, unused)] = self._read_rows(_SIZE_AND_UNUSED, ())
            growth = max(0, total - self._path.stat().st_size)
            free = shutil.disk_usage(self._path.parent).free
            if free >= growth + 2 * size + _CHANGE_BYTES:  # twice: in the log, and in the index
                return
            if not unused or not self._return_pages(unused):
                break
        raise OSError(errno.ENOSPC, "the rest is for deletions of values")

    def _return_pages(self, unused: int) -> bool:
        """Return some free pages of the index to the system with the next checkpoint; return whether that succeeded."""
        with suppress(sqlite3.Error), self.reading() as connection:
            connection.executescript(f"PRAGMA incremental_vacuum({_RETURNED})")
            [(left,)] = connection.execute("PRAGMA freelist_count").fetchall()
            return bool(left < unused)
        return False

    def truncate_log(self, room: int) -> None:
        """Copy the log to the index and return its space to the system, unless the index grows by more than `room`.

        The log stays if another process reads at the moment.
        """
        checkpointer = self._open_checkpointer()
        [(size,)] = checkpointer.execute(_SIZE).fetchall()
        if size - self._path.stat().st_size <= room:
            checkpointer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _open_checkpointer(self) -> sqlite3.Connection:
        with self.reading():
            if self._checkpointer is None:
                self._checkpointer = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            return self._checkpointer

    def _remove_doomed_files(self) -> int:
        """Remove some files of blobs without a value, unless a new value uses the blob. Returns their number."""
        removed = 0
        with suppress(sqlite3.Error):
            if not self._read_rows("SELECT 1 FROM doomed LIMIT 1", ()):
                return 0
            with self._change(is_durable=False) as change:
                for place in change.execute("SELECT digest, start FROM doomed LIMIT ?", (_FILES_AT_ONCE,)).fetchall():
                    if self._blobs.remove(name_of(*place)):
                        removed += change.execute("DELETE FROM doomed WHERE digest = ? AND start = ?", place).rowcount
        return removed
