"""Finds what matters in a result: the rows or long texts of an object, and the one large item of an array.

The rows are an array of objects, or the members of an object.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, islice
from typing import Final, NamedTuple

import msgspec

from mcp_mirror.core.results.media import find_embedded_text, has_content
from mcp_mirror.core.results.outlines import MAX_COUNTED_BYTES, MAX_SHOWN_VALUE, is_array_of
from mcp_mirror.core.value_sizes import Estimate
from mcp_mirror.paths import escape_token
from mcp_mirror.payload.json_rpc import decode_as, open_array
from mcp_mirror.payload.json_spans import are_equal, items, kind_at, members, read_keys, skip_space, spans_by_key, trim
from mcp_mirror.payload.json_strings import text_start
from mcp_mirror.security.sanitize import as_json_string, strip_invisible
from mcp_mirror.types import Buffer, Kind, Member, Span

MAX_FIELD_NAME: Final = 60
"""Bytes of a field's name."""
_MAX_LOCATION: Final = 160
"""Bytes of the part of a path below a value. A key may be the path of a file."""
_MIN_NESTED_BYTES: Final = 1 << 10
MAX_NESTED_BYTES: Final = 1 << 20
"""Bytes of a member in which an array of objects is searched, whatever the number of its keys."""
_MAX_SEARCHED_BYTES: Final = 1 << 24
"""Bytes of such a member with few keys. To read the keys takes about 1 ms per MiB."""
_MAX_SEARCHED_KEYS: Final = 1_000
"""The maximum of few keys. To measure the members of an object with a million keys takes seconds."""
_MAX_NESTING: Final = 4
"""Levels of objects around that array."""
_SMALL_SHARE: Final = 8
"""An array of objects that is less than this part of an object is described only if nothing else is."""
_MAX_LISTED_ITEMS: Final = 5
"""Items of an array that has a line for each of them."""
MAX_LISTED_TEXT: Final = 320
"""Bytes of a whole text in such a line."""
_MAX_LONG_TEXTS: Final = 3
"""Texts of an object whose paths are named."""
_MIN_LISTED_TEXT: Final = 160
"""Bytes of the longest of several texts that have a line each."""
_MAX_SHORT_TEXT_TOKENS: Final = 100
"""Expected tokens of the short texts beside the one large item or beside structured content."""


_MIN_RECORDS: Final = 4
"""Members of an object from which they may be its rows."""
SAMPLED_RECORDS: Final = 20
"""Such members that are examined."""
_RARE: Final = 8
"""Records of which one may have many keys that the others lack."""
_MAX_SAMPLE_BYTES: Final = 1 << 18
"""Bytes of such members after which no further one is examined."""


_MAX_CELLS: Final = 1000
"""Cells of a row in which a text is searched."""
_MAX_NAMES_BYTES: Final = 1 << 16
"""Bytes of an array that may have the names of columns."""


class _Column(msgspec.Struct):
    name: str


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
    """A text or an array within an object."""

    keys: tuple[str, ...]
    """Its location."""
    span: Span
    names: Sequence[str] = ()
    """The names of the columns of an array of rows, if the object has them."""


class Records(NamedTuple):
    """An object whose members are objects with the same keys."""

    keys: tuple[str, ...]
    """Its location."""
    size: int
    """The number of its members."""
    first_key: str
    samples: Sequence[Buffer]
    """Its first members, JSON text."""


class Level(NamedTuple):
    """An object within a value, or the value itself."""

    keys: tuple[str, ...]
    """Its location."""
    members: Sequence[Member]


MainPart = Part | Records | Level
"""The part of an object that a notice describes: an array, records, or an object."""


def find_path(path: str, keys: Sequence[str]) -> str | None:
    """The memory path of a part of a value; None if its keys are too long or have invisible characters."""
    location = "/".join(map(escape_token, keys))
    return f"{path}/{location}" if strip_invisible(location, _MAX_LOCATION) == location else None


