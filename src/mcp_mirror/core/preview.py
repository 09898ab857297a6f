"""What a person would want to know of a stored value, in at most 150 tokens: kind, size, beginning and end.

The words come from strangers: they are bounded, and invisible characters are escaped (`visible`).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from mcp_mirror.core.media import Media, read_media
from mcp_mirror.core.text_format import guess_format
from mcp_mirror.paths import escape_token
from mcp_mirror.payload.json_spans import (
    count_items,
    items,
    kind_at,
    measure_text,
    members,
    text_end,
    text_start,
    trim,
)
from mcp_mirror.security.sanitize import as_json_string, cut, sanitize_to_lines, strip_invisible
from mcp_mirror.types import Buffer, Kind, Member, Span

Estimate = Callable[[Buffer], int]

MAX_PREVIEW_TOKENS: Final = 150
"""Expected tokens that a preview costs at most."""

_UNITS: Final = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
_ONE: Final = 0.9995
"""From here on a size is written in the larger unit."""
_WHOLE: Final = 99.95
"""From here on a size is written without a fraction."""

_TINY: Final = 48
"""Bytes of JSON up to which a key's value is shown instead of described."""
_COUNTED: Final = 1 << 25
"""Bytes up to which items and lines are counted."""
_SIDES: Final = 4
"""Levels of nested arrays whose lengths are given."""
_EDGE: Final = 1 << 12
"""Bytes of a text that are decoded at either end."""
_LINE: Final = 160
"""Bytes of a text's line that are shown."""
_HEAD_LINES: Final = 5
_TAIL_LINES: Final = 3
_SAMPLE: Final = 20
"""Items of an array of objects whose fields are looked at."""
_SAMPLE_BYTES: Final = 1 << 18
"""Bytes of items past which no further one is looked at."""
_FIELD: Final = 60
"""Bytes of a field's name that are shown."""
_FIELDS: Final = 30
_STRING: Final = 40
"""Bytes of a string in the first item that are shown."""


class Preview(NamedTuple):
    """A value in few words."""

    summary: str
    """Kind, size and shape: `text, 134 kB, 4,000 lines, log`."""
    lines: tuple[str, ...] = ()
    """What it begins and ends with, or its first item."""


def human_bytes(size: int) -> str:
    """A size for people and models: `19.8 MB`."""
    for unit, scale in _UNITS:
        if (amount := size / scale) >= _ONE:
            return f"{amount:.0f} {unit}" if amount >= _WHOLE else f"{amount:.3g} {unit}"
    return f"{size} B"


def preview_value(blob: Buffer, kind: Kind, estimate: Estimate) -> Preview:
    """The preview of a value that is not an object.

    Args:
        blob: Its JSON text.
        kind: What it is.
        estimate: Expected tokens of a text.
    """
    room = _Room(estimate)
    if kind == "binary":
        media = read_media(blob)
        return Preview(describe_media(media) if media else f"content block, {human_bytes(len(blob))}")
    span = trim(blob)
    if kind == "text":
        return _text(blob, span, room)
    if kind == "array":
        return _array(blob, span, room)
    return Preview(
        f"{kind} {strip_invisible(str(bytes(blob[span.start : span.stop][:_TINY]), 'utf-8', 'replace'), _TINY)}"
    )


def preview_rows(
    blob: Buffer, known: Sequence[Member], estimate: Estimate, room: int = MAX_PREVIEW_TOKENS
) -> Preview | None:
    """The fields and the first item of the largest array of objects among an object's members, if there is one.

    Args:
        blob: The object's JSON text.
        known: Its members.
        estimate: Expected tokens of a text.
        room: Tokens that fields and item may cost.
    """
    arrays = [member for member in known if kind_at(blob, member.span.start) == "array"]
    largest = max(arrays, key=lambda member: member.span.length, default=None)
    if largest is None or not _is_table(blob, largest.span):
        return None
    named = f'fields of "/{strip_invisible(escape_token(largest.key), _FIELD)}": '
    left = _Room(estimate, room)
    left.takes(named)
    fields, first = _rows(blob, largest.span, left)
    return Preview(f"{named}{fields}", first)


