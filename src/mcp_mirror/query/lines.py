"""Finds the lines of a text that match an RE2 pattern, in linear time. The text comes in pieces of any size."""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from mcp_mirror.errors import ToolError
from mcp_mirror.query.texts import count_characters
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.types import Buffer

_LINE: Final = 1 << 21
"""Bytes above which a line is searched in parts."""
_OVERLAP: Final = 1 << 12
"""Bytes that two parts of a long line share, so that a match of this length across their border is found."""
_REST: Final = bytes(1 << 10)
"""In place of the rest of a line that is cut: `$` does not match where it is cut."""
_PLAIN: Final = lazy_pattern(r"[ !#-.0-\[\]-~]{3,}")
"""Characters that JSON text contains as they are, unless it has escapes that begin with `\\u00`."""
_BRANCHING: Final = lazy_pattern(r"[|()\[\]{}\\]")
"""Characters of patterns whose literal parts may be optional."""
_WILDCARD: Final = lazy_pattern(r".[*?]+|[.^$]|\++\??", re.DOTALL)
_ESCAPE: Final = 4
MANY: Final = 1000
"""Matches in a line that are counted."""
_WINDOW: Final = 1 << 18
"""Bytes that are searched at once for the literal part of a pattern."""
_MAX_PATTERN: Final = 1 << 16
"""Characters of the longest pattern."""
_BACKTRACKING: Final = lazy_pattern(r"\(\?(?:[=!>]|<[=!]|P\Z)|: \\[1-9]")
"""What RE2 names in its error for a pattern that other engines match by backtracking."""
_MAX_REASON: Final = 200
"""Characters of the reason why a pattern is invalid."""
_ATOM: Final = lazy_pattern(
    r"(?P<open>\()|(?P<close>\))|\{(?P<least>\d{1,4})(?P<range>,(?P<most>\d{0,4}))?\}|(?P<mark>[?*])"
    r"|(?P<class>\\[pP](?:\{\^?\w*\}|.)|\[(?:\\[^pP]|[^\]\\])*+\\[pP](?:\\.|[^\]\\])*+\]?)"
    r"|(?P<many>\.|\\[WDS]|\[\^\]?(?:\\.|[^\]\\])*+\]?)|\[\]?(?:\\.|[^\]\\])*+\]?|\\?.",
    re.DOTALL,
)
"""A character, a set of characters, or a sign of a pattern."""
_CLASS_STEPS: Final = 500
"""Steps of a Unicode class, about."""
_MANY_STEPS: Final = 8
"""Steps of any character, or of all characters but some, about."""
_MEASURED_PATTERN: Final = 1 << 12
"""Characters of the longest pattern that is measured."""
_PAIRS: Final = 64
"""Pairs of optional parts that take as long to compile as one step: that time grows with the square of their number."""
_MAX_STEPS: Final = 1 << 20
_LINE_END: Final = lazy_pattern(r"(\\Q.*?(?:\\E|\Z)|\\.|\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*+\]?)|\$", re.DOTALL)
"""The sign for the end of a line; in group 1 a quoted text, an escape or a set, where a dollar is a character."""
_ANY_LINE_END: Final = r"(?:\r?$)"
_WHOLE_TEXT: Final = lazy_pattern(r"\\[Az]|\(\?[A-Za-z]*-")
"""Parts of patterns that may refer to the whole text, and so differ between one line and several lines."""


