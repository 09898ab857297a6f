"""JSON with comments and trailing commas, edited by the spans of its members.

Comments and trailing commas are blanked by spaces of equal length, so that the offsets of the remaining JSON are those
of the file.
"""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any, ClassVar, Final

from mcp_mirror.cli.install.formats import document
from mcp_mirror.cli.install.formats.document import Document, Edit, Location, splice
from mcp_mirror.payload.json_spans import items, kind_at, members_with_offsets, skip_space, trim
from mcp_mirror.system.json_comments import blank_comments
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.types import Member, Span

_SPACE: Final = lazy_pattern(rb"[ \t\r\n]*+")

Splice = tuple[int, int, bytes]
"""Start and stop of the replaced bytes, and the new bytes."""


class JsonDocument(Document):
    """A JSON file with comments."""

    name: ClassVar[str] = "JSON"

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._text = data[len(self._mark) :]
        text = self._text.decode()
        self._json = self._text
        self._known: dict[int, list[tuple[int, Member]]] = {}
        """The members of objects, by the first offset: files of several MB are common."""
        try:
            self.value: Any = json.loads(text)
        except ValueError:
            self._json = blank_comments(self._text)
            self.value = json.loads(self._json.decode()) if self._json.strip() else {}

    def find_problem(self, at: Location) -> str | None:
        """Return whether a key on the way, or of the entry itself, appears twice."""
        span = trim(self._json)
        for step in (*at, None):
            keys = [member.key for _, member in self._list_members(span)]
            repeated = next((key for key, count in Counter(keys).items() if count > 1 and step in (None, key)), None)
            if repeated is not None:
                return f"the key {repeated!r} appears twice"
            if step is not None:
                span = self._find_child(span, step)
        return None

    def _write(self, edits: Iterable[Edit]) -> bytes:
        return splice(self._text, map(self._splice, edits))

    def read_text(self, at: Location) -> bytes:
        """Return the text of a value."""
        span = self._find(at)
        return self._text[span.start : span.stop]

    def _splice(self, edit: Edit) -> Splice:  # noqa: C901, PLR0911  # one case for each kind
        match edit:
            case document.Put(at, value):
                return self._put(self._find(at), value)
            case document.Restore(at, source, source_at):
                assert isinstance(source, JsonDocument)  # noqa: S101  # the same file, earlier
                span = self._find(at)
                return span.start, span.stop, source.read_text(source_at)
            case document.Add(at, key, value, str(after)):
                return self._add(self._find(at), key, value, after)
            case document.Add(at, key, value):
                return self._add_first(self._find(at), key, value)
            case document.Remove(at):
                return self._remove(self._find(at[:-1]), at[-1])
            case document.Prepend(at, new):
                return self._prepend(self._find(at), new)
            case document.DropFirst(at, count):
                span = self._find(at)
                known = list(items(self._json, span))
                if count >= len(known):
                    return span.start, span.stop, b"[]"
                return known[0].start, known[count].start, b""

    def _find(self, at: Location) -> Span:
        span = trim(self._json)
        for step in at:
            span = self._find_child(span, step)
        return span

    def _find_child(self, span: Span, step: str | int) -> Span:
        if isinstance(step, int):
            return list(items(self._json, span))[step]
        return next(member.span for _, member in reversed(self._list_members(span)) if member.key == step)

    def _list_members(self, span: Span) -> list[tuple[int, Member]]:
        """Return the members of an object, each with the offset of its key; empty for other values."""
        if span.start not in self._known:
            is_object = kind_at(self._json, span.start) == "object"
            self._known[span.start] = list(members_with_offsets(self._json, span)) if is_object else []
        return self._known[span.start]

    def _space_at(self, position: int) -> bytes:
        match = _SPACE.match(self._text, position)
        return match[0] if match else b""

    def _space_before(self, position: int) -> bytes:
        before = self._text[:position]
        return before[len(before.rstrip(b" \t\r\n")) :]

    def _put(self, span: Span, value: Any) -> Splice:
        """Replace a value, with one line for each member if the old one has several lines."""
        inner, outer = self._space_at(span.start + 1), self._space_before(span.stop - 1)
        has_lines = isinstance(value, dict) and b"\n" in inner
        return span.start, span.stop, _dump_lines(value, inner, outer) if has_lines else _dump(value)

    def _add(self, span: Span, key: str, value: Any, after: str) -> Splice:
        offset, member = next(known for known in self._list_members(span) if known[1].key == after)
        stop = member.span.stop
        return stop, stop, b"," + (self._space_before(offset) or b" ") + _dump(key) + b": " + _dump(value)

    def _add_first(self, span: Span, name: str, value: Any) -> Splice:
        start = span.start + 1
        first = self._list_members(span)[0][1].span
        lead = self._space_at(start)
        if b"\n" not in lead:
            return start, start, lead + _dump(name) + b": " + _dump(value) + (b"," if lead else b", ")
        inner = self._space_at(first.start + 1)
        if not (inner.startswith(lead) and len(inner) > len(lead)):  # the first member is on one line
            inner = lead + (b"\t" if lead.endswith(b"\t") else b"  ")
        return start, start, lead + _dump(name) + b": " + _dump_lines(value, inner, lead) + b","

    def _remove(self, span: Span, key: str | int) -> Splice:
        known = self._list_members(span)
        place = next(place for place, (_, member) in enumerate(known) if member.key == key)
        offset, member = known[place]
        if place + 1 < len(known):  # the exact inverse of `_add_first`: comments around the member stay
            space = self._space_before(offset)
            stop = self._json.index(b",", member.span.stop) + 1
            return offset - len(space), stop + (not space and self._text[stop : stop + 1] == b" "), b""
        if place:
            return known[place - 1][1].span.stop, member.span.stop, b""
        return offset, span.stop - 1, b""

    def _prepend(self, span: Span, new: tuple[str, ...]) -> Splice:
        start = span.start + 1
        if self._json[skip_space(self._json, start)] == ord("]"):
            return start, start, b", ".join(map(_dump, new))
        lead = self._space_at(start)
        text = b"".join(lead + _dump(item) + (b"," if lead else b", ") for item in new)
        return start, start, text


def _dump(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return json.dumps(value).encode()


def _dump_lines(value: Any, inner: bytes, outer: bytes) -> bytes:
    lines = (inner + _dump(key) + b": " + _dump(member) for key, member in value.items())
    return b"{" + b",".join(lines) + outer + b"}"
