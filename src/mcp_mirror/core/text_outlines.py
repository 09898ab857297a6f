"""Outlines of texts: the files that a diff changes, the headings of Markdown, the definitions of source code."""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from operator import itemgetter
from typing import Final, NamedTuple

import msgspec

from mcp_mirror.core.amounts import format_count
from mcp_mirror.core.text_format import CODE, DIFF, MARKDOWN
from mcp_mirror.payload.json_strings import text_pieces
from mcp_mirror.security.sanitize import strip_invisible
from mcp_mirror.types import Buffer, Span

_MAX_TEXT: Final = 1 << 20
"""Bytes of a text that is outlined."""
_MAX_FIRST: Final = 160
"""Bytes of the first line."""
_MAX_LINE: Final = 80
"""Bytes of the line of a part."""
_MIN_FILES, _MIN_PLACES = 2, 3
"""Files, headings or definitions of the shortest outline."""
_MAX_LINES_EACH: Final = 30
"""Lines for each definition in source code that begins as no known format: documentation has fewer definitions."""
_PIECE: Final = 1 << 14
"""Characters in which definitions are searched at once, which takes about 1 ms."""
_TAB: Final = 4
"""Spaces in place of a tab."""
_GIT: Final = "\ndiff --git "
_PLAIN: Final = "\n--- "
_NEW: Final = re.compile(r"^\+\+\+ (?:b/)?([^\t\n]+)|^rename to (.+)", re.MULTILINE)
_OLD: Final = re.compile(r"^--- (?:a/)?([^\t\n]+)", re.MULTILINE)
_NO_FILE: Final = "/dev/null"
_SIGNATURE: Final = re.compile(r"\n-- \n\d+\.\d")
"""The end of a patch that is sent by mail."""
_HEADING: Final = re.compile(r"^ {0,3}(?:(`{3}|~{3})|(?=(#{1,6})[ \t]+\S))", re.MULTILINE)
"""The beginning of a heading, or of the first or last line of a code block."""
_BOLD: Final = re.compile(
    r"^(?: {0,3}(`{3}|~{3})"
    r"|(?:(?<=\n\n)|(?<!\n))(?=(\*\*)[^*\n]{1,100}(?:\*\*:?[ \t]*$|\*\* [\u2014\u2013-] )))",
    re.MULTILINE,
)
"""The same with lines in bold, and with bold words before a dash, that begin a paragraph."""
_OPENING_FENCE: Final = re.compile(r"(?:.*\n){0,8}?(`{3}|~{3})(\w*)[ \t]*\n")
"""The first lines of a text that is one code block, above which a few lines name the file in it."""
_MARKDOWN_NAMES: Final = frozenset(("md", "markdown", "mdx"))
_DEFINITION: Final = re.compile(
    r"""^([ \t]{0,16}+)(?=
    (?:async\ )?def\ [\w.?!]{1,80}(?:[(\[]|\ *$)
    | (?:(?:export|default|declare|abstract|public|private|protected|internal|static|final|sealed|partial|open|data
        |pub(?:\([a-z]{1,9}\))?|unsafe|async|const|extern|inline)\ ){0,5}
      (?:class\ \w[\w$:.]{0,80}(?:\ ?[(:{<\[]|\ *$|\ (?:extends|implements|final)\b)
        | (?:interface|enum|struct|trait|record|protocol|module|union|object|mod|extension)
          \ \w[\w$:.]{0,80}(?:\ ?[({<]|\ *$|\ (?:extends|implements)\b)
        | function\*?\ ?[\w$:.-]{0,80}\ ?[({<] | func\ (?:\([^()\n]{1,80}\)\ )?\w{1,80}[(\[<] | fn\ \w{1,80}[(<]
        | impl\b[^\n;]{1,160}\{$ | type\ \w{1,80}(?:<[^>\n]{1,80}>)?\ (?:=|struct\b|interface\b|func\b)
        | sub\ \w{1,80}\ *(?:[({]|$)
        | (?:const|let|var)\ [\w$]{1,80}\ =\ (?:async\ )?(?:function\b|\([^()\n]{0,160}\)\ =>|\w{1,40}\ =>))
    | (?i:create\ (?:or\ replace\ |unique\ |temp(?:orary)?\ |materialized\ ){0,2}
      (?:table|view|index|function|procedure|trigger|type)\ )
    | (?:(?:public|private|protected|internal|static|final|override|virtual|abstract|async|synchronized)\ ){1,4}
      (?:[\w<>\[\],.?]{1,80}\ ){0,4}[\w$]{1,80}\([^;=\n]{0,200}$
    | (?<![ \t])(?:[A-Za-z_][\w:<>]{0,80}[ \t*&]{1,8}){1,5}[\w:~]{1,80}\([^;=()\n]{0,200}(?:\)[\ \w]{0,20}\{?|,)$
    )(?!(?:return|await|throw|new|else|case|raise|yield|print|from|import|typedef|not|my|if|for|while)\b)""",
    re.MULTILINE | re.VERBOSE,
)
"""The indentation of a line that defines a class, a function or a type in a common language. The last form is that of
functions in C, which are not indented."""


