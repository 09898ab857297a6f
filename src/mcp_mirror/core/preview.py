"""Previews of stored values in at most 150 tokens: kind, size, shape, beginning and end.

Previews contain text of upstreams, which is bounded and sanitized (`security.sanitize`).
"""

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from mcp_mirror.core.media import Media, find_embedded_text, has_content, read_media
from mcp_mirror.core.text_format import guess_format
from mcp_mirror.core.value_sizes import Estimate, count_bytes, size_text
from mcp_mirror.paths import escape_token
from mcp_mirror.payload.json_spans import count_items, items, kind_at, members, trim
from mcp_mirror.payload.json_strings import text_end, text_start
from mcp_mirror.security.sanitize import as_json_string, cut, sanitize_to_lines, strip_invisible
from mcp_mirror.types import Buffer, Kind, Member, Span, TextSize

CountItems = Callable[[Buffer, Span], int]
"""Returns the number of items of the array at a span; see `json_spans.count_items`."""

MAX_PREVIEW_TOKENS: Final = 150
"""Maximum expected tokens of a preview."""

_UNITS: Final = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
_UNIT_FROM: Final = 0.9995
"""Amounts from here on are written in this unit rather than the smaller one."""
_NO_FRACTION_FROM: Final = 99.95
"""Amounts from here on are written without a fraction."""

_MAX_SHOWN_VALUE: Final = 48
"""Bytes of JSON up to which a value is shown instead of its outline."""
_MAX_COUNTED_BYTES: Final = 1 << 25
"""Bytes up to which items are counted."""
_MAX_DIMENSIONS: Final = 4
"""Levels of nested arrays whose lengths are shown."""
_EDGE_BYTES: Final = 1 << 12
"""Bytes of a text that are decoded at each end."""
_MAX_LINE: Final = 160
"""Bytes of a line."""
_HEAD_LINES: Final = 5
_TAIL_LINES: Final = 3
_SAMPLED_ITEMS: Final = 20
"""Items of an array of objects that are examined for fields."""
_MAX_SAMPLE_BYTES: Final = 1 << 18
"""Bytes of items after which no further one is examined."""
_MIN_NESTED_BYTES: Final = 1 << 10
_MAX_NESTED_BYTES: Final = 1 << 20
"""Bytes of a member in which an array of objects is searched."""
_MAX_NESTING: Final = 4
"""Levels of objects around that array."""
_MAX_FIELD_NAME: Final = 60
"""Bytes of a field's name."""
_MAX_FIELDS: Final = 30
_MAX_LISTED_ITEMS: Final = 5
"""Items of an array that has a line for each of them."""
_MAX_LISTED_TEXT: Final = 320
"""Bytes of a whole text in such a line."""
_MAX_LONG_TEXTS: Final = 3
"""Texts of an object whose paths are named."""
_MAX_LISTED_KEYS: Final = 8
"""Keys of an object in such a line."""
_MAX_STRING: Final = 40
"""Bytes of a string in the first item."""


class TokenBudget(msgspec.Struct):
    """The remaining tokens of a preview."""

    estimate: Estimate
    left: int = MAX_PREVIEW_TOKENS

    def take(self, text: str) -> bool:
        """Take the tokens of a line if it fits, and return whether it does. Its break and its mark are 2 tokens."""
        cost = self.estimate(text.encode()) + 2
        if cost > self.left:
            return False
        self.left -= cost
        return True

    def exchange(self, old: str, new: str) -> bool:
        """Take the tokens of a text in place of those of another if it fits, and return whether it does."""
        cost = self.estimate(new.encode()) - self.estimate(old.encode())
        if cost > self.left:
            return False
        self.left -= cost
        return True


class Preview(NamedTuple):
    """A short description of a value."""

    summary: str
    """Kind, size and shape: `text, 134 kB, 4,000 lines, log`."""
    lines: tuple[str, ...] = ()
    """Its beginning and end, or its first item."""


