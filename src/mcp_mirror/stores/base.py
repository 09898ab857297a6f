"""What every store does. Nothing above a store knows which one it is."""

from dataclasses import dataclass
from typing import Literal, Protocol, Self

from mcp_mirror.types import Buffer, Descriptor, FileSpan, Segments, Span, StoreStats, Traffic

Reason = Literal["expired", "evicted"]


@dataclass(frozen=True, slots=True)
class Tombstone:
    """What is left of a value that is gone, for a while."""

    descriptor: Descriptor
    reason: Reason
    at: float
    """Seconds since the epoch."""


class Store(Protocol):
    """Keeps immutable values by namespace and base.

    A namespace sees its own values alone: another's, a swept and a never stored base are all None. Reads are of
    byte ranges, so one key of a large value costs that key. Every use of a value puts its expiry off. What was read
    stays readable whatever becomes of the value meanwhile.

    A store is an async context manager: entered before its first use, left when nobody uses it any more.
    """

    async def __aenter__(self) -> Self:
        """Open it.

        Raises:
            StoreError: It cannot be used.
        """

    async def __aexit__(self, *_: object) -> None:
        """Close it."""

    async def put(self, namespace: str, descriptor: Descriptor, blob: Segments, file: FileSpan | None = None) -> None:
        """Keep a value; when this returns, it is kept.

        Args:
            namespace: Whose value it is.
            descriptor: What is known about it.
            blob: Its bytes.
            file: Where the same bytes are in a file of ours that nobody writes to any more; it may be linked instead of
                written anew.

        Raises:
            StoreError: The store is full or failed; nothing was kept.
        """

    async def describe(self, namespace: str, base: str) -> Descriptor | Tombstone | None:
        """What is known about a value, without reading it."""

    async def read(self, namespace: str, base: str, span: Span | None = None) -> Buffer | None:
        """The bytes of a value or of a range of it; None where there is none any more."""

    async def file_of(self, namespace: str, base: str) -> FileSpan | None:
        """Where the value is in a file; None where it is in none."""

    async def delete(self, namespace: str, base: str) -> bool:
        """Forget a value at once; False where there was none."""

    async def list(
        self, namespace: str, *, after: str | None = None, label: str = "", limit: int | None = None
    ) -> tuple[Descriptor, ...]:
        """A page of what is kept, the newest first. Only the values on the page are read.

        Args:
            namespace: Whose values.
            after: The base of the last value on the page before; None for the first page.
            label: Only values whose bases begin with this tool label; empty for all.
            limit: Values on the page; None for all.

        Raises:
            LookupError: Nothing is kept under `after`.
        """

    async def bases_near(self, namespace: str, text: str, limit: int) -> tuple[str, ...]:
        """The bases of a namespace that stand next to a text in alphabetical order, at most `limit` on each side."""

    async def newest(self, namespace: str, limit: int) -> tuple[str, ...]:
        """The bases of what was made last, the newest first; nothing else is read of the values."""

    async def stats(self, namespace: str) -> StoreStats:
        """How much is kept, from sums that the store keeps, and the tokens that were counted."""

    async def count(self, namespace: str, traffic: Traffic) -> None:
        """Count tokens, beside those that are; they outlive what the values do, but need not be on the disk yet.

        Raises:
            StoreError: They could not be counted; where an answer was lost on its way, they are all the same.
        """

    async def namespaces(self) -> frozenset[str]:
        """Whose values it keeps or tokens it has counted."""

    async def labels(self, namespace: str | None = None) -> frozenset[str]:
        """The tool labels with which bases begin.

        Args:
            namespace: Whose values; None: all that is kept or remembered, whoever owns it.
        """
