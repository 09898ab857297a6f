"""The disk store: small values in a SQLite index, large values in files. Values survive a restart.

With `store.encryption`, each value is encrypted separately (see `encryption`), so equal values do not share a file and
message files are not linked. The columns for search and accounting stay in clear: namespace, base (which begins with
the name of the tool), size, the times of creation, last use and expiry, and the time and reason of removal.

Several gateways can use one folder at once. All work runs in threads, not in the event loop.
"""

import logging
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Any, Final, Self, TypeVar

import anyio

from mcp_mirror.core.amounts import format_count
from mcp_mirror.errors import StoreError
from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.stores.base import Tombstone, cut_into_pieces
from mcp_mirror.stores.disk.blobs import PIECE, BlobRemovedError, Blobs, compute_fingerprint
from mcp_mirror.stores.disk.damage import is_sound
from mcp_mirror.stores.disk.event_log import DiskEventLog
from mcp_mirror.stores.disk.index import Index, ValueLocation
from mcp_mirror.stores.disk.listings import DiskListings
from mcp_mirror.stores.disk.process_dir import PROCESS_DIR_NAMES, ProcessDir, lock_folder
from mcp_mirror.stores.encryption import CHANGED, EncryptedEventLog, Encryptor, RangeReader, clamp_span, sealed_span
from mcp_mirror.stores.event_log import EventLog
from mcp_mirror.stores.failures import as_store_errors, is_damage, is_full
from mcp_mirror.stores.quotas import ExpirySweeper, refuse_oversized
from mcp_mirror.stores.records import RecordCodec
from mcp_mirror.system.fair_threads import FairThreads
from mcp_mirror.system.files import UnsafePathError, atomic_write, open_folder
from mcp_mirror.system.mapped_files import map_file
from mcp_mirror.types import Buffer, Descriptor, FileSpan, Segments, Span, StoreStats, StoreTotals, Traffic

_logger = logging.getLogger(__name__)

INLINE_BYTES: Final = 64 << 10
"""Size up to which values are stored in the index."""
_THREADS: Final = 8
"""Threads that read, and as many that change the index: these may wait for another gateway. One principal gets half."""
_OWN: Final = ""
"""The principal of the store's own work."""
_INDEX: Final = "index.sqlite"
_EVENTS: Final = "events.sqlite"
_BLOBS: Final = "blobs"
_DAMAGED: Final = "damaged"
"""A file that marks the index as perhaps damaged: the next start checks it."""
LISTINGS: Final = "listings"
"""The folder with the cached listings of upstreams."""
_RESERVE: Final = "reserve"
_RESERVE_BYTES: Final = (256 << 10, 128 << 10)
"""Space for a deletion on a full disk, which changes the index, whose log grows; and what is taken if there is less."""
OWN_NAMES: Final = (f"{_INDEX}*", f"{_EVENTS}*", f"{_BLOBS}*", _DAMAGED, LISTINGS, _RESERVE, *PROCESS_DIR_NAMES)
"""Globs of all names in the folder of a store."""

_TRUNCATED: Final = (
    "The file of a stored value was truncated outside the gateway. Call the tool that created the value again."
)

T = TypeVar("T")


