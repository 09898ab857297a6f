"""Searches a value for a pattern and lists the hits for a model.

The search covers the lines of a text, or the lines of all strings of a JSON value except its keys. A hit in a string
has the path of the string, as JSON if it has control characters, and the line number if the string has several lines.
Of a long line, only the surroundings of hits are shown: of the first hit in each line and, if there is room after the
last line, of the further hits.
"""

import json
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from typing import Final, NamedTuple
from unicodedata import normalize

import msgspec

from mcp_mirror.errors import ToolError
from mcp_mirror.paths import MemoryPath
from mcp_mirror.payload.json_spans import strings_at
from mcp_mirror.query.lines import MANY, Line, Matcher, count_further, find_matching_lines
from mcp_mirror.query.texts import IsOver, check_time, count_characters, is_text, open_text, split_text, unescape_json
from mcp_mirror.query.windows import Budget
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.types import Buffer, Span

_LONG: Final = 240
"""Characters up to which a whole line is shown."""
_AROUND: Final = 80
"""Characters that are shown before and after a hit in a longer line."""
_HIT: Final = 300
"""Characters of a hit that are shown."""
_FOOTER: Final = 160
_NO_MATCH_IN_JSON: Final = "No match in the texts of this value. Keys and numbers are not searched."
_ADVICE: Final = (
    (lazy_pattern(r"(?<!\\)(?:\\\\)*\\\|"), r" \| is the character |: write | between alternatives."),
    (
        lazy_pattern(r"(?<!\\)(?:\\\\)*\\[<>]"),
        r" \< and \> are the characters < and >: write \b at the edges of a word.",
    ),
    (lazy_pattern(r"\n|(?<!\\)(?:\\\\)*\\n"), " A match is within one line: match one of the lines, with `context`."),
)
"""Parts of patterns in the syntax of grep and of editors, with the advice after a search without hits."""
_OTHER_CASE: Final = " With other upper and lower case there is a match: begin the pattern with (?i)."
_NEAR: Final = 1 << 16
"""Bytes before and after a hit that are searched for its context lines."""
_RUN: Final = 1 << 22
"""Bytes of strings that are searched at once."""
_WINDOW: Final = 1 << 18
"""Bytes of JSON text whose strings are searched at once if they have no escapes."""
_STRINGS: Final = lazy_pattern(rb'(?:[^"]*+"(?:[^"\\]++|\\.)*+"[ \t\r\n]*+:?+){1,512}', re.DOTALL)
_STRING: Final = lazy_pattern(rb'("(?:[^"\\]++|\\.)*+")([ \t\r\n]*+:)?+', re.DOTALL)
"""A string. A string with a second group is a key."""


class _Hit(msgspec.Struct, frozen=True):
    """A matching line."""

    at: int
    """The line number in a text; the number of earlier hits in any other value."""
    write: Callable[[], dict[int, str]] | None = None
    """Returns the lines to show by their numbers: the hit and its context. None: the hit is only counted."""
    write_further: Callable[[], Iterator[str]] | None = None
    """Yields the surroundings of further hits in a long line."""


def list_forms(pattern: str) -> Sequence[str]:
    """A pattern, and its other Unicode forms: file names and PDF often have `u\u0308` for `\u00fc`."""
    forms = () if pattern.isascii() or "[" in pattern else (normalize("NFC", pattern), normalize("NFD", pattern))
    return tuple(dict.fromkeys((pattern, *forms)))


