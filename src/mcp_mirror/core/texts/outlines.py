"""Outlines of texts: files of a diff, headings and tables of Markdown and HTML, definitions of source code."""

import html
import re
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, takewhile
from operator import itemgetter
from typing import Final, NamedTuple

import msgspec

from mcp_mirror.core.amounts import format_count
from mcp_mirror.core.texts.formats import CODE, DIFF, HTML, MARKDOWN, TABLE
from mcp_mirror.payload.json_strings import text_pieces
from mcp_mirror.security.sanitize import strip_invisible
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.types import Buffer, Span

_MAX_TEXT: Final = 1 << 20
"""Bytes of a text that is outlined."""
_MAX_FIRST: Final = 160
"""Bytes of the first line."""
_MAX_LINE: Final = 80
"""Bytes of the line of a part."""
_MIN_FILES, _MIN_TABLES, _MIN_PARTS = 2, 2, 3
"""Files, tables, headings or definitions of the shortest outline."""
_MAX_LINES_EACH: Final = 30
"""Lines for each definition in source code that begins as no known format: documentation has fewer definitions."""
_PIECE: Final = 1 << 14
"""Characters in which definitions are searched at once, which takes about 1 ms."""
_TAB: Final = 4
"""Spaces in place of a tab."""
_GIT: Final = "\ndiff --git "
_PLAIN: Final = "\n--- "
_NEW: Final = lazy_pattern(r"^\+\+\+ (?:b/)?([^\t\n]+)|^rename to (.+)", re.MULTILINE)
_OLD: Final = lazy_pattern(r"^--- (?:a/)?([^\t\n]+)", re.MULTILINE)
_NO_FILE: Final = "/dev/null"
_SIGNATURE: Final = lazy_pattern(r"\n-- \n\d+\.\d")
"""The end of a patch that is sent by mail."""
_HEADING: Final = lazy_pattern(r"^ {0,3}(?:(`{3}|~{3})|(?=(#{1,6})[ \t]+\S))", re.MULTILINE)
"""The beginning of a heading, or of the first or last line of a code block."""
_BOLD: Final = lazy_pattern(
    r"^(?: {0,3}(`{3}|~{3})"
    r"|(?:(?<=\n\n)|(?<!\n))(?=(\*\*)[^*\n]{1,100}(?:\*\*:?[ \t]*$|\*\* [\u2014\u2013-] )))",
    re.MULTILINE,
)
"""The same with lines in bold, and with bold words before a dash, that begin a paragraph."""
_TABLE: Final = lazy_pattern(r"^[ \t]*(\|[^\n]*)\n[ \t]*\|[ \t]*:?-[-:| \t]*$", re.MULTILINE)
"""The names of the columns of a table, and the rule below them."""
_MAX_TITLE: Final = 500
"""Characters above a table in which its title is."""
_HTML_PART: Final = lazy_pattern(r"<(title|h[1-6]|table)\b[^<>]*>", re.IGNORECASE)
"""The beginning of the title, a heading or a table of a page."""
_HEADING_END: Final = lazy_pattern(r"</(?:title|h[1-6])\b", re.IGNORECASE)
_TABLE_END: Final = lazy_pattern(r"</table\b", re.IGNORECASE)
_ROW: Final = lazy_pattern(r"<tr\b[^<>]*>", re.IGNORECASE)
_CELL: Final = lazy_pattern(r"<t[hd]\b[^<>]*>", re.IGNORECASE)
_TAG: Final = lazy_pattern(r"<[^<>]*>")
_MAX_PAGE_PARTS: Final = 1000
_MAX_MARKUP: Final = 2000
"""Characters of a heading of a page, and of the first row of a table."""
_TABLE_LEVEL: Final = 2
"""A table of a page is as important as a heading of this level."""
_OPENING_FENCE: Final = lazy_pattern(r"(?:.*\n){0,8}?(`{3}|~{3})(\w*)[ \t]*\n")
"""The first lines of a text that is one code block, above which a few lines name the file in it."""
_MARKDOWN_NAMES: Final = frozenset(("md", "markdown", "mdx"))
_MODIFIERS: Final = (
    r"(?:(?:export|default|declare|abstract|public|private|protected|internal|static|final|sealed|partial|open|data"
    r"|pub(?:\([a-z]{1,9}\))?|unsafe|async|const|extern|inline) ){0,5}"
)
"""Words that may precede the keyword of a definition: `export default`, `pub(crate) unsafe`."""
_AFTER_MODIFIERS: Final = (
    # `class Order extends Base {`
    r"class \w[\w$:.]{0,80}(?: ?[(:{<\[]| *$| (?:extends|implements|final)\b)",
    # `interface Shape<T> {`
    (
        r"(?:interface|enum|struct|trait|record|protocol|module|union|object|mod|extension)"
        r" \w[\w$:.]{0,80}(?: ?[({<]| *$| (?:extends|implements)\b)"
    ),
    # JavaScript and PHP: `function* walk(tree) {`
    r"function\*? ?[\w$:.-]{0,80} ?[({<]",
    # Go and Swift: `func (s *Server) Close() error {`
    r"func (?:\([^()\n]{1,80}\) )?\w{1,80}[(\[<]",
    # Rust: `fn parse<T>(text: &str) -> T {`
    r"fn \w{1,80}[(<]",
    # Rust: `impl Display for Order {`
    r"impl\b[^\n;]{1,160}\{$",
    # TypeScript: `type Id = string`; Go: `type Server struct {`
    r"type \w{1,80}(?:<[^>\n]{1,80}>)? (?:=|struct\b|interface\b|func\b)",
    # Perl: `sub print_all {`
    r"sub \w{1,80} *(?:[({]|$)",
    # JavaScript: `const add = (a, b) => a + b`
    r"(?:const|let|var) [\w$]{1,80} = (?:async )?(?:function\b|\([^()\n]{0,160}\) =>|\w{1,40} =>)",
)
"""The forms of a definition that begins with a keyword, each with an example."""
_DEFINITION_FORMS: Final = (
    # Python and Ruby: `async def total(self):`
    r"(?:async )?def [\w.?!]{1,80}(?:[(\[]| *$)",
    # A keyword of those above: `export class Order {`
    f"{_MODIFIERS}(?:{'|'.join(_AFTER_MODIFIERS)})",
    # SQL: `CREATE OR REPLACE VIEW paid AS`
    (
        r"(?i:create (?:or replace |unique |temp(?:orary)? |materialized ){0,2}"
        r"(?:table|view|index|function|procedure|trigger|type) )"
    ),
    # Java: `protected String read(File file)`
    (
        r"(?:(?:public|private|protected|internal|static|final|override|virtual|abstract|async|synchronized) ){1,4}"
        r"(?:[\w<>\[\],.?]{1,80} ){0,4}[\w$]{1,80}\([^;=\n]{0,200}$"
    ),
    # C and C++, not indented: `unsigned int count(const char *text)`
    r"(?<![ \t])(?:[A-Za-z_][\w:<>]{0,80}[ \t*&]{1,8}){1,5}[\w:~]{1,80}\([^;=()\n]{0,200}(?:\)[ \w]{0,20}\{?|,)$",
)
"""The forms of a definition in common languages, each with an example."""
_STATEMENT: Final = r"(?:return|await|throw|new|else|case|raise|yield|print|from|import|typedef|not|my|if|for|while)\b"
"""The beginning of a line that only looks like a definition."""
_DEFINITION: Final = lazy_pattern(rf"^([ \t]{{0,16}}+)(?={'|'.join(_DEFINITION_FORMS)})(?!{_STATEMENT})", re.MULTILINE)
"""The indentation of a line that defines a class, a function or a type."""