def describe_media(media: Media) -> str:
    """`image/png, 1280x720, 0.9 MB`."""
    pixels = media.pixels
    sides = (f"{pixels[0]}x{pixels[1]}",) if pixels else ()
    return ", ".join((strip_invisible(media.media_type or "file", _FIELD), *sides, human_bytes(media.size)))


@dataclass(slots=True)
class _Room:
    """What is left of a preview's tokens."""

    estimate: Estimate
    left: int = MAX_PREVIEW_TOKENS

    def takes(self, text: str) -> bool:
        """Whether a text still fits; if so, it is counted."""
        cost = self.estimate(text.encode()) + 1
        if cost > self.left:
            return False
        self.left -= cost
        return True


def _text(blob: Buffer, span: Span, room: _Room) -> Preview:
    is_whole = span.length <= 2 * _EDGE
    head = text_start(blob, span, 2 * _EDGE if is_whole else _EDGE)
    size, breaks = measure_text(blob, span) if span.length <= _COUNTED else (span.length - 2, 0)
    said = ["text", human_bytes(size)]
    end = head if is_whole else text_end(blob, span, _EDGE)
    count = breaks + (not end.endswith("\n")) if breaks else 0
    said += [f"{count:,} lines"] if count > 1 else []
    said += [kind] if (kind := guess_format(head, is_whole=is_whole)) else []
    summary = ", ".join(said)
    room.takes(summary)
    if not breaks:
        return Preview(summary, tuple(_ends(sanitize_to_lines(head), sanitize_to_lines(end))))
    first, last = _lines_of(head), _lines_of(end)
    last = last[max(_HEAD_LINES if is_whole else 1, len(last) - _TAIL_LINES) :]
    return Preview(summary, tuple(_edges(first[:_HEAD_LINES], last, count, room)))


def _lines_of(text: str) -> list[str]:
    return [cut(line, _LINE) for line in sanitize_to_lines(text).rstrip("\n").split("\n")]


