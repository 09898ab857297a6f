"""The memory store: values in this process's memory, large ones in files, lost at its end."""

import logging
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from math import inf
from pathlib import Path
from typing import Final, Self

import anyio.lowlevel
import anyio.to_thread
import msgspec

from mcp_mirror.paths import slug_of
from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.stores.base import Reason, Tombstone, ValueKey
from mcp_mirror.stores.event_log import EventLog, MemoryEventLog
from mcp_mirror.stores.failures import as_store_errors
from mcp_mirror.stores.quotas import (
    BATCH_SECONDS,
    EXPIRED_PER_BATCH,
    EXPIRED_PER_PUT,
    MAX_TOMBSTONES,
    NAMESPACE_TOMBSTONES,
    TOMBSTONE_LIFETIME,
    Eviction,
    ExpirySweeper,
    SpaceUsage,
    refuse_oversized,
)
from mcp_mirror.stores.records import pack_descriptor, unpack_brief, unpack_descriptor
from mcp_mirror.stores.sorted_items import SortedItems
from mcp_mirror.system.files import write_all
from mcp_mirror.system.mapped_files import map_span, unlink_large
from mcp_mirror.system.slices import Pacer
from mcp_mirror.types import Buffer, Descriptor, FileSpan, Segments, Span, StoreStats, StoreTotals, Traffic

_logger = logging.getLogger(__name__)

_WORTH_A_VIEW: Final = 0.75
"""Share of a message that a value must have to be kept as a view of the message, or as a link to its file."""
_MIN_FILE: Final = 64 << 10
"""Bytes above which a value of a message in a file is kept in a file."""

_FEW: Final = 1000
"""Unexpired values that are sorted for a list, if others have expired."""


class _StoredValue(msgspec.Struct, gc=False):
    """A value, invisible to the garbage collector, which would stop the event loop to walk a million descriptors."""

    record: bytes
    """The encoded descriptor, with the expiry at the time of the put."""
    created: float
    expires: float
    size: int
    content: Buffer | FileSpan
    """The bytes, or the store's file that contains them. The file is mapped only while it is read, because a map takes
    one of the handles that the process may have."""

    def describe(self, base: str) -> Descriptor:
        """The descriptor with the present expiry."""
        return msgspec.structs.replace(unpack_descriptor(base, self.record), expires=self.expires)

    def describe_briefly(self, base: str) -> Descriptor:
        """The same without members."""
        return msgspec.structs.replace(unpack_brief(base, self.record), expires=self.expires)