class _Part(NamedTuple):
    """A heading or a definition in a text."""

    level: int
    """The level of the heading, or the indentation of the definition."""
    position: int
    """The index of its first shown character in the text."""


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
    form = TABLE if form.startswith(TABLE) else form
    if form not in (TABLE, DIFF, HTML, MARKDOWN, CODE, "") or span.length > _MAX_TEXT:
        return None
    try:
        text = b"".join(text_pieces(blob, span)).decode().replace("\r\n", "\n")
    except msgspec.DecodeError:  # half of a surrogate pair
        return None
    outlines = {DIFF: _outline_diff, HTML: _outline_page, TABLE: _outline_tables}
    if form in outlines:
        return outlines[form](text)
    if form != MARKDOWN:
        return _outline_code(text, form)
    return _outline_headings(text, 0) or _outline_code_block(text) or _outline_headings(text, 0, _BOLD)


def show_outline(outline: TextOutline, take: Callable[[str], bool]) -> Iterator[str]:
    """Yield the first line and the parts while `take` accepts their lines, then the number of the others."""
    more = f"more {outline.part}"
    take(f"{outline.counted} ... 1,000 {more}s")
    if (first := strip_invisible(outline.first, _MAX_FIRST)) and take(first):
        yield first
    lines = ((place, strip_invisible(line, _MAX_LINE)) for place, line in outline.lines)
    shown = sorted(takewhile(lambda placed: take(placed[1]), lines))
    yield from map(itemgetter(1), shown)
    if left := len(outline.lines) - len(shown):
        yield f"... {format_count(left, more)}"


