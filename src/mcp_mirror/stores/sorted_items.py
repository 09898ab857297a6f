"""Sorted items in chunks: additions and removals cost the same for a thousand and for a million items."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import Any, Final, Generic, TypeVar

_CHUNK: Final = 1000
"""Items per chunk. A chunk of twice as many is divided."""

T = TypeVar("T", bound=Any)


class SortedItems(Generic[T]):
    """A sorted collection of distinct items."""

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._chunks: list[list[T]] = []
        self._last: list[T] = []
        """The last item of each chunk."""
        for item in items:
            self.add(item)

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def add(self, item: T) -> None:
        """Add an item."""
        if not self._chunks:
            self._chunks, self._last = [[item]], [item]
            return
        at = min(bisect_left(self._last, item), len(self._last) - 1)
        chunk = self._chunks[at]
        insort(chunk, item)
        if len(chunk) >= 2 * _CHUNK:
            self._chunks[at : at + 1] = chunk[:_CHUNK], chunk[_CHUNK:]
            self._last.insert(at, chunk[_CHUNK - 1])
            at += 1
        self._last[at] = self._chunks[at][-1]

    def remove(self, item: T) -> None:
        """Remove an item, which must exist."""
        at = bisect_left(self._last, item)
        chunk = self._chunks[at]
        del chunk[bisect_left(chunk, item)]
        if chunk:
            self._last[at] = chunk[-1]
        else:
            del self._chunks[at], self._last[at]

    def ascend(self, first: T) -> Iterator[T]:
        """The items from `first` on, in ascending order."""
        at = bisect_left(self._last, first)
        for chunk in self._chunks[at : at + 1]:
            yield from chunk[bisect_left(chunk, first) :]
        for chunk in self._chunks[at + 1 :]:
            yield from chunk

    def descend(self, end: T | None = None) -> Iterator[T]:
        """The items before `end`, or all, in descending order."""
        at = len(self._chunks) if end is None else bisect_left(self._last, end)
        if end is not None and at < len(self._chunks):
            chunk = self._chunks[at]
            yield from reversed(chunk[: bisect_left(chunk, end)])
        for number in range(at - 1, -1, -1):
            yield from reversed(self._chunks[number])