def find_main_item(blob: Buffer, estimate: Estimate) -> MainItem | None:
    """Find the one large text, embedded text, array or object beside short texts in an array, JSON text.

    Many servers send a sentence, the data, and another sentence. Returns None for any other array, and if the short
    texts leave no room for a preview.
    """
    listed = find_listed_items(blob, trim(blob))
    short = [item for item in listed if item.length <= MAX_LISTED_TEXT and kind_at(blob, item.start) == "text"]
    if len(short) != len(listed) - 1:
        return None
    view = memoryview(blob)
    others = quote_short_texts([view[item.start : item.stop] for item in short], estimate)
    position = next(at for at, item in enumerate(listed) if item not in short)
    span = find_text_at(blob, listed[position]) or listed[position]
    kind, part = kind_at(blob, span.start), view[span.start : span.stop]
    is_main = span.length > MAX_LISTED_TEXT and kind in ("text", "array", "object")
    if not others or not is_main or (kind == "object" and has_content(part)):
        return None
    is_indexed = kind == "object" and span.length <= MAX_NESTED_BYTES
    return MainItem(position, kind, part, members(part, trim(part)) if is_indexed else (), others)


def quote_short_texts(texts: Sequence[Buffer], estimate: Estimate) -> tuple[str, ...]:
    """Return texts, JSON strings, as a notice quotes them; nothing if they are too long for a notice."""
    if any(len(text) > MAX_LISTED_TEXT for text in texts):
        return ()
    starts = (text_start(text, Span(0, len(text)), 2 * MAX_LISTED_TEXT) for text in texts)
    quoted = tuple(as_json_string(start, 2 * MAX_LISTED_TEXT) for start in starts)
    tokens = sum(estimate(text.encode()) + 2 for text in quoted)
    return quoted if tokens <= _MAX_SHORT_TEXT_TOKENS else ()


def read_levels(blob: Buffer, known: Sequence[Member]) -> tuple[Level, ...]:
    """An object, the one member that makes up most of it if that is an object, that member's, and so on.

    Many servers wrap their rows as `{"data": {"users": [...]}}`, or one file as `{"files": [{"text": "..."}]}`: an
    array of one object is passed over. `known` has the members of the object.
    """
    levels = [Level((), known)]
    while main := _find_main_member(levels[-1].members):
        keys = levels[-1].keys
        if row := find_only_row(blob, main.span):
            keys, main = (*keys, main.key), row
        inner = _read_members(blob, main, keys)
        if not inner:
            break
        levels.append(Level((*keys, main.key), inner))
    return tuple(levels)


def find_part(blob: Buffer, known: Sequence[Member], keys: Sequence[str]) -> tuple[Sequence[Level], Buffer]:
    """The objects around the part of an object at these keys, and the part. `known` has the members of the object."""
    levels, span = [Level((), known)], trim(blob)
    for at, key in enumerate(keys, 1):
        span = spans_by_key(levels[-1].members)[key]
        levels += [Level(tuple(keys[:at]), members(blob, span))] if at < len(keys) else []
    return levels, memoryview(blob)[span.start : span.stop]


def find_main_part(blob: Buffer, levels: Sequence[Level], *, has_texts: bool) -> MainPart | None:
    """Find the rows of an object, or else the object that makes up most of it; None without such a part.

    A small table is the last choice, and the only row of a table contains others. `has_texts`: the notice names long
    texts, which say more than anything but rows.
    """
    table = find_table(blob, levels)
    is_small = table is None or _SMALL_SHARE * table.span.length < len(blob)
    other: MainPart | None = None
    if is_small:
        inner = levels[-1] if len(levels) > 1 else None
        other = _find_records(blob, levels[1:] if has_texts else levels)
        if not has_texts:
            other = other or _find_main_array(blob, levels) or inner
    elif not has_texts:
        other = _find_part_of_row(blob, levels, table)
    return other or table


def _find_part_of_row(blob: Buffer, levels: Sequence[Level], table: Part | None) -> MainPart | None:
    """Find what makes up most of the only row of a table: rows, or the row itself around another array.

    None for any other table.
    """
    row = next((at for at, level in enumerate(levels) if table and level.keys == (*table.keys, "0")), 0)
    part = find_main_part(blob, levels[row:], has_texts=False) if row else None
    main = _find_main_member(levels[-1].members) if row and part is None else None
    if main and kind_at(blob, main.span.start) == "array":
        return levels[-1]
    return None if isinstance(part, Part) and _SMALL_SHARE * part.span.length < len(blob) else part


def find_table(blob: Buffer, levels: Sequence[Level]) -> Part | None:
    """Find the largest array of objects in the first level that has one; None without such an array."""
    for level in levels:
        arrays = [member for member in level.members if kind_at(blob, member.span.start) == "array"]
        largest = max(arrays, key=_member_size, default=None)
        if largest is not None and is_array_of(blob, largest.span, "object"):
            return Part((*level.keys, largest.key), largest.span)
    return None


