"""Bounded parts of a value for the page: table rows, lines, entries, raster images, and the notice of the value.

A part never contains more than a few hundred kB, whatever the size of the value. All strings are data: the page shows
them as text.
"""

import binascii
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from mcp_mirror.core.results.captured import Captured
from mcp_mirror.core.results.media import Media, detect_media_type
from mcp_mirror.core.results.notice import write_notice
from mcp_mirror.core.results.notice_keys import NoticeInput
from mcp_mirror.core.value_sizes import Estimate
from mcp_mirror.errors import ToolError
from mcp_mirror.paths import FixedBases, escape_token
from mcp_mirror.payload.json_spans import items, kind_at, members, spans_by_key, trim
from mcp_mirror.payload.json_strings import text_start
from mcp_mirror.query import indexes
from mcp_mirror.query.indexes import index_text
from mcp_mirror.query.texts import IsOver, TextPiece, check_time
from mcp_mirror.settings.policies import MirrorPolicy
from mcp_mirror.types import Buffer, Descriptor, Draft, Span

MAX_ROWS: Final = 200
"""Rows, lines or entries of one part."""

_MAX_COLUMNS: Final = 40
_MAX_CELL: Final = 300
"""Characters of one cell or entry."""
_MAX_LINE: Final = 2_000
"""Characters of one line."""
_MAX_TEXT: Final = 1 << 18
"""Bytes of the lines of one part."""
_MAX_KEY: Final = 200
"""Characters of a key that is shown."""
_MAX_LINK: Final = 2_000
"""Characters of a key that is linked."""
_MAX_IMAGE_BYTES: Final = 20 << 20
"""The largest image that the page shows, decoded."""


class PartQuery(msgspec.Struct, frozen=True):
    """A query for a part of a value."""

    offset: int
    """The first row, line or entry."""
    limit: int
    """The number of rows, lines or entries."""

    def __call__(self, blob: Buffer, is_over: IsOver) -> Mapping[str, Any]:
        """Return the part for JSON: `view` is `table`, `text` or `tree`. ToolError past the end or the time limit."""
        span = trim(blob)
        match kind_at(blob, span.start):
            case "array":
                return self._read_array(blob, span, is_over)
            case "object":
                return self._read_object(blob, span)
            case "text":
                return self._read_lines(blob, span, is_over)
            case kind:
                part = {"view": "text", "offset": 0, "total": 1, "next": None}
                return {**part, "lines": [_read_cell(blob, span)], "kind": kind}

    def _read_array(self, blob: Buffer, span: Span, is_over: IsOver) -> Mapping[str, Any]:
        total = indexes.count(blob, span, is_over)
        self._check_offset(total)
        first = indexes.find_item(blob, span, self.offset, is_over)
        found: list[Span] = []
        if isinstance(first, Span):
            rest = items(blob, Span(first.start - 1, span.stop - first.start + 1))
            for one in islice(rest, self.limit):
                check_time(is_over)
                found.append(one)
        if found and all(kind_at(blob, one.start) == "object" for one in found):
            return {**self._describe("table", total, len(found)), **_build_table(blob, found)}
        entries = ((str(self.offset + at), one) for at, one in enumerate(found))
        return {**self._describe("tree", total, len(found)), "entries": list(_list_entries(blob, entries))}

    def _read_object(self, blob: Buffer, span: Span) -> Mapping[str, Any]:
        known = members(blob, span)
        self._check_offset(len(known))
        part = known[self.offset : self.offset + self.limit]
        entries = ((member.key, member.span) for member in part)
        return {**self._describe("tree", len(known), len(part)), "entries": list(_list_entries(blob, entries))}

    def _read_lines(self, blob: Buffer, span: Span, is_over: IsOver) -> Mapping[str, Any]:
        total = index_text(blob, span).count_lines(blob, span, is_over)
        self._check_offset(total)
        first, _, pieces = index_text(blob, span).pieces_from_line(blob, span, self.offset, is_over)
        lines: list[str] = []
        size = 0
        for line in islice(_split_lines(pieces, is_over), self.offset - first, total - first):
            text = str(line[: 4 * _MAX_LINE], "utf-8", "replace").removesuffix("\r")
            lines.append(text if len(text) <= _MAX_LINE else f"{text[:_MAX_LINE]}…")
            size += min(len(line), _MAX_LINE)
            if len(lines) == self.limit or size > _MAX_TEXT:
                break
        return {**self._describe("text", total, len(lines)), "lines": lines}

    def _describe(self, view: str, total: int, shown: int) -> Mapping[str, Any]:
        """The place of a part of `shown` rows, lines or entries among all of them."""
        after = self.offset + shown
        return {"view": view, "offset": self.offset, "total": total, "next": after if after < total else None}

    def _check_offset(self, total: int) -> None:
        if self.offset > total:
            raise ToolError(f"Offset {self.offset:,} is past the end: there are {total:,}. Begin at 0.")