class _Share(msgspec.Struct):
    """The values of one namespace."""

    values: OrderedDict[str, _StoredValue] = msgspec.field(default_factory=OrderedDict)
    """By base, in the order of last use, which is the order of expiry unless the clock was set back."""
    latest: float = -inf
    """The latest expiry of a value."""
    unordered_until: float = -inf
    """Until then a value may expire later than one that was used after it."""
    size: int = 0
    bases: SortedItems[str] = msgspec.field(default_factory=SortedItems)
    by_creation: dict[str, SortedItems[tuple[float, str]]] = msgspec.field(default_factory=dict)
    """Creation time and base by slug; those of all slugs under the empty slug."""

    @property
    def usage(self) -> SpaceUsage:
        return SpaceUsage(len(self.values), self.size)

    def use(self, base: str, value: _StoredValue) -> None:
        """Make a value the most recently used one."""
        self.values[base] = value
        self.values.move_to_end(base)
        if value.expires < self.latest:
            self.unordered_until = self.latest
        else:
            self.latest = value.expires

    def add(self, base: str, value: _StoredValue) -> None:
        self.use(base, value)
        self.size += value.size
        self.bases.add(base)
        for slug in {"", slug_of(base)}:
            self.by_creation.setdefault(slug, SortedItems()).add((value.created, base))

    def remove(self, base: str) -> None:
        value = self.values.pop(base)
        self.size -= value.size
        self.bases.remove(base)
        for slug in {"", slug_of(base)}:
            listed = self.by_creation[slug]
            listed.remove((value.created, base))
            if not listed:
                del self.by_creation[slug]

    def sum_unexpired(self, now: float) -> SpaceUsage:
        """The values and bytes without expired values, counted from the end with fewer values."""
        by_use, expired, kept = self.values.values(), 0, 0
        if self.unordered_until > now:
            sizes = [value.size for value in by_use if value.expires > now]
            return SpaceUsage(len(sizes), sum(sizes))
        for count, (oldest, newest) in enumerate(zip(by_use, reversed(by_use), strict=True)):
            if oldest.expires > now:
                return SpaceUsage(len(by_use) - count, self.size - expired)
            if newest.expires <= now:
                return SpaceUsage(count, kept)
            expired += oldest.size
            kept += newest.size
        return SpaceUsage()

    def find_newest(self, now: float, slug: str, end: tuple[float, str] | None) -> Iterator[tuple[str, _StoredValue]]:
        """Yield the unexpired values of a tool, or of all, newest first, from the one after the place `end`."""
        places = self.by_creation.get(slug, SortedItems[tuple[float, str]]())
        if (few := self._find_few_unexpired(now)) is not None:
            places = SortedItems((self.values[base].created, base) for base in few if slug in ("", slug_of(base)))
        for _, base in places.descend(end):
            if (value := self.values[base]).expires > now:
                yield base, value

    def find_near(self, now: float, text: str, limit: int) -> tuple[str, ...]:
        """The bases of unexpired values next to a text in alphabetical order, at most `limit` on each side."""
        few = self._find_few_unexpired(now)
        bases = self.bases if few is None else SortedItems(few)

        def select(found: Iterable[str]) -> list[str]:
            return list(islice((base for base in found if self.values[base].expires > now), limit))

        return (*reversed(select(bases.descend(text))), *select(bases.ascend(text)))

    def _find_few_unexpired(self, now: float) -> Sequence[str] | None:
        """The bases of all unexpired values, if values have expired and few have not; else None.

        A search in another order would pass by all the expired ones.
        """
        oldest = next(iter(self.values.values()), None)
        if oldest is None or oldest.expires > now or self.unordered_until > now:
            return None
        few: list[str] = []
        for base, value in reversed(self.values.items()):
            if value.expires <= now:
                return few
            if len(few) == _FEW:
                return None
            few.append(base)
        return few