def _find_main_array(blob: Buffer, levels: Sequence[Level]) -> Part | None:
    """Find the array of rows or texts that makes up most of the innermost object; None for anything else.

    Rows without names have a text in the first row. Texts beside a further array may be a column.
    """
    known = levels[-1].members if levels else ()
    main = _find_main_member(known)
    if main is None or kind_at(blob, main.span.start) != "array":
        return None
    keys, first = (*levels[-1].keys, main.key), next(items(blob, main.span), main.span)
    if kind_at(blob, first.start) == "text":
        others = (member.span for member in known if member.key != main.key and member.span.length > MAX_SHOWN_VALUE)
        has_columns = any(kind_at(blob, span.start) == "array" for span in others)
        return None if has_columns else Part(keys, main.span)
    if names := find_column_names(blob, known, main.span):
        return Part(keys, main.span, names)
    cells = islice(items(blob, first), _MAX_CELLS) if kind_at(blob, first.start) == "array" else ()
    return Part(keys, main.span) if any(kind_at(blob, span.start) == "text" for span in cells) else None


def find_column_names(blob: Buffer, known: Sequence[Member], table: Span) -> Sequence[str]:
    """The names of the cells of an array of arrays, in another member of its object; nothing without them.

    They are different texts, or the `name` of objects, as many as the first row has cells: many databases answer so.
    Names of types are not meant.
    """
    view, headers = memoryview(blob), list[Sequence[str]]()
    for key, span in known:
        is_small_array = kind_at(blob, span.start) == "array" and span.length <= _MAX_NAMES_BYTES
        may_have_names = is_small_array and span != table and "type" not in key.casefold()
        if may_have_names and (names := _read_names(view[span.start : span.stop])):
            headers.append(names)
    row = next(items(blob, table), None) if headers else None
    width = len(open_array(view[row.start : row.stop]) or ()) if row else 0
    fitting = [names for names in headers if len(names) == width]
    return fitting[0] if len(fitting) == 1 else ()


def _read_names(array: Buffer) -> Sequence[str]:
    """The different names in an array of texts, or of objects with a `name`; nothing for any other array."""
    columns: Sequence[str | _Column] = decode_as(array, list[str | _Column]) or ()
    names = [column if isinstance(column, str) else column.name for column in columns]
    return names if len(set(names)) == len(names) else ()


def _find_records(blob: Buffer, levels: Sequence[Level]) -> Records | None:
    """Find the first level whose members are objects with the same keys: rows by name, number or date."""
    for level in levels:
        if len(level.members) >= _MIN_RECORDS and (samples := sample_records(blob, level.members)):
            return Records(level.keys, len(level.members), level.members[0].key, samples)
    return None


def sample_records(blob: Buffer, known: Sequence[Member]) -> Sequence[Buffer]:
    """The first members of an object if they are objects of one kind; see `are_of_one_kind`."""
    view, samples = memoryview(blob), list[Buffer]()
    for member in known[:SAMPLED_RECORDS]:
        if member.span.stop - known[0].span.start > _MAX_SAMPLE_BYTES:
            break
        record = view[member.span.start : member.span.stop]
        if kind_at(record, 0) != "object":
            return ()
        samples.append(record)
    return samples if are_of_one_kind([frozenset(read_keys(record)) for record in samples]) else ()


def are_of_one_kind(keys: Sequence[AbstractSet[str]]) -> bool:
    """Whether there are four or more objects with these keys, and they share keys with the first or most of them.

    One in eight may have other keys too, such as the project itself in a lock file of npm.
    """
    if len(keys) < _MIN_RECORDS:
        return False
    times = Counter(chain.from_iterable(keys))
    frequent = frozenset(key for key, count in times.items() if 2 * count >= len(keys))
    return _are_alike(keys, keys[0]) or _are_alike(keys, frequent)


def _are_alike(keys: Sequence[AbstractSet[str]], shared: AbstractSet[str]) -> bool:
    """Whether records have some of the shared keys each, and most of them no more other keys than shared ones."""
    unlike = sum(2 * len(own & shared) < len(own) for own in keys)
    return _RARE * unlike <= len(keys) and all(own & shared for own in keys)