class TextOutline(NamedTuple):
    """The parts of a text."""

    part: str
    """The name of a part: `file`, `heading`."""
    joint: str
    """The words between the size of the text and the number of its parts: `diff of`."""
    lines: Sequence[tuple[int, str]]
    """The place of each part and the line that shows it, the most important one first."""
    first: str = ""
    """The first line of the text if it is not that of a part."""

    @property
    def counted(self) -> str:
        """The format of the text, and the number of parts: `diff of 3 files`."""
        return f"{self.joint} {format_count(len(self.lines), self.part)}"


def outline_text(blob: Buffer, span: Span, form: str) -> TextOutline | None:
    """Outline the JSON string at `span`.

    Returns:
        None for a very long text, one with few parts, and one of another format. The format of source code may be
        unknown, if it begins with a long comment.
    """
    if form not in (DIFF, MARKDOWN, CODE, "") or span.length > _MAX_TEXT:
        return None
    try:
        text = b"".join(text_pieces(blob, span)).decode().replace("\r\n", "\n")
    except msgspec.DecodeError:  # half of a surrogate pair
        return None
    if form == DIFF:
        return _outline_diff(text)
    if form != MARKDOWN:
        return _outline_code(text, form)
    return _outline_headings(text, 0) or _outline_code_block(text) or _outline_headings(text, 0, _BOLD)


def _outline_code_block(text: str) -> TextOutline | None:
    """Outline a text that is one code block of Markdown, below a few lines, by the definitions or headings in it."""
    fence = _OPENING_FENCE.match(text)
    if fence is None or not text.rstrip().endswith(f"\n{fence[1]}"):
        return None
    in_code = None if fence[2].casefold() in _MARKDOWN_NAMES else _outline_code(text, "")
    first = text.partition("\n")[0] if fence.start(1) else ""  # the name of the file
    return in_code._replace(first=first) if in_code else _outline_headings(text, fence.end())


def _outline_code(text: str, form: str) -> TextOutline | None:
    definitions = list(_find_definitions(text))
    is_code = form == CODE or len(definitions) * _MAX_LINES_EACH >= text.count("\n")
    return _outline_places(text, "definition", CODE, definitions) if is_code else None


def _outline_headings(text: str, start: int, pattern: re.Pattern[str] = _HEADING) -> TextOutline | None:
    """Outline Markdown by the headings from a character on."""
    headings = list(_find_headings(text, start, pattern))
    are_comments = all(level == 1 for level, _ in headings)  # such as those of YAML
    return None if are_comments else _outline_places(text, "heading", MARKDOWN, headings)


def show_outline(outline: TextOutline, take: Callable[[str], bool]) -> Iterator[str]:
    """Yield the first line and the parts while `take` accepts their lines, then the number of the others."""
    more = f"more {outline.part}"
    take(f"{outline.counted} ... 1,000 {more}s")
    if (first := strip_invisible(outline.first, _MAX_FIRST)) and take(first):
        yield first
    lines = ((at, strip_invisible(line, _MAX_LINE)) for at, line in outline.lines)
    shown = sorted(takewhile(lambda part: take(part[1]), lines))
    yield from map(itemgetter(1), shown)
    if left := len(outline.lines) - len(shown):
        yield f"... {format_count(left, more)}"


def _outline_diff(text: str) -> TextOutline | None:
    mark = _GIT if _GIT in f"\n{text}" else _PLAIN
    above, *parts = f"\n{text}".split(mark)
    files = list(enumerate(_describe_files(parts, mark)))
    if len(files) < _MIN_FILES:
        return None
    return TextOutline("file", f"{DIFF} of", files, above[1:].partition("\n")[0])


def _describe_files(parts: Sequence[str], mark: str) -> Iterator[str]:
    """Yield a line for each file: `src/app.py +12 -3`."""
    for part in parts:
        header, has_hunks, rest = part.partition("\n@@")
        if mark == _PLAIN:
            if "\n+++ " not in header:
                continue
            header = f"--- {header}"
        if not (name := _find_name(header)):
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


def _outline_places(text: str, part: str, form: str, places: Sequence[tuple[int, int]]) -> TextOutline | None:
    """Outline a text by the lines of its parts, with their numbers from 0, as `memory_read` and `memory_grep` count.

    Args:
        text: The text.
        part: The name of a part.
        form: The format of the text.
        places: The level of each part, and the position of its line.
    """
    if len(places) < _MIN_PLACES:
        return None
    found: list[tuple[int, int, str]] = []
    number = counted = 0
    for level, at in places:
        number += text.count("\n", counted, at)
        counted = at
        line = text[at : at + _MAX_LINE + 1].partition("\n")[0].rstrip(" \t\r{:")
        found.append((level, number, f"{number}: {line}"))
    lines = [(number, line) for _, number, line in sorted(found, key=itemgetter(0))]
    first = text.partition("\n")[0] if form == MARKDOWN and found[0][1] else ""
    return TextOutline(part, f"{form} with", lines, first)


def _find_headings(text: str, start: int, pattern: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    fence = ""
    for mark in pattern.finditer(text, start):
        if mark[1] and fence in ("", mark[1]):
            fence = "" if fence else mark[1]
        elif mark[2] and not fence:
            yield len(mark[2]), mark.end()


def _find_definitions(text: str) -> Iterator[tuple[int, int]]:
    """Yield the level and position of each definition. Between two pieces of the text, other threads may run."""
    start = 0
    while start < len(text):
        stop = text.find("\n", start + _PIECE) + 1 or len(text)
        for mark in _DEFINITION.finditer(text, start, stop):
            yield len(mark[1].expandtabs(_TAB)), mark.end()
        start = stop
