"""Lines of the beginning and the end of a text, as far as there is room for them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Final, NamedTuple

from mcp_mirror.core.amounts import format_count
from mcp_mirror.security.sanitize import cut, sanitize_to_lines
from mcp_mirror.system.patterns import lazy_pattern

_MAX_LINE: Final = 160
"""Bytes of a line."""
_HEAD_LINES: Final = 5
_TAIL_LINES: Final = 3
_MARK: Final = 40
"""Bytes of data by which its beginning and its end are found in a text."""

_ERROR: Final = lazy_pattern(
    r"(?:\b|(?<=\dm))"  # the end of a color of a terminal: `\x1b[31m`
    r"(?:(?:ERROR|FATAL|CRITICAL|SEVERE|FAILED|FAIL|Traceback)\b|[Ee]rror(?=:|\[)|level=(?:error|fatal)\b)"
    r"|\"level\": ?\"(?:error|fatal)\"|(?:##)?\[error\]"
)
"""A word of a line with an error, in the output of programs."""
_ERROR_PARTS: Final = (
    *("ERROR", "FATAL", "CRITICAL", "SEVERE", "FAIL", "Traceback"),
    *("Error:", "error:", "Error[", "error["),
    *("level=error", "level=fatal", "##[error]", "[error]"),
    *('"level":"error"', '"level": "error"', '"level":"fatal"', '"level": "fatal"'),
)
"""What begins such a word. A search for texts takes a seventh of the time of one for the expression."""
_MAX_TRIED: Final = 100
"""Places where such a word may begin that are examined."""

Take = Callable[[str], bool]
"""Takes the tokens of a line if there is room, and returns whether there was."""


class Errors(NamedTuple):
    """The lines of a text with errors."""

    word: str
    """The word that they have."""
    size: int
    """The number of these lines."""
    number: int
    """The number of the first one, from 0."""
    text: str
    """The text from the first one on."""

    @property
    def first(self) -> str:
        """The first line with an error."""
        return self.text.partition("\n")[0]


def find_errors(text: str) -> Errors | None:
    """Find the lines of the output of a program that have the first word for an error; None without one."""
    places = merge(*(_find_all(text, part) for part in _ERROR_PARTS))
    found = next(filter(None, (_ERROR.match(text, at) for at in islice(places, _MAX_TRIED))), None)
    if found is None:
        return None
    begin = text.rfind("\n", 0, found.start()) + 1
    count = sum(found[0] in line for line in text[begin:].split("\n"))
    return Errors(found[0], count, text.count("\n", 0, begin), text[begin:])


def _find_all(text: str, part: str) -> Iterator[int]:
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + 1)


def split_lines(text: str) -> list[str]:
    """The lines of a text without invisible characters and without empty lines at its end."""
    return sanitize_to_lines(text).rstrip("\n").split("\n")


def show_ends(head: str, end: str, take: Take) -> Iterator[str]:
    """The beginning and the end of one long line, each shorter where the room is small, as for base64."""
    head, end = sanitize_to_lines(head), sanitize_to_lines(end)
    yield from islice(filter(take, (cut(head, size) for size in (_MAX_LINE, _MAX_LINE // 2, _MAX_LINE // 4))), 1)
    if len(head.encode()) > _MAX_LINE:
        tail = end.encode()
        ends = (tail[-size:].decode(errors="ignore") for size in (_MAX_LINE // 2, _MAX_LINE // 4, _MAX_LINE // 8))
        yield from islice(filter(take, map("...{}".format, ends)), 1)


def show_edges(head: str, end: str | None, count: int, take: Take, errors: Errors | None) -> Iterator[str]:
    """Lines of head and tail in turn while there is room, and the number of lines omitted between them.

    `end` is None if the head is the whole text. `count` is the number of all lines; 0: unknown. Of the `errors`, the
    first line is shown too, with its number as `memory_read` counts, unless it is among the others.
    """
    first = split_lines(head)
    last = first if end is None else split_lines(end)
    last = last[max(_HEAD_LINES if end is None else 1, len(last) - _TAIL_LINES) :]
    take("... 1,000 lines ...")
    error = _take_error(errors, count, take)
    heads: list[str] = []
    tails: list[str] = []
    is_short = 0 < count <= _HEAD_LINES + _TAIL_LINES  # each line counts: the last one may be all of the data
    for at in range(_HEAD_LINES):
        if at < len(first) and not _append_line(first[at], heads, take, is_short=is_short):
            break
        if at < len(last) and not _append_line(last[-1 - at], tails, take, is_short=is_short):
            break
    yield from heads
    if not count:
        yield "..."
    elif (left := count - len(heads) - len(tails)) > 0:
        with_errors = f", {errors.size:,} with {errors.word}" if errors and error else ""
        yield f"... {format_count(left, 'line')}{with_errors} ..."
    yield from error
    yield from reversed(tails)


def _take_error(errors: Errors | None, count: int, take: Take) -> Sequence[str]:
    """The first line with an error, if it is neither at the beginning nor at the end of a text, and there is room."""
    if errors is None or not _HEAD_LINES <= errors.number < count - _TAIL_LINES:
        return ()
    line = f"{errors.number}: {cut(' '.join(split_lines(errors.first)), _MAX_LINE)}"
    return (line,) if take(line) else ()


def show_around_data(head: str, end: str, data: bytes, take: Take) -> tuple[Sequence[str], Sequence[str]]:
    """The lines of a text before and after its data while there is room: a sentence, or how to get more rows.

    `end` is empty if the head is the whole text. `data` is JSON, which the text may have in the notation of Python
    or in a JSON string.
    """
    tail = end or head
    first, last = data[:_MARK].decode(errors="ignore"), data[-_MARK:].decode(errors="ignore")
    if first not in head:
        first = f'\n"{first[0]}' if f'\n"{first[0]}' in head else f"\n{first[0]}"
    if last not in tail:
        last = f'{last[-1]}"\n' if f'{last[-1]}"\n' in tail else f"{last[-1]}\n"
    before = head.partition(first)[0] if first in head else ""
    after = tail.rpartition(last)[2] if last in tail else ""
    return _take_lines(split_lines(before)[:_TAIL_LINES], take), _take_lines(split_lines(after)[-_TAIL_LINES:], take)


def _take_lines(lines: Iterable[str], take: Take) -> Sequence[str]:
    """The lines for which there is room, without empty ones, single quotation marks and the marks of code blocks."""
    texts = (line for line in lines if line.strip(' \t\r"') and not line.lstrip().startswith("```"))
    return [*filter(take, (cut(line, _MAX_LINE) for line in texts))]


def _append_line(line: str, lines: list[str], take: Take, *, is_short: bool) -> bool:
    """Append a line if there is room; return whether another one may follow.

    The first line, and each line of a text with a few lines, is shortened if the whole line has no room.
    """
    line = cut(line, _MAX_LINE)
    if take(line):
        lines.append(line)
        return True
    if is_short or not lines:
        shorter = cut(line, _MAX_LINE // 4)
        if take(shorter):
            lines.append(shorter)
            return is_short
    return False
