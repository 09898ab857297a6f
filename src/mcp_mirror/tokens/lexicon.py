"""A read-only mapping from names to numbers, read in place from a memory-mapped file.

The names are sorted and divided into blocks. A lookup bisects the first names of the blocks and then searches one
block, so only the pages that it reads become resident. `calibration/table_file.py` writes the file.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from mmap import mmap
from struct import Struct, unpack_from
from typing import Final

Data = bytes | mmap

_KEPT: Final = 1 << 15
"""Names whose numbers are cached."""
_LONGEST_KEPT: Final = 128
"""Characters of the longest of these names: a run of letters may have thousands."""
_KEPT_PREFIXES: Final = 1 << 16
"""Prefixes whose names are cached."""
HEAD: Final = Struct("<4I")
"""Number of names, number of blocks, bytes of names, bytes of the blocks' first names."""
ROW: Final = Struct("<H")
_AFTER_ALL: Final = b"\xff"
"""A byte that is after all others of UTF-8."""
BOUNDARY: Final = Struct("<2I")
"""Offset of a block among the names, and the number of names before it."""


class Lexicon(Mapping[str, int]):
    """A read-only mapping over packed data."""

    def __init__(self, data: Data, start: int, read_number: Callable[[int], int]) -> None:
        """Read the index of the packed mapping at `start` of the data; `read_number` returns the number in a row."""
        self._data, self._read_number = data, read_number
        head: tuple[int, ...] = HEAD.unpack_from(data, start)
        self._size, blocks, names, firsts = head
        self._names = start + HEAD.size
        self._rows = self._names + names
        self._boundaries = self._rows + ROW.size * self._size
        at = self._boundaries + BOUNDARY.size * (blocks + 1)
        self._firsts = data[at : at + firsts].split(b"\0") if blocks else []
        self._groups: dict[str, dict[str, int]] = {}
        self.known: Known = Known(self)

    def __getitem__(self, name: str) -> int:
        if (number := self.find(name)) is None:
            raise KeyError(name)
        return number

    def find(self, name: str) -> int | None:
        """The number of a name; None for an unknown name, which is frequent."""
        raw = name.encode(errors="surrogatepass")
        block = bisect_right(self._firsts, raw) - 1
        if block < 0 or b"\0" in raw:
            return None
        names, before = self._read_block(block, block + 1)
        at = names.find(b"\0" + raw + b"\0")
        if at < 0:
            return None
        place = self._rows + ROW.size * (before + names.count(b"\0", 0, at))
        return self._read_number(int.from_bytes(self._data[place : place + ROW.size], "little"))

    def __iter__(self) -> Iterator[str]:
        return (name.decode() for name in self._read_block(0, len(self._firsts))[0][1:-1].split(b"\0") if name)

    def __len__(self) -> int:
        return self._size

    def continuations(self, prefix: str) -> Mapping[str, int]:
        """All names with this prefix, which is not empty, and their other beginnings with 0; recent ones are cached."""
        if (group := self._groups.get(prefix)) is None:
            if len(self._groups) >= _KEPT_PREFIXES:
                self._groups.clear()
            group = {}
            for name, number in self._read_group(prefix.encode(errors="surrogatepass")):
                end = len(name) - 1
                while end >= len(prefix) and name[:end] not in group:  # with a beginning, all shorter ones are there
                    group[name[:end]] = 0
                    end -= 1
                group[name] = number
            self._groups[prefix] = group  # complete: other threads read it
        return group

    def _read_group(self, raw: bytes) -> Iterable[tuple[str, int]]:
        """All names that begin with these bytes, and their numbers."""
        first = max(bisect_left(self._firsts, raw) - 1, 0)
        names, before = self._read_block(first, bisect_right(self._firsts, raw + _AFTER_ALL))
        at = names.find(b"\0" + raw)
        if at < 0 or b"\0" in raw:
            return ()
        found = names[at + 1 : -1].split(b"\0")
        found = found[: bisect_left(found, raw + _AFTER_ALL)]
        start = self._rows + ROW.size * (before + names.count(b"\0", 0, at))
        rows = unpack_from(f"<{len(found)}H", self._data, start)
        return zip(map(bytes.decode, found), map(self._read_number, rows), strict=True)

    def _read_block(self, first: int, stop: int) -> tuple[bytes, int]:
        """The names of these blocks, each between NULs, and the number of names before them."""
        if first >= stop:
            return b"\0", 0
        start, before = BOUNDARY.unpack_from(self._data, self._boundaries + BOUNDARY.size * first)
        end, _ = BOUNDARY.unpack_from(self._data, self._boundaries + BOUNDARY.size * stop)
        return self._data[self._names + start : self._names + end + 1], before


class Known(dict[str, int]):
    """A cache of a lexicon's numbers; 0 for a missing name."""

    def __init__(self, source: Lexicon) -> None:
        super().__init__()
        self._source = source

    def __missing__(self, name: str) -> int:
        number = self._source.find(name) or 0
        if len(name) <= _LONGEST_KEPT:
            if len(self) >= _KEPT:
                self.clear()
            self[name] = number
        return number
