"""Values in this process's memory, large ones in files that it maps: gone with it, bounded in bytes."""

import os
import secrets
import shutil
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self

from mcp_mirror.models import Buffer, Descriptor, FileSpan, Segments, Span, StoreStats, Traffic
from mcp_mirror.paths import label_of
from mcp_mirror.policies import StorePolicy
from mcp_mirror.stores.base import Reason, Tombstone
from mcp_mirror.stores.failures import told
from mcp_mirror.stores.quotas import MAX_TOMBSTONES, REMEMBERED, buried, refuse_oversized

_WORTH_A_VIEW: Final = 0.75
"""Part of a message from which on a value in it is kept as a view of it."""

Key = tuple[str, str]


@dataclass(slots=True)
class _Entry:
    descriptor: Descriptor
    blob: Buffer
    file: FileSpan | None
    """Where the blob is mapped from: a file of the store's own."""


@dataclass(slots=True)
class _Share:
    """What one namespace keeps: its keys in the order of their last use."""

    keys: OrderedDict[Key, None] = field(default_factory=OrderedDict)
    size: int = 0


class MemoryStore:
    """A `Store` that evicts what was used longest ago when it is full."""

    def __init__(self, policy: StorePolicy, clock: Callable[[], float], folder: Callable[[], Path]) -> None:
        """Begin empty.

        Args:
            policy: How much is kept and for how long.
            clock: Seconds since the epoch.
            folder: Where files are kept; asked for with the first one.
        """
        self._policy = policy
        self._clock = clock
        self._folder = folder
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self._tombstones: OrderedDict[Key, Tombstone] = OrderedDict()
        self._shares: dict[str, _Share] = {}
        self._traffic: dict[str, Traffic] = {}
        self._bytes = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing to release: its files go with the spool."""

    async def put(self, namespace: str, descriptor: Descriptor, blob: Segments, file: FileSpan | None = None) -> None:
        """Keep a value, at the cost of those used longest ago."""
        refuse_oversized(size := sum(len(segment) for segment in blob), self._policy)
        key = (namespace, descriptor.base)
        with told():
            entry = _Entry(descriptor, *self._held(blob, file))
        await self.delete(*key)
        self._tombstones.pop(key, None)
        self._make_room(namespace, size)
        share = self._shares.setdefault(namespace, _Share())
        self._entries[key] = entry
        share.keys[key] = None
        share.size += size
        self._bytes += size

    async def describe(self, namespace: str, base: str) -> Descriptor | Tombstone | None:
        """What is known about a value."""
        key = (namespace, base)
        entry = self._used(key)
        return entry.descriptor if entry else self._tombstones.get(key)

    async def read(self, namespace: str, base: str, span: Span | None = None) -> Buffer | None:
        """A view of the bytes; nothing is copied."""
        entry = self._used((namespace, base))
        if entry is None:
            return None
        return memoryview(entry.blob)[span.start : span.stop] if span else entry.blob

    async def file_of(self, namespace: str, base: str) -> FileSpan | None:
        """Where the value is mapped from."""
        entry = self._used((namespace, base))
        return entry.file if entry else None

    async def delete(self, namespace: str, base: str) -> bool:
        """Forget a value, without a tombstone."""
        self._bury_expired()
        key = (namespace, base)
        return key in self._entries and bool(self._removed(key))

    async def list(self, namespace: str) -> tuple[Descriptor, ...]:
        """What is kept, the newest first."""
        self._bury_expired()
        kept = [entry.descriptor for (owner, _), entry in self._entries.items() if owner == namespace]
        return tuple(sorted(kept, key=lambda descriptor: descriptor.created, reverse=True))

    async def bases(self, namespace: str) -> tuple[str, ...]:
        """The bases of what is kept, the latest first."""
        self._bury_expired()
        share = self._shares.get(namespace)
        return tuple(base for _, base in reversed(share.keys)) if share else ()

    async def stats(self, namespace: str) -> StoreStats:
        """How much is kept, and the tokens that were counted."""
        kept = await self.list(namespace)
        size = sum(descriptor.size for descriptor in kept)
        return StoreStats(len(kept), size, self._traffic.get(namespace, Traffic()))

    async def count(self, namespace: str, traffic: Traffic) -> None:
        """Count tokens."""
        counted = self._traffic.get(namespace, Traffic())
        self._traffic[namespace] = counted.plus(traffic.sent, traffic.kept_out)

    async def namespaces(self) -> frozenset[str]:
        """Whose values it keeps or tokens it has counted."""
        self._bury_expired()
        return frozenset((*self._shares, *self._traffic))

    async def labels(self) -> frozenset[str]:
        """The tool labels of what is kept or remembered."""
        return frozenset(label_of(base) for _, base in (*self._entries, *self._tombstones))

    def _used(self, key: Key) -> _Entry | None:
        """The entry, its expiry put off and itself last in line for eviction."""
        self._bury_expired()
        if (entry := self._entries.get(key)) is None:
            return None
        entry.descriptor = replace(entry.descriptor, expires=self._clock() + self._policy.lifetime)
        self._entries.move_to_end(key)
        self._shares[key[0]].keys.move_to_end(key)
        return entry

    def _make_room(self, namespace: str, size: int) -> None:
        """Bury what was used longest ago: of the namespace while it is over its share, then of all."""
        policy = self._policy
        while (share := self._shares.get(namespace)) and (
            len(share.keys) >= policy.namespace_values or share.size + size > policy.namespace_bytes
        ):
            self._bury(next(iter(share.keys)), "evicted")
        while self._entries and (len(self._entries) >= policy.max_values or self._bytes + size > policy.max_bytes):
            self._bury(next(iter(self._entries)), "evicted")

    def _bury_expired(self) -> None:
        """Entries stand in the order of their last use, and so of their expiry."""
        now = self._clock()
        while self._entries and next(iter(self._entries.values())).descriptor.expires <= now:
            self._bury(next(iter(self._entries)), "expired")

    def _bury(self, key: Key, reason: Reason) -> None:
        entry = self._removed(key)
        now = self._clock()
        self._tombstones[key] = buried(entry.descriptor, reason, now)
        oldest = next(iter(self._tombstones.values()))
        if len(self._tombstones) > MAX_TOMBSTONES or oldest.at < now - REMEMBERED:
            self._tombstones.popitem(last=False)

    def _removed(self, key: Key) -> _Entry:
        entry = self._entries.pop(key)
        share = self._shares[key[0]]
        del share.keys[key]
        share.size -= len(entry.blob)
        if not share.keys:
            del self._shares[key[0]]
        self._bytes -= len(entry.blob)
        if entry.file:
            Path(entry.file.path).unlink(missing_ok=True)  # maps of it stay: a call may be sending it
        return entry

    def _held(self, blob: Segments, file: FileSpan | None) -> tuple[Buffer, FileSpan | None]:
        """The bytes as they are kept, and the file of ours that holds them."""
        return (blob[0], self._linked(file)) if file else (_owned(blob), None)

    def _linked(self, file: FileSpan) -> FileSpan:
        """The same file under a name of ours."""
        path = self._folder() / secrets.token_hex(16)
        try:
            os.link(file.path, path)
        except OSError:  # another file system, or one without links
            shutil.copyfile(file.path, path)
        return FileSpan(str(path), file.span)


def _owned(blob: Segments) -> Buffer:
    """The bytes as they are kept: a view keeps all of the message that it was cut from, so a small part is copied."""
    first = blob[0] if len(blob) == 1 else b"".join(blob)
    whole = memoryview(first.obj).nbytes if isinstance(first, memoryview) else len(first)
    return bytes(first) if len(first) < whole * _WORTH_A_VIEW else first
