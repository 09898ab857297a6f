"""Indexes of large values: offsets of some items of an array and of some lines of a text.

Without an index, a search for a late item or line reads everything before it. An index is built by the first query that
needs it, at about 1 GB/s, and kept for later queries of the same value in the same process.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Final, TypeVar

from mcp_mirror.payload.json_spans import count_items, item
from mcp_mirror.payload.scans import ArrayScan, scan_array
from mcp_mirror.query.texts import IsOver, TextPiece, check_time, count_characters, is_text, never, split_text
from mcp_mirror.security.sanitize import show_characters
from mcp_mirror.system.pages import find_address
from mcp_mirror.types import Buffer, FileSpan, Span

_NEAR: Final = 1 << 18
"""Bytes at the beginning of an array that are searched without an index."""
_MOST: Final = 64
"""Indexes that one process keeps: 128 KiB for an array of 1 GiB."""

Index = TypeVar("Index")

_value: ContextVar[tuple[FileSpan, int] | None] = ContextVar("_value", default=None)
"""The file of the value that is queried, which identifies the value, and the memory address of its bytes; None: its
indexes are not kept."""
_kept: "OrderedDict[tuple[str, str, int] | None, object]" = OrderedDict()


@contextmanager
def keep_indexes(value: FileSpan, blob: Buffer) -> Iterator[None]:
    """Within the context, keep the indexes of a value in an immutable file for later queries of the same value.

    `blob` has the bytes of the value. Indexes of other bytes, such as those that an edit inserts, are not kept.
    """
    token = _value.set((value, find_address(blob)))
    try:
        yield
    finally:
        _value.reset(token)


def find_item(blob: Buffer, span: Span, index: int, is_over: IsOver = never) -> Span | int:
    """The item at `index` of the array at `span`; the number of items if the index is too large."""
    is_kept = _key("items", blob, span) in _kept
    if span.length > _NEAR and not is_kept:
        near = Span(span.start, _NEAR)
        with suppress(ValueError):  # the part ends within an item
            found = item(blob, near, index)
            if isinstance(found, Span) and found.stop < near.stop:
                return found
    scan = _scan(blob, span, is_over) if is_kept or span.length > _NEAR else None
    return scan.find_item(blob, index) if scan else item(blob, span, index)


def count(blob: Buffer, span: Span, is_over: IsOver = never) -> int:
    """The number of items of the array at `span`."""
    scan = _scan(blob, span, is_over) if span.length > _NEAR else None
    return scan.length if scan else count_items(blob, span)


def _scan(blob: Buffer, span: Span, is_over: IsOver) -> ArrayScan | None:
    def build() -> ArrayScan | None:
        scan = scan_array(blob, span.start, check=lambda: check_time(is_over))
        return scan and scan.shift(-span.start)

    scan = _keep("items", blob, span, build)
    return scan and scan.shift(span.start)


def _key(kind: str, blob: Buffer, span: Span) -> tuple[str, str, int] | None:
    """What identifies an index of the part of `blob` at `span`; None if these are not bytes of the value."""
    if (known := _value.get()) is None:
        return None
    value, address = known
    offset = find_address(blob) - address
    is_of_value = 0 <= offset <= value.span.length - len(blob)
    return (kind, value.path, value.span.start + offset + span.start) if is_of_value else None


def _keep(kind: str, blob: Buffer, span: Span, build: Callable[[], Index]) -> Index:
    """The index of a part of the value, built unless this process has kept it."""
    if (key := _key(kind, blob, span)) is None:
        return build()
    if key not in _kept:
        _kept[key] = build()
        if len(_kept) > _MOST:
            _kept.popitem(last=False)
    _kept.move_to_end(key)
    return _kept[key]  # type: ignore[return-value]  # built by an earlier call for this kind


class TextIndex:
    """The pieces of a text with the characters and line breaks before each, as far as queries have read.

    The text of JSON is what a model reads: it has characters in place of their escapes.
    """

    def __init__(self) -> None:
        self._starts = array("Q")
        """The offset of each piece from the beginning of the value."""
        self._characters = array("Q")
        self._breaks = array("Q")
        self._is_complete = False
        self._ends_line = True
        """The text is empty or ends with a line break."""

    def count_characters(self, blob: Buffer, span: Span, is_over: IsOver) -> int:
        """The number of characters of the text."""
        self._read(blob, span, is_over, lambda: False)
        return self._characters[-1]

    def count_lines(self, blob: Buffer, span: Span, is_over: IsOver) -> int:
        """The number of lines, including a last line without a line break."""
        self._read(blob, span, is_over, lambda: False)
        return self._breaks[-1] + (not self._ends_line)

    def pieces_from_character(
        self, blob: Buffer, span: Span, offset: int, is_over: IsOver
    ) -> tuple[int, Iterator[TextPiece]]:
        """The characters before a piece, and the pieces from there on; the first have the character at `offset`."""
        self._read(blob, span, is_over, lambda: self._characters[-1] > offset)
        at = max(bisect_right(self._characters, offset) - 1, 0)
        return self._characters[at], self._split(blob, span, at, is_over)

    def pieces_from_line(
        self, blob: Buffer, span: Span, offset: int, is_over: IsOver
    ) -> tuple[int, int, Iterator[TextPiece]]:
        """The line breaks and characters before a piece, and the pieces from there on, for the line at `offset`."""
        self._read(blob, span, is_over, lambda: self._breaks[-1] >= offset)
        at = max(bisect_left(self._breaks, offset) - 1, 0)
        pieces = self._split(blob, span, at, is_over)
        return self._breaks[at], self._characters[at], pieces

    def _read(self, blob: Buffer, span: Span, is_over: IsOver, is_reached: Callable[[], bool]) -> None:
        """Read on until `is_reached`, or to the end of the text."""
        if not self._starts:
            self._add(is_text(blob, span), 0, 0)
        if self._is_complete or is_reached():
            return
        for piece in self._split(blob, span, -1, is_over):
            characters = self._characters[-1] + count_characters(piece.data)
            self._add(piece.stop - span.start, characters, self._breaks[-1] + piece.data.count(b"\n"))
            self._ends_line = piece.data.endswith(b"\n")
            if is_reached():
                return
        self._is_complete = True

    def _add(self, start: int, characters: int, breaks: int) -> None:
        self._starts.append(start)
        self._characters.append(characters)
        self._breaks.append(breaks)

    def _split(self, blob: Buffer, span: Span, at: int, is_over: IsOver) -> Iterator[TextPiece]:
        pieces = split_text(blob, span, is_over, begin=span.start + self._starts[at])
        if is_text(blob, span):
            return pieces
        return (piece._replace(data=show_characters(piece.data)) for piece in pieces)


def index_text(blob: Buffer, span: Span) -> TextIndex:
    """The index of the text of the value at `span`."""
    return _keep("text", blob, span, TextIndex)
