"""A window on a value: characters, lines, items or keys, from either end, never over a budget.

Everything counts from 0. What does not fit is said, with how to go on.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Literal, get_args

from mcp_mirror.core.preview import outline_value
from mcp_mirror.errors import ToolError
from mcp_mirror.paths import escape_token
from mcp_mirror.payload.json_spans import count_items, item, items, kind_at, members, trim
from mcp_mirror.query.texts import IsOver, check_time, count_characters, pieces_of
from mcp_mirror.security.sanitize import as_json_string
from mcp_mirror.types import Buffer, Kind, Span

Unit = Literal["chars", "lines", "items", "keys"]

UNITS: Final[tuple[Unit, ...]] = get_args(Unit)
_NATURAL: Final[dict[Kind, Unit]] = {"array": "items", "object": "keys"}
_LAST: Final = 1000
"""Characters from the end that a model is told to read for the end."""
_FOOTER: Final = 200
"""Characters kept for what is said below a window."""
_WIDE: Final = 4
"""Bytes of the longest character."""
_LABEL: Final = 400
_LINE_BREAK: Final = re.compile(rb"\n")


@dataclass(frozen=True, slots=True)
class Budget:
    """How much a model may be shown at once."""

    tokens: int
    characters: int
    estimate: Callable[[Buffer], int] = field(repr=False)

    def admits(self, text: str) -> bool:
        """Whether all of a text fits."""
        return len(text) <= self.characters and self.estimate(text.encode()) <= self.tokens

    def fitting(self, text: str) -> int:
        """How many characters from a text's beginning on fit; one at least."""
        low, high = 1, min(len(text), self.characters)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.estimate(text[:middle].encode()) <= self.tokens else (low, middle - 1)
        return low

    def without(self, characters: int) -> "Budget":
        """What is left when so many characters, which cost a token each at most, are taken."""
        return Budget(max(self.tokens - characters // 3, 1), max(self.characters - characters, 1), self.estimate)

    def after(self, text: str) -> "Budget":
        """What is left behind a text and the line break below it."""
        tokens = max(self.tokens - self.estimate(text.encode()) - 1, 0)
        return Budget(tokens, max(self.characters - len(text) - 1, 0), self.estimate)


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a value to be read."""

    by: Unit | None
    """None: as the value's kind asks for."""
    offset: int
    """Where to begin; negative: from the end."""
    limit: int | None
    """How many at most; None: as many as fit."""
    budget: Budget

    def __call__(self, blob: Buffer, is_over: IsOver) -> str:
        """What the model reads.

        Raises:
            ToolError: There is nothing at the offset, the value has no such units, or the time is over.
        """
        span = trim(blob)
        natural = _NATURAL.get(kind_at(blob, span.start), "chars")
        by = self.by or natural
        if by in ("items", "keys") and by != natural:
            raise ToolError(f"The value has no {by}: it is {kind_at(blob, span.start)}. Leave `by` out.")
        said = Window(by, self.offset, self.limit, self.budget.without(_FOOTER))
        return _READERS[by](said, blob, span, is_over) or "(nothing more)"

    def wanted(self, available: int) -> int:
        """How many to take of those that there are."""
        return available if self.limit is None else min(self.limit, available)


def _read_characters(window: Window, blob: Buffer, span: Span, is_over: IsOver) -> str:
    offset = _from_start(window, lambda: sum(count_characters(one.data) for one in pieces_of(blob, span, is_over)))
    seen, data = 0, b""
    most = window.wanted(window.budget.characters)
    for piece in pieces_of(blob, span, is_over):
        here = count_characters(piece.data)
        if seen + here > offset:
            data += str(piece.data, "utf-8")[max(offset - seen, 0) :][: most + 1].encode()
        seen += here
        if count_characters(data) > most:
            break
    text = str(data, "utf-8")
    if not text:
        _check_offset(offset, seen, "characters")
        return ""
    taken = min(window.budget.fitting(text), most)
    return text[:taken] + (_more(window, offset + taken) if len(text) > taken else "")


def _read_lines(window: Window, blob: Buffer, span: Span, is_over: IsOver) -> str:
    offset = _from_start(window, lambda: count_lines(blob, span, is_over))
    passed, characters, data = 0, 0, b""
    room = window.budget.characters * _WIDE
    for piece in pieces_of(blob, span, is_over):
        rest = piece.data
        if passed < offset:
            passed, rest = _skip_lines(piece.data, offset, passed)
            characters += count_characters(piece.data) - count_characters(rest)
        data += rest[: room + 1 - len(data)]
        if len(data) > room:
            break
    if not data:
        _check_offset(offset, count_lines(blob, span, is_over), "lines")
        return ""
    text = str(data, "utf-8", "ignore")
    fitting = text[: window.budget.fitting(text)]
    return _whole_lines(window, offset, characters, fitting, is_all=len(fitting) == len(text) and len(data) <= room)


def _skip_lines(data: bytes, offset: int, passed: int) -> tuple[int, bytes]:
    """How many lines have ended in the end, and what follows the last of those to pass."""
    breaks = data.count(b"\n")
    if passed + breaks < offset:
        return passed + breaks, b""
    last = next(islice(_LINE_BREAK.finditer(data), offset - passed - 1, None))
    return offset, data[last.end() :]


def _whole_lines(window: Window, offset: int, characters: int, fitting: str, *, is_all: bool) -> str:
    lines = fitting.splitlines(keepends=True) if "\r" not in fitting else re.findall(r"[^\n]*\n|[^\n]+", fitting)
    if not is_all and not lines[-1].endswith("\n"):
        if len(lines) == 1:
            return fitting + f"\n... the line goes on; next: by=chars, offset={characters + len(fitting)}"
        lines.pop()
    shown = lines[: window.wanted(len(lines))]
    done = is_all and len(shown) == len(lines)
    return "".join(shown).removesuffix("\n") + ("" if done else _more(window, offset + len(shown)))


def count_lines(blob: Buffer, span: Span, is_over: IsOver) -> int:
    """Lines of a value's text; one that is begun counts."""
    breaks, last = 0, b"\n"
    for piece in pieces_of(blob, span, is_over):
        breaks, last = breaks + piece.data.count(b"\n"), piece.data[-1:]
    return breaks + (last != b"\n")


def _read_items(window: Window, blob: Buffer, span: Span, is_over: IsOver) -> str:
    offset = _from_start(window, lambda: count_items(blob, span))
    first = item(blob, span, offset)
    if isinstance(first, int):
        _check_offset(offset, first, "items")
        return ""
    rest = items(blob, Span(first.start - 1, span.stop - first.start + 1))
    return _entries(window, blob, ((str(offset + at), one) for at, one in enumerate(rest)), offset, is_over)


def _read_keys(window: Window, blob: Buffer, span: Span, is_over: IsOver) -> str:
    known = members(blob, span)
    offset = _from_start(window, lambda: len(known))
    if offset >= len(known):
        _check_offset(offset, len(known), "keys")
        return ""
    named = ((as_json_string(f"/{escape_token(one.key)}", _LABEL), one.span) for one in known[offset:])
    return _entries(window, blob, named, offset, is_over)


def _entries(window: Window, blob: Buffer, entries: Iterable[tuple[str, Span]], offset: int, is_over: IsOver) -> str:
    """A line for each: its value where that fits at all, else what it is."""
    shown: list[str] = []
    left = window.budget
    for label, span in _limited(entries, window.limit, is_over):
        if shown and len(shown) == window.limit:
            return "\n".join(shown) + _more(window, offset + len(shown))
        line = f"{label}: {_shown(blob, span, window.budget.without(len(label) + 2))}"
        if shown and not left.admits(line):
            return "\n".join(shown) + _more(window, offset + len(shown))
        shown.append(line)
        left = left.after(line)
    return "\n".join(shown)


def _limited(entries: Iterable[tuple[str, Span]], limit: int | None, is_over: IsOver) -> Iterator[tuple[str, Span]]:
    """As many as there may be, and one more, which tells that there are more."""
    for entry in islice(entries, None if limit is None else limit + 1):
        check_time(is_over)
        yield entry


def _shown(blob: Buffer, span: Span, budget: Budget) -> str:
    if span.length <= budget.characters * _WIDE:
        text = str(bytes(blob[span.start : span.stop]), "utf-8")
        if budget.admits(text):
            return text
    return f"({outline_value(blob, span)}: too large to be shown here, take its path)"


def _from_start(window: Window, count: Callable[[], int]) -> int:
    return window.offset if window.offset >= 0 else max(count() + window.offset, 0)


def _check_offset(offset: int, length: int, unit: str) -> None:
    """Reading at the very end is no mistake.

    Raises:
        ToolError: The offset is past it.
    """
    if offset > length:
        raise ToolError(f"Offset {offset:,} is past the end: there are {length:,} {unit}.")


def _more(window: Window, offset: int) -> str:
    """How to go on; who begins at the beginning may want the end."""
    end = f"; last: offset={-_LAST if window.by == 'chars' else -1}" if window.offset == 0 else ""
    return f"\n... next: by={window.by}, offset={offset}{end}"


_READERS: Final[dict[Unit, Callable[[Window, Buffer, Span, IsOver], str]]] = {
    "chars": _read_characters,
    "lines": _read_lines,
    "items": _read_items,
    "keys": _read_keys,
}
