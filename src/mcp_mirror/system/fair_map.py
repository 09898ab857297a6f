"""A bounded map in which the entries of one owner do not drop those of others."""

from itertools import islice
from typing import Final, Generic, TypeVar

Value = TypeVar("Value")

_FREED: Final = 8
"""One entry of so many is free after room was made, which takes as long as there are owners."""


class FairMap(Generic[Value]):
    """Entries by owner and key. If the map is full, owners with more than their fair share lose their oldest ones."""

    def __init__(self, most: int, most_of_owner: int) -> None:
        """Start without entries; keep at most `most` of them, and at most `most_of_owner` of one owner."""
        self._most, self._most_of_owner = most, most_of_owner
        self._size = 0
        self._entries: dict[str, dict[str, Value]] = {}
        """Of each owner, oldest first; the owner whose last entry is the oldest first."""

    def put(self, owner: str, key: str, value: Value) -> None:
        """Add or replace an entry, which becomes the newest one of its owner."""
        self._entries[owner] = own = self._entries.pop(owner, {})
        self._size -= len(own)
        own.pop(key, None)
        own[key] = value
        _drop_oldest(own, self._most_of_owner)
        self._size += len(own)
        if self._size > self._most:
            self._make_room()

    def of(self, owner: str) -> dict[str, Value]:
        """Return the entries of an owner by key, oldest first; not to be changed."""
        return self._entries.get(owner, {})

    def _make_room(self) -> None:
        most = self._most - self._most // _FREED
        share = max(most // len(self._entries), 1)
        for own in self._entries.values():
            _drop_oldest(own, share)
        self._size = sum(map(len, self._entries.values()))
        while self._size > most:  # there are more owners than entries
            self._size -= len(self._entries.pop(next(iter(self._entries))))


def _drop_oldest(entries: dict[str, Value], kept: int) -> None:
    for key in list(islice(entries, max(len(entries) - kept, 0))):
        del entries[key]