class Search(msgspec.Struct, frozen=True):
    """A query for the hits of a pattern."""

    pattern: str
    context: int
    """Lines to show before and after each hit."""
    offset: int
    """The first line of a text; the number of hits to skip in any other value."""
    limit: int
    """The maximum number of hits."""
    budget: Budget
    path: str = ""
    """The memory path of the value, a prefix of the paths of hits."""

    def __call__(self, blob: Buffer, is_over: IsOver) -> str:
        """The hits as text for a model."""
        blob, span = open_text(blob)
        for pattern in list_forms(self.pattern):
            if listed := self._list(self._search(pattern, blob, span, is_over)):
                return listed
        nothing = "No match." if is_text(blob, span) else _NO_MATCH_IN_JSON
        return nothing + self._advise(blob, span, is_over)

    def _search(self, pattern: str, blob: Buffer, span: Span, is_over: IsOver) -> Iterator[_Hit]:
        matcher = Matcher(pattern)
        if not matcher.may_occur(blob, lambda: check_time(is_over)):
            return iter(())
        if is_text(blob, span):
            return self._search_text(matcher, blob, span, is_over)
        return self._search_strings(matcher, blob, is_over)

    def _advise(self, blob: Buffer, span: Span, is_over: IsOver) -> str:
        """The advice after a search without hits."""
        advice = "".join(text for part, text in _ADVICE if part.search(self.pattern))
        with suppress(ToolError):  # the time limit
            if next(self._search(f"(?i){self.pattern}", blob, span, is_over), None):
                advice += _OTHER_CASE
        return advice

    def _list(self, hits: Iterator[_Hit]) -> str:
        """The hits within budget and time limit, the number of further hits, and the offset at which to continue."""
        shown: dict[int, str] = {}
        listed: list[_Hit] = []
        last, next_ = self.offset - 1, self.offset - 1
        left, why = self.budget.without(_FOOTER), ""
        try:
            for hit in hits:
                written = hit.write() if hit.write and len(listed) < self.limit else {}
                lines = {at: line for at, line in written.items() if at > last or at == hit.at}
                text = "\n".join(lines.values())
                if not lines or (shown and not left.admits(text)):
                    next_, why = hit.at, _count_rest(hits)
                    break
                shown |= lines  # a hit replaces itself among the lines after the hit before
                left, last, next_ = left.after(text), max(last, *lines), hit.at + 1
                listed.append(hit)
        except ToolError:
            if not shown:
                raise
            why = "the time limit was reached"
        if not why:
            self._add_further(shown, listed, left)
        parts: list[str] = []
        for at, line in shown.items():
            if self.context and parts and at - 1 not in shown:  # lines of the text are left out
                parts.append("--")
            parts.append(line)
        return "\n".join(parts) + (f"\n... {why}; next: offset={next_}" if why else "")

    def _add_further(self, shown: dict[int, str], listed: Sequence[_Hit], left: Budget) -> None:
        """Add the further hits of long lines to the shown lines, as far as limit and budget allow."""
        number = len(listed)
        for hit in listed:
            for text in hit.write_further() if hit.write_further else ():
                number += 1
                if number > self.limit or not left.admits(text):
                    return
                left = left.after(text)
                shown[hit.at] += f"\n{text}"

    def _search_text(self, matcher: Matcher, blob: Buffer, span: Span, is_over: IsOver) -> Iterator[_Hit]:
        pieces = (piece.data for piece in split_text(blob, span, is_over))
        # Previews leave out the byte order mark of a file, and `^` would match before it.
        first = next(pieces, b"").removeprefix(BOM_UTF8)
        for line in find_matching_lines(matcher, chain((first,), pieces), self.context):
            if line.number >= self.offset:
                yield _Hit(line.number, partial(self._write, line, matcher), partial(_excerpt_further, line, matcher))

    def _write(self, line: Line, matcher: Matcher) -> dict[int, str]:
        """A line of a text with its context lines, by number."""
        above, below = _excerpt_context(line, self.context)
        return _number_lines(line.number, above, _format_hit(line, matcher), below)

    def _search_strings(self, matcher: Matcher, blob: Buffer, is_over: IsOver) -> Iterator[_Hit]:
        lines = _search_lines_of_strings(matcher, blob, self.context, is_over)
        listed, time_error = self.offset + self.limit + 1, None
        found: list[_StringHit] = []
        try:
            for at, (start, line) in enumerate(islice(lines, listed)):
                if at < self.offset:
                    continue
                is_whole = not line.number and b"\n" not in line.data
                above, below = ([], []) if is_whole else _excerpt_context(line, self.context)
                number, written = None if is_whole else line.number, _format_hit(line, matcher)
                further = partial(_excerpt_further, line, matcher)
                found.append(_StringHit(start, number, written, further, above, below))
        except ToolError as error:
            time_error = error
        locations = {span.start: where for span, where in strings_at(blob, list({hit.start: None for hit in found}))}
        located = [(at, hit) for at, hit in enumerate(found, self.offset) if hit.start in locations]
        # All but the last of duplicate keys have no location.
        for place, (at, hit) in enumerate(located):
            path = str(MemoryPath(self.path, tuple(map(str, locations[hit.start]))))
            if not path.isprintable():  # a key with a line break would look like another line
                path = json.dumps(path)
            earlier = located[place - 1][1] if place else None
            later = located[place + 1][1] if place + 1 < min(len(located), self.limit) else None
            yield _Hit(at, partial(dict, {at: hit.write(path, earlier, later)}), hit.write_further)
        if time_error:
            raise time_error
        for at, _ in enumerate(lines, listed):
            yield _Hit(at)


