"""Outlines of values in a few words: a small value as it is, any other as kind, lengths and size."""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from mcp_mirror.core.amounts import format_bytes
from mcp_mirror.core.value_sizes import count_bytes
from mcp_mirror.payload.json_spans import count_items, items, kind_at, skip_space
from mcp_mirror.payload.json_strings import text_start
from mcp_mirror.security.sanitize import as_json_string, show_characters, strip_invisible
from mcp_mirror.types import Buffer, Span

CountItems = Callable[[Buffer, Span], int]
"""Returns the number of items of the array at a span; see `json_spans.count_items`."""

MAX_SHOWN_VALUE: Final = 48
"""Bytes of JSON up to which a value is shown instead of its outline."""
_MAX_ESCAPED_VALUE: Final = 6 * MAX_SHOWN_VALUE
"""The same, if each character is an escape."""
_MAX_SENTENCE: Final = 160
"""Bytes of JSON of a sentence."""
MAX_COUNTED_BYTES: Final = 1 << 25
"""Bytes up to which items are counted."""
_MAX_DIMENSIONS: Final = 4
"""Levels of nested arrays whose lengths are shown."""
_SAMPLED_ITEMS: Final = 20
"""Items of an array of objects that are examined for fields."""
_MAX_SAMPLE_BYTES: Final = 1 << 18
"""Bytes of items after which no further one is examined."""
_MAX_PARSED_BYTES: Final = 1 << 16
"""Bytes of an array that is parsed as a whole for its first items, since that is faster than their spans."""
_ITEMS: Final = msgspec.json.Decoder(list[msgspec.Raw])


class _Row(NamedTuple):
    """An array in an array."""

    blob: Buffer
    length: int
    """The number of its items."""


def join_lines(text: Buffer) -> bytes:
    """JSON text without its line breaks and the spaces around them, which only cost tokens.

    Line breaks are between tokens, because strings escape them.
    """
    return b"".join(map(bytes.strip, bytes(text).splitlines()))


def show_small(blob: Buffer, span: Span) -> str:
    """A small value as it is, on one line; empty for a larger one."""
    if span.length > _MAX_ESCAPED_VALUE:
        return ""
    shown = show_characters(join_lines(blob[span.start : span.stop]))
    if len(shown) > MAX_SHOWN_VALUE:
        return ""
    text = str(shown, "utf-8", "replace")
    return strip_invisible(text if '"' in text else re.sub(r"\s+", "", text), MAX_SHOWN_VALUE)


def outline_value(blob: Buffer, span: Span, count: CountItems = count_items) -> str:
    """A small value as it is, any other as kind and size."""
    return show_small(blob, span) or outline_hidden(blob, span, count)


def show_sentence(blob: Buffer, span: Span, _count: CountItems = count_items) -> str:
    """A text of one short line with several words; nothing for any other value."""
    if kind_at(blob, span.start) == "text" and span.length <= _MAX_SENTENCE:
        text = text_start(blob, span, _MAX_SENTENCE)
        if " " in text and "\n" not in text:
            return as_json_string(text, 2 * _MAX_SENTENCE)
    return ""


def outline_hidden(blob: Buffer, span: Span, count: CountItems = count_items) -> str:
    """Kind and size of a value without any byte of it; a nested array has its lengths instead of its size."""
    described = describe_shape(blob, span, count)
    is_grid = "x" in described.partition("[")[2]
    return described if is_grid else f"{described} {format_bytes(count_bytes(blob, span))}"


def describe_shape(blob: Buffer, span: Span, count: CountItems) -> str:
    """Kind and lengths: `object`, `array[12] of object`, `array[12] of array`, `array[128x128x128]`.

    An array of arrays has several lengths if its first items have the same one, and so on in the first of them.
    """
    kind = kind_at(blob, span.start)
    if kind != "array" or span.length > MAX_COUNTED_BYTES:
        return kind
    sides = [str(count(blob, span))]
    while len(sides) < _MAX_DIMENSIONS and (row := _find_row(blob, span)):
        sides.append(str(row.length))
        blob, span = row.blob, Span(0, len(row.blob))
    kinds = (f" of {kind}" for kind in ("object", "array") if is_array_of(blob, span, kind))
    return f"array[{'x'.join(sides)}]{next(kinds, '')}"


def _find_row(blob: Buffer, span: Span) -> _Row | None:
    """The first item of an array, if the first items are arrays of one length; None for any other array."""
    rows = sample_items(blob, span) if kind_at(blob, skip_space(blob, span.start + 1)) == "array" else ()
    if any(kind_at(row, 0) != "array" for row in rows):
        return None
    lengths = {count_items(row, Span(0, len(row))) for row in rows}
    return _Row(rows[0], lengths.pop()) if len(lengths) == 1 else None


def is_array_of(blob: Buffer, span: Span, kind: str) -> bool:
    """Whether an array begins with a value of this kind, and most of its first items are of this kind."""
    if kind_at(blob, skip_space(blob, span.start + 1)) != kind:  # without a scan of the item
        return False
    kinds = [kind_at(item, 0) for item in sample_items(blob, span)]
    return 2 * kinds.count(kind) > len(kinds)


def sample_items(blob: Buffer, span: Span) -> Sequence[Buffer]:
    """The first items of an array, at most 20, and none after 256 KiB, as JSON text."""
    if span.length <= _MAX_PARSED_BYTES:
        with suppress(RecursionError):
            parsed = _ITEMS.decode(memoryview(blob)[span.start : span.stop])
            return [memoryview(item) for item in parsed[:_SAMPLED_ITEMS]]
    found: list[Buffer] = []
    for item in islice(items(blob, span), _SAMPLED_ITEMS):
        found.append(memoryview(blob)[item.start : item.stop])
        if item.stop - span.start > _MAX_SAMPLE_BYTES:
            break
    return found
