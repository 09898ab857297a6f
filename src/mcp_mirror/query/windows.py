"""Reads a window of a value: characters, lines, items or keys, from either end, within a token budget.

Offsets count from 0. If a part does not fit, a last line names the offset at which to continue.
"""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final, Literal, get_args

import msgspec

from mcp_mirror.core.amounts import format_count
from mcp_mirror.core.results.media import find_base64, read_media
from mcp_mirror.core.results.outlines import MAX_COUNTED_BYTES, join_lines, outline_value
from mcp_mirror.core.results.preview import describe_media
from mcp_mirror.core.texts.embedded_json import describe_embedded_data
from mcp_mirror.errors import ToolError
from mcp_mirror.paths import escape_token
from mcp_mirror.payload.json_spans import items, kind_at, members, trim
from mcp_mirror.payload.json_strings import text_start
from mcp_mirror.query import indexes
from mcp_mirror.query.indexes import index_text
from mcp_mirror.query.texts import IsOver, check_time, count_characters, open_text
from mcp_mirror.security.sanitize import as_json_string, show_characters
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.types import Buffer, Kind, Span

Unit = Literal["chars", "lines", "items", "keys"]

UNITS: Final[tuple[Unit, ...]] = get_args(Unit)
_NATURAL: Final[dict[Kind, Unit]] = {"array": "items", "object": "keys"}
_PEEK: Final = 1 << 14
"""Bytes at the beginning of a text that show whether it has several lines."""
_LAST: Final = 1000
"""Characters from the end that the footer suggests for reading the end."""
_FOOTER: Final = 200
"""Characters reserved for the line below a window."""
_WIDE: Final = 4
"""Bytes of the longest character in UTF-8."""
_ESCAPED: Final = 6
"""Bytes of the longest escape of a character, for each of its UTF-16 code units."""
_LABEL: Final = 400
_SEE: Final = " To see it, call retrieve_final_answer_from_memory."
_LINE_BREAK: Final = lazy_pattern(rb"\n")
_LINE: Final = lazy_pattern(r"[^\n]*\n|[^\n]+")


