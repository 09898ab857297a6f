"""The outline of a value: its kind and length, and its keys or fields with their types."""

from collections import Counter
from collections.abc import Iterable
from itertools import chain, islice
from typing import Final

import msgspec

from mcp_mirror.core.amounts import format_count
from mcp_mirror.core.results.outlines import outline_value
from mcp_mirror.core.value_sizes import count_bytes
from mcp_mirror.paths import escape_token
from mcp_mirror.payload.json_spans import items, kind_at, members
from mcp_mirror.payload.json_strings import text_start
from mcp_mirror.query import indexes
from mcp_mirror.query.texts import IsOver, check_time, open_text
from mcp_mirror.query.windows import Budget
from mcp_mirror.security.sanitize import as_json_string
from mcp_mirror.types import Buffer, Span

_SAMPLE: Final = 100
"""Items of an array that are examined."""
_SAMPLE_BYTES: Final = 1 << 22
"""Bytes after which no further item is examined."""
_KEY: Final = 120
_FIRST_LINE: Final = 80
_FOOTER: Final = 40


class Size(msgspec.Struct, frozen=True):
    """A query for the bytes of a value in the form that a model reads."""

    def __call__(self, blob: Buffer, _is_over: IsOver) -> int:
        """The bytes of a text without quotes and escapes, of any other value as JSON."""
        return count_bytes(blob)


class Shape(msgspec.Struct, frozen=True):
    """A query for the outline of a value."""

    budget: Budget

    def __call__(self, blob: Buffer, is_over: IsOver) -> str:
        """The outline as text for a model: of an embedded resource with a text, that of the text."""
        blob, span = open_text(blob)
        match kind_at(blob, span.start):
            case "text":
                index = indexes.index_text(blob, span)
                characters, lines = index.count_characters(blob, span, is_over), index.count_lines(blob, span, is_over)
                begins = text_start(blob, span, 4 * _FIRST_LINE).strip().partition("\n")[0]
                size = f"{format_count(characters, 'character')}, {format_count(lines, 'line')}"
                return f"text, {size}, begins {as_json_string(begins, _FIRST_LINE)}"
            case "object":
                known = members(blob, span)
                listed = (f"{_label(key)}: {outline_value(blob, value)}" for key, value in known)
                return self._list(f"object, {format_count(len(known), 'key')}", listed, len(known))
            case "array":
                return self._outline_array(blob, span, is_over)
            case kind:
                return f"{kind} {outline_value(blob, span)}"

    def _outline_array(self, blob: Buffer, span: Span, is_over: IsOver) -> str:
        examined = 0
        kinds: Counter[str] = Counter()
        fields: dict[str, Counter[str]] = {}
        for item in islice(items(blob, span), _SAMPLE):
            check_time(is_over)
            examined += 1
            kind = kind_at(blob, item.start)
            kinds[kind] += 1
            for key, value in members(blob, item) if kind == "object" else ():
                fields.setdefault(key, Counter())[kind_at(blob, value.start)] += 1
            if item.stop - span.start > _SAMPLE_BYTES:
                break
        length = indexes.count(blob, span, is_over)
        sample = "all" if examined == length else f"the first {examined}"
        heading = f"array, {format_count(length, 'item')}"
        if examined:
            heading += f"; {sample} of them: {', '.join(f'{kind} ({times:,})' for kind, times in kinds.most_common())}"
        lines = (_outline_field(key, found, kinds["object"]) for key, found in fields.items())
        return self._list(heading, lines, len(fields))

    def _list(self, heading: str, lines: Iterable[str], total: int) -> str:
        """The heading and a line for each of `total` keys, as many as fit the budget."""
        shown = self.budget.without(_FOOTER).select(chain((heading,), lines))
        more = total + 1 - len(shown)
        return "\n".join((*shown, *([f"and {format_count(more, 'more key')}"] if more else ())))


def _outline_field(key: str, found: Counter[str], objects: int) -> str:
    times = found.total()
    share = f", in {times:,} of {objects:,}" if times < objects else ""
    return f"{_label(key)}: {' or '.join(found)}{share}"


def _label(key: str) -> str:
    return as_json_string(f"/{escape_token(key)}", _KEY)