def _split_lines(pieces: Iterable[TextPiece], is_over: IsOver) -> Iterator[bytes]:
    """Yield the lines of a text, of those that several pieces contain only the beginning."""
    begun = b""
    for piece in pieces:
        check_time(is_over)
        *whole, begun = (begun + piece.data).split(b"\n")
        yield from whole
        begun = begun[: 4 * _MAX_LINE]
    yield begun


def _build_table(blob: Buffer, rows: Sequence[Span]) -> Mapping[str, Any]:
    """The columns and cells of objects; columns are the keys in order of first appearance, a cell a kind and a text."""
    read: list[dict[str, Span]] = [spans_by_key(members(blob, row)) for row in rows]
    keys = list(dict.fromkeys(key for row in read for key in row))
    columns = keys[:_MAX_COLUMNS]
    rows_of_cells = [
        [(kind_at(blob, row[key].start), _read_cell(blob, row[key])) if key in row else None for key in columns]
        for row in read
    ]
    hidden = len(keys) > len(columns)
    return {"columns": [_clean(key[:_MAX_KEY]) for key in columns], "rows": rows_of_cells, "hidden_columns": hidden}


def _list_entries(blob: Buffer, entries: Iterable[tuple[str, Span]]) -> Iterator[Mapping[str, Any]]:
    """The entries of an object or an array, each with the token that continues its path."""
    for key, span in entries:
        token = escape_token(key) if len(key) <= _MAX_LINK and _clean(key) == key else None
        yield {
            "key": _clean(key[:_MAX_KEY]),
            "token": token,
            "kind": kind_at(blob, span.start),
            "bytes": span.length,
            "text": _read_cell(blob, span),
        }


def _read_cell(blob: Buffer, span: Span) -> str:
    """The beginning of a value: of a text its characters, of any other value its JSON."""
    if kind_at(blob, span.start) == "text":
        size = 6 * _MAX_CELL
        text = text_start(blob, span, size)
    else:
        size = 4 * _MAX_CELL
        text = str(bytes(blob[span.start : min(span.stop, span.start + size)]), "utf-8", "replace")
    return _clean(text[:_MAX_CELL]) + ("…" if len(text) > _MAX_CELL or span.length > size else "")


def _clean(text: str) -> str:
    """A text that can be encoded: a lone half of a surrogate pair becomes a question mark."""
    return text.encode("utf-8", "replace").decode()


def peek_raster_type(media: Media | None) -> str | None:
    """Return the media type of a raster image; None for other media, such as SVG, and for too large images."""
    if media is None or media.size > _MAX_IMAGE_BYTES:
        return None
    try:
        found = detect_media_type(binascii.a2b_base64(bytes(media.encoded[:32])))
    except binascii.Error:
        return None
    return found if found.startswith("image/") else None


def rebuild_notice(known: Descriptor, blob: Buffer, mirror: MirrorPolicy, estimate: Estimate) -> str:
    """Return the notice that a model read when a value was stored, by the present configuration.

    The arguments of the call, texts and media beside the value, and excerpts of errors are missing.
    """
    shown = None
    if known.tokens <= mirror.inline_budget and known.preview and known.kind != "binary":  # the model read it whole
        shown = msgspec.json.decode(blob, type=str) if known.kind == "text" else str(blob, "utf-8")
    value = Draft(blob, known.kind, known.tokens, known.members, preview=known.preview)
    bases, tool = FixedBases(known.base, ""), known.provenance.tool
    return write_notice(NoticeInput(value, Captured(shown=shown), bases, tool, b"{}", estimate), mirror.notice)