class _StringHit(NamedTuple):
    """A matching line of a string in a JSON value."""

    start: int
    """The offset of the string."""
    number: int | None
    """The number of the line; None: the string is one line."""
    line: str
    write_further: Callable[[], Iterator[str]]
    above: Sequence[str]
    """The lines before it that are shown."""
    below: Sequence[str]

    def write(self, path: str, earlier: "_StringHit | None", later: "_StringHit | None") -> str:
        """The line and its context; with the path of the string, unless the hit above has it already."""
        if self.number is None:
            return f"{path}{self.line}"
        first = begin = self.number - len(self.above)
        end = self.stop
        follows = earlier is not None and earlier.start == self.start
        if earlier and follows:
            begin = min(earlier.stop, self.number)
        if later and later.start == self.start:
            end = min(end, later.number or 0)
        lines = _number_lines(self.number, self.above, self.line, self.below, "line ")
        text = "\n".join(line for at, line in lines.items() if begin <= at < end)
        if not follows:
            return f"{path} {text}"
        return f"--\n{text}" if self.above and first > begin else text

    @property
    def stop(self) -> int:
        """The number of the first line below it that is not shown."""
        return (self.number or 0) + 1 + len(self.below)


def _number_lines(number: int, above: Sequence[str], hit: str, below: Sequence[str], label: str = "") -> dict[int, str]:
    """The line of a hit and its context, by number."""
    return {
        **{at: f"{label}{at}- {line}" for at, line in enumerate(above, number - len(above))},
        number: f"{label}{number}{hit}",
        **{at: f"{label}{at}- {line}" for at, line in enumerate(below, number + 1)},
    }


def _count_rest(hits: Iterator[_Hit]) -> str:
    """The number of further hits, including the one that was just taken."""
    number = 1
    try:
        for _ in islice(hits, MANY - 1):
            number += 1
    except ToolError:
        return f"at least {number:,} more"
    return f"{_format_count(number)} more"


def _format_hit(line: Line, matcher: Matcher) -> str:
    """A line after its number; of a long line the hit with its position, and the number of further hits."""
    position = ""
    if line.stop - line.start > _LONG:
        more = count_further(matcher, line)
        further = f"; {_format_count(more)} more in this line" if more else ""
        position = f" (char {_locate(line, line.at[0])}{further})"
    return f"{position}: {excerpt(line.data[line.start : line.stop], line.at)}"


def _locate(line: Line, at: int) -> int:
    """The position of an offset of a line among the characters of the text."""
    return line.characters + count_characters(line.data[: line.start + at])


def _excerpt_further(line: Line, matcher: Matcher) -> Iterator[str]:
    """Yield the further hits in a long line that no excerpt before contains."""
    if line.stop - line.start <= _LONG:
        return
    data = line.data[line.start : line.stop]
    shown, counted, character = _find_excerpt(line.at)[1], line.at[0], _locate(line, line.at[0])
    for at in matcher.find_further(data, line.at, MANY, is_cut=line.is_cut):
        if at[1] > shown:
            character, counted = character + count_characters(data[counted : at[0]]), at[0]
            yield f"(char {character}): {excerpt(data, at)}"
            shown = _find_excerpt(at)[1]


