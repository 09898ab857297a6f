"""A wrapper that measures the operations of a store."""

import time
from collections.abc import Awaitable, Callable
from typing import Final, Self, TypeVar

from mcp_mirror.errors import StoreError
from mcp_mirror.stores.base import Store, Tombstone
from mcp_mirror.stores.event_log import EventLog
from mcp_mirror.types import Buffer, Descriptor, FileSpan, Segments, Span, StoreStats, StoreTotals, Traffic

T = TypeVar("T")
Observe = Callable[[str, float, str], None]
"""Called after each operation with its name, its seconds, and the class of its error (empty: none)."""

_FAILED: Final = "store_error"
_CANCELLED: Final = "_OTHER"


class MeasuredStore:
    """A `Store` that reports the duration and the outcome of each operation of another store."""

    def __init__(self, store: Store, observe: Observe) -> None:
        self._store = store
        self._observe = observe
        self.events: Final[EventLog] = store.events

    async def __aenter__(self) -> Self:
        await self._store.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._store.__aexit__(*error)

    async def put(self, namespace: str, descriptor: Descriptor, blob: Segments, file: FileSpan | None = None) -> None:
        """Store a value."""
        await self._measure("put", self._store.put(namespace, descriptor, blob, file))

    async def describe(self, namespace: str, base: str) -> Descriptor | Tombstone | None:
        """The descriptor or tombstone of a value."""
        return await self._measure("describe", self._store.describe(namespace, base))

    async def read(self, namespace: str, base: str, span: Span | None = None) -> Buffer | None:
        """The bytes of a value or of a range of it."""
        return await self._measure("read", self._store.read(namespace, base, span))

    async def file_of(self, namespace: str, base: str) -> FileSpan | None:
        """The file span of a value."""
        return await self._measure("file_of", self._store.file_of(namespace, base))

    async def delete(self, namespace: str, base: str) -> bool:
        """Remove a value without a tombstone."""
        return await self._measure("delete", self._store.delete(namespace, base))

    async def list(
        self, namespace: str, *, after: str | None = None, label: str = "", limit: int | None = None
    ) -> tuple[Descriptor, ...]:
        """A page of the stored values."""
        return await self._measure("list", self._store.list(namespace, after=after, label=label, limit=limit))

    async def bases_near(self, namespace: str, text: str, limit: int) -> tuple[str, ...]:
        """The bases next to a text in alphabetical order."""
        return await self._measure("bases_near", self._store.bases_near(namespace, text, limit))

    async def newest(self, namespace: str, limit: int) -> tuple[str, ...]:
        """The bases of the newest values."""
        return await self._measure("newest", self._store.newest(namespace, limit))

    async def stats(self, namespace: str) -> StoreStats:
        """The number and bytes of the stored values, and the counted tokens."""
        return await self._measure("stats", self._store.stats(namespace))

    async def totals(self) -> StoreTotals:
        """The number and bytes of all values."""
        return await self._measure("totals", self._store.totals())

    async def count(self, namespace: str, traffic: Traffic) -> None:
        """Add to the counted tokens."""
        await self._measure("count", self._store.count(namespace, traffic))

    async def namespaces(self) -> frozenset[str]:
        """The namespaces with stored values or counted tokens."""
        return await self._measure("namespaces", self._store.namespaces())

    async def labels(self, namespace: str | None = None) -> frozenset[str]:
        """The tool labels with which bases begin."""
        return await self._measure("labels", self._store.labels(namespace))

    async def _measure(self, operation: str, work: Awaitable[T]) -> T:
        began, error = time.perf_counter(), _CANCELLED
        try:
            result = await work
            error = ""
        except StoreError:
            error = _FAILED
            raise
        finally:
            self._observe(operation, time.perf_counter() - began, error)
        return result