class MemoryStore:
    """A `Store` in memory, with eviction of the least recently used values."""

    def __init__(self, policy: StorePolicy, clock: Callable[[], float], folder: Callable[[], Path]) -> None:
        """Create an empty store.

        The clock returns seconds since the epoch. `folder` returns the folder for files; the first file calls it.
        """
        self._policy = policy
        self._clock = clock
        self.events: Final[EventLog] = MemoryEventLog(clock)
        self._folder = folder
        self._values: OrderedDict[ValueKey, _StoredValue] = OrderedDict()
        self._tombstones: OrderedDict[ValueKey, Tombstone] = OrderedDict()
        self._tombstone_keys: dict[str, OrderedDict[ValueKey, None]] = {}
        """The keys of each namespace's tombstones, the oldest first."""
        self._shares: dict[str, _Share] = {}
        self._traffic: dict[str, Traffic] = {}
        self._bytes = 0
        self._evicted = 0
        self._has_warned = False
        self._sweeper = ExpirySweeper(self._remove_expired)

    async def __aenter__(self) -> Self:
        self._sweeper.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the removal of expired values. The spool removes the files."""
        await self._sweeper.stop()

    async def check(self) -> None:
        """Do nothing: a process reads and writes its memory."""

    async def put(self, namespace: str, descriptor: Descriptor, blob: Segments, file: FileSpan | None = None) -> None:
        refuse_oversized(size := sum(len(segment) for segment in blob), self._policy.for_namespace(namespace))
        key = (namespace, descriptor.base)
        with as_store_errors():
            content = await self._keep(blob, size, file)
            value = _StoredValue(pack_descriptor(descriptor), descriptor.created, descriptor.expires, size, content)
        try:
            while not self._make_room(namespace, size):
                await anyio.lowlevel.checkpoint()
        except BaseException:
            _release(value)
            raise
        if key in self._values:
            self._remove(key)
        self._forget_tombstone(key)
        self._values[key] = value
        self._shares.setdefault(namespace, _Share()).add(descriptor.base, value)
        self._bytes += size
        self._sweeper.note_put()

    async def describe(self, namespace: str, base: str, *, will_read: bool = False) -> Descriptor | Tombstone | None:
        key = (namespace, base)
        value = self._use(key)
        return value.describe(base) if value else self._tombstones.get(key)

    async def read(
        self, namespace: str, base: str, span: Span | None = None, known: Descriptor | None = None
    ) -> Buffer | None:
        """A view of the bytes, without a copy."""
        value = self._use((namespace, base))
        if value is None:
            return None
        with as_store_errors():
            try:
                blob = map_span(value.content)
            except FileNotFoundError:
                self._remove((namespace, base))
                self._warn_of_removed_files()
                return None
        return memoryview(blob)[span.start : span.stop] if span else blob

    def _warn_of_removed_files(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "Files of stored values were removed from %s, as cleaners of temporary files do, and these values are "
                "lost. Exclude the folder from the cleaner, or set `store.kind: disk`.",
                self._folder(),
            )

    async def file_of(self, namespace: str, base: str) -> FileSpan | None:
        value = self._use((namespace, base))
        return value.content if value and isinstance(value.content, FileSpan) else None

    async def delete(self, namespace: str, base: str) -> bool:
        key = (namespace, base)
        return self._use(key) is not None and bool(self._remove(key))

    async def list(
        self, namespace: str, *, after: str | None = None, slug: str = "", limit: int | None = None
    ) -> tuple[Descriptor, ...]:
        share, now = self._shares.get(namespace, _Share()), self._clock()
        end: tuple[float, str] | None = None
        if after is not None:
            last = share.values.get(after)
            if last is None or last.expires <= now:
                raise LookupError(after)
            end = (last.created, after)
        listed: list[Descriptor] = []
        pacer = Pacer()
        for base, value in tuple(islice(share.find_newest(now, slug, end), limit)):
            pacer.begin()
            listed.append(value.describe_briefly(base))
            await pacer.end()  # descriptors of values with very many keys, or very long ones, take milliseconds each
        return tuple(listed)

    async def bases_near(self, namespace: str, text: str, limit: int) -> tuple[str, ...]:
        return self._shares.get(namespace, _Share()).find_near(self._clock(), text, limit)

    async def stats(self, namespace: str) -> StoreStats:
        kept = self._shares.get(namespace, _Share()).sum_unexpired(self._clock())
        return StoreStats(kept.values, kept.bytes, self._traffic.get(namespace, Traffic()))

    async def totals(self) -> StoreTotals:
        return StoreTotals(len(self._values), self._bytes, self._evicted)

    async def count(self, namespace: str, traffic: Traffic) -> None:
        self._traffic[namespace] = self._traffic.get(namespace, Traffic()).plus(traffic)

    async def namespaces(self) -> frozenset[str]:
        now = self._clock()
        kept = (name for name, share in self._shares.items() if share.sum_unexpired(now).values)
        return frozenset((*kept, *self._traffic))

    async def slugs(self, namespace: str | None = None) -> frozenset[str]:
        if namespace is not None:
            return frozenset(slug for slug in self._shares.get(namespace, _Share()).by_creation if slug)
        return frozenset(slug_of(base) for _, base in (*self._values, *self._tombstones))

    def _use(self, key: ValueKey) -> _StoredValue | None:
        """The value, with extended expiry and as the most recently used; None if it does not exist."""
        if (value := self._values.get(key)) is None:
            return None
        now = self._clock()
        if value.expires <= now:
            self._replace_by_tombstone(key, "expired")
            return None
        value.expires = max(value.expires, now + self._policy.lifetime)  # if the clock was set back, too
        self._values.move_to_end(key)
        namespace, base = key
        self._shares[namespace].use(base, value)
        return value

    def _make_room(self, namespace: str, size: int) -> bool:
        """Evict some values, expired ones first, for one of `size` bytes; see `Eviction.make_room`."""

        def expire(owner: str | None) -> tuple[str, int] | None:
            return None if owner else self._expire_oldest()  # `evict` finds those of an owner

        def evict(crowded: str) -> int:
            oldest = crowded, next(iter(self._shares[crowded].values))
            value = self._values[oldest]
            self._replace_by_tombstone(oldest, "expired" if value.expires <= self._clock() else "evicted")
            return value.size

        for _ in range(EXPIRED_PER_PUT):
            self._expire_oldest()
        policy, total = self._policy, SpaceUsage(len(self._values), self._bytes)
        is_full = total.has_reached(policy.max_values, policy.max_bytes - size)
        shares = self._shares if is_full else self._shares.keys() & {namespace}
        usage = {name: self._shares[name].usage for name in shares}
        return Eviction(policy.for_namespace(namespace), namespace, size, usage, total).make_room(expire, evict)

    async def _remove_expired(self) -> int:
        """Replace a batch of expired values by tombstones, and return their number."""
        removed, end = 0, time.monotonic() + BATCH_SECONDS
        while removed < EXPIRED_PER_BATCH and time.monotonic() <= end and self._expire_oldest():
            removed += 1
        return removed

    def _expire_oldest(self) -> tuple[str, int] | None:
        """Replace the least recently used value, which expires first, by a tombstone if it has expired.

        Returns its namespace and bytes; None if it has not expired.
        """
        key, value = next(iter(self._values.items()), (None, None))
        if key is None or value is None or value.expires > self._clock():
            return None
        self._replace_by_tombstone(key, "expired")
        return key[0], value.size

    def _replace_by_tombstone(self, key: ValueKey, reason: Reason) -> None:
        value = self._remove(key)
        self._evicted += reason == "evicted"
        now = self._clock()
        self._forget_tombstone(key)
        self._tombstones[key] = Tombstone(value.describe_briefly(key[1]), reason, min(value.expires, now))
        own = self._tombstone_keys.setdefault(key[0], OrderedDict())
        own[key] = None
        if len(own) > NAMESPACE_TOMBSTONES:
            self._forget_tombstone(next(iter(own)))
        oldest = next(iter(self._tombstones))
        if len(self._tombstones) > MAX_TOMBSTONES or self._tombstones[oldest].at < now - TOMBSTONE_LIFETIME:
            self._forget_tombstone(oldest)

    def _forget_tombstone(self, key: ValueKey) -> None:
        if self._tombstones.pop(key, None):
            own = self._tombstone_keys[key[0]]
            del own[key]
            if not own:
                del self._tombstone_keys[key[0]]

    def _remove(self, key: ValueKey) -> _StoredValue:
        value = self._values.pop(key)
        namespace, base = key
        share = self._shares[namespace]
        share.remove(base)
        if not share.values:
            del self._shares[namespace]
        self._bytes -= value.size
        _release(value)
        return value

    async def _keep(self, blob: Segments, size: int, file: FileSpan | None) -> Buffer | FileSpan:
        """The bytes to keep, or a file of the store with them."""
        if file is None:
            first = blob[0] if len(blob) == 1 else b"".join(blob)
            whole = memoryview(first.obj).nbytes if isinstance(first, memoryview) else len(first)
            # A small part of a message is copied, because a view would keep the whole message.
            return bytes(first) if len(first) < whole * _WORTH_A_VIEW else first
        if size <= _MIN_FILE:
            return b"".join(map(bytes, blob))
        path = self._folder() / secrets.token_hex(16)
        try:
            return await anyio.to_thread.run_sync(_link_or_copy, file, path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def _link_or_copy(file: FileSpan, path: Path) -> FileSpan:
    """Make a file with a value. A value that is a small part of its message is copied: quotas count only the value."""
    if file.span.length >= Path(file.path).stat().st_size * _WORTH_A_VIEW:
        with suppress(OSError):  # another file system, or one without links
            os.link(file.path, path)
            return FileSpan(str(path), file.span)
    with path.open("xb") as copy:
        write_all(copy.fileno(), map_span(file))
    return FileSpan(str(path), Span(0, file.span.length))


def _release(value: _StoredValue) -> None:
    """Remove a value's file; maps of it stay, because a call may be sending it."""
    if isinstance(value.content, FileSpan):
        unlink_large(Path(value.content.path))
