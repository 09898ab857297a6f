"""The lines of a text that match a pattern (RE2: no pattern takes more than linear time), in pieces of any size."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple

import re2

from mcp_mirror.errors import ToolError
from mcp_mirror.query.texts import count_characters

_LINE: Final = 1 << 21
"""Bytes past which a line is searched in parts."""
_OVERLAP: Final = 1 << 12
"""Bytes that two parts of a long line share: a hit up to so long is found across their border."""
_WHOLE_TEXT: Final = re.compile(r"\\[Az]|\(\?[A-Za-z]*-")
"""What in a pattern may mean the text as a whole, and so another thing for several lines at once."""


class Matcher:
    """One pattern, for single lines and for many at once."""

    def __init__(self, pattern: str) -> None:
        """Make it.

        Raises:
            ToolError: It is no RE2 expression.
        """
        options = re2.Options()
        options.log_errors = False
        try:
            self._line = re2.compile(pattern.encode(), options)
            self._lines = re2.compile(b"(?m)" + pattern.encode(), options)
        except re2.error as error:
            raise ToolError(
                f"`pattern` is no RE2 expression: {_words(error)}. Escape what is meant literally."
            ) from None
        self._is_global = _WHOLE_TEXT.search(pattern) is not None

    def matches(self, data: bytes, begin: int, end: int) -> Iterator[tuple[int, int, tuple[int, int]]]:
        """The lines that begin between `begin` and `end` and match: from where to where, and where in the line.

        A search over many lines at once finds where at the earliest the next one is; that line alone tells whether.
        """
        position = begin
        while position < end and (first := self._first(data, position, end)) is not None:
            start = max(data.rfind(b"\n", 0, first) + 1, position)
            stop = data.find(b"\n", start)
            stop = len(data) if stop < 0 else stop
            if match := self._line.search(data[start:stop]):
                yield start, stop, match.span()
            position = stop + 1

    def count(self, line: bytes, begin: int, most: int) -> int:
        """How often a line matches from there on; `most` at most."""
        return sum(1 for _ in islice(self._line.finditer(line, begin), most))

    def _first(self, data: bytes, begin: int, end: int) -> int | None:
        if self._is_global:
            return begin
        match = self._lines.search(data, begin)
        return match.start() if match and match.start() < end else None

    def may_match(self, data: bytes) -> bool:
        """Whether any line matches; at worst a wrong yes."""
        return self._first(data, 0, len(data) + 1) is not None


def _words(error: Any) -> str:
    said = error.args[0]
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)


class Line(NamedTuple):
    """A line that matches."""

    data: bytes
    """The lines around it, as far as they are at hand."""
    start: int
    stop: int
    at: tuple[int, int]
    """Where in the line the match is, in bytes."""
    number: int
    characters: int
    """Of the text before `data`."""


@dataclass(slots=True)
class _Chunk:
    """Some lines; those that begin between `begin` and `end` are to be searched, the others are around them."""

    data: bytes
    begin: int
    end: int
    number: int
    """Of the line at `begin`."""
    characters: int


def matching_lines(matcher: Matcher, pieces: Iterable[bytes], context: int) -> Iterator[Line]:
    """The lines of a text that match, each with `context` lines around it."""
    for chunk in _chunks(pieces, context):
        number, counted = chunk.number, chunk.begin
        for start, stop, at in matcher.matches(chunk.data, chunk.begin, chunk.end):
            number, counted = number + chunk.data.count(b"\n", counted, start), start
            yield Line(chunk.data, start, stop, at, number, chunk.characters)


def _chunks(pieces: Iterable[bytes], context: int) -> Iterator[_Chunk]:
    data, begin, number, characters = b"", 0, 0, 0
    for piece in pieces:
        data += piece
        end = _end(data, begin, context)
        if end == begin:
            continue
        yield _Chunk(data, begin, end, number, characters)
        number += data.count(b"\n", begin, end)
        kept = _kept(data, end, context)
        characters += count_characters(data[:kept])
        data, begin = data[kept:], end - kept if data[end - 1] == ord("\n") else 0
    if len(data) > begin:
        yield _Chunk(data, begin, len(data), number, characters)


def _end(data: bytes, begin: int, context: int) -> int:
    """Behind the last line that is whole and has the lines after it at hand; a very long line may be cut anywhere."""
    end = len(data)
    for _ in range(context + 1):
        end = data.rfind(b"\n", begin, end)
        if end < 0:
            return begin if len(data) - begin < _LINE else len(data)
    return end + 1


def _kept(data: bytes, end: int, context: int) -> int:
    """From where on the data are needed again: for the lines before the next, or for a long line that goes on."""
    kept = end
    if data[end - 1] != ord("\n"):
        kept = end - _OVERLAP
    else:
        for _ in range(context):
            kept = data.rfind(b"\n", 0, max(kept - 1, 0)) + 1
        kept = max(kept, end - _LINE)
    while kept < len(data) and data[kept] & 0xC0 == 0x80:  # noqa: PLR2004  # a continuation byte of UTF-8
        kept -= 1
    return kept