def _outline_diff(text: str) -> TextOutline | None:
    """Outline a diff by its files: `src/app.py +12 -3`."""
    mark = _GIT if _GIT in f"\n{text}" else _PLAIN
    above, *changes = f"\n{text}".split(mark)
    files = list(enumerate(filter(None, (_describe_change(change, mark) for change in changes))))
    if len(files) < _MIN_FILES:
        return None
    return TextOutline("file", f"{DIFF} of", files, above[1:].partition("\n")[0])


def _describe_change(change: str, mark: str) -> str:
    """The name of a file with the numbers of its added and removed lines; empty without a name."""
    header, has_hunks, hunks = change.partition("\n@@")
    if mark == _PLAIN:
        header = f"--- {header}" if "\n+++ " in header else ""
    name = _find_file_name(header)
    if not (name and has_hunks):
        return name
    if "\n-- \n" in hunks:
        hunks = _SIGNATURE.split(hunks, maxsplit=1)[0]
    added, removed = hunks.count("\n+"), hunks.count("\n-")
    return f"{name} +{added} -{removed}"


def _find_file_name(header: str) -> str:
    """The name of a file after its change, or before it if the file is deleted; empty without one."""
    new, old = _NEW.search(header), _OLD.search(header)
    if new and (name := new[1] or new[2]) != _NO_FILE:
        return name
    names = header.partition("\n")[0]  # of a file without hunks: `a/logo.png b/logo.png`
    return old[1] if old else names[len(names) // 2 + 1 :].removeprefix("b/")


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
    if not is_code or len(definitions) < _MIN_PARTS:
        return None
    return TextOutline("definition", f"{CODE} with", _list_lines(text, definitions))


def _find_definitions(text: str) -> Iterator[_Part]:
    """Yield the definitions in source code. Between two pieces of the text, other threads may run."""
    start = 0
    while start < len(text):
        stop = text.find("\n", start + _PIECE) + 1 or len(text)
        for indentation in _DEFINITION.finditer(text, start, stop):
            yield _Part(len(indentation[1].expandtabs(_TAB)), indentation.end())
        start = stop


def _outline_headings(text: str, start: int, pattern: re.Pattern[str] = _HEADING) -> TextOutline | None:
    """Outline Markdown by the headings from a character on."""
    headings = list(_find_headings(text, start, pattern))
    if len(headings) < _MIN_PARTS or _are_comments(text, headings):
        return None
    first = "" if "\n" not in text[: headings[0].position] else text.partition("\n")[0]
    return TextOutline("heading", f"{MARKDOWN} with", _list_lines(text, headings), first)


def _are_comments(text: str, headings: Sequence[_Part]) -> bool:
    """Whether the headings are comments, such as those of YAML: all of one level, and less than half of them apart."""
    if any(heading.level > 1 for heading in headings):
        return False
    return 2 * sum(_is_apart(text, heading.position) for heading in headings) < len(headings)


def _is_apart(text: str, position: int) -> bool:
    """Whether a heading is between two empty lines, or below a comment, as the title of a slide."""
    above, end = text[max(position - 4, 0) : position], text.find("\n", position)
    is_paragraph = above in ("", "\n") or above.endswith("\n\n")
    return above.endswith("-->\n") or (is_paragraph and (end < 0 or text.startswith("\n\n", end)))


def _find_headings(text: str, start: int, pattern: re.Pattern[str]) -> Iterator[_Part]:
    """Yield the headings from a character on that are outside of code blocks."""
    open_fence = ""
    for mark in pattern.finditer(text, start):
        fence, signs = mark.groups()
        if fence and open_fence in ("", fence):
            open_fence = "" if open_fence else fence
        elif signs and not open_fence:
            yield _Part(len(signs), mark.end())


def _outline_tables(text: str) -> TextOutline | None:
    """Outline several tables of Markdown: the line above each, such as the name of a sheet, and its columns."""
    lines: list[tuple[int, str]] = []
    number = counted = 0
    for table in _TABLE.finditer(text):
        window = text[max(table.start() - _MAX_TITLE, 0) : table.start()]
        above = window.rstrip().rpartition("\n")[2].strip()
        if above.startswith("|"):
            if window.count("\n", len(window.rstrip())) == 1:  # the rule is a row of the table above
                continue
            above = ""
        position = table.start() - len(window) + window.rindex(above) if above else table.start()
        number += text.count("\n", counted, position)
        counted = position
        columns = table[1].rstrip()
        lines.append((number, f"{number}: {above}: {columns}" if above else f"{number}: {columns}"))
    return TextOutline("table", f"{MARKDOWN} with", lines) if len(lines) >= _MIN_TABLES else None


def _outline_page(text: str) -> TextOutline | None:
    """Outline a page by its headings, and by the number of rows and the first row of each table."""
    rows, ends = [row.end() for row in _ROW.finditer(text)], [end.start() for end in _TABLE_END.finditer(text)]
    title, tables, number, counted = "", 0, 0, 0
    parts: list[tuple[int, tuple[int, str]]] = []
    for part in islice(_HTML_PART.finditer(text), _MAX_PAGE_PARTS):
        kind, start = part[1].lower(), part.end()
        if kind == "table":
            at = bisect(ends, start)
            stop = ends[at] if at < len(ends) else len(text)
            first = bisect(rows, start)
            level, shown = _TABLE_LEVEL, _describe_rows(text, rows[first : first + 2], bisect(rows, stop) - first, stop)
        else:
            end = _HEADING_END.search(text, start, start + _MAX_MARKUP)
            shown = _strip_tags(text[start : end.start()]) if end else ""
            level = int(kind[1]) if kind != "title" else 0
        if not level:
            title = title or shown
        elif shown:
            number += text.count("\n", counted, part.start())
            counted = part.start()
            tables += kind == "table"
            line = shown if kind == "table" else f"{'#' * level} {shown}"
            parts.append((level, (counted, f"{number}: {line}" if "\n" in text else line)))
    if not tables and len(parts) < _MIN_PARTS:
        return None
    return TextOutline("part", f"{HTML} with", [line for _, line in sorted(parts, key=itemgetter(0))], title)


def _describe_rows(text: str, rows: Sequence[int], count: int, stop: int) -> str:
    """The number of rows of a table, and the words of its first row: `table, 40 rows: City | Price`.

    A first row of headers does not count. `rows` has the beginnings of the first two rows after that of the table,
    which ends at `stop`.
    """
    first, end = (*rows, stop, stop)[:2]
    row = text[first : min(end, first + _MAX_MARKUP, stop)]
    cells = [_strip_tags(cell) for cell in _CELL.split(row)[1:]]
    count -= all(tag[2] in "hH" for tag in _CELL.findall(row))
    return f"{TABLE}, {format_count(count, 'row')}: {' | '.join(cells)}" if any(cells) else ""


def _strip_tags(markup: str) -> str:
    return " ".join(html.unescape(_TAG.sub("", markup)).split())


def _list_lines(text: str, parts: Sequence[_Part]) -> list[tuple[int, str]]:
    """The line of each part with its number, those of the highest level first: `[(0, "0: # Title"), (9, "9: ## End")]`.

    Lines are numbered from 0, as `memory_read` and `memory_grep` count.
    """
    lines: list[tuple[int, str]] = []
    number = counted = 0
    for part in parts:
        number += text.count("\n", counted, part.position)
        counted = part.position
        line = text[part.position : part.position + _MAX_LINE + 1].partition("\n")[0].rstrip(" \t\r{:")
        lines.append((number, f"{number}: {line}"))
    by_level = sorted(zip(parts, lines, strict=True), key=lambda pair: pair[0].level)
    return [line for _, line in by_level]