class Matcher:
    """A pattern that can search single lines and many lines at once."""

    def __init__(self, pattern: str) -> None:
        """Compile the pattern; ToolError if it is not a valid RE2 expression."""
        if len(pattern) > _MAX_PATTERN:
            raise ToolError(f"`pattern` has {len(pattern):,} characters; {_MAX_PATTERN:,} are accepted. Shorten it.")
        import re2  # noqa: PLC0415  # 2.5 MB of memory, which only searches need

        options = re2.Options()
        options.log_errors = False
        options.never_capture = True  # a match with a thousand groups takes 20 ms longer, and no group is used
        try:
            compiled = _accept_windows_ends(pattern).encode()
            self._line = re2.compile(compiled, options)
            self._lines = re2.compile(b"(?m)" + compiled, options)
        except re2.error as error:
            given: Any = error.args[0]
            reason = given.decode("utf-8", "replace") if isinstance(given, bytes) else str(given)
            reason = reason.replace(_ANY_LINE_END, "$")[:_MAX_REASON]
            advice = "Escape literal characters"
            if "too large" in reason or "repetition size" in reason:
                advice = "Shorten it, or lower its counts"
            elif _BACKTRACKING.search(reason):
                advice = "RE2 has no look-around and no back references: match the text beside it too"
            raise ToolError(f"`pattern` is not a valid RE2 expression: {reason}. {advice}.") from None
        self._is_global = _WHOLE_TEXT.search(pattern) is not None
        runs = [] if _BRANCHING.search(pattern) else _WILDCARD.split(pattern)
        parts = [part for run in runs for part in _PLAIN.findall(run)]
        self._literal = max(parts, key=len).encode() if parts else None
        """The longest text that every match contains; None if a match may have none."""

    def may_occur(self, json_text: Buffer, check: Callable[[], None]) -> bool:
        """Whether a string in JSON text may match, without decoding it. False positives are possible.

        `check` is called before each further part of the text; it may raise an exception.
        """
        if self._literal is None:
            return True
        for at in range(0, len(json_text), _WINDOW):
            if at:
                check()
            window = bytes(json_text[at : at + _WINDOW + len(self._literal) + _ESCAPE])
            if self._literal in window or b"\\u00" in window:
                return True
        return False

    def matches(self, chunk: "_Chunk") -> Iterator[tuple[int, int, tuple[int, int]]]:
        """Yield start, stop and the first match's span for each matching line or part of a line in a chunk.

        A search over many lines at once finds a candidate; a search in the candidate line confirms it. Up to the end of
        a candidate that spans several lines, each line is searched: from each of them, the search would find its end.
        """
        data, position, spanned = chunk.data, chunk.begin, 0
        while position < chunk.end:
            first = position
            if position >= spanned:
                if (candidate := self._find_candidate(data, position, chunk.end)) is None:
                    return
                first, spanned = candidate
            start = max(data.rfind(b"\n", 0, first) + 1, position)
            stop = data.find(b"\n", start)
            stop = len(data) if stop < 0 else stop
            searched = chunk.overlap if position == chunk.begin and start == position else 0
            is_cut = chunk.is_cut and stop == len(data)
            if (match := self._search_line(data[start:stop], searched, is_cut=is_cut)) is not None:
                yield start, stop, match
            position = stop + 1

    def _search_line(self, line: bytes, searched: int, *, is_cut: bool) -> tuple[int, int] | None:
        """The span of the first match in a line that ends after its first `searched` bytes."""
        if not searched and not is_cut:
            match = self._line.search(line)
            return match.span() if match else None
        spans = self._find_all(line, 0, is_cut=is_cut)
        return next((span for span in spans if not searched or span[1] > searched), None)

    def find_further(
        self, line: bytes, first: tuple[int, int], most: int, *, is_cut: bool
    ) -> Iterator[tuple[int, int]]:
        """The spans of the matches in a line after the first one, at most `most`. `is_cut`: as for a `Line`."""
        begin = max(first[1], first[0] + 1)
        if begin > len(line):
            return iter(())
        return islice(self._find_all(line, begin, is_cut=is_cut), most)

    def _find_all(self, line: bytes, begin: int, *, is_cut: bool) -> Iterator[tuple[int, int]]:
        """The spans of the matches in a line. One at the end of a line that is cut is found in the next part."""
        if not is_cut:
            return (match.span() for match in self._line.finditer(line, begin))
        spans = (match.span() for match in self._line.finditer(line + _REST, begin))
        end, certain = len(line), len(line) - len(_REST)
        return ((start, min(stop, end)) for start, stop in spans if start < certain or (start < end and stop <= end))

    def _find_candidate(self, data: bytes, begin: int, end: int) -> tuple[int, int] | None:
        """An offset at or before the next match, and the end of the candidate; None if no line before `end` matches."""
        if self._is_global:
            return begin, begin
        if (match := self._lines.search(data, begin)) is None:
            return None
        first, stop = match.span()
        if first == len(data) == end and not data.endswith(b"\n"):
            return first - 1, stop  # the end of the last line, where `$` matches
        return (first, stop) if first < end else None

    def may_match(self, data: bytes) -> bool:
        """Whether a line may match. False positives are possible, false negatives are not."""
        return self._find_candidate(data, 0, len(data) + 1) is not None


class _Size(NamedTuple):
    """The size of a part of a pattern."""

    steps: int = 0
    """Steps of its automaton."""
    optional: int = 0
    """Its parts that may be left out."""

    def plus(self, other: "_Size") -> "_Size":
        """The size of both parts together."""
        return _Size(self.steps + other.steps, self.optional + other.optional)

    def repeat(self, least: int, most: int) -> "_Size":
        """The size of what a quantifier adds to the part."""
        return _Size(self.steps * (most - 1), self.optional * (most - 1) + most - least)