def _ends(head: str, end: str) -> Iterator[str]:
    """How one long line begins and ends."""
    yield cut(head, _LINE)
    if len(head.encode()) > _LINE:
        yield "..." + end.encode()[-_LINE // 2 :].decode(errors="ignore")


def _edges(first: Sequence[str], last: Sequence[str], count: int, room: _Room) -> Iterator[str]:
    """Lines of the head and the tail in turn, as long as there is room, and how many are left out between them."""
    room.takes("... 1,000 lines ...")
    heads: list[str] = []
    tails: list[str] = []
    for at in range(_HEAD_LINES):
        if at < len(first) and not _take(first[at], heads, room):
            break
        if at < len(last) and not _take(last[-1 - at], tails, room):
            break
    yield from heads
    if (left := count - len(heads) - len(tails)) > 0:
        yield f"... {left:,} line{'' if left == 1 else 's'} ..."
    yield from reversed(tails)


def _take(line: str, lines: list[str], room: _Room) -> bool:
    """Keep a line, or of the first one as much as fits; whether there was room for all of it."""
    if room.takes(line):
        lines.append(line)
        return True
    if not lines:
        shorter = cut(line, _LINE // 4)
        if room.takes(shorter):
            lines.append(shorter)
    return False


def _array(blob: Buffer, span: Span, room: _Room) -> Preview:
    size = human_bytes(span.length)
    if not _is_table(blob, span):
        return Preview(f"{_describe(blob, span)}, {size}", _first_items(blob, span, room))
    count = f"{count_items(blob, span):,} " if span.length <= _COUNTED else ""
    summary = f"array of {count}objects, {size}"
    room.takes(summary)
    fields, first = _rows(blob, span, room)
    return Preview(f"{summary}; fields: {fields}" if fields else summary, first)


def _is_table(blob: Buffer, span: Span) -> bool:
    first = next(items(blob, span), None)
    return first is not None and kind_at(blob, first.start) == "object"


def _rows(blob: Buffer, span: Span, room: _Room) -> tuple[str, tuple[str, ...]]:
    """The fields of an array's objects with their types, and the first of them."""
    kinds: dict[str, dict[str, None]] = {}
    for one in islice(items(blob, span), _SAMPLE):
        for key, value in members(blob, one) if kind_at(blob, one.start) == "object" else ():
            kinds.setdefault(key, {})[kind_at(blob, value.start)] = None
        if one.stop - span.start > _SAMPLE_BYTES:
            break
    shown: list[str] = []
    for key, found in islice(kinds.items(), _FIELDS):
        field = f"{strip_invisible(key, _FIELD)} {' or '.join(found)}"
        if not room.takes(field):
            break
        shown.append(field)
    more = [f"and {len(kinds) - len(shown):,} more"] if len(shown) < len(kinds) else []
    first = next(items(blob, span), None)
    row = _row(blob, members(blob, first), room) if first and kind_at(blob, first.start) == "object" else ""
    return ", ".join((*shown, *more)), (f"first: {row}",) if row else ()


def _row(blob: Buffer, known: Iterable[Member], room: _Room) -> str:
    """One object as JSON, with long strings cut and large containers left out; empty where there is no room."""
    parts: list[str] = []
    for key, span in known:
        part = f"{as_json_string(key, _FIELD)}:{_cell(blob, span)}"
        if not room.takes(part):
            parts.append("...")
            break
        parts.append(part)
    return "{" + ",".join(parts) + "}" if parts != ["..."] else ""


def _cell(blob: Buffer, span: Span) -> str:
    kind = kind_at(blob, span.start)
    if kind == "text":
        return as_json_string(text_start(blob, span, 4 * _STRING), _STRING)
    if kind in ("object", "array") and span.length > _STRING:
        return "{...}" if kind == "object" else "[...]"
    return strip_invisible(re.sub(r"\s+", " ", str(bytes(blob[span.start : span.stop]), "utf-8", "replace")), _TINY)


def _first_items(blob: Buffer, span: Span, room: _Room) -> tuple[str, ...]:
    """The first items of an array of texts, numbers or content blocks."""
    shown: list[str] = []
    for one in islice(items(blob, span), _HEAD_LINES):
        cell = _cell(blob, one)
        if kind_at(blob, one.start) == "array" or not room.takes(cell):
            break
        shown.append(cell)
    return (f"first: {', '.join(shown)}",) if shown else ()


def outline_value(blob: Buffer, span: Span) -> str:
    """A tiny value as it is, any other as what it is and how large."""
    if span.length <= _TINY:
        text = str(bytes(blob[span.start : span.stop]), "utf-8", "replace")
        return strip_invisible(text if '"' in text else re.sub(r"\s+", "", text), _TINY)
    return outline_hidden(blob, span)


def outline_hidden(blob: Buffer, span: Span) -> str:
    """A value as what it is and how large, without a byte of it; the lengths of a grid's sides stand for its size."""
    described = _describe(blob, span)
    is_grid = "x" in described.partition("[")[2]
    return described if is_grid else f"{described} {human_bytes(count_bytes(blob, span))}"


def count_bytes(blob: Buffer, span: Span) -> int:
    """Bytes of a value: of a text its own, without quotes and escapes; of anything else those of its JSON."""
    is_text = kind_at(blob, span.start) == "text" and span.length <= _COUNTED
    return measure_text(blob, span)[0] if is_text else span.length


def _describe(blob: Buffer, span: Span) -> str:
    """`object`, `array[12] of object`, `array[128x128x128]`: as deep as the first item of each level tells."""
    sides: list[str] = []
    kind, here = kind_at(blob, span.start), span
    if kind != "array" or span.length > _COUNTED:
        return kind
    while kind == "array" and len(sides) < _SIDES:
        sides.append(str(count_items(blob, here)))
        first = next(items(blob, here), None)
        if first is None:
            break
        kind, here = kind_at(blob, first.start), first
    return f"array[{'x'.join(sides)}]{' of object' if kind == 'object' else ''}"