class Budget(msgspec.Struct, frozen=True):
    """The maximum size of one result for a model."""

    tokens: int
    characters: int
    estimate: Callable[[Buffer], int]

    def admits(self, text: str) -> bool:
        """Whether a text fits."""
        return len(text) <= self.characters and self.estimate(text.encode()) <= self.tokens

    def count_fitting(self, text: str) -> int:
        """The number of characters at the beginning of a text that fit, at least one."""
        low, high = 1, min(len(text), self.characters)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.estimate(text[:middle].encode()) <= self.tokens else (low, middle - 1)
        return low

    def select(self, lines: Iterable[str]) -> list[str]:
        """The first lines that fit, at least one."""
        shown: list[str] = []
        left = self
        for line in lines:
            if shown and not left.admits(line):
                break
            shown.append(line)
            left = left.after(line)
        return shown

    def without(self, characters: int) -> "Budget":
        """The budget without a reserve of ASCII characters, at three characters per token."""
        return Budget(max(self.tokens - characters // 3, 1), max(self.characters - characters, 1), self.estimate)

    def after(self, text: str) -> "Budget":
        """The rest of the budget after a text and a line break."""
        tokens = self.tokens - self.estimate(text.encode()) - 1
        return Budget(tokens, self.characters - len(text) - 1, self.estimate)


class Window(msgspec.Struct, frozen=True):
    """A query for a part of a value."""

    by: Unit | None
    """The unit. None: items of an array, keys of an object, lines of a text with several, else characters; media and
    base64 are described. Items of an object are its keys, and the reverse.

    Characters and lines of an embedded resource with a text are those of the text.
    """
    offset: int
    """The first unit; a negative offset counts from the end."""
    limit: int | None
    """The maximum number of units; None: as many as fit."""
    budget: Budget
    can_query: bool = False
    """The client is served `memory_query`, so an error may advise an expression."""

    def __call__(self, blob: Buffer, is_over: IsOver) -> str:
        """The part as text for a model."""
        if self.by is None and (described := _describe_media(blob)):
            return described
        blob, span = (blob, trim(blob)) if self.by == "keys" else open_text(blob)
        kind = kind_at(blob, span.start)
        has_lines = kind == "text" and text_start(blob, span, _PEEK).count("\n") > 1
        natural = _NATURAL.get(kind, "lines" if has_lines else "chars")
        by = self.by or natural
        if by in ("items", "keys"):  # models mix them up
            if natural not in ("items", "keys"):
                raise ToolError(f"The value has no {by}: it is {_describe_kind(blob, span, can_query=self.can_query)}")
            by = natural
        window = Window(by, self.offset, self.limit, self.budget.without(_FOOTER))
        return _READERS[by](window, blob, span, is_over) or "(nothing more)"

    def clamp_limit(self, available: int) -> int:
        """The number of available units, at most the limit."""
        return available if self.limit is None else min(self.limit, available)


def _describe_media(blob: Buffer) -> str:
    """The type and size of a content block with media, or of base64, and how to use it; empty for any other value."""
    span = trim(blob)
    use = "Use the path as the argument of a tool."
    if kind_at(blob, span.start) == "text":
        encoded = find_base64(blob, span)
        return f"base64 of {describe_media(encoded)}. {use}" if encoded else ""
    if (media := read_media(blob)) is None:
        return ""
    return f"{describe_media(media)}. {use}{'' if media.is_file else _SEE}"


def _describe_kind(blob: Buffer, span: Span, *, can_query: bool) -> str:
    """The kind of a value, and how to read it in place of items or keys."""
    kind = kind_at(blob, span.start)
    data = describe_embedded_data(blob, span) if kind == "text" else None
    if data is None or not can_query:
        return f"{data.description if data else kind}. Leave `by` out."
    example = "keys(@) for its keys" if data.is_object else "[0:10] for ten items"
    return f"{data.description}. Leave `by` out, or query it with the JMESPath expression {example}."


def _read_characters(window: Window, blob: Buffer, span: Span, is_over: IsOver) -> str:
    index = index_text(blob, span)
    offset = _resolve_offset(window, lambda: index.count_characters(blob, span, is_over))
    data = b""
    most = window.clamp_limit(window.budget.characters)
    seen, pieces = index.pieces_from_character(blob, span, offset, is_over)
    for piece in pieces:
        data += str(piece.data, "utf-8")[max(offset - seen, 0) :][: most + 1].encode()
        seen += count_characters(piece.data)
        if count_characters(data) > most:
            break
    text = str(data, "utf-8")
    if not text:
        _check_offset(offset, seen, "character")
        return ""
    taken = min(window.budget.count_fitting(text), most)
    return text[:taken] + (_write_footer(window, offset + taken) if len(text) > taken else "")


def _read_lines(window: Window, blob: Buffer, span: Span, is_over: IsOver) -> str:
    index = index_text(blob, span)
    offset = _resolve_offset(window, lambda: index.count_lines(blob, span, is_over))
    skipped, characters, pieces = index.pieces_from_line(blob, span, offset, is_over)
    data = b""
    room = window.budget.characters * _WIDE
    for piece in pieces:
        rest = piece.data
        if skipped < offset:
            last = next(islice(_LINE_BREAK.finditer(piece.data), offset - skipped - 1, None))
            rest = piece.data[last.end() :]
            characters += count_characters(piece.data) - count_characters(rest)
            skipped = offset
        data += rest[: room + 1 - len(data)]
        if len(data) > room:
            break
    if not data:
        _check_offset(offset, index.count_lines(blob, span, is_over), "line")
        return ""
    text = str(data, "utf-8", "ignore")
    fitting = text[: window.budget.count_fitting(text)]
    is_all = len(fitting) == len(text) and len(data) <= room
    lines: list[str] = _LINE.findall(fitting)
    if not is_all and not lines[-1].endswith("\n"):
        if len(lines) == 1:
            return fitting + f"\n... the line continues; next: by=chars, offset={characters + len(fitting)}"
        lines.pop()
    shown = lines[: window.clamp_limit(len(lines))]
    is_last = is_all and len(shown) == len(lines)
    return "".join(shown).removesuffix("\n") + ("" if is_last else _write_footer(window, offset + len(shown)))


def _read_items(window: Window, blob: Buffer, span: Span, is_over: IsOver) -> str:
    offset = _resolve_offset(window, lambda: indexes.count(blob, span, is_over))
    first = indexes.find_item(blob, span, offset, is_over)
    if isinstance(first, int):
        _check_offset(offset, first, "item")
        return ""
    rest = items(blob, Span(first.start - 1, span.stop - first.start + 1))
    return _list_entries(window, blob, ((str(offset + at), item) for at, item in enumerate(rest)), offset, is_over)


def _read_keys(window: Window, blob: Buffer, span: Span, is_over: IsOver) -> str:
    known = members(blob, span)
    offset = _resolve_offset(window, lambda: len(known))
    if offset >= len(known):
        _check_offset(offset, len(known), "key")
        return ""
    named = ((as_json_string(f"/{escape_token(member.key)}", _LABEL), member.span) for member in known[offset:])
    return _list_entries(window, blob, named, offset, is_over)


def _list_entries(
    window: Window, blob: Buffer, entries: Iterable[tuple[str, Span]], offset: int, is_over: IsOver
) -> str:
    """A line for each entry, with its value, or with its outline if the value does not fit the budget."""
    shown: list[str] = []
    left = window.budget
    footer = ""
    for label, span in entries:
        check_time(is_over)
        line = f"{label}: {_show_value_or_outline(blob, span, window.budget.without(len(label) + 2))}"
        is_over_limit = window.limit is not None and len(shown) >= window.limit
        if shown and (is_over_limit or not left.admits(line)):
            footer = _write_footer(window, offset + len(shown))
            break
        shown.append(line)
        left = left.after(line)
    return "\n".join(shown) + footer


def _show_value_or_outline(blob: Buffer, span: Span, budget: Budget) -> str:
    media = read_media(memoryview(blob)[span.start : span.stop]) if span.length <= MAX_COUNTED_BYTES else None
    if media:
        return f"({describe_media(media)}: take its path)"
    if span.length <= budget.characters * _ESCAPED:
        text = str(show_characters(join_lines(blob[span.start : span.stop])), "utf-8")
        if budget.admits(text):
            return text
    return f"({outline_value(blob, span)}: too large to be shown here, take its path)"


def _resolve_offset(window: Window, count: Callable[[], int]) -> int:
    return window.offset if window.offset >= 0 else max(count() + window.offset, 0)


def _check_offset(offset: int, length: int, noun: str) -> None:
    """Check that an offset is not past the end. An offset at the end is valid."""
    if offset > length:
        there = "there is" if length == 1 else "there are"
        raise ToolError(f"Offset {offset:,} is past the end: {there} {format_count(length, noun)}.")


def _write_footer(window: Window, offset: int) -> str:
    """The line with the next offset and, for a window at the beginning, the offset for the end."""
    end = f"; last: offset={-_LAST if window.by == 'chars' else -1}" if window.offset == 0 else ""
    return f"\n... next: by={window.by}, offset={offset}{end}"


_READERS: Final[dict[Unit, Callable[[Window, Buffer, Span, IsOver], str]]] = {
    "chars": _read_characters,
    "lines": _read_lines,
    "items": _read_items,
    "keys": _read_keys,
}