class MainItem(NamedTuple):
    """The one large item of an array whose other items are short texts."""

    position: int
    kind: Kind
    blob: Buffer
    """The item as JSON text, or the text of an embedded resource."""
    members: tuple[Member, ...]
    """The members of an object that is not very large."""
    others: tuple[str, ...]
    """The other items, quoted."""


class Part(NamedTuple):
    """A value within an object."""

    keys: tuple[str, ...]
    """Its location."""
    span: Span

    def find_path(self, path: str) -> str | None:
        """Its memory path for the path of the object; None if a key is too long or has invisible characters."""
        tokens = [escape_token(key) for key in self.keys]
        is_shown = all(strip_invisible(token, _MAX_FIELD_NAME) == token for token in tokens)
        return "/".join((path, *tokens)) if is_shown else None


def format_bytes(size: int) -> str:
    """A size in a readable unit: `19.8 MB`."""
    for unit, scale in _UNITS:
        if (amount := size / scale) >= _UNIT_FROM:
            return f"{amount:.0f} {unit}" if amount >= _NO_FRACTION_FROM else f"{amount:.3g} {unit}"
    return f"{size} B"


def format_count(number: int, noun: str) -> str:
    """A number of things: `1 line`, `1,500 lines`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_time(seconds: float) -> str:
    """A time in seconds since the epoch as text: `2026-11-22 17:05:00 UTC`."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def preview_value(
    blob: Buffer,
    kind: Kind,
    room: TokenBudget,
    count: CountItems = count_items,
    text: TextSize | None = None,
    path: str = "",
) -> Preview:
    """The preview of a value that is not an object.

    Args:
        blob: Its JSON text.
        kind: Its kind.
        room: The tokens of the preview, not counting paths; decreases.
        count: Returns the number of items of an array of the value.
        text: The size of a text, if it is known.
        path: Its memory path, for the paths of items.
    """
    if kind == "binary":
        return _preview_block(blob, room)
    span = trim(blob)
    if kind == "text":
        return _preview_text(blob, span, room, text or size_text(blob, span))
    if kind == "array":
        return _preview_array(blob, span, room, count, path)
    scalar = str(bytes(blob[span.start : span.stop][:_MAX_SHOWN_VALUE]), "utf-8", "replace")
    return Preview(f"{kind} {strip_invisible(scalar, _MAX_SHOWN_VALUE)}")


