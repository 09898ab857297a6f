"""Previews of stored values in at most 150 tokens: kind, size, shape, beginning and end.

Previews contain text of upstreams, which is bounded and sanitized (`security.sanitize`).
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
from typing import Final, NamedTuple

from mcp_mirror.core.amounts import format_bytes, format_count
from mcp_mirror.core.results.main_parts import (
    MAX_FIELD_NAME,
    MAX_LISTED_TEXT,
    MAX_NESTED_BYTES,
    Level,
    MainPart,
    Part,
    Records,
    find_listed_items,
    find_path,
    find_table,
    find_text_at,
    read_levels,
)
from mcp_mirror.core.results.media import Media, find_base64, find_embedded_text, read_media
from mcp_mirror.core.results.outlines import (
    MAX_COUNTED_BYTES,
    MAX_SHOWN_VALUE,
    CountItems,
    describe_shape,
    is_array_of,
    outline_hidden,
    outline_value,
    sample_items,
    show_small,
)
from mcp_mirror.core.texts.edges import Errors, find_errors, show_around_data, show_edges, show_ends
from mcp_mirror.core.texts.embedded_json import MAX_SEARCHED_BYTES, find_embedded_json, find_quoted_text
from mcp_mirror.core.texts.formats import (
    AFTER_HEADING,
    JSON_LINES,
    PYTHON_LITERAL,
    Edges,
    find_format,
    measure_heading,
    read_edges,
)
from mcp_mirror.core.texts.outlines import outline_text, show_outline
from mcp_mirror.core.texts.python_literals import count_rows, translate_first_rows
from mcp_mirror.core.value_sizes import TokenBudget, size_text
from mcp_mirror.paths import escape_token
from mcp_mirror.payload.json_spans import count_items, items, kind_at, members, slice_members, trim
from mcp_mirror.payload.json_strings import text_start
from mcp_mirror.security.sanitize import as_json_string, show_characters, strip_invisible
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.types import Buffer, Kind, Member, Span, TextSize

MAX_PREVIEW_TOKENS: Final = 150
"""Maximum expected tokens of a preview."""

_FIRST_ITEMS: Final = 5
_MAX_FIELDS: Final = 30
_MAX_LISTED_KEYS: Final = 8
"""Keys of an object in the line of an item."""
_MAX_STRING: Final = 40
"""Bytes of a string in the first item."""
_MAX_SMALL_MEMBER: Final = 160
"""Bytes of a member that is named beside the rows of an object."""
_MAX_SMALL_OBJECT: Final = 512
"""Bytes of an object beside the rows whose members are named."""
_MAX_BESIDE: Final = 100
"""The first members of a value, among which such objects are."""
_MAX_BESIDE_TOKENS: Final = 50
"""Tokens of the lines about such members."""
_MAX_HEADER_BYTES: Final = 1 << 12
"""Bytes of the first row of an array of arrays that is shown."""
_MAX_PRINTED_ROWS: Final = 1 << 12
"""Characters of a list of Python in which its first rows are read."""
_HEADING_LINES: Final = 2
"""Lines above a table beside which the names of its columns are shown too."""
_WORD: Final = lazy_pattern(r"[\w.$@/:-]+")


class Preview(NamedTuple):
    """A short description of a value."""

    summary: str
    """Kind, size and shape: `text, 134 kB, 4,000 lines, log`."""
    lines: tuple[str, ...] = ()
    """Its beginning and end, or its first item."""
    errors: Errors | None = None
    """The lines of a text with errors."""


def preview_value(
    blob: Buffer,
    kind: Kind,
    room: TokenBudget,
    count: CountItems = count_items,
    text: TextSize | None = None,
    path: str = "",
) -> Preview:
    """The preview of a value that is not an object, in the tokens of `room`, which decrease; paths take none.

    `text` is the size of a text, if it is known. `path` is the memory path of the value, for the paths of items.
    """
    if kind == "binary":
        return _preview_block(blob, room)
    span = trim(blob)
    if kind == "text":
        return _preview_text(blob, span, room, text or size_text(blob, span))
    if kind == "array":
        return _preview_array(blob, span, room, count, path)
    scalar = str(bytes(blob[span.start : span.stop][:MAX_SHOWN_VALUE]), "utf-8", "replace")
    return Preview(f"{kind} {strip_invisible(scalar, MAX_SHOWN_VALUE)}")


def describe_part(blob: Buffer, part: MainPart, room: TokenBudget, path: str = "") -> str:
    """A line about the part that matters in an object, with first values; empty without room for one of them.

    `path` is that of the object; it takes no room.
    """
    named = strip_invisible("/".join(map(escape_token, part.keys)), MAX_FIELD_NAME)
    match part:
        case Part():
            line = _describe_array(blob, part, named, room)
        case Records():
            beginning = f"Its {part.size:,} members are objects; fields with first values: "
            if part.keys:
                first = as_json_string(part.first_key, _MAX_STRING)
                beginning = f'"{named}" has {part.size:,} objects, the first at {first}; fields with first values: '
            line = _add_fields(beginning, part.samples, room)
        case _:
            room.take(f'"{named}" has , and 1,000 more keys')
            fields = _list_fields(blob, part.members, room)
            line = f'"{named}" has {fields}' if fields else ""
    if len(part.keys) > 1 and (whole := find_path(path, part.keys)):  # the outline of the object has only its members
        line = line.replace(f'"{named}"', f'"{whole}"', 1)
    return line


def _add_fields(beginning: str, rows: Sequence[Buffer], room: TokenBudget) -> str:
    room.take(beginning)
    fields = _describe_rows(rows, room)
    return beginning + fields if fields else ""


def _describe_array(blob: Buffer, array: Part, named: str, room: TokenBudget) -> str:
    """The fields or the columns of an array with first values, else its first row or its first texts."""
    kind = kind_at(blob, next(items(blob, array.span), array.span).start)
    if kind == "object":
        length = f", array[{count_items(blob, array.span)}]" if len(array.keys) > 1 else ""
        return _add_fields(f'fields of "{named}"{length}, with first values: ', sample_items(blob, array.span), room)
    beginning = f'columns of "{named}", with first values: '
    if array.names:
        rows = [_name_cells(array.names, row) for row in sample_items(blob, array.span)]
        return _add_fields(beginning, rows, room)
    room.take(beginning)
    if kind == "text":
        beginning, shown = f'first of "{named}"', ", ".join(_list_first_items(blob, array.span, room))
    else:
        beginning, shown = f'first row of "{named}"', _list_first_cells(blob, array.span, room)
    return f"{beginning}: {shown}" if shown else ""


def describe_beside(blob: Buffer, levels: Sequence[Level], keys: Sequence[str], room: TokenBudget) -> tuple[str, ...]:
    """A line for each object around or beside a described part: its small members, which may tell how to get more rows.

    `levels` has the value, which needs no line because its members are listed, and the objects around the part at
    `keys`. The lines take a third of the room at most, those of the innermost objects first.
    """
    lines: dict[int, str] = {}
    most = min(room.left, _MAX_BESIDE_TOKENS)
    own = TokenBudget(room.estimate, most)
    places = list(enumerate(_list_objects_beside(blob, levels, keys)))
    for at, (location, others) in sorted(places, key=lambda place: -len(place[1][0])):
        if fields := list(islice(_list_small_members(blob, others), _MAX_FIELDS)):
            named = strip_invisible("/".join(map(escape_token, location)), MAX_FIELD_NAME)
            described = f'also in "{named}": '
            if own.take(described) and (shown := tuple(filter(own.take, fields))):
                lines[at] = described + ", ".join(shown)
    room.left -= most - own.left
    return tuple(line for _, line in sorted(lines.items()))


def _list_objects_beside(
    blob: Buffer, levels: Sequence[Level], keys: Sequence[str]
) -> Iterator[tuple[Sequence[str], Iterable[Member]]]:
    """The location and the other members of each object around a part, and of small ones beside it in the value."""
    for level in levels[1:]:
        if len(level.keys) >= len(keys):
            break
        yield level.keys, [member for member in level.members if member.key != keys[len(level.keys)]]
    for key, span in levels[0].members[:_MAX_BESIDE] if keys else ():
        is_small = span.length <= _MAX_SMALL_OBJECT and not show_small(blob, span)  # otherwise it is listed as it is
        if is_small and key != keys[0] and kind_at(blob, span.start) == "object":
            yield (key,), members(blob, span)


def _list_small_members(blob: Buffer, known: Iterable[Member], above: str = "") -> Iterator[str]:
    """Numbers, short texts and the like, also those within small objects."""
    for key, span in known:
        if span.length > _MAX_SMALL_MEMBER:
            continue
        kind = kind_at(blob, span.start)
        if kind == "object" and not above:
            yield from _list_small_members(blob, members(blob, span), f"{escape_token(key)}/")
        elif kind not in ("object", "array"):
            named = f"{above}{escape_token(key)}" if above else key
            yield f"{_format_key(named)} {_format_cell(blob, span)}"


def _outline_member(blob: Buffer, span: Span) -> str:
    """A small value as a field of a table has it, any other as its shape."""
    if kind_at(blob, span.start) == "text" or span.length <= _MAX_STRING:
        return _format_cell(blob, span)
    return describe_shape(blob, span, count_items)


def describe_media(media: Media) -> str:
    """Media type, pixels and size: `image/png, 1280x720, 0.9 MB`."""
    pixels = media.pixels
    sides = (f"{pixels[0]}x{pixels[1]}",) if pixels else ()
    return ", ".join((strip_invisible(media.media_type or "file", MAX_FIELD_NAME), *sides, format_bytes(media.size)))


def _preview_block(blob: Buffer, room: TokenBudget) -> Preview:
    """Media by their type and size, an embedded text by its size and lines, any other content block by its size."""
    if media := read_media(blob):
        return Preview(describe_media(media))
    if (span := find_embedded_text(blob)) is None:
        return Preview(f"content block, {format_bytes(len(blob))}")
    return _preview_text(blob, span, room, size_text(blob, span))


def _preview_text(blob: Buffer, span: Span, room: TokenBudget, text: TextSize) -> Preview:
    """The preview of a text; of one in a JSON string its size, and the preview of the text that the string is."""
    quoted = find_quoted_text(blob[span.start : span.stop]) if span.length <= MAX_SEARCHED_BYTES else None
    if quoted is None:
        return _preview_plain_text(blob, span, room, text)
    size = f"text, {format_bytes(text.size)}, a JSON string: "
    room.take(size)
    inner = trim(quoted)
    shown = _preview_plain_text(quoted, inner, room, size_text(quoted, inner))
    return shown._replace(summary=size + shown.summary)


def _preview_plain_text(blob: Buffer, span: Span, room: TokenBudget, text: TextSize) -> Preview:
    """Its size and format, with what shows most of it: rows, JSON, an outline, or its first and last lines."""
    edges = read_edges(blob, span)
    form = find_format(edges)
    line_count = text.breaks + (not edges.end.endswith("\n")) if text.breaks else 0
    size = f"text, {format_bytes(text.size)}"
    if line_count > 1:
        size += f", {format_count(line_count, 'line')}"
    summary = f"{size}, {form}" if form else size
    is_searched = span.length <= MAX_SEARCHED_BYTES
    rows = translate_first_rows(edges.head[:_MAX_PRINTED_ROWS]) if form == PYTHON_LITERAL else None
    if rows and is_searched and (row_count := count_rows(text_start(blob, span, span.length))):
        summary += f", {format_count(row_count, 'row')}"
    room.take(summary)
    if rows and (described := _describe_printed_rows(rows, room)):
        return Preview(summary + described)
    if form != PYTHON_LITERAL and is_searched and (data := find_embedded_json(blob[span.start : span.stop])):
        return _preview_data(summary, data, edges, room)
    if outline := outline_text(blob, span, form):
        return Preview(f"{size}, {outline.counted}", tuple(show_outline(outline, room.take)))
    if text.breaks or "\n" in edges.head + edges.end:  # the breaks of a very large text are not counted
        end = None if edges.is_whole else edges.end
        head = _shorten_heading(edges) if form.endswith(AFTER_HEADING) else edges.head
        is_output = is_searched and form in ("", "log", JSON_LINES)
        errors = find_errors(text_start(blob, span, span.length)) if is_output else None
        return Preview(summary, tuple(show_edges(head, end, line_count, room.take, errors)), errors)
    if media := find_base64(blob, span):
        return Preview(f"{summary}, base64 of {describe_media(media)}")
    return Preview(summary, tuple(show_ends(edges.head, edges.end, room.take)))


def _shorten_heading(edges: Edges) -> str:
    """The beginning of a text with rows without empty lines above them; of more than two lines, only the first.

    The names of the columns say more.
    """
    above = measure_heading(edges)
    heading = [line for line in edges.head[:above].split("\n") if line.strip()]
    shown = heading if len(heading) <= _HEADING_LINES else heading[:1]
    return "\n".join((*shown, edges.head[above:]))


def _preview_data(summary: str, data: bytes, edges: Edges, room: TokenBudget) -> Preview:
    """The preview of a text with JSON: what the JSON contains, and the lines before and after it."""
    before, after = show_around_data(edges.head, edges.end, data, room.take)
    span = trim(data)
    is_array = kind_at(data, span.start) == "array"
    inner = _preview_array(data, span, room, count_items, "") if is_array else _preview_object(data, span, room)
    between = inner.lines or (("...",) if before or after else ())
    return Preview(f"{summary}, contains JSON: {inner.summary}", (*before, *between, *after))


def _preview_object(blob: Buffer, span: Span, room: TokenBudget) -> Preview:
    """The keys of an object and, if it has a table, the fields of its rows."""
    known = members(blob, span)
    keys = _list_fields(blob, known, TokenBudget(room.estimate, room.left // 2))
    room.take(keys)
    table = find_table(blob, read_levels(blob, known))
    fields = describe_part(blob, table, room) if table else ""
    return Preview("; ".join(filter(None, (f"object with {keys}" if keys else "object", fields))))


def _list_fields(blob: Buffer, known: Sequence[Member], room: TokenBudget) -> str:
    """The keys of an object, each with its value or its shape, and the number of further keys; empty without room."""
    fields = (f"{_format_key(key)} {_outline_member(blob, span)}" for key, span in known[:_MAX_FIELDS])
    shown = tuple(takewhile(room.take, fields))
    left = len(known) - len(shown)
    more = (f"and {format_count(left, 'more key')}",) if left else ()
    return ", ".join((*shown, *more)) if shown else ""


def _describe_printed_rows(rows: bytes, room: TokenBudget) -> str:
    """The fields of dictionaries that Python printed, or the first tuple if it has a text; empty for other rows."""
    fields = _describe_rows(sample_items(rows, trim(rows)), room)
    return f"; fields with first values: {fields}" if fields else _show_header(rows, trim(rows), room)


def _preview_array(blob: Buffer, span: Span, room: TokenBudget, count: CountItems, path: str) -> Preview:
    size = format_bytes(span.length)
    if listed := find_listed_items(blob, span):
        summary = f"array[{len(listed)}], {size}"
        room.take(summary)
        return Preview(summary, tuple(_list_items(blob, listed, room, count, path)))
    if not is_array_of(blob, span, "object"):
        summary, shown = f"{describe_shape(blob, span, count)}, {size}", _list_first_items(blob, span, room)
        lines = (f"first: {', '.join(shown)}",) if shown else ()
        return Preview(f"{summary}{_show_header(blob, span, room) or _describe_inner(blob, span, room)}", lines)
    number = format_count(count(blob, span), "object") if span.length <= MAX_COUNTED_BYTES else "objects"
    summary = f"array of {number}, {size}"
    room.take(summary)
    fields = _describe_rows(sample_items(blob, span), room)
    return Preview(f"{summary}; fields with first values: {fields}" if fields else summary)


def _describe_inner(blob: Buffer, span: Span, room: TokenBudget) -> str:
    """The fields of the objects in the first array of an array of arrays; empty for any other array."""
    first = next(items(blob, span), span)
    if kind_at(blob, first.start) != "array" or first is span or not is_array_of(blob, first, "object"):
        return ""
    return _add_fields("; fields with first values: ", sample_items(blob, first), room)


def _describe_rows(samples: Sequence[Buffer], room: TokenBudget) -> str:
    """The fields of several objects, with the first object's values as far as there is room, else with their types.

    Empty without room for a field. Not as JSON: models copied a first object in JSON in place of the path.
    """
    kinds: dict[str, dict[Kind, None]] = {}
    first: dict[str, Buffer] = {}
    for sample in samples:
        known = slice_members(sample) if kind_at(sample, 0) == "object" else {}
        first = first or known
        for key, value in known.items():
            kinds.setdefault(key, {})[kind_at(value, 0)] = None
    shown: dict[str, str] = {}
    for key, types in islice(kinds.items(), _MAX_FIELDS):
        field = f"{_format_key(key)} {' or '.join(types)}"
        if not room.take(field):
            break
        shown[key] = field
    for key, field in shown.items():
        with_value = f"{_format_key(key)} {_format_field(first.get(key), [*kinds[key]])}"
        if room.exchange(field, with_value):
            shown[key] = with_value
    more = [f"and {len(kinds) - len(shown):,} more"] if 0 < len(shown) < len(kinds) else []
    return ", ".join((*shown.values(), *more))


def _format_key(key: str) -> str:
    """A key that is one word as it is, any other as a JSON string: its end would not be seen, or it reads as a text."""
    show = strip_invisible if _WORD.fullmatch(key) else as_json_string
    return show(key, MAX_FIELD_NAME)


def _format_field(first: Buffer | None, kinds: Sequence[Kind]) -> str:
    """The value of a field in the first object, a large one as its type, and the types of values in other objects."""
    kind = None if first is None else kind_at(first, 0)
    if first is None or (kind in ("object", "array") and len(first) > _MAX_STRING):
        return " or ".join(f"{name}{name_keys(first)}" if first and name == kind else name for name in kinds)
    return " or ".join((_format_cell(first, trim(first)), *(name for name in kinds if name != kind)))


def name_keys(blob: Buffer) -> str:
    """The first keys of an object, or of the first object of an array, in brackets; empty for any other value."""
    span, of = trim(blob), ""
    if kind_at(blob, span.start) == "array":
        span, of = next(items(blob, span), span), " of object"
    if kind_at(blob, span.start) != "object" or span.length > MAX_NESTED_BYTES:
        return ""
    keys = [_format_key(key) for key, _ in islice(members(blob, span), _MAX_LISTED_KEYS + 1)]
    if len(keys) > _MAX_LISTED_KEYS:
        keys[_MAX_LISTED_KEYS:] = ["..."]
    return f"{of} ({', '.join(keys)})"


def _format_cell(blob: Buffer, span: Span) -> str:
    kind = kind_at(blob, span.start)
    if kind == "text":
        return as_json_string(text_start(blob, span, 4 * _MAX_STRING), _MAX_STRING)
    if kind == "object" and span.length > _MAX_STRING:
        return "{...}"
    text = str(show_characters(bytes(blob[span.start : span.stop])), "utf-8", "replace")
    return strip_invisible(re.sub(r"\s+", " ", text), MAX_SHOWN_VALUE)


def _name_cells(names: Sequence[str], row: Buffer) -> bytes:
    """A row of cells as an object."""
    spans = items(row, trim(row)) if kind_at(row, 0) == "array" else ()
    cells = zip(map(json.dumps, names), spans, strict=False)
    return b"{%b}" % b",".join(b"%b:%b" % (name.encode(), bytes(row[cell.start : cell.stop])) for name, cell in cells)


def _list_first_items(blob: Buffer, span: Span, room: TokenBudget) -> Sequence[str]:
    """The first items of an array of texts, numbers or content blocks."""
    shown: list[str] = []
    for item in islice(items(blob, span), _FIRST_ITEMS):
        if kind_at(blob, item.start) == "array" or not room.take(cell := _format_cell(blob, item)):
            break
        shown.append(cell)
    return shown


def _show_header(blob: Buffer, span: Span, room: TokenBudget) -> str:
    shown = _list_first_cells(blob, span, room)
    return f"; first row: {shown}" if shown else ""


def _list_first_cells(blob: Buffer, span: Span, room: TokenBudget) -> str:
    """The first row of an array of arrays if it has texts, as far as there is room: often the names of columns."""
    row = next(items(blob, span), span)
    if kind_at(blob, row.start) != "array" or row is span or row.length > _MAX_HEADER_BYTES:
        return ""
    cells = tuple(items(blob, row))
    kinds = {kind_at(blob, cell.start) for cell in cells}
    if "text" not in kinds or not kinds.isdisjoint(("array", "object")):
        return ""
    shown = tuple(takewhile(room.take, (_format_cell(blob, cell) for cell in cells[:_MAX_FIELDS])))
    more = f", and {len(cells) - len(shown):,} more" if len(shown) < len(cells) else ""
    return f"{', '.join(shown)}{more}" if shown else ""


def _list_items(blob: Buffer, listed: Sequence[Span], room: TokenBudget, count: CountItems, path: str) -> Iterator[str]:
    """A line for each item while there is room: the item, or its path, kind, size and beginning.

    The first items leave room for the paths, kinds and sizes of the others. A path is whole: models copy what they see,
    and lines with a part of it made them pass that part.
    """
    outlines = takewhile(room.take, [outline_hidden(blob, item, count) for item in listed])
    for at, outline in enumerate([*outlines]):
        whole, start = _format_item(blob, listed[at], count)
        if whole and room.exchange(outline, whole):
            yield whole
        else:
            line = start if start and room.exchange(outline, start) else outline
            yield f'"{path}/{at}": {line}'


def _format_item(blob: Buffer, span: Span, count: CountItems) -> tuple[str, str]:
    """A short item as it is; and its size with its first words or keys. Each is empty if the item has none."""
    kind = kind_at(blob, span.start)
    if kind == "text":
        text = as_json_string(text_start(blob, span, 2 * MAX_LISTED_TEXT), 2 * MAX_LISTED_TEXT)
        start = f"{outline_hidden(blob, span, count)}: {_format_cell(blob, span)}"
        return text if len(text.encode()) <= MAX_LISTED_TEXT else "", start
    if kind == "object" and (text_span := find_text_at(blob, span)):
        return "", f"{outline_hidden(blob, text_span, count)}: {_format_cell(blob, text_span)}"
    if kind == "object" and (media := _find_picture(blob, span)):
        return "", describe_media(media)
    if span.length <= MAX_SHOWN_VALUE:
        return outline_value(blob, span, count), ""
    if kind != "object" or span.length > MAX_NESTED_BYTES:
        return "", ""
    known = members(blob, span)
    keys = [
        f"{as_json_string(key, MAX_FIELD_NAME)} {describe_shape(blob, value, count)}"
        for key, value in known[:_MAX_LISTED_KEYS]
    ]
    if len(known) > _MAX_LISTED_KEYS:
        keys.append("...")
    return "", f"{outline_hidden(blob, span, count)}: {', '.join(keys)}"


def _find_picture(blob: Buffer, span: Span) -> Media | None:
    """The image or recording in the content block at a span; None for any other object, and for a very large one."""
    if span.length > MAX_COUNTED_BYTES:
        return None
    media = read_media(memoryview(blob)[span.start : span.stop])
    return media if media and not media.is_file else None