class DiskStore:
    """A `Store` in a folder."""

    def __init__(self, policy: StorePolicy, clock: Callable[[], float], folder: Path) -> None:
        """Configure the store without opening it; the clock returns seconds since the epoch."""
        self._policy = policy
        self._folder = folder
        self._process_dir = ProcessDir(folder)
        self._blobs = Blobs(folder / _BLOBS, self._process_dir.path, fsync=policy.fsync)
        self._encryptor = Encryptor(policy.encryption)
        self._event_log = DiskEventLog(folder / _EVENTS, clock)
        self.events: Final[EventLog] = EncryptedEventLog(self._event_log, self._encryptor)
        self._records = RecordCodec(self._encryptor)
        self._index = Index(folder / _INDEX, policy, clock, self._blobs, self._records)
        self._listings = DiskListings(self._index, self._records, clock, policy.lifetime)
        self._sweeper = ExpirySweeper(partial(self._run_change, _OWN, self._maintain))
        self._reserve_lock = RLock()
        self._is_open = False
        self._threads, self._changing_threads = FairThreads(_THREADS, None), FairThreads(_THREADS, None)

    @property
    def scratch(self) -> Path:
        """The folder for files that the open store can link."""
        return self._process_dir.path

    async def __aenter__(self) -> Self:
        try:
            await self._run(_OWN, self._begin)
        except BaseException:
            await self.__aexit__()
            raise
        self._sweeper.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        with anyio.CancelScope(shield=True):
            await self._sweeper.stop()
            await self._run(_OWN, self._end)

    async def check(self) -> None:
        """Read from the index, and write a file of the size of a small value, which is removed again."""
        await self.totals()

        def write() -> None:
            with self._blobs.draft((bytes(INLINE_BYTES),)):
                pass

        await self._run_change(_OWN, write)

    async def put(self, namespace: str, descriptor: Descriptor, blob: Segments, file: FileSpan | None = None) -> None:
        refuse_oversized(size := sum(map(len, blob)), self._policy.for_namespace(namespace))
        await self._run_change(namespace, self._put, namespace, descriptor, blob, size, file)
        self._sweeper.note_put()

    async def describe(self, namespace: str, base: str, *, will_read: bool = False) -> Descriptor | Tombstone | None:
        return await self._run(namespace, self._index.describe, namespace, base)

    async def read(
        self, namespace: str, base: str, span: Span | None = None, known: Descriptor | None = None
    ) -> Buffer | None:
        """The bytes of a value or of a range of it: a map of a large value, decrypted in memory if it is encrypted."""
        return await self._run(namespace, self._read, namespace, base, span)

    async def file_of(self, namespace: str, base: str) -> FileSpan | None:
        """The file span of a large value in clear."""
        location = await self._run(namespace, self._index.find, namespace, base, Span(0, 0))
        is_sealed = location is not None and self._encryptor.find_envelope(namespace, base, location.record)
        if location is None or is_sealed or location.digest is None:
            return None
        return FileSpan(str(self._find_path(location)), Span(location.start, location.size))

    async def delete(self, namespace: str, base: str) -> bool:
        return await self._run_change(namespace, self._delete, namespace, base)

    async def list(
        self, namespace: str, *, after: str | None = None, slug: str = "", limit: int | None = None
    ) -> tuple[Descriptor, ...]:
        return await self._run(namespace, self._listings.list, namespace, after, slug, limit)

    async def bases_near(self, namespace: str, text: str, limit: int) -> tuple[str, ...]:
        return await self._run(namespace, self._listings.bases_near, namespace, text, limit)

    async def stats(self, namespace: str) -> StoreStats:
        return await self._run(namespace, self._listings.stats, namespace)

    async def totals(self) -> StoreTotals:
        return await self._run(_OWN, self._index.totals)

    async def count(self, namespace: str, traffic: Traffic) -> None:
        """Add to the counted tokens, without waiting for the disk."""
        await self._run_change(namespace, self._index.count, namespace, traffic)

    async def namespaces(self) -> frozenset[str]:
        return await self._run(_OWN, self._listings.namespaces)

    async def slugs(self, namespace: str | None = None) -> frozenset[str]:
        return await self._run(namespace or _OWN, self._listings.slugs, namespace)

    async def _run(self, principal: str, function: Callable[..., T], *arguments: Any) -> T:
        return await self._threads.run(principal, partial(self._call, function, *arguments))

    async def _run_change(self, principal: str, function: Callable[..., T], *arguments: Any) -> T:
        return await self._changing_threads.run(principal, partial(self._call, function, *arguments))

    def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        with as_store_errors():
            try:
                return function(*arguments)
            except sqlite3.Error as error:
                if is_damage(error):
                    (self._folder / _DAMAGED).touch(0o600)
                raise

    def _maintain(self) -> int:
        """Remove a batch of expired values, and write the index's log. Returns the number of removed values."""
        self._reopen_if_removed()
        one = partial(self._index.remove_expired, 1, writes_uses=False)
        removed = self._free_space(self._index.remove_expired, one)
        self._index.checkpoint()
        self._reserve_space()
        return removed

    def _delete(self, namespace: str, base: str) -> bool:
        delete = partial(self._index.delete, namespace, base)
        return self._free_space(delete, partial(delete, writes_uses=False))

    def _free_space(self, remove: Callable[[], T], remove_one: Callable[[], T]) -> T:
        """Remove values; on a full disk remove one value in the space that is reserved for it."""
        try:
            return remove()
        except sqlite3.Error as error:
            if not is_full(error):
                raise
        with self._reserve_lock:  # another thread that reserves space now takes the last of it for a moment
            (self._folder / _RESERVE).unlink(missing_ok=True)
            with suppress(sqlite3.Error):
                self._index.truncate_log(_RESERVE_BYTES[-1])
            with self._index.without_checkpoints():
                removed = remove_one()
            self._reserve_space()
            return removed

    def _reserve_space(self) -> None:
        """Create the file that takes the space for a deletion; on a full disk a smaller file, which grows later."""
        reserve = self._folder / _RESERVE
        with self._reserve_lock:
            for size in _RESERVE_BYTES:
                with suppress(OSError):
                    if not reserve.exists() or reserve.stat().st_size < size:
                        atomic_write(reserve, (bytes(size),))
                    return

    def _put(self, namespace: str, descriptor: Descriptor, blob: Segments, size: int, file: FileSpan | None) -> None:
        self._reopen_if_removed()
        envelope = self._encryptor.new_envelope(namespace, descriptor.base)
        record = self._records.encode(descriptor, envelope)
        if size <= INLINE_BYTES:
            content = b"".join(envelope.seal(blob, size) if envelope else blob)
            self._index.put(namespace, descriptor, record, content, None)
            return
        put = partial(self._index.put, namespace, descriptor, record, None)
        if envelope:
            with self._blobs.draft(envelope.seal(blob, size)) as draft:
                put(draft)
            return
        fingerprint = compute_fingerprint(namespace, blob)
        if known := self._blobs.find_equal(blob, self._index.find_blobs(fingerprint)):
            with suppress(BlobRemovedError):
                put(known)
                return
        with self._blobs.draft(cut_into_pieces(blob, PIECE), fingerprint, file) as draft:
            put(draft)

    def _read(self, namespace: str, base: str, span: Span | None) -> Buffer | None:
        cut = None if self._encryptor.key_ids else span  # encrypted values are decrypted by complete chunks
        location = self._index.find(namespace, base, cut)
        if location is None:
            return None
        envelope = self._encryptor.find_envelope(namespace, base, location.record)
        if envelope and not location.size and self._records.decode(namespace, base, location.record).size:
            raise StoreError(CHANGED)  # an empty value has no chunk to check, so its authenticated record must be empty
        try:
            kept = location.content if location.digest is None else map_file(self._find_path(location))
        except FileNotFoundError:  # removed since the value was found
            return None
        except ValueError:  # an empty file cannot be mapped
            kept = b""
        wanted = clamp_span(location.size, span)
        if envelope:
            where, reader = sealed_span(location.size, wanted), RangeReader(envelope, location.size, wanted)
            reader.add(memoryview(kept)[where.start : where.stop])
            return reader.take()
        if location.digest is None:
            return kept if span is None or cut else kept[wanted.start : wanted.stop]
        if len(kept) < location.start + location.size:
            raise StoreError(_TRUNCATED)
        return kept[location.start + wanted.start : location.start + wanted.stop]

    def _find_path(self, location: ValueLocation) -> Path:
        return self._blobs.build_path(str(location.digest), location.start)

    def _is_in_place(self) -> bool:
        return self._index.is_in_place and self._blobs.exists and self._process_dir.is_in_place

    def _reopen_if_removed(self) -> None:
        """Open the store again if its files are no longer in its folder.

        Otherwise the gateway would write to files without a name: other gateways do not see them, and they end with it.
        """
        if not self._is_open or self._is_in_place():
            return
        with self._index.lock:
            if self._is_in_place():
                return
            self._begin()
            _logger.warning(
                "Files of the store in %s were removed or replaced while this gateway used them. It has opened the "
                "store there again, without the values of those files.",
                self._folder,
            )

    def _begin(self) -> None:
        with as_store_errors(f"The store in {self._folder}"):
            try:
                open_folder(self._folder, OWN_NAMES)
            except UnsafePathError as error:
                raise StoreError(str(error)) from None
            reserve = self._folder / _RESERVE
            try:
                lost = self._open_locked()
            except (OSError, sqlite3.Error) as error:
                if not is_full(error) or not reserve.exists():
                    raise
                reserve.unlink()  # its space is enough to open the store, to read and to delete
                lost = self._open_locked()
            self._reserve_space()
        self._is_open = True
        if lost:
            _logger.warning("%d values in %s have lost their files and were removed.", lost, self._folder)

    def _open_locked(self) -> int:
        with lock_folder(self._folder):
            self._process_dir.create()
            self._blobs.open()
            if (mark := self._folder / _DAMAGED).exists():
                self._set_aside_if_damaged()
                mark.unlink()
            try:
                return self._open_index()
            except sqlite3.Error as error:
                if not is_damage(error):
                    raise
                self._set_aside_if_damaged()
                return self._open_index()

    def _open_index(self) -> int:
        if self._index.open() and self._blobs.sizes():
            aside = f"{_BLOBS}.without-index-{int(time.time())}"
            (self._folder / _BLOBS).rename(self._folder / aside)
            self._blobs.open()
            _logger.warning(
                "The store in %s had large values and no index. They were renamed to %s, and the store is now empty. "
                "To use a backup, stop all gateways and replace the folder of the store by the backup.",
                self._folder,
                aside,
            )
        lost = self._index.reconcile()
        if foreign := self._index.count_foreign():  # these values would look lost
            raise StoreError(
                f"The store in {self._folder} has {format_count(foreign, 'value')} of keys that are not in "
                "`store.encryption.keys`. Add those keys, after the first; or choose another folder (`store.path`)."
            )
        return lost

    def _set_aside_if_damaged(self) -> None:
        """Rename a damaged index and its blobs, so that a new store can be created.

        StoreError if another process still uses the index; OSError if the disk fails at reading.
        """
        self._index.close()
        if is_sound(self._folder / _INDEX):
            return
        if self._process_dir.is_shared:
            raise StoreError(
                f"The index of the store in {self._folder} is damaged, and another gateway uses it. Stop all gateways "
                "that use it, then start one: it sets the index aside."
            )
        aside = f"damaged-{int(time.time())}"
        (self._folder / f"{_INDEX}-shm").unlink(missing_ok=True)  # SQLite makes it again
        for name, end in ((_INDEX, ""), (_INDEX, "-wal"), (_BLOBS, "")):
            with suppress(FileNotFoundError):
                (self._folder / f"{name}{end}").rename(self._folder / f"{name}.{aside}{end}")
        self._blobs.open()
        _logger.warning(
            "The index of the store in %s is damaged. The index was renamed to %s.%s and the large values to %s.%s. "
            "The store is now empty.",
            self._folder,
            _INDEX,
            aside,
            _BLOBS,
            aside,
        )

    def _end(self) -> None:
        self._is_open = False
        self._event_log.close()
        self._index.close()
        self._process_dir.remove()
