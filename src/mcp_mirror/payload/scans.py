"""Scans a large JSON text once: finds and checks its one large array or string, so that the rest of it is small.

An array is scanned in pieces: its items are counted, and the offset of the first item of each piece is marked. msgspec
checks each piece as an array of its own. A piece that is valid ends between two items of the array, so the end of a
piece can be guessed, by the text between the first two items.
"""

import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

import msgspec

from mcp_mirror.payload.json_rpc import RESERVE, is_json, open_array, open_object, run_deep
from mcp_mirror.payload.json_spans import count_items, item, items, kind_at, members, skip_space, trim, value_stop
from mcp_mirror.payload.json_strings import check_string, text_pieces
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.types import ArrayIndex, Buffer, Member, Span

_PIECES: Final = (1 << 17, 1 << 19, 1 << 22)
"""Bytes of an array that are scanned at once: more for larger items."""
_MAX_STORED_MARKS: Final = 1024
_TAIL: Final = 1 << 12
"""Bytes at the end of a text in which a large string may end."""
_EMPTY: Final = 2
"""Bytes of an empty array or string."""
_LARGE: Final = 1 << 20
"""Bytes from which a text is scanned for its large array."""
_MAX_ITEM: Final = 1 << 24
"""Bytes of the largest item in an array that is scanned."""
_MAX_FIRST_ITEM: Final = 1 << 22
"""Bytes of the largest first item."""
_HEAD: Final = 1 << 14
"""Bytes at the beginning of a text that show where its large array is."""
_ENDING: Final = 1 << 16
"""Bytes at the end of a large string in which a quote shows that the string has ended before."""
_SMALL_STRING: Final = 1 << 17
"""Bytes of a string that is not the large part of a text, but may be in a large array."""
_MAX_SEPARATOR: Final = 64
"""Bytes of brackets and white space before and after a comma, and of a key, that separate two items."""
_MAX_GUESSES: Final = 12
"""Places in one piece that are tried as its end, each in the first half of the piece before."""
_MAX_WALKED: Final = 256
"""Items whose end was not guessed, after which an array counts as irregular."""