def measure_pattern(pattern: str) -> int:
    """An estimate of the time to compile a pattern: the steps of its automaton (0.3 us each), up to a million."""
    if len(pattern) > _MEASURED_PATTERN:
        return _MAX_STEPS
    outer: list[_Size] = []
    group = last = _Size()  # the group so far, and the part of it to which a quantifier belongs
    for atom in _ATOM.finditer(_accept_windows_ends(pattern)):
        if atom["open"]:
            outer.append(group)
            group = _Size()
            continue
        if atom["least"] or atom["mark"]:
            group = group.plus(last.repeat(*_read_quantifier(atom)))
            continue
        if atom["close"] and outer:
            last, group = _Size(group.steps + 1, group.optional), outer.pop()
        else:
            simple = _MANY_STEPS if atom["many"] else 1
            last = _Size(_CLASS_STEPS if atom["class"] else simple)
        group = group.plus(last)
    for inner in outer:
        group = group.plus(inner)
    return min(group.steps + group.optional**2 // _PAIRS, _MAX_STEPS)


def _read_quantifier(atom: re.Match[str]) -> tuple[int, int]:
    """The least and the most number of times; a number without an end counts as itself."""
    if atom["mark"]:
        return 0, 1
    least = int(atom["least"])
    return least, max(int(atom["most"] or least) if atom["range"] else least, 1)


def _accept_windows_ends(pattern: str) -> str:
    """Return the pattern with each `$` also before the carriage return that ends a line of Windows."""
    return _LINE_END.sub(lambda found: found[1] or _ANY_LINE_END, pattern)


class Line(NamedTuple):
    """A matching line."""

    data: bytes
    """The line with lines before and after it."""
    start: int
    """The offset of the line in `data`."""
    stop: int
    at: tuple[int, int]
    """The span of the match in the line, in bytes."""
    number: int
    """The number of the line in the text."""
    characters: int
    """Characters of the text before `data`."""
    is_cut: bool = False
    """The data ends within the line, which is long."""
    further: int = 0
    """Matches in the rest of the line, which is not in `data`."""


class _Chunk(msgspec.Struct):
    """Lines of a text. Those that begin between `begin` and `end` are searched, the others are context."""

    data: bytes
    begin: int
    end: int
    number: int
    """The number of the line at `begin`."""
    characters: int
    """Characters of the text before `data`."""
    overlap: int = 0
    """Bytes at the beginning that the chunk before has too, if both are parts of one long line."""
    is_cut: bool = False
    """The chunk ends within a long line."""


def find_matching_lines(matcher: Matcher, pieces: Iterable[bytes], context: int) -> Iterator[Line]:
    """Yield the matching lines of a text, each with `context` lines before and after it."""
    parts = _find_matching_parts(matcher, pieces, context)
    part = next(parts, None)
    while part is not None:
        line, error = part, None
        try:
            while line.is_cut and (part := next(parts, None)) and part.number == line.number:
                line = line._replace(further=line.further + 1 + _count_more(matcher, part))
        except ToolError as time_limit:
            error = time_limit
        yield line
        if error:
            raise error
        if not line.is_cut:
            part = next(parts, None)


def _find_matching_parts(matcher: Matcher, pieces: Iterable[bytes], context: int) -> Iterator[Line]:
    """Yield the matching lines of a text, of a long line each matching part."""
    for chunk in _split_chunks(pieces, context):
        number, counted = chunk.number, chunk.begin
        for start, stop, at in matcher.matches(chunk):
            number, counted = number + chunk.data.count(b"\n", counted, start), start
            is_cut = chunk.is_cut and stop == len(chunk.data)
            yield Line(chunk.data, start, stop, at, number, chunk.characters, is_cut)


def count_further(matcher: Matcher, line: Line) -> int:
    """The number of matches in a line after the first one, at most a thousand."""
    return min(_count_more(matcher, line) + line.further, MANY)


def _count_more(matcher: Matcher, line: Line) -> int:
    data = line.data[line.start : line.stop]
    return sum(1 for _ in matcher.find_further(data, line.at, MANY, is_cut=line.is_cut))


def _split_chunks(pieces: Iterable[bytes], context: int) -> Iterator[_Chunk]:
    data, begin, number, characters, overlap = b"", 0, 0, 0, 0
    for piece in pieces:
        data += piece
        end = _search_end(data, begin, context)
        if end == begin:
            continue
        is_cut = data[end - 1] != ord("\n")
        yield _Chunk(data, begin, end, number, characters, overlap, is_cut)
        number += data.count(b"\n", begin, end)
        kept = _keep_from(data, end, context)
        characters += count_characters(data[:kept])
        data, begin, overlap = data[kept:], 0 if is_cut else end - kept, end - kept if is_cut else 0
    if len(data) > begin:
        yield _Chunk(data, begin, len(data), number, characters, overlap)


def _search_end(data: bytes, begin: int, context: int) -> int:
    """The end of the last complete line with complete context; a very long line may be split anywhere."""
    end = len(data)
    for _ in range(context + 1):
        end = data.rfind(b"\n", begin, end)
        if end < 0:
            return begin if len(data) - begin < _LINE else len(data)
    return end + 1


def _keep_from(data: bytes, end: int, context: int) -> int:
    """The offset from which data is needed again: as context of the next lines, or for the rest of a long line."""
    kept = end
    if data[end - 1] != ord("\n"):
        kept = end - _OVERLAP
    else:
        for _ in range(context):
            kept = data.rfind(b"\n", 0, max(kept - 1, 0)) + 1
        kept = max(kept, end - _LINE)
    while kept < len(data) and data[kept] & 0xC0 == 0x80:  # noqa: PLR2004  # a continuation byte of UTF-8
        kept -= 1
    return kept
