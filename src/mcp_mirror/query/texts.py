"""The text of a value in pieces, so that a value of any size needs little memory.

The text of a stored string is its characters; the text of any other value is its JSON.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import takewhile
from typing import Final, NamedTuple

import msgspec

from mcp_mirror.core.media import find_embedded_text
from mcp_mirror.errors import ToolError
from mcp_mirror.payload.json_spans import kind_at, trim
from mcp_mirror.payload.json_strings import text_parts
from mcp_mirror.types import Buffer, Span

IsOver = Callable[[], bool]
"""Returns whether the time limit of a query is reached."""


def never() -> bool:
    """Return False, for queries without a time limit."""
    return False


PIECE: Final = 1 << 20
"""Bytes of a value that are read at once."""

_CONTINUATION: Final = bytes(range(0x80, 0xC0))
"""The continuation bytes of UTF-8."""
_STEP: Final = 1 << 12
"""Bytes of a string that are decoded at once to find an offset."""
_UNIT: Final = re.compile(
    rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u....|\\.|[^\\\x80-\xff]|[\xc0-\xff][\x80-\xbf]+", re.DOTALL
)
"""The encoding of one character in a JSON string."""


class TextPiece(NamedTuple):
    """A part of a value's text."""

    start: int
    """The offset of the part in the value's bytes."""
    data: bytes
    """Complete characters in UTF-8."""
    stop: int
    """The offset after the part in the value's bytes."""


def is_text(blob: Buffer, span: Span) -> bool:
    """Whether the value is a string."""
    return kind_at(blob, span.start) == "text"


def locate_text(blob: Buffer) -> Span:
    """The span of a value's text: the text of an embedded resource, or the whole of any other value."""
    return find_embedded_text(blob) or trim(blob)


def split_text(
    blob: Buffer, span: Span, is_over: IsOver, size: int = PIECE, begin: int | None = None
) -> Iterator[TextPiece]:
    """The text of the value at `span` in pieces of about `size` bytes.

    Args:
        blob: The text that contains the value.
        span: The value.
        is_over: Returns whether the time limit is reached.
        size: Bytes of the value in a piece.
        begin: The offset of an earlier piece, to begin there; None: the whole text.

    Raises:
        ToolError: The time limit is reached.
    """
    is_string = is_text(blob, span)
    if begin is not None:  # the span of a string has a quote at each end
        span = Span(begin - is_string, span.stop - begin + is_string)
    parts = text_parts(blob, span, size) if is_string else _split_json(blob, span, size)
    for start, stop in parts:
        check_time(is_over)
        raw = bytes(blob[start:stop])
        yield TextPiece(start, unescape_json(raw) if is_string else raw, stop)


def check_time(is_over: IsOver) -> None:
    """Stop a query at its time limit.

    Raises:
        ToolError: The time limit is reached.
    """
    if is_over():
        raise ToolError(
            "The query takes longer than `memory_tools.timeout` allows. Query a part of the value: a path below it, or "
            "a window."
        )


def _split_json(blob: Buffer, span: Span, size: int) -> Iterator[tuple[int, int]]:
    position = span.start
    while position < span.stop:
        end = min(position + size, span.stop)
        while end < span.stop and blob[end] & 0xC0 == 0x80:  # noqa: PLR2004  # a continuation byte of UTF-8
            end -= 1
        yield position, end
        position = end


def decode_string(blob: Buffer) -> str:
    """The text of a whole JSON string. A lone surrogate, which UTF-8 cannot contain, becomes a question mark."""
    try:
        return msgspec.json.decode(blob, type=str)
    except (msgspec.DecodeError, UnicodeError):
        text: str = json.loads(bytes(blob))
        return text.encode("utf-8", "replace").decode()


def unescape_json(inside: bytes) -> bytes:
    """The text of a JSON string without its quotes. A lone surrogate becomes a replacement character."""
    if b"\\" not in inside:
        return inside
    with suppress(msgspec.DecodeError):
        return msgspec.json.decode(b'"%b"' % inside, type=str).encode()
    decoded: str = json.loads(b'"%b"' % inside)
    return decoded.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def count_characters(data: bytes) -> int:
    """The number of characters in UTF-8 data."""
    return len(data) if data.isascii() else len(data.translate(None, _CONTINUATION))


def find_text(blob: Buffer, span: Span, wanted: bytes, most: int, is_over: IsOver) -> list[Span]:
    """The spans of a value's bytes whose text is `wanted`: the first `most` that do not overlap."""
    cursor = _Cursor(blob, span)
    found: list[Span] = []
    known, carried, free = 0, b"", 0
    for piece in split_text(blob, span, is_over):
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
    """Converts rising offsets in a value's text to offsets in the value's bytes."""

    def __init__(self, blob: Buffer, span: Span) -> None:
        self._blob = blob
        self._span = span
        self._known, self._start = 0, span.start + is_text(blob, span)
        self.pieces: list[tuple[int, int]] = []
        """The offset of each piece in the text and in the value."""

    def raw_offset(self, offset: int) -> int:
        """The offset in the value of the byte at `offset` of the text."""
        self._known, self._start = max(
            (self._known, self._start), self.pieces[bisect_right(self.pieces, (offset, self._span.stop)) - 1]
        )
        if not is_text(self._blob, self._span):
            return self._start + offset - self._known
        # The span of a string has a quote at each end: here, the byte before the rest, and the closing quote.
        rest = Span(self._start - 1, self._span.stop - self._start + 1)
        for begin, stop in text_parts(self._blob, rest, _STEP):
            raw = bytes(self._blob[begin:stop])
            data = unescape_json(raw)
            if self._known + len(data) > offset:
                self._advance(raw, offset)
                break
            self._known, self._start = self._known + len(data), stop
        return self._start

    def _advance(self, raw: bytes, offset: int) -> None:
        """Move to `offset`, which is within `raw`, the next bytes of the value."""
        if b"\\" not in raw:
            self._known, self._start = offset, self._start + offset - self._known
            return
        begin = self._start
        for unit in takewhile(lambda _: self._known < offset, _UNIT.finditer(raw)):
            self._known, self._start = self._known + len(unescape_json(unit[0])), begin + unit.end()
