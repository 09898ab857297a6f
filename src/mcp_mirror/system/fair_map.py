"""A bounded map in which the entries of one owner do not drop those of others."""

from typing import Generic, TypeVar

Value = TypeVar("Value")


class FairMap(Generic[Value]):
    """Entries by owner and key. In a full map, the owner with the most entries loses its oldest one."""

    def __init__(self, most: int, share: int) -> None:
        """Start without entries; keep at most `most` of them, and at most `share` of one owner."""
        self._most, self._share = most, share
        self._size = 0
        self._entries: dict[str, dict[str, Value]] = {}

    def put(self, owner: str, key: str, value: Value) -> None:
        """Add or replace an entry, which becomes the newest one of its owner."""
        own = self._entries.setdefault(owner, {})
        self._size += key not in own
        own.pop(key, None)
        own[key] = value
        if len(own) > self._share:
            self._drop_oldest(own)
        elif self._size > self._most:
            largest = max(self._entries, key=lambda name: len(self._entries[name]))
            self._drop_oldest(self._entries[largest])
            if not self._entries[largest]:
                del self._entries[largest]

    def of(self, owner: str) -> dict[str, Value]:
        """Return the entries of an owner by key, oldest first; not to be changed."""
        return self._entries.get(owner, {})

    def _drop_oldest(self, entries: dict[str, Value]) -> None:
        del entries[next(iter(entries))]
        self._size -= 1
