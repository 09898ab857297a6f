"""Outlines of texts: the files that a diff changes, with the numbers of lines, and the headings of Markdown."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

import msgspec

from mcp_mirror.core.amounts import format_count
from mcp_mirror.core.text_format import DIFF, MARKDOWN
from mcp_mirror.payload.json_strings import text_pieces
from mcp_mirror.security.sanitize import strip_invisible
from mcp_mirror.types import Buffer, Span

_MAX_TEXT: Final = 1 << 20
"""Bytes of a text that is outlined."""
_MAX_LINE: Final = 160
"""Bytes of a line."""
_MIN_FILES, _MIN_HEADINGS = 2, 3
_MANY_HEADINGS: Final = 12
"""Headings from which those of the lowest level are left out."""
_GIT: Final = "\ndiff --git "
_PLAIN: Final = "\n--- "
_NEW: Final = re.compile(r"^\+\+\+ (?:b/)?([^\t\n]+)|^rename to (.+)", re.MULTILINE)
_OLD: Final = re.compile(r"^--- (?:a/)?([^\t\n]+)", re.MULTILINE)
_NO_FILE: Final = "/dev/null"
_SIGNATURE: Final = re.compile(r"\n-- \n\d+\.\d")
"""The end of a patch that is sent by mail."""
_MARK: Final = re.compile(r"^ {0,3}(?:(`{3}|~{3})|(#{1,6})[ \t]+(?=\S))", re.MULTILINE)
"""The beginning of a heading, or of the first or last line of a code block."""


class TextOutline(NamedTuple):
    """The parts of a text."""

    part: str
    """What a part is: `file`, `heading`."""
    joint: str
    """The word between the format of the text and the number of its parts."""
    lines: Sequence[str]
    """A line for each part, or for those that matter most."""
    total: int
    """The number of all parts."""
    first: str = ""
    """The first line of the text if it is not that of a part."""

    @property
    def counted(self) -> str:
        """The number of parts: `of 3 files`."""
        return f"{self.joint} {format_count(self.total, self.part)}"


def outline_text(blob: Buffer, span: Span, form: str) -> TextOutline | None:
    """Outline the JSON string at `span`; None for a very long text, one with few parts, and one of another format."""
    if form not in (DIFF, MARKDOWN) or span.length > _MAX_TEXT:
        return None
    try:
        text = b"".join(text_pieces(blob, span)).decode().replace("\r\n", "\n")
    except msgspec.DecodeError:  # half of a surrogate pair
        return None
    return _outline_diff(text) if form == DIFF else _outline_markdown(text)


def show_outline(outline: TextOutline, take: Callable[[str], bool]) -> Iterator[str]:
    """Yield the first line and the parts while `take` accepts their lines, then the number of the others."""
    more = f"more {outline.part}"
    take(f"... 1,000 {more}s")
    if (first := strip_invisible(outline.first, _MAX_LINE)) and take(first):
        yield first
    shown = list(takewhile(take, (strip_invisible(one, _MAX_LINE) for one in outline.lines)))
    yield from shown
    if left := outline.total - len(shown):
        yield f"... {format_count(left, more)}"


def _outline_diff(text: str) -> TextOutline | None:
    mark = _GIT if _GIT in f"\n{text}" else _PLAIN
    above, *parts = f"\n{text}".split(mark)
    files = list(_describe_files(parts, mark))
    if len(files) < _MIN_FILES:
        return None
    return TextOutline("file", "of", files, len(files), above[1:].partition("\n")[0])


def _describe_files(parts: Sequence[str], mark: str) -> Iterator[str]:
    """Yield a line for each file: `src/app.py +12 -3`."""
    for part in parts:
        header, has_hunks, rest = part.partition("\n@@")
        name = _find_name(header) if mark == _GIT else _find_name(f"--- {header}") if "\n+++ " in header else ""
        if not name:
            continue
        hunks = _SIGNATURE.split(rest, maxsplit=1)[0] if "\n-- \n" in rest else rest
        added, removed = hunks.count("\n+"), hunks.count("\n-")
        yield f"{name} +{added} -{removed}" if has_hunks else name


def _find_name(header: str) -> str:
    """The name of a file after its change, or before it if the file is deleted; empty without one."""
    new, old = _NEW.search(header), _OLD.search(header)
    if new and (name := new[1] or new[2]) != _NO_FILE:
        return name
    names = header.partition("\n")[0]  # of a file without hunks: `a/logo.png b/logo.png`
    return old[1] if old else names[len(names) // 2 + 1 :].removeprefix("b/")


def _outline_markdown(text: str) -> TextOutline | None:
    """The headings with the numbers of their lines, from 0, as `memory_read` and `memory_grep` count them."""
    headings = list(_find_headings(text))
    if len(headings) < _MIN_HEADINGS:
        return None
    lowest = _choose_lowest_level(Counter(level for level, _ in headings))
    shown = [line for level, line in headings if level <= lowest]
    first = "" if _MARK.match(text) else text.partition("\n")[0]
    return TextOutline("heading", "with", shown, len(headings), first)


def _choose_lowest_level(counts: Mapping[int, int]) -> int:
    """The lowest level with which the headings are not too many, or the first one with which they are enough."""
    lowest, total = 0, 0
    for level, count in sorted(counts.items()):
        if total >= _MIN_HEADINGS and total + count > _MANY_HEADINGS:
            break
        lowest, total = level, total + count
    return lowest


def _find_headings(text: str) -> Iterator[tuple[int, str]]:
    """Yield the level of each heading, and its line with its number: `12: ## Install`."""
    number, counted, fence = 0, 0, ""
    for mark in _MARK.finditer(text):
        if mark[1] and fence in ("", mark[1]):
            fence = "" if fence else mark[1]
        elif mark[2] and not fence:
            number += text.count("\n", counted, mark.start())
            counted = mark.start()
            title = text[mark.end() : mark.end() + _MAX_LINE + 1].partition("\n")[0].rstrip("# \t\r")
            yield len(mark[2]), f"{number}: {mark[2]} {title}"