def find_long_texts(blob: Buffer, levels: Sequence[Level]) -> tuple[Part, ...]:
    """Find the longest texts, at most three, of the first level that has long texts.

    The one long text in an array of a few texts counts too: servers send what a program printed, and then its state.
    """
    for level in levels:
        long = [member for member in level.members if member.span.length > MAX_LISTED_TEXT]
        texts = [_find_long_text(blob, Part((*level.keys, member.key), member.span)) for member in long]
        if found := [text for text in texts if text is not None]:
            longest = sorted(found, key=lambda text: text.span.length, reverse=True)
            return tuple(_omit_repeated(blob, longest[:_MAX_LONG_TEXTS]))
    return ()


def _omit_repeated(blob: Buffer, texts: Sequence[Part]) -> Iterator[Part]:
    """The texts, sorted by their sizes, without those that have the same bytes as the one before."""
    before, view = memoryview(b""), memoryview(blob)
    for text in texts:
        written = view[text.span.start : text.span.stop]
        if not are_equal(written, before):
            yield text
        before = written


def _find_long_text(blob: Buffer, part: Part) -> Part | None:
    """A long text, or the one in an array of at most five texts; None for any other value."""
    kind = kind_at(blob, part.span.start)
    if kind == "text":
        return part
    begins_with_text = kind == "array" and kind_at(blob, skip_space(blob, part.span.start + 1)) == "text"
    listed = tuple(islice(items(blob, part.span), _MAX_LISTED_ITEMS + 1)) if begins_with_text else ()
    long = [(at, item) for at, item in enumerate(listed) if item.length > MAX_LISTED_TEXT]
    if len(long) != 1 or len(listed) > _MAX_LISTED_ITEMS or any(kind_at(blob, item.start) != "text" for item in listed):
        return None
    [(at, span)] = long
    return Part((*part.keys, str(at)), span)


def find_listed_items(blob: Buffer, span: Span) -> tuple[Span, ...]:
    """The items of an array that are shown one by one: a few of different kinds, texts of which one is long, or files.

    Many servers send a sentence, the data, and another sentence.
    """
    first_items = tuple(islice(items(blob, span), _MAX_LISTED_ITEMS + 1))
    if not 1 < len(first_items) <= _MAX_LISTED_ITEMS or span.length <= MAX_SHOWN_VALUE:
        return ()
    kinds = {kind_at(blob, item.start) for item in first_items}
    if len(kinds) > 1:
        is_listed = not kinds.isdisjoint(("object", "array", "text"))
    elif kinds == {"text"}:
        is_listed = max(item.length for item in first_items) > _MIN_LISTED_TEXT
    else:
        is_listed = kinds == {"object"} and any(find_text_at(blob, item) for item in first_items)
    return first_items if is_listed else ()


def find_text_at(blob: Buffer, span: Span) -> Span | None:
    """The text of the embedded resource at a span; None for any other object, and for a very large one."""
    return find_embedded_text(blob, span) if span.length <= MAX_COUNTED_BYTES else None


def _find_main_member(known: Sequence[Member]) -> Member | None:
    main = max(known, key=_member_size, default=None)
    others = sum(map(_member_size, known)) - main.span.length if main else 0
    return main if main and main.span.length >= max(others, _MIN_NESTED_BYTES) else None


def find_only_row(blob: Buffer, span: Span) -> Member | None:
    """The object of an array that has no other item, with its position as key; None for any other value."""
    if kind_at(blob, span.start) != "array" or span.length > MAX_NESTED_BYTES:
        return None
    rows = tuple(islice(items(blob, span), 2))
    return Member("0", rows[0]) if len(rows) == 1 and kind_at(blob, rows[0].start) == "object" else None


def _read_members(blob: Buffer, member: Member, above: tuple[str, ...]) -> tuple[Member, ...]:
    """The members of an object that is a member, unless it is too large or too deep."""
    span = member.span
    if len(above) >= _MAX_NESTING or kind_at(blob, span.start) != "object" or span.length > _MAX_SEARCHED_BYTES:
        return ()
    if span.length > MAX_NESTED_BYTES:
        keys = read_keys(memoryview(blob)[span.start : span.stop])
        if len(keys) > _MAX_SEARCHED_KEYS:
            return ()
    return members(blob, span)


def _member_size(member: Member) -> int:
    return member.span.length
