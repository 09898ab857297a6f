"""Values on the disk, where they outlive the process: small ones in an index, large ones in files beside it.

Several gateways may have one folder open at once. Nothing here runs on the event loop.
"""

import logging
import sqlite3
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import anyio
import anyio.to_thread

from mcp_mirror.models import Buffer, Descriptor, FileSpan, Segments, Span, StoreStats
from mcp_mirror.policies import StorePolicy
from mcp_mirror.spool import map_file
from mcp_mirror.stores.base import Tombstone
from mcp_mirror.stores.blobs import SYSTEM, Blobs, SystemCalls
from mcp_mirror.stores.failures import is_damage, told
from mcp_mirror.stores.index import Held, Index
from mcp_mirror.stores.lodging import Lodging, alone_in
from mcp_mirror.stores.quotas import refuse_oversized

_logger = logging.getLogger(__name__)

INLINE_BYTES: Final = 64 << 10
"""Values up to this size are in the index itself."""
_THREADS: Final = 8
_INDEX: Final = "index.sqlite"
_BLOBS: Final = "blobs"
_DAMAGED: Final = "damaged"
"""A file that says to the next start that the index cannot be read."""

T = TypeVar("T")


class DiskStore:
    """A `Store` in a folder."""

    def __init__(
        self, policy: StorePolicy, clock: Callable[[], float], folder: Path, calls: SystemCalls = SYSTEM
    ) -> None:
        """Open nothing yet.

        Args:
            policy: How much is kept and for how long.
            clock: Seconds since the epoch.
            folder: Made if it is not there.
            calls: How the system is asked.
        """
        self._policy = policy
        self._folder = folder
        self._lodging = Lodging(folder)
        self._blobs = Blobs(folder / _BLOBS, self._lodging.path, calls, fsync=policy.fsync)
        self._index = Index(folder / _INDEX, policy, clock, self._blobs)
        self._threads: anyio.CapacityLimiter | None = None

    @property
    def scratch(self) -> Path:
        """Where, while the store is open, files may be written that it can link."""
        return self._lodging.path

    async def __aenter__(self) -> Self:
        self._threads = anyio.CapacityLimiter(_THREADS)
        try:
            await self._run(self._begin)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        with anyio.CancelScope(shield=True):
            await self._run(self._end)

    async def put(self, namespace: str, descriptor: Descriptor, blob: Segments, file: FileSpan | None = None) -> None:
        """Keep a value, at the cost of those used longest ago."""
        refuse_oversized(sum(len(segment) for segment in blob), self._policy)
        await self._run(self._put, namespace, descriptor, blob, file)

    async def describe(self, namespace: str, base: str) -> Descriptor | Tombstone | None:
        """What is known about a value."""
        return await self._run(self._index.describe, namespace, base)

    async def read(self, namespace: str, base: str, span: Span | None = None) -> Buffer | None:
        """The bytes: of a large value, mapped."""
        return await self._run(self._read, namespace, base, span)

    async def file_of(self, namespace: str, base: str) -> FileSpan | None:
        """Where a large value is."""
        held = await self._run(self._index.find, namespace, base, Span(0, 0))
        return self._place_of(held) if held else None

    async def delete(self, namespace: str, base: str) -> bool:
        """Forget a value, without a tombstone."""
        return await self._run(self._index.delete, namespace, base)

    async def list(self, namespace: str) -> tuple[Descriptor, ...]:
        """What is kept, the newest first."""
        return await self._run(self._index.listed, namespace)

    async def stats(self, namespace: str) -> StoreStats:
        """How much is kept."""
        return await self._run(self._index.stats, namespace)

    async def labels(self) -> frozenset[str]:
        """The tool labels of what is kept or remembered."""
        return await self._run(self._index.labels)

    async def _run(self, function: Callable[..., T], *arguments: Any) -> T:
        return await anyio.to_thread.run_sync(partial(self._told, function, *arguments), limiter=self._threads)

    def _told(self, function: Callable[..., T], *arguments: Any) -> T:
        with told():
            try:
                return function(*arguments)
            except sqlite3.Error as error:
                if is_damage(error):
                    (self._folder / _DAMAGED).touch(0o600)
                raise

    def _put(self, namespace: str, descriptor: Descriptor, blob: Segments, file: FileSpan | None) -> None:
        if sum(len(segment) for segment in blob) <= INLINE_BYTES:
            self._index.put(namespace, descriptor, b"".join(blob), None)
            return
        with self._blobs.draft(blob, file) as draft:
            self._index.put(namespace, descriptor, None, draft)

    def _read(self, namespace: str, base: str, span: Span | None) -> Buffer | None:
        held = self._index.find(namespace, base, span)
        if held is None:
            return None
        if (place := self._place_of(held)) is None:
            return held.content
        try:
            view = map_file(place.path)[place.span.start : place.span.stop]
        except FileNotFoundError:  # it has gone since it was found
            return None
        return view[span.start : span.stop] if span else view

    def _place_of(self, held: Held) -> FileSpan | None:
        if held.digest is None:
            return None
        return FileSpan(str(self._blobs.path_of(held.digest, held.start)), Span(held.start, held.size))

    def _begin(self) -> None:
        with told(f"The store in {self._folder}"):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lost = self._open_alone()
        if lost:
            _logger.warning("%d values in %s have lost their files: they are forgotten.", lost, self._folder)

    def _open_alone(self) -> int:
        with alone_in(self._folder):
            self._lodging.enter()
            self._blobs.open()
            if (self._folder / _DAMAGED).exists():
                self._set_aside()
            try:
                return self._open_index()
            except sqlite3.Error as error:
                if not is_damage(error):
                    raise
                self._set_aside()
                return self._open_index()

    def _open_index(self) -> int:
        self._index.open()
        return self._index.reconcile()

    def _set_aside(self) -> None:
        """Rename an index that cannot be read, so that another can begin in its place."""
        self._index.close()
        aside = f"{_INDEX}.damaged-{int(time.time())}"
        for suffix in ("", "-wal", "-shm"):
            path = self._folder / f"{_INDEX}{suffix}"
            if path.exists():
                path.rename(self._folder / f"{aside}{suffix}")
        (self._folder / _DAMAGED).unlink(missing_ok=True)
        _logger.warning(
            "The index of the store in %s is damaged. It is kept there as %s, and a new one begins: what was stored is "
            "not found any more.",
            self._folder,
            aside,
        )

    def _end(self) -> None:
        self._index.close()
        self._lodging.leave()
