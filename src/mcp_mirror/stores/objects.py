"""The interface of object stores, in which a store can keep large values."""

from collections.abc import AsyncIterable, AsyncIterator, Sequence
from typing import Protocol

from mcp_mirror.errors import StoreError
from mcp_mirror.types import Buffer, Span


class ObjectMissingError(StoreError):
    """An object does not exist."""


class ObjectBlobs(Protocol):
    """Immutable objects by name."""

    async def write(self, name: str, chunks: AsyncIterable[Buffer]) -> None:
        """Write an object. It exists when this returns, and not before.

        Raises:
            StoreError: The object was not written, or its confirmation was lost.
        """

    async def read(self, name: str, span: Span) -> Buffer:
        """Read a range of an object.

        Raises:
            ObjectMissingError: The object does not exist.
            StoreError: The object cannot be read.
        """

    async def remove(self, names: Sequence[str]) -> None:
        """Remove objects. Objects that do not exist are not an error.

        Raises:
            StoreError: At least one object was not removed.
        """

    def list(self, folder: str) -> AsyncIterator[Sequence[tuple[str, float]]]:
        """Pages of the names in a folder, each with its time of creation in seconds since the epoch.

        Raises:
            StoreError: The objects cannot be listed.
        """
