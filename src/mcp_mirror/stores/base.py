"""The interface of all stores. Callers of a store must not depend on its kind."""

from collections.abc import Iterator
from typing import Literal, Protocol, Self

import msgspec

from mcp_mirror.errors import StoreError
from mcp_mirror.stores.event_log import EventLog
from mcp_mirror.types import Buffer, Descriptor, FileSpan, Segments, Span, StoreStats, StoreTotals, Traffic

Reason = Literal["expired", "evicted"]

ValueKey = tuple[str, str]
"""The namespace and the base of a value."""


class Tombstone(msgspec.Struct, frozen=True):
    """The remaining description of a removed value, kept for a limited time."""

    descriptor: Descriptor
    reason: Reason
    at: float
    """Seconds since the epoch."""


class Store(Protocol):
    """Stores immutable values by namespace and base.

    A namespace sees only its own values: foreign, removed and unknown bases all return None. Reads are of byte ranges,
    so reading one key of a large value costs only that key. Every use of a value extends its expiry. Bytes that were
    read stay readable after the value is removed.

    A store is an async context manager: enter it before its first use, and leave it after its last.
    """

    @property
    def events(self) -> EventLog:
        """The log of calls."""

    async def __aenter__(self) -> Self:
        """Open the store.

        Raises:
            StoreError: The store cannot be used.
        """

    async def __aexit__(self, *_: object) -> None:
        """Close the store."""

    async def check(self) -> None:
        """Check, without a change of any value, that the store can be read and written.

        Raises:
            StoreError: The store, or the place of its large values, is not available.
        """

    async def put(self, namespace: str, descriptor: Descriptor, blob: Segments, file: FileSpan | None = None) -> None:
        """Store a value durably.

        `file` is an immutable file of the gateway with the same bytes, which the store may link instead of copying.

        Raises:
            StoreError: The store is full or failed; the value was not stored.
        """

    async def describe(self, namespace: str, base: str, *, will_read: bool = False) -> Descriptor | Tombstone | None:
        """The descriptor or tombstone of a value.

        `will_read`: the caller reads the value next, with the descriptor as `known`.
        """

    async def read(
        self, namespace: str, base: str, span: Span | None = None, known: Descriptor | None = None
    ) -> Buffer | None:
        """The bytes of a value or of a range of it; None if the value does not exist.

        `known` is the descriptor from `describe` with `will_read`: a store on another machine then needs no search.
        """

    async def file_of(self, namespace: str, base: str) -> FileSpan | None:
        """The file span of a value; None if the value is not in a file."""

    async def delete(self, namespace: str, base: str) -> bool:
        """Remove a value without a tombstone. Returns False if it does not exist."""

    async def list(
        self, namespace: str, *, after: str | None = None, slug: str = "", limit: int | None = None
    ) -> tuple[Descriptor, ...]:
        """A page of `limit` values, or all values, newest first, without members and arrays.

        `after` is the base of the last value of the previous page. With a slug, only values whose bases begin with it.

        Raises:
            LookupError: `after` does not exist.
        """

    async def bases_near(self, namespace: str, text: str, limit: int) -> tuple[str, ...]:
        """The bases of a namespace next to a text in alphabetical order, at most `limit` on each side."""

    async def stats(self, namespace: str) -> StoreStats:
        """The number and bytes of the stored values, and the counted tokens."""

    async def totals(self) -> StoreTotals:
        """The number and bytes of all values, in constant time, and the evictions of this process."""

    async def count(self, namespace: str, traffic: Traffic) -> None:
        """Add to the counted tokens. They are kept when values expire, but need not be on the disk on return.

        Raises:
            StoreError: The tokens were not counted, or the store's confirmation was lost.
        """

    async def namespaces(self) -> frozenset[str]:
        """The namespaces with stored values or counted tokens."""

    async def slugs(self, namespace: str | None = None) -> frozenset[str]:
        """The slugs of a namespace's values; those of all values and tombstones for None."""


class ObjectMissingError(StoreError):
    """An object or a chunk of a value does not exist."""


def cut_into_pieces(blob: Segments, size: int) -> Iterator[Buffer]:
    """The bytes in pieces of `size`, the last one shorter. Only pieces across the edge of a segment are copied."""
    held: list[Buffer] = []
    room = size
    for segment in blob:
        view = memoryview(segment)
        while len(view) >= room:
            held.append(view[:room])
            yield held[0] if len(held) == 1 else b"".join(held)
            view, held, room = view[room:], [], size
        if view:
            held.append(view)
            room -= len(view)
    if held:
        yield held[0] if len(held) == 1 else b"".join(held)
