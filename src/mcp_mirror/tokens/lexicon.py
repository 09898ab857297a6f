"""Many short texts, each with a number: sorted names in one run of bytes, a tenth of the memory of a dict.

A name is found in the block that it would be in: a bisection over where blocks begin, then a search of the block.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

_BLOCK: Final = 512
"""Bytes of names from which on the next block begins."""
_KEPT: Final = 1 << 15
"""Names whose numbers are kept at hand."""


class Lexicon(Mapping[str, int]):
    """A mapping that nobody changes. Names hold no NUL; each is once in it."""

    def __init__(self, names: bytes, rows: Sequence[int], numbers: Sequence[int]) -> None:
        """Take names over as they lie in a file.

        Args:
            names: UTF-8, in the order of their bytes, NUL between two.
            rows: For each name, which number it has.
            numbers: Each once.
        """
        self._names = b"\0" + names + b"\0" if rows else b"\0"
        self._rows, self._numbers = rows, numbers
        self._starts, self._befores, self._firsts = list[int](), list[int](), list[bytes]()
        start = before = 0
        while start < len(self._names) - 1:
            self._starts.append(start)
            self._befores.append(before)
            self._firsts.append(self._names[start + 1 : self._names.index(b"\0", start + 1)])
            stop = self._names.index(b"\0", min(start + _BLOCK, len(self._names) - 1))
            before += self._names.count(b"\0", start, stop)
            start = stop
        self._starts.append(start)

    def __getitem__(self, name: str) -> int:
        raw = name.encode(errors="surrogatepass")
        block = bisect_right(self._firsts, raw) - 1
        if block < 0 or b"\0" in raw:
            raise KeyError(name)
        start = self._starts[block]
        at = self._names.find(b"\0" + raw + b"\0", start, self._starts[block + 1] + 1)
        if at < 0:
            raise KeyError(name)
        return self._numbers[self._rows[self._befores[block] + self._names.count(b"\0", start, at)]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names[1:-1].decode().split("\0") if self._rows else ())

    def __len__(self) -> int:
        return len(self._rows)


class Known(dict[str, int]):
    """What was last asked of a mapping; 0 for what is not in it."""

    def __init__(self, source: Mapping[str, int]) -> None:
        super().__init__()
        self._source = source

    def __missing__(self, name: str) -> int:
        if len(self) >= _KEPT:
            self.clear()
        number = self[name] = self._source.get(name, 0)
        return number