_STRING: Final = lazy_pattern(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_TOKEN: Final = lazy_pattern(_STRING.pattern + rb'|["\[\]{}]', re.DOTALL)
_STRING_END: Final = lazy_pattern(rb'(?<!\\)"(?=[ \t\r\n]*+(?:[}\]]|,[ \t\r\n]*+"[^"\\]{1,40}+"[ \t\r\n]*+:))')
"""A quote at the end of a member's string."""
_KEY_START: Final = lazy_pattern(rb'[\[{ \t\r\n]*+(?:"[^"\\]{0,40}+")?')

_ITEMS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_RAW: Final = msgspec.json.Decoder(msgspec.Raw)

Keep = Callable[[Iterable[Buffer]], Buffer]
"""Keeps a text that arrives in pieces, and returns it; raises the exceptions of the pieces."""


class ArrayScan(msgspec.Struct, frozen=True):
    """An array whose items were checked and counted."""

    span: Span
    """The array in its text."""
    length: int
    """The number of its items."""
    indices: "array[int]"
    """The index of the first item of each piece, in ascending order."""
    offsets: "array[int]"
    """The offset of that item from the beginning of the array."""

    def find_item(self, blob: Buffer, index: int) -> Span | int:
        """The item at `index` in the text; the number of items if the index is too large."""
        if index >= self.length:
            return self.length
        at = bisect_right(self.indices, index) - 1
        start = self.span.start + self.offsets[at]
        return item(blob, Span(start - 1, self.span.stop - start + 1), index - self.indices[at])

    def as_index(self) -> ArrayIndex:
        """The scan with at most 1,024 marks, to be stored with the value."""
        step = -(-len(self.offsets) // _MAX_STORED_MARKS) or 1
        return ArrayIndex(self.span, self.length, tuple(self.indices[::step]), tuple(self.offsets[::step]))

    def shift(self, by: int) -> "ArrayScan":
        """The same array in a text that begins `by` bytes earlier."""
        return ArrayScan(Span(self.span.start + by, self.span.length), self.length, self.indices, self.offsets)


def _find_large_part(blob: Buffer) -> tuple[int, int] | None:
    """Start and depth of the large string, or else of the outermost array, that the head of a text does not end."""
    opened: list[int] = []
    for match in _TOKEN.finditer(blob, 0, min(len(blob), _HEAD)):
        token = match[0]
        if token in (b"[", b"{"):
            opened.append(match.start())
        elif token == b'"':
            if not _STRING.match(blob, match.start(), match.start() + _SMALL_STRING):
                return match.start(), len(opened)
            break
        elif token in (b"]", b"}"):
            if not opened:
                return None
            opened.pop()
    return next(((at, depth) for depth, at in enumerate(opened) if blob[at] == ord("[")), None)


def scan_array(blob: Buffer, start: int, depth: int = 0, check: Callable[[], None] = lambda: None) -> ArrayScan | None:
    """Scan the array that begins at `start`, at about 1 GB/s, in a text that need not be valid JSON.

    `depth` is the number of levels around the array. `check` is called before each piece; it may raise an exception.

    Returns:
        The scanned array; None if it is not valid JSON in UTF-8, is nested too deep, or has too irregular items.
    """
    try:
        return run_deep(partial(_scan, blob, start, check), RESERVE + depth)
    except (ValueError, IndexError, RecursionError):
        return None


def _scan(blob: Buffer, start: int, check: Callable[[], None]) -> ArrayScan | None:
    indices, offsets, count, walked, item_size = array("Q"), array("Q"), 0, 0, 0
    separators: tuple[_Separator, ...] = ()
    position = skip_space(blob, start + 1)
    if blob[position] == ord("]"):
        return ArrayScan(Span(start, position + 1 - start), 0, indices, offsets)
    while True:
        check()
        piece = _take_piece(blob, position, separators, item_size)
        if piece is None:  # it is one item
            most = _MAX_ITEM if separators else _MAX_FIRST_ITEM
            stop = value_stop(blob, position, min(len(blob), position + most))
            piece = _Piece(stop, _count_items(_bracket(blob[position:stop]), stop + 1 - position))
            walked += 1
        stop = piece.stop
        indices.append(count)
        offsets.append(position - start)
        count += piece.length
        item_size = (stop - position) // piece.length
        after = skip_space(blob, stop)
        if blob[after] == ord("]"):
            return ArrayScan(Span(start, after + 1 - start), count, indices, offsets)
        if blob[after] != ord(",") or walked > _MAX_WALKED:
            return None
        following = skip_space(blob, after + 1)
        separators = separators or _find_separators(blob, position, stop, following)
        position = following


class _Separator(NamedTuple):
    """A text between two items, with brackets of both."""

    text: bytes
    lead: int
    """The bytes that belong to the item before it."""


def _find_separators(blob: Buffer, position: int, stop: int, following: int) -> tuple[_Separator, ...]:
    """The text between the first two items: with the first key of the second item, and without."""
    first = bytes(blob[max(stop - _MAX_SEPARATOR, position) : stop])
    closing = first[-1:] if first[-1:] == b'"' else first[len(first.rstrip(b"]} \t\r\n")) :]
    between = bytes(blob[stop:following])
    second = bytes(blob[following : following + _MAX_SEPARATOR])
    opening = second[:1] if second[:1] == b'"' else second[: len(second) - len(second.lstrip(b"[{ \t\r\n"))]
    key = _KEY_START.match(second)
    texts = (key[0] if key else opening, opening)
    return tuple(_Separator(closing + between + text, len(closing)) for text in dict.fromkeys(texts))


class _Piece(NamedTuple):
    """Some items of an array, one after the other."""

    stop: int
    length: int
    """The number of the items."""


def _take_piece(blob: Buffer, position: int, separators: Sequence[_Separator], item_size: int) -> _Piece | None:
    """The piece that begins at `position`; None if its end cannot be guessed.

    The separators may be between items. `item_size` is the number of bytes of an item before.
    """
    for size in _PIECES if separators else ():
        if size <= item_size:
            continue
        window = _bracket(blob[position : position + size])
        for separator in separators:
            if (at := window.rfind(separator.text, 1, len(window) - 1)) >= 0:
                return _guess_end(window, position, separator, at)
        if len(window) - _EMPTY < size:
            break
    return None


def _guess_end(window: bytearray, position: int, separator: _Separator, at: int) -> _Piece | None:
    """The piece at the beginning of a window, up to a separator before which the text is valid.

    `at` is the offset of the last separator in the window.
    """
    for _ in range(_MAX_GUESSES):
        stop = at + separator.lead
        if at < 0 or stop == 1:
            return None
        following = window[stop]
        with suppress(msgspec.DecodeError):
            return _Piece(position + stop - 1, _count_items(window, stop))
        window[stop] = following
        at = window.rfind(separator.text, 1, at // 2)
    return None


def _bracket(inside: Buffer) -> bytearray:
    """The text of an array, by the text between its brackets."""
    return bytearray().join((b"[", inside, b"]"))


def _count_items(text: bytearray, stop: int) -> int:
    """The number of items of the array that begins a text, and gets its closing bracket at `stop`.

    Other texts are a ValueError, a msgspec.DecodeError or a RecursionError.
    """
    text[stop] = ord("]")
    whole = memoryview(text)[: stop + 1]
    if not text.isascii():
        str(whole, "utf-8")
    if any(text.find(mark, 1, stop) >= 0 for mark in (b'"', b"[", b"{")):
        return len(_ITEMS.decode(whole))
    _RAW.decode(whole)
    return text.count(b",", 1, stop) + 1


def _find_string(blob: Buffer, start: int) -> Span | None:
    """The string that begins at `start`, if a quote near the end of the text seems to end it."""
    tail_start = max(len(blob) - _TAIL, start + 1)
    quote = _STRING_END.search(bytes(blob[tail_start:]))
    if quote is None:
        return None
    stop = tail_start + quote.end()
    ending = bytes(blob[max(start + 1, stop - _ENDING) : stop - 1]).lstrip(b"\\")[1:]  # begins within no escape
    has_quote = b'"' in ending.replace(b"\\\\", b"").replace(b'\\"', b"")
    return None if has_quote else Span(start, stop - start)


class ScannedText(msgspec.Struct, frozen=True):
    """A JSON text with one large array or string, which was scanned."""

    blob: Buffer
    hidden: Span
    """The array or string."""
    skeleton: bytes
    """The text with an empty array or string in its place."""
    array: ArrayScan | None
    """The array; None for a string."""

    def members(self, span: Span) -> tuple[Member, ...]:
        """The members of the object at `span`, which contains the large part; see `json_spans.members`."""
        return tuple(Member(key, self._expand(found)) for key, found in members(self.skeleton, self._shrink(span)))

    def items(self, span: Span) -> tuple[Span, ...]:
        """The items of the array at `span`, which contains the large part but is not that part."""
        return tuple(self._expand(found) for found in items(self.skeleton, self._shrink(span)))

    def cut(self, span: Span) -> "ScannedText":
        """The value at `span`, which contains the large part, as a text of its own."""
        kept = self._shrink(span)
        return ScannedText(
            memoryview(self.blob)[span.start : span.stop],
            Span(self.hidden.start - span.start, self.hidden.length),
            self.skeleton[kept.start : kept.stop],
            self.array and self.array.shift(-span.start),
        )

    def contains_hidden(self, span: Span) -> bool:
        """Whether the large part is within a span."""
        return span.start <= self.hidden.start and self.hidden.stop <= span.stop

    def _shrink(self, span: Span) -> Span:
        return Span(span.start, span.length - self.hidden.length + _EMPTY)

    def _expand(self, span: Span) -> Span:
        """The span in the text of a span in the skeleton."""
        more, at = self.hidden.length - _EMPTY, self.hidden.start
        if span.start > at:
            return Span(span.start + more, span.length)
        return Span(span.start, span.length + more) if span.stop > at else span


def scan_text(blob: Buffer) -> ScannedText | None:
    """Scan the large array or string of a text; None if it has none of at least half of its size."""
    if (found := _find_large_part(blob)) is None:
        return None
    start, depth = found
    if blob[start] != ord('"'):
        array_scan = scan_array(blob, start, depth)
        if array_scan is None or not _is_most(array_scan.span, blob):
            return None
        return ScannedText(blob, array_scan.span, _replace(blob, array_scan.span, b"[]"), array_scan)
    hidden = _find_string(blob, start)
    if hidden is None or not _is_most(hidden, blob):
        return None
    try:
        check_string(blob, hidden)
    except (msgspec.DecodeError, UnicodeError):
        return None
    return ScannedText(blob, hidden, _replace(blob, hidden, b'""'), None)


def _is_most(span: Span, blob: Buffer) -> bool:
    return 2 * span.length >= len(blob)


def _replace(blob: Buffer, span: Span, by: bytes) -> bytes:
    return b"".join((blob[: span.start], by, blob[span.stop :]))


class Scans:
    """Reads the texts of one result, and remembers the scans of large ones, so that no text is scanned twice.

    A text is known by its buffer object.
    """

    def __init__(self, keep: Keep = b"".join) -> None:
        """Start without scans; `keep` keeps texts that are decoded, because they may contain JSON."""
        self._keep = keep
        self._known: dict[int, ScannedText] = {}

    def scan(self, text: Buffer) -> ScannedText | None:
        """The scan of JSON text; None if it has no large array or string."""
        if len(text) < _LARGE:
            return None
        known = self._known.get(id(text)) or scan_text(text)
        if known is not None:
            self._known[id(text)] = known
        return known

    def decode(self, literal: Buffer) -> Buffer:
        """The text of a JSON string."""
        return self._keep(text_pieces(literal, trim(literal)))

    def open_object(self, text: Buffer) -> dict[str, Buffer] | None:
        """The members of a JSON object as received bytes; see `json_rpc.open_object`."""
        if (scanned := self.scan(text)) is None:
            return open_object(text)
        if open_object(scanned.skeleton) is None:
            return None
        return self.slice_members(scanned, scanned.members(trim(text)))

    def open_array(self, text: Buffer) -> list[Buffer] | None:
        """The items of a JSON array as received bytes; see `json_rpc.open_array`."""
        scanned = self.scan(text)
        if scanned is None or scanned.hidden == (whole := trim(text)):
            return open_array(text)
        if open_array(scanned.skeleton) is None:
            return None
        return [self._slice(scanned, span) for span in scanned.items(whole)]

    def slice_members(self, scanned: ScannedText, found: Iterable[Member]) -> dict[str, Buffer]:
        """The bytes of members of a scanned text."""
        return {key: self._slice(scanned, span) for key, span in found}

    def is_container(self, text: Buffer) -> bool:
        """Whether a text is a JSON object or array."""
        scanned = self.scan(text)
        whole = scanned.skeleton if scanned else text
        return is_json(whole) and kind_at(whole, skip_space(whole, 0)) in ("object", "array")

    def members(self, blob: Buffer, span: Span) -> tuple[Member, ...]:
        """The members of the object at `span`; see `json_spans.members`."""
        scanned = self._known.get(id(blob))
        return scanned.members(span) if scanned and scanned.contains_hidden(span) else members(blob, span)

    def count_items(self, blob: Buffer, span: Span) -> int:
        """The number of items of the array at `span`."""
        scanned = self._known.get(id(blob))
        known = scanned.array if scanned else None
        return known.length if known and known.span == span else count_items(blob, span)

    def index_array(self, blob: Buffer) -> ArrayIndex | None:
        """The index of the large array of a text; None if it has none or was not scanned."""
        scanned = self._known.get(id(blob))
        return scanned.array.as_index() if scanned and scanned.array else None

    def _slice(self, scanned: ScannedText, span: Span) -> Buffer:
        if not scanned.contains_hidden(span):
            return memoryview(scanned.blob)[span.start : span.stop]
        part = scanned.cut(span)
        self._known[id(part.blob)] = part
        return part.blob