def find_main_item(blob: Buffer, estimate: Estimate) -> MainItem | None:
    """Find the one large text, embedded text, array or object beside short texts in an array, JSON text.

    Many servers send a sentence, the data, and another sentence. Returns None for any other array, and if the short
    texts leave no room for a preview.
    """
    listed = _find_listed_items(blob, trim(blob))
    short = [one for one in listed if one.length <= _MAX_LISTED_TEXT and kind_at(blob, one.start) == "text"]
    if not listed or len(short) != len(listed) - 1:
        return None
    position = max(range(len(listed)), key=lambda at: listed[at].length)
    span = _find_embedded_text(blob, listed[position]) or listed[position]
    kind = kind_at(blob, span.start)
    others = tuple(as_json_string(text_start(blob, one, 2 * _MAX_LISTED_TEXT), 2 * _MAX_LISTED_TEXT) for one in short)
    room = TokenBudget(estimate, MAX_PREVIEW_TOKENS * 2 // 3)
    is_main = span.length > _MAX_LISTED_TEXT and kind in ("text", "array", "object") and all(map(room.take, others))
    part = memoryview(blob)[span.start : span.stop]
    if not is_main or (kind == "object" and has_content(part)):
        return None
    is_indexed = kind == "object" and span.length <= _MAX_NESTED_BYTES
    return MainItem(position, kind, part, members(part, trim(part)) if is_indexed else (), others)


def find_table(blob: Buffer, known: Sequence[Member], above: tuple[str, ...] = ()) -> Part | None:
    """Find the largest array of objects in an object; None without such an array.

    The array is a member of the object, or within the one member that makes up most of it, at any depth: many servers
    wrap their rows as `{"data": {"users": [...]}}`.

    Args:
        blob: JSON text.
        known: The members of the object.
        above: The location of the object in the text.
    """
    arrays = [member for member in known if kind_at(blob, member.span.start) == "array"]
    largest = max(arrays, key=_member_size, default=None)
    if largest is not None and _is_table(blob, largest.span):
        return Part((*above, largest.key), largest.span)
    main = _find_main_member(known)
    inner = _read_members(blob, main, above) if main else ()
    return find_table(blob, inner, (*above, main.key)) if main and inner else None


def find_long_texts(blob: Buffer, known: Sequence[Member], above: tuple[str, ...] = ()) -> tuple[Part, ...]:
    """Find the longest texts of an object, at most three, or those of the one member that makes up most of it."""
    texts = [one for one in known if one.span.length > _MAX_LISTED_TEXT and kind_at(blob, one.span.start) == "text"]
    if texts:
        longest = sorted(texts, key=_member_size, reverse=True)[:_MAX_LONG_TEXTS]
        return tuple(Part((*above, one.key), one.span) for one in longest)
    main = _find_main_member(known)
    inner = _read_members(blob, main, above) if main else ()
    return find_long_texts(blob, inner, (*above, main.key)) if main and inner else ()


def _find_main_member(known: Sequence[Member]) -> Member | None:
    main = max(known, key=_member_size, default=None)
    others = sum(map(_member_size, known)) - main.span.length if main else 0
    return main if main and main.span.length >= max(others, _MIN_NESTED_BYTES) else None


def _read_members(blob: Buffer, member: Member, above: tuple[str, ...]) -> tuple[Member, ...]:
    """The members of an object that is a member, unless it is too large or too deep."""
    is_read = len(above) < _MAX_NESTING and member.span.length <= _MAX_NESTED_BYTES
    return tuple(members(blob, member.span)) if is_read and kind_at(blob, member.span.start) == "object" else ()


def describe_table(blob: Buffer, table: Part, room: TokenBudget, path: str = "") -> str:
    """The fields and first values of a table.

    Args:
        blob: The JSON text of the object.
        table: The table.
        room: The tokens of the fields, not counting the path; decreases.
        path: The object's memory path.
    """
    pointer = "/".join(strip_invisible(escape_token(key), _MAX_FIELD_NAME) for key in table.keys)
    # The outline has the length of a member.
    length = f", array[{count_items(blob, table.span)}]" if len(table.keys) > 1 else ""
    room.take(f'fields of "{pointer}"{length}, with first values: ')
    fields = _describe_rows(blob, table.span, room)
    return f'fields of "{table.find_path(path) or pointer}"{length}, with first values: {fields}'


def describe_media(media: Media) -> str:
    """Media type, pixels and size: `image/png, 1280x720, 0.9 MB`."""
    pixels = media.pixels
    sides = (f"{pixels[0]}x{pixels[1]}",) if pixels else ()
    return ", ".join((strip_invisible(media.media_type or "file", _MAX_FIELD_NAME), *sides, format_bytes(media.size)))


def _preview_block(blob: Buffer, room: TokenBudget) -> Preview:
    """Media by their type and size, an embedded text by its size and lines, any other content block by its size."""
    if media := read_media(blob):
        return Preview(describe_media(media))
    if (span := find_embedded_text(blob)) is None:
        return Preview(f"content block, {format_bytes(len(blob))}")
    return _preview_text(blob, span, room, size_text(blob, span))


def _find_embedded_text(blob: Buffer, span: Span) -> Span | None:
    """The text of the embedded resource at a span; None for any other object, and for a very large one."""
    return find_embedded_text(blob, span) if span.length <= _MAX_COUNTED_BYTES else None


def _preview_text(blob: Buffer, span: Span, room: TokenBudget, text: TextSize) -> Preview:
    is_whole = span.length <= 2 * _EDGE_BYTES
    head = text_start(blob, span, 2 * _EDGE_BYTES if is_whole else _EDGE_BYTES)
    parts = ["text", format_bytes(text.size)]
    end = head if is_whole else text_end(blob, span, _EDGE_BYTES)
    count = text.breaks + (not end.endswith("\n")) if text.breaks else 0
    parts += [format_count(count, "line")] if count > 1 else []
    parts += [kind] if (kind := guess_format(head, is_whole=is_whole, end=end)) else []
    summary = ", ".join(parts)
    room.take(summary)
    if not text.breaks and "\n" not in head + end:  # the breaks of a very large text are not counted
        return Preview(summary, tuple(_show_ends(sanitize_to_lines(head), sanitize_to_lines(end))))
    first, last = _split_lines(head), _split_lines(end)
    last = last[max(_HEAD_LINES if is_whole else 1, len(last) - _TAIL_LINES) :]
    return Preview(summary, tuple(_show_edges(first[:_HEAD_LINES], last, count, room)))


def _split_lines(text: str) -> list[str]:
    return [cut(line, _MAX_LINE) for line in sanitize_to_lines(text).rstrip("\n").split("\n")]


def _show_ends(head: str, end: str) -> Iterator[str]:
    """The beginning and the end of one long line."""
    yield cut(head, _MAX_LINE)
    if len(head.encode()) > _MAX_LINE:
        yield "..." + end.encode()[-_MAX_LINE // 2 :].decode(errors="ignore")


def _show_edges(first: Sequence[str], last: Sequence[str], count: int, room: TokenBudget) -> Iterator[str]:
    """Lines of head and tail in turn while there is room, and the number of lines omitted between them.

    Args:
        first: The first lines.
        last: The last lines.
        count: The number of all lines; 0: unknown.
        room: The remaining tokens.
    """
    room.take("... 1,000 lines ...")
    heads: list[str] = []
    tails: list[str] = []
    for at in range(_HEAD_LINES):
        if at < len(first) and not _append_line(first[at], heads, room):
            break
        if at < len(last) and not _append_line(last[-1 - at], tails, room):
            break
    yield from heads
    if not count:
        yield "..."
    elif (left := count - len(heads) - len(tails)) > 0:
        yield f"... {format_count(left, 'line')} ..."
    yield from reversed(tails)


def _append_line(line: str, lines: list[str], room: TokenBudget) -> bool:
    """Append a line, or a shortened first line; return whether the whole line fits."""
    if room.take(line):
        lines.append(line)
        return True
    if not lines:
        shorter = cut(line, _MAX_LINE // 4)
        if room.take(shorter):
            lines.append(shorter)
    return False


def _preview_array(blob: Buffer, span: Span, room: TokenBudget, count: CountItems, path: str) -> Preview:
    size = format_bytes(span.length)
    if listed := _find_listed_items(blob, span):
        summary = f"array[{len(listed)}], {size}"
        room.take(summary)
        return Preview(summary, tuple(_list_items(blob, listed, room, count, path)))
    if not _is_table(blob, span):
        return Preview(f"{_describe_shape(blob, span, count)}, {size}", _show_first_items(blob, span, room))
    number = format_count(count(blob, span), "object") if span.length <= _MAX_COUNTED_BYTES else "objects"
    summary = f"array of {number}, {size}"
    room.take(summary)
    fields = _describe_rows(blob, span, room)
    return Preview(f"{summary}; fields with first values: {fields}" if fields else summary)


def _member_size(member: Member) -> int:
    return member.span.length


def _is_table(blob: Buffer, span: Span) -> bool:
    """Whether an array begins with an object and most of its first items are objects."""
    kinds: list[Kind] = []
    for one in islice(items(blob, span), _SAMPLED_ITEMS):
        kinds.append(kind_at(blob, one.start))
        if kinds[0] != "object" or one.stop - span.start > _MAX_SAMPLE_BYTES:
            break
    return kinds[:1] == ["object"] and 2 * kinds.count("object") > len(kinds)


def _describe_rows(blob: Buffer, span: Span, room: TokenBudget) -> str:
    """The fields of an array's objects, with the first object's values as far as there is room, else with their types.

    Not as JSON: models copied a first object in JSON in place of the path.
    """
    kinds: dict[str, dict[Kind, None]] = {}
    first: dict[str, Span] = {}
    for one in islice(items(blob, span), _SAMPLED_ITEMS):
        known = members(blob, one) if kind_at(blob, one.start) == "object" else ()
        first = first or dict(known)
        for key, value in known:
            kinds.setdefault(key, {})[kind_at(blob, value.start)] = None
        if one.stop - span.start > _MAX_SAMPLE_BYTES:
            break
    shown: dict[str, str] = {}
    for key, types in islice(kinds.items(), _MAX_FIELDS):
        field = f"{strip_invisible(key, _MAX_FIELD_NAME)} {' or '.join(types)}"
        if not room.take(field):
            break
        shown[key] = field
    for key, field in shown.items():
        with_value = f"{strip_invisible(key, _MAX_FIELD_NAME)} {_format_field(blob, first.get(key), [*kinds[key]])}"
        if room.exchange(field, with_value):
            shown[key] = with_value
    more = [f"and {len(kinds) - len(shown):,} more"] if len(shown) < len(kinds) else []
    return ", ".join((*shown.values(), *more))


def _format_field(blob: Buffer, first: Span | None, kinds: Sequence[Kind]) -> str:
    """The value of a field in the first object, a large one as its type, and the types of values in other objects."""
    kind = kind_at(blob, first.start) if first else None
    if first is None or (kind in ("object", "array") and first.length > _MAX_STRING):
        return " or ".join(kinds)
    return " or ".join((_format_cell(blob, first), *(one for one in kinds if one != kind)))


def _format_cell(blob: Buffer, span: Span) -> str:
    kind = kind_at(blob, span.start)
    if kind == "text":
        return as_json_string(text_start(blob, span, 4 * _MAX_STRING), _MAX_STRING)
    if kind in ("object", "array") and span.length > _MAX_STRING:
        return "{...}" if kind == "object" else "[...]"
    return strip_invisible(
        re.sub(r"\s+", " ", str(bytes(blob[span.start : span.stop]), "utf-8", "replace")), _MAX_SHOWN_VALUE
    )


def _show_first_items(blob: Buffer, span: Span, room: TokenBudget) -> tuple[str, ...]:
    """The first items of an array of texts, numbers or content blocks."""
    shown: list[str] = []
    for one in islice(items(blob, span), _HEAD_LINES):
        cell = _format_cell(blob, one)
        if kind_at(blob, one.start) == "array" or not room.take(cell):
            break
        shown.append(cell)
    return (f"first: {', '.join(shown)}",) if shown else ()


def _find_listed_items(blob: Buffer, span: Span) -> tuple[Span, ...]:
    """The items of an array that are shown one by one: a few of different kinds, texts of which one is long, or files.

    Many servers send a sentence, the data, and another sentence.
    """
    found = tuple(islice(items(blob, span), _MAX_LISTED_ITEMS + 1))
    if not 1 < len(found) <= _MAX_LISTED_ITEMS or span.length <= _MAX_SHOWN_VALUE:
        return ()
    kinds = {kind_at(blob, one.start) for one in found}
    if len(kinds) > 1:
        is_listed = not kinds.isdisjoint(("object", "array", "text"))
    elif kinds == {"text"}:
        is_listed = max(one.length for one in found) > _MAX_LINE
    else:
        is_listed = kinds == {"object"} and any(_find_embedded_text(blob, one) for one in found)
    return found if is_listed else ()


def _list_items(blob: Buffer, listed: Sequence[Span], room: TokenBudget, count: CountItems, path: str) -> Iterator[str]:
    """A line for each item while there is room: the item, or its path, kind, size and beginning.

    The path is whole: models copy what they see, and lines with a part of it made them pass that part.
    """
    for at, one in enumerate(listed):
        whole, *forms = _format_item(blob, one, count)
        if whole and room.take(whole):
            yield whole
            continue
        line = next(filter(room.take, (*forms, outline_hidden(blob, one, count))), None)
        if line is None:
            return
        yield f'"{path}/{at}": {line}'


def _format_item(blob: Buffer, span: Span, count: CountItems) -> tuple[str, ...]:
    """A short item as it is, or an empty text; then its size with its first words or keys, if it has any."""
    kind = kind_at(blob, span.start)
    if kind == "text":
        text = as_json_string(text_start(blob, span, 2 * _MAX_LISTED_TEXT), 2 * _MAX_LISTED_TEXT)
        start = f"{outline_hidden(blob, span, count)}: {_format_cell(blob, span)}"
        return text if len(text.encode()) <= _MAX_LISTED_TEXT else "", start
    if kind == "object" and (text_span := _find_embedded_text(blob, span)):
        return "", f"{outline_hidden(blob, text_span, count)}: {_format_cell(blob, text_span)}"
    if kind == "object" and (media := _find_picture(blob, span)):
        return "", describe_media(media)
    if span.length <= _MAX_SHOWN_VALUE:
        return (outline_value(blob, span, count),)
    if kind != "object" or span.length > _MAX_NESTED_BYTES:
        return ("",)
    known = list(islice(members(blob, span), _MAX_LISTED_KEYS + 1))
    keys = [
        f"{as_json_string(key, _MAX_FIELD_NAME)} {_describe_shape(blob, value, count)}"
        for key, value in known[:_MAX_LISTED_KEYS]
    ]
    more = ["..."] if len(known) > _MAX_LISTED_KEYS else []
    return "", f"{outline_hidden(blob, span, count)}: {', '.join(keys + more)}"


def _find_picture(blob: Buffer, span: Span) -> Media | None:
    """The image or recording in the content block at a span; None for any other object, and for a very large one."""
    if span.length > _MAX_COUNTED_BYTES:
        return None
    media = read_media(memoryview(blob)[span.start : span.stop])
    return media if media and not media.is_file else None


def outline_value(blob: Buffer, span: Span, count: CountItems = count_items) -> str:
    """A small value as it is, any other as kind and size."""
    if span.length <= _MAX_SHOWN_VALUE:
        text = str(bytes(blob[span.start : span.stop]), "utf-8", "replace")
        return strip_invisible(text if '"' in text else re.sub(r"\s+", "", text), _MAX_SHOWN_VALUE)
    return outline_hidden(blob, span, count)


def outline_hidden(blob: Buffer, span: Span, count: CountItems = count_items) -> str:
    """Kind and size of a value without any byte of it; a nested array has its lengths instead of its size."""
    described = _describe_shape(blob, span, count)
    is_grid = "x" in described.partition("[")[2]
    return described if is_grid else f"{described} {format_bytes(count_bytes(blob, span))}"


def _describe_shape(blob: Buffer, span: Span, count: CountItems) -> str:
    """Kind and lengths: `object`, `array[12] of object`, `array[128x128x128]`, by the first item of each level."""
    sides: list[str] = []
    kind, here, innermost = kind_at(blob, span.start), span, span
    if kind != "array" or span.length > _MAX_COUNTED_BYTES:
        return kind
    while kind == "array" and len(sides) < _MAX_DIMENSIONS:
        sides.append(str(count(blob, here)))
        first = next(items(blob, here), None)
        if first is None:
            break
        kind, here, innermost = kind_at(blob, first.start), first, here
    return f"array[{'x'.join(sides)}]{' of object' if _is_table(blob, innermost) else ''}"
