"""The places of a value that match a pattern, as a model reads them.

A text is searched line by line, and so are the strings of a JSON value, but not its keys. Each hit in a string has the
path of the string, and its line where the string has several. Of a long line the hit is shown with what is around it.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

from mcp_mirror.errors import ToolError
from mcp_mirror.paths import escape_token
from mcp_mirror.payload.json_spans import strings_at, trim
from mcp_mirror.query.lines import Line, Matcher, matching_lines
from mcp_mirror.query.texts import IsOver, check_time, count_characters, is_text, pieces_of, spelled
from mcp_mirror.query.windows import Budget
from mcp_mirror.types import Buffer, Span

_LONG: Final = 240
"""Characters of a line that is shown whole; of a longer one, the hit with what is around it."""
_MANY: Final = 1000
"""Further hits that are counted."""
_AROUND: Final = 80
_HIT: Final = 300
"""Characters of a hit that are shown."""
_FOOTER: Final = 160
_NEAR: Final = 1 << 16
"""Bytes before and after a hit in which the lines around it are looked for."""
_RUN: Final = 1 << 22
"""Bytes of strings that are looked at at once."""
_STRINGS: Final = re.compile(rb'(?:[^"]*+"(?:[^"\\]++|\\.)*+"[ \t\r\n]*+:?+){1,512}', re.DOTALL)
_STRING: Final = re.compile(rb'("(?:[^"\\]++|\\.)*+")([ \t\r\n]*+:)?+', re.DOTALL)
"""A string; one with a second group is a key."""


@dataclass(frozen=True, slots=True)
class _Hit:
    """One line that matches."""

    at: int
    """Of a text, its number; in another value, how many hits come before it."""
    write: Callable[[int], tuple[str, int]] | None
    """Given the last line that is shown already: what to show, and the last line of that. None: the hit is counted."""


@dataclass(frozen=True, slots=True)
class Search:
    """What to look for."""

    pattern: str
    context: int
    """Lines to show before and after each hit."""
    offset: int
    """Of a text, the line to begin at; of another value, how many hits to pass over."""
    limit: int
    """Hits at most."""
    budget: Budget
    path: str = ""
    """Put before where in the value each hit is."""

    def __call__(self, blob: Buffer, is_over: IsOver) -> str:
        """What the model reads.

        Raises:
            ToolError: The pattern is none, or the time is over before anything was found.
        """
        matcher, span = Matcher(self.pattern), trim(blob)
        if is_text(blob, span):
            return self._listed(self._in_text(matcher, blob, span, is_over))
        return self._listed(self._in_strings(matcher, blob, is_over))

    def _listed(self, hits: Iterator[_Hit]) -> str:
        """Hits as long as there is room and time; then how many more there are, and how to go on."""
        shown: list[str] = []
        last = next_ = self.offset - 1
        left, why = self.budget.without(_FOOTER), ""
        try:
            for hit in hits:
                text, end = hit.write(last) if hit.write and len(shown) < self.limit else ("", last)
                if not text or (shown and not left.admits(text)):
                    next_, why = hit.at, _count_rest(hits)
                    break
                shown.append(text)
                left, last, next_ = left.after(text), end, hit.at + 1
        except ToolError:
            if not shown:
                raise
            why = "the time is over"
        if not shown and not why:
            return "No match."
        listed = ("\n--\n" if self.context else "\n").join(shown)
        return f"{listed}\n... {why}; next: offset={next_}" if why else listed

    def _in_text(self, matcher: Matcher, blob: Buffer, span: Span, is_over: IsOver) -> Iterator[_Hit]:
        pieces = (piece.data for piece in pieces_of(blob, span, is_over))
        for line in matching_lines(matcher, pieces, self.context):
            if line.number >= self.offset:
                yield _Hit(line.number, partial(self._write, line, matcher))

    def _write(self, line: Line, matcher: Matcher, last: int) -> tuple[str, int]:
        """A line of a text with those around it that are not shown yet."""
        before, after = _before(line, self.context), _after(line, self.context)
        lines = [
            *(f"{at}- {excerpt(one)}" for at, one in enumerate(before, line.number - len(before)) if at > last),
            f"{line.number}{_place(line, matcher)}: {_said(line)}",
            *(f"{at}- {excerpt(one)}" for at, one in enumerate(after, line.number + 1)),
        ]
        return "\n".join(lines), line.number + len(after)

    def _in_strings(self, matcher: Matcher, blob: Buffer, is_over: IsOver) -> Iterator[_Hit]:
        lines = _lines_of_strings(matcher, blob, is_over)
        listed, over = self.offset + self.limit + 1, None
        found: list[tuple[int, str]] = []
        try:
            for at, (start, line) in enumerate(islice(lines, listed)):
                if at >= self.offset:
                    found.append((start, f"{_number(line)}{_place(line, matcher)}: {_said(line)}"))
        except ToolError as error:
            over = error
        places = {span.start: where for span, where in strings_at(blob, list(dict(found)))}
        for at, (start, said) in enumerate(found, self.offset):
            if start in places:  # it is not where a key was given twice: only the last counts
                below = "".join(f"/{escape_token(str(token))}" for token in places[start])
                yield _Hit(at, partial(_written, f"{self.path}{below}{said}"))
        if over:
            raise over
        for at, _ in enumerate(lines, listed):
            yield _Hit(at, None)


def _written(text: str, last: int) -> tuple[str, int]:
    return text, last


def _count_rest(hits: Iterator[_Hit]) -> str:
    """How many hits there are from the one that was just taken on."""
    number = 1
    try:
        for _ in islice(hits, _MANY - 1):
            number += 1
    except ToolError:
        return f"at least {number:,} more"
    return f"{_at_least(number)} more"


def _number(line: Line) -> str:
    """The number of a line in a string; nothing where the string has only one."""
    return f" line {line.number}" if line.number or b"\n" in line.data else ""


def _place(line: Line, matcher: Matcher) -> str:
    """Where in a long line the hit is, and how many more there are in it."""
    if line.stop - line.start <= _LONG:
        return ""
    at = line.characters + count_characters(line.data[: line.start + line.at[0]])
    more = matcher.count(line.data[line.start : line.stop], max(line.at[1], line.at[0] + 1), _MANY)
    return f" (char {at}{f'; {_at_least(more)} more in this line' if more else ''})"


def _at_least(number: int) -> str:
    return f"{'at least ' if number >= _MANY else ''}{number:,}"


def _said(line: Line) -> str:
    return excerpt(line.data[line.start : line.stop], line.at)


def _before(line: Line, context: int) -> list[bytes]:
    if not context or not line.start:
        return []
    return line.data[max(line.start - _NEAR, 0) : line.start - 1].rsplit(b"\n", context)[-context:]


def _after(line: Line, context: int) -> list[bytes]:
    if not context or line.stop + 1 >= len(line.data):
        return []
    return line.data[line.stop + 1 : line.stop + _NEAR].split(b"\n", context)[:context]


def _lines_of_strings(matcher: Matcher, blob: Buffer, is_over: IsOver) -> Iterator[tuple[int, Line]]:
    """Every line that matches in a string that is no key, and where the string begins."""
    for run in _STRINGS.finditer(blob):
        check_time(is_over)
        start, stop = run.span()
        if stop - start <= _RUN and not _may_match(matcher, bytes(blob[start:stop])):
            continue
        for string in _STRING.finditer(blob, start, stop):
            if string[2]:
                continue
            span = Span(string.start(), string.end() - string.start())
            pieces = (piece.data for piece in pieces_of(blob, span, is_over))
            for line in matching_lines(matcher, pieces, 0):
                yield span.start, line


def _may_match(matcher: Matcher, run: bytes) -> bool:
    """Whether any of many strings matches, in one search over all of them; at worst a wrong yes.

    Where nothing is escaped, each string is a line of its own once its quotes are line breaks.
    """
    if b"\\" not in run:
        return matcher.may_match(run.replace(b'"', b"\n"))
    inside = [string[1:-1] for string, colon in _STRING.findall(run) if not colon]
    return matcher.may_match(b"\n".join(map(spelled, inside)))


def excerpt(line: bytes, at: tuple[int, int] = (0, 0)) -> str:
    """A line with the hit in it: whole if it is short, else the hit and what is around it."""
    if len(line) <= _LONG:
        return str(line, "utf-8", "ignore").rstrip("\r")
    start, stop = max(at[0] - _AROUND, 0), min(at[1], at[0] + _HIT)
    shown = str(line[start : stop + _AROUND], "utf-8", "ignore").rstrip("\r")
    return f"{'...' if start else ''}{shown}{'...' if stop + _AROUND < len(line) else ''}"
