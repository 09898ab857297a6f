"""The text of a value in pieces, so that a value of any size needs little memory.

The text of a stored string is its characters; the text of any other value is its JSON.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from mcp_mirror.core.results.media import find_embedded_text
from mcp_mirror.core.texts.embedded_json import find_quoted_text
from mcp_mirror.errors import ToolError
from mcp_mirror.payload.json_spans import kind_at, trim
from mcp_mirror.payload.json_strings import decode_escapes, json_parts
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.types import Buffer, Span

IsOver = Callable[[], bool]
"""Returns whether the time limit of a query is reached. Functions that get it stop there; see `check_time`."""


def never() -> bool:
    """Return False, for queries without a time limit."""
    return False


PIECE: Final = 1 << 20
"""Bytes of a value that are read at once."""

_CONTINUATION: Final = bytes(range(0x80, 0xC0))
_STEP: Final = 1 << 12
"""Bytes whose escapes are read at once to find an offset."""
_ESCAPE: Final = lazy_pattern(rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u....|\\.", re.DOTALL)
"""An escape in JSON, or the two escapes of one character."""


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


def open_text(blob: Buffer) -> tuple[Buffer, Span]:
    """The bytes and the span of a value's text as a model reads it, of a text in a JSON string those of that text."""
    span = locate_text(blob)
    quoted = find_quoted_text(memoryview(blob)[span.start : span.stop])
    return (blob, span) if quoted is None else (quoted, trim(quoted))


def split_text(
    blob: Buffer, span: Span, is_over: IsOver, size: int = PIECE, begin: int | None = None
) -> Iterator[TextPiece]:
    """The text of the value at `span` in pieces of about `size` bytes, from the offset of an earlier one on."""
    is_string = is_text(blob, span)
    begin = span.start + is_string if begin is None else begin  # the span of a string has a quote at each end
    for start, stop in json_parts(blob, begin, span.stop - is_string, size):
        check_time(is_over)
        raw = bytes(blob[start:stop])
        yield TextPiece(start, unescape_json(raw) if is_string else raw, stop)


def check_time(is_over: IsOver) -> None:
    """Stop a query at its time limit with a ToolError."""
    if is_over():
        raise ToolError(
            "The query takes longer than `memory_tools.timeout` allows. Query a part of the value: a path below it, or "
            "a window."
        )


def decode_string(blob: Buffer) -> str:
    """The text of a whole JSON string. A lone surrogate, which UTF-8 cannot contain, becomes a question mark.

    A long text is decoded in pieces, so that no lock is held for long.
    """
    if len(blob) > PIECE:
        span = trim(blob)
        parts = json_parts(blob, span.start + 1, span.stop - 1, PIECE - 2)  # with quotes, a piece
        return "".join([decode_string(b'"%b"' % bytes(blob[start:stop])) for start, stop in parts])
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
    r"""The spans of a value's bytes whose text is `wanted`: the first `most` that do not overlap.

    In JSON that is not a string, a character is equal to its escape `\uXXXX`, both in the value and in `wanted`.
    """
    cursor, is_string = _Cursor(blob, span), is_text(blob, span)
    wanted = wanted if is_string else decode_escapes(wanted)
    found: list[Span] = []
    known, carried, free = 0, b"", 0
    for piece in split_text(blob, span, is_over):
        data = piece.data if is_string else decode_escapes(piece.data)
        cursor.pieces.append((known, piece.start, len(data) == piece.stop - piece.start))
        window, first = carried + data, known - len(carried)
        at = window.find(wanted, max(free - first, 0))
        while at >= 0 and len(found) < most:
            free = first + at + len(wanted)
            start = cursor.raw_offset(first + at)
            found.append(Span(start, cursor.raw_offset(free) - start))
            at = window.find(wanted, free - first)
        if len(found) >= most:
            break
        known += len(data)
        carried = window[max(len(window) - len(wanted) + 1, 0) :]
    return found


class _Cursor:
    """Converts rising offsets in a value's text to offsets in the value's bytes."""

    def __init__(self, blob: Buffer, span: Span) -> None:
        is_string = is_text(blob, span)
        self._blob = blob
        self._stop = span.stop - is_string
        self._decode = unescape_json if is_string else decode_escapes
        self.pieces: list[tuple[int, int, bool]] = []
        """The offset of each piece in the text and in the value, and whether it has the same bytes in both."""
        self._piece: tuple[int, int, bool] | None = None
        """The piece whose steps are read."""
        self._steps: Iterator[tuple[int, int]] = iter(())
        self._places: list[tuple[int, int]] = []
        """Offsets in the text and in the value: of the beginning of a step, and after each escape in it."""
        self._end = 0
        """The offset in the text of the end of the step."""

    def raw_offset(self, offset: int) -> int:
        """The offset in the value of the byte at `offset` of the text."""
        piece = self.pieces[bisect_right(self.pieces, (offset, self._stop, True)) - 1]
        known, start, is_same = piece
        if is_same:
            return start + offset - known
        if piece != self._piece:
            self._piece, self._steps = piece, json_parts(self._blob, start, self._stop, _STEP)
            self._places, self._end = [(known, start)], known
        while offset > self._end:
            begin, stop = next(self._steps)
            shift = self._end - begin
            self._places = [(self._end, begin)]
            for escape in _ESCAPE.finditer(bytes(self._blob[begin:stop])):
                end = begin + escape.end()
                shift += len(self._decode(escape[0])) - len(escape[0])
                self._places.append((end + shift, end))
            self._end = stop + shift
        known, start = self._places[bisect_right(self._places, (offset, self._stop)) - 1]
        return start + offset - known