def _format_count(number: int) -> str:
    return f"{'at least ' if number >= MANY else ''}{number:,}"


def _excerpt_context(line: Line, context: int) -> tuple[list[str], list[str]]:
    """The lines before and after a hit that are shown."""
    above: list[bytes] = []
    below: list[bytes] = []
    if context and line.start:
        above = line.data[max(line.start - _NEAR, 0) : line.start - 1].rsplit(b"\n", context)[-context:]
    if line.stop + 1 < len(line.data):
        below = line.data[line.stop + 1 : line.stop + _NEAR].removesuffix(b"\n").split(b"\n", context)[:context]
    return [*map(excerpt, above)], [*map(excerpt, below)]


def _search_lines_of_strings(
    matcher: Matcher, blob: Buffer, context: int, is_over: IsOver
) -> Iterator[tuple[int, Line]]:
    """Yield each matching line of the strings that are not keys, with the offset of its string."""
    for begin, end, plain in _split_strings(blob):
        check_time(is_over)
        if plain is not None and not matcher.may_match(plain.replace(b'"', b"\n")):
            continue
        position = begin
        while run := _STRINGS.match(blob, position, end):  # a search would also try each position after the last string
            start, position = run.span()
            if position - start <= _RUN and not _may_match_any(matcher, run[0]):
                continue
            for string in _STRING.finditer(blob, start, position):
                if string[2]:
                    continue
                span = Span(string.start(), string.end() - string.start())
                pieces = (piece.data for piece in split_text(blob, span, is_over))
                for line in find_matching_lines(matcher, pieces, context):
                    yield span.start, line


def _split_strings(blob: Buffer) -> Iterator[tuple[int, int, bytes | None]]:
    """The start and stop of parts of JSON text that contain whole strings; of parts without escapes also the bytes.

    Each part ends before a string, so that a key and its colon are in the same part.
    """
    position = base = 0
    window = b""
    while position < len(blob):
        if (at := position - base) >= len(window):
            base, at, window = position, 0, bytes(blob[position : position + _WINDOW])
        stop = _find_plain_end(window, at, is_last=base + len(window) == len(blob))
        if stop > at:
            yield position, base + stop, window[at:stop]
            position = base + stop
        else:
            run = _STRINGS.match(blob, position)
            assert run is not None  # noqa: S101  # a string with an escape or without an end in the window
            yield position, run.end(), None
            position = run.end()


def _find_plain_end(window: bytes, at: int, *, is_last: bool) -> int:
    """The end of the part from `at` on that has whole strings without escapes; `at` if the first string has escapes."""
    escape = window.find(b"\\", at)
    end = len(window) if escape < 0 else escape
    quotes = window.count(b'"', at, end)
    if escape < 0 and (is_last or not quotes):
        return end
    last = window.rfind(b'"', at, end)
    return last if quotes % 2 else window.rfind(b'"', at, last)


def _may_match_any(matcher: Matcher, run: bytes) -> bool:
    """Whether any of many strings may match, by one search over all strings; false positives are possible.

    If the strings contain no escapes, replacing their quotes by line breaks makes each string a line.
    """
    if b"\\" not in run:
        return matcher.may_match(run.replace(b'"', b"\n"))
    inside = [string[1:-1] for string, colon in _STRING.findall(run) if not colon]
    return matcher.may_match(b"\n".join(map(unescape_json, inside)))


def excerpt(line: bytes, at: tuple[int, int] = (0, 0)) -> str:
    """A short line, or the hit in a long line and its surroundings."""
    if len(line) <= _LONG:
        return str(line, "utf-8", "ignore").rstrip("\r")
    start, stop = _find_excerpt(at)
    shown = str(line[start:stop], "utf-8", "ignore").rstrip("\r")
    return f"{'...' if start else ''}{shown}{'...' if stop < len(line) else ''}"


def _find_excerpt(at: tuple[int, int]) -> tuple[int, int]:
    """The part of a long line that is shown for a hit."""
    return max(at[0] - _AROUND, 0), min(at[1], at[0] + _HIT) + _AROUND
