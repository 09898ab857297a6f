"""The places of a value that match a pattern, as a model reads them.

A text is searched line by line; of a JSON value the strings are, keys not, and each hit is told with its path. What
is shown is always the hit, however long the line around it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from mcp_mirror.errors import ToolError
from mcp_mirror.models import Buffer, Span
from mcp_mirror.paths import escape_token
from mcp_mirror.query.lines import Line, Matcher, matching_lines
from mcp_mirror.query.texts import IsOver, check_time, count_characters, is_text, pieces_of, spelled
from mcp_mirror.query.windows import Budget
from mcp_mirror.spans import strings_at, trim

_LONG: Final = 240
"""Characters of a line that is shown whole; of a longer one, the hit with what is around it."""
_MANY: Final = 1000
"""Further hits of one line that are counted."""
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
    """One place, as it is listed."""

    text: str
    before: tuple[tuple[int, str], ...] = ()
    after: tuple[str, ...] = ()
    number: int | None = None
    """The line; None: in no text."""


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
        """Hits as long as there is room and time; where they end before their end, how to go on."""
        shown: list[str] = []
        last = next_ = self.offset - 1
        left, why = self.budget.without(_FOOTER), ""
        try:
            for hit in hits:
                lines = [text for number, text in hit.before if number > last]
                text = "\n".join((*lines, hit.text, *hit.after))
                if len(shown) == self.limit or (shown and not left.admits(text)):
                    next_, why = hit.number if hit.number is not None else self.offset + len(shown), "there are more"
                    break
                shown.append(text)
                left = left.after(text)
                if hit.number is not None:
                    last = hit.number + len(hit.after)
                next_ = self.offset + len(shown) if hit.number is None else hit.number + 1
        except ToolError:
            if not shown:
                raise
            why = "the time is over"
        if not shown:
            return "No match."
        listed = ("\n--\n" if self.context else "\n").join(shown)
        return f"{listed}\n... {why}; next: offset={next_}" if why else listed

    def _in_text(self, matcher: Matcher, blob: Buffer, span: Span, is_over: IsOver) -> Iterator[_Hit]:
        pieces = (piece.data for piece in pieces_of(blob, span, is_over))
        for line in matching_lines(matcher, pieces, self.context):
            if line.number >= self.offset:
                yield self._hit(line, matcher)

    def _hit(self, line: Line, matcher: Matcher) -> _Hit:
        whole = line.data[line.start : line.stop]
        said = excerpt(whole, line.at)
        place = ""
        if line.stop - line.start > _LONG:
            place = f" (char {line.characters + count_characters(line.data[: line.start + line.at[0]])}"
            more = matcher.count(whole, max(line.at[1], line.at[0] + 1), _MANY)
            place += f"; {'at least ' if more == _MANY else ''}{more:,} more in this line)" if more else ")"
        before = _before(line, self.context)
        after = _after(line, self.context)
        return _Hit(
            f"{line.number}{place}: {said}",
            tuple((at, f"{at}- {excerpt(one)}") for at, one in enumerate(before, line.number - len(before))),
            tuple(f"{at}- {excerpt(one)}" for at, one in enumerate(after, line.number + 1)),
            line.number,
        )

    def _in_strings(self, matcher: Matcher, blob: Buffer, is_over: IsOver) -> Iterator[_Hit]:
        found: dict[int, str] = {}
        over: ToolError | None = None
        try:
            found.update(islice(_string_hits(matcher, blob, is_over), self.offset + self.limit + 1))
        except ToolError as error:
            over = error
        places = {span.start: location for span, location in strings_at(blob, list(found))}
        for start in list(found)[self.offset :]:
            if start in places:  # it is not where a key was given twice: only the last counts
                below = "".join(f"/{escape_token(str(token))}" for token in places[start])
                yield _Hit(f"{self.path}{below}: {found[start]}")
        if over:
            raise over


def _before(line: Line, context: int) -> list[bytes]:
    if not context or not line.start:
        return []
    return line.data[max(line.start - _NEAR, 0) : line.start - 1].rsplit(b"\n", context)[-context:]


def _after(line: Line, context: int) -> list[bytes]:
    if not context or line.stop + 1 >= len(line.data):
        return []
    return line.data[line.stop + 1 : line.stop + _NEAR].split(b"\n", context)[:context]


def _string_hits(matcher: Matcher, blob: Buffer, is_over: IsOver) -> Iterator[tuple[int, str]]:
    """Where each string that matches begins, and what to show of it."""
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
            if line := next(matching_lines(matcher, pieces, 0), None):
                yield span.start, excerpt(line.data[line.start : line.stop], line.at)


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
