"""A value as the text that a model reads, in pieces, so that any size costs little memory.

A stored text is its own characters, anything else its JSON. What a piece is read for is not known here.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import takewhile
from typing import Final, NamedTuple

import msgspec

from mcp_mirror.errors import ToolError
from mcp_mirror.payload.json_spans import kind_at, text_parts
from mcp_mirror.types import Buffer, Span

IsOver = Callable[[], bool]
"""Whether the time for a task is over."""

PIECE: Final = 1 << 20
"""Bytes of a value that are looked at at once."""

_CONTINUATION: Final = bytes(range(0x80, 0xC0))
"""What in UTF-8 goes on with a character."""
_STEP: Final = 1 << 12
_UNIT: Final = re.compile(
    rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u....|\\.|[^\\\x80-\xff]|[\xc0-\xff][\x80-\xbf]+", re.DOTALL
)
"""What spells one character in a JSON string."""


class Piece(NamedTuple):
    """A part of a value's text."""

    start: int
    """Where in the value's bytes it begins."""
    data: bytes
    """Whole characters, UTF-8."""


def is_text(blob: Buffer, span: Span) -> bool:
    """Whether the value is a string."""
    return kind_at(blob, span.start) == "text"


def pieces_of(blob: Buffer, span: Span, is_over: IsOver, size: int = PIECE) -> Iterator[Piece]:
    """The text of the value at `span`, in order.

    Raises:
        ToolError: The time is over.
    """
    parts = text_parts(blob, span, size) if is_text(blob, span) else _json_parts(blob, span, size)
    for start, stop in parts:
        check_time(is_over)
        raw = bytes(blob[start:stop])
        yield Piece(start, spelled(raw) if is_text(blob, span) else raw)


def check_time(is_over: IsOver) -> None:
    """Go on while there is time.

    Raises:
        ToolError: There is none left.
    """
    if is_over():
        raise ToolError("That takes longer than `memory_tools.timeout` allows. Take a part: a path below, or a window.")


def _json_parts(blob: Buffer, span: Span, size: int) -> Iterator[tuple[int, int]]:
    position = span.start
    while position < span.stop:
        end = min(position + size, span.stop)
        while end < span.stop and blob[end] & 0xC0 == 0x80:  # noqa: PLR2004  # a continuation byte of UTF-8
            end -= 1
        yield position, end
        position = end


def spelled(inside: bytes) -> bytes:
    """What a string's inside spells; half of a surrogate pair, which no text can hold, as a replacement character."""
    if b"\\" not in inside:
        return inside
    with suppress(msgspec.DecodeError):
        return msgspec.json.decode(b'"%b"' % inside, type=str).encode()
    with suppress(ValueError):
        halves: str = json.loads(b'"%b"' % inside)
        return halves.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
    return inside  # a stray half stood before, and an escape was cut


def count_characters(data: bytes) -> int:
    """How many characters whole UTF-8 has."""
    return len(data.translate(None, _CONTINUATION))


def find_text(blob: Buffer, span: Span, wanted: bytes, most: int, is_over: IsOver) -> list[Span]:
    """Where in a value's bytes its text is `wanted`, up to `most` places; none overlaps another."""
    cursor = _Cursor(blob, span)
    found: list[Span] = []
    known, carried, free = 0, b"", 0
    for piece in pieces_of(blob, span, is_over):
        cursor.pieces.append((known, piece.start))
        window, first = carried + piece.data, known - len(carried)
        at = window.find(wanted, max(free - first, 0))
        while at >= 0 and len(found) < most:
            free = first + at + len(wanted)
            start = cursor.raw_offset(first + at)
            found.append(Span(start, cursor.raw_offset(free) - start))
            at = window.find(wanted, free - first)
        if len(found) >= most:
            break
        known += len(piece.data)
        carried = window[len(window) - len(wanted) + 1 :] if len(wanted) > 1 else b""
    return found


class _Cursor:
    """Goes from the bytes of a value's text, in rising order, to where in the value's own bytes they begin."""

    def __init__(self, blob: Buffer, span: Span) -> None:
        self._blob = blob
        self._span = span
        self._known, self._start = 0, span.start + is_text(blob, span)
        self.pieces: list[tuple[int, int]] = []
        """Where in the text and in the value each piece begins."""

    def raw_offset(self, offset: int) -> int:
        """Where the byte at `offset` of the text begins."""
        self._known, self._start = max(
            (self._known, self._start), self.pieces[bisect_right(self.pieces, (offset, self._span.stop)) - 1]
        )
        if not is_text(self._blob, self._span):
            return self._start + offset - self._known
        # A span has a quote at each end: here that is the byte before the rest, and what stands behind the text.
        rest = Span(self._start - 1, self._span.stop - self._start + 1)
        for begin, stop in text_parts(self._blob, rest, _STEP):
            raw = bytes(self._blob[begin:stop])
            data = spelled(raw)
            if self._known + len(data) > offset:
                self._enter(raw, offset)
                break
            self._known, self._start = self._known + len(data), stop
        return self._start

    def _enter(self, raw: bytes, offset: int) -> None:
        """Go to `offset`, which lies in what begins here."""
        if b"\\" not in raw:
            self._known, self._start = offset, self._start + offset - self._known
            return
        begin = self._start
        for unit in takewhile(lambda _: self._known < offset, _UNIT.finditer(raw)):
            self._known, self._start = self._known + len(spelled(unit[0])), begin + unit.end()
