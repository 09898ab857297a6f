"""Guesses the format of a text from its beginning: CSV, a table, a log, Markdown, HTML, a diff, source code."""

import csv
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from mcp_mirror.core.amounts import format_count
from mcp_mirror.core.texts.line_patterns import LOG_LINE, SETTINGS
from mcp_mirror.core.texts.number_tables import MAX_CHARACTERS, find_number_table
from mcp_mirror.core.texts.pipe_tables import PipeTable, find_aligned_table, find_first_records, find_pipe_table
from mcp_mirror.core.texts.python_literals import has_nan, is_python_literal, translate_python_literal
from mcp_mirror.payload.json_strings import text_end, text_start
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.types import Buffer, Span

JSON_LINES: Final = "JSON lines"
PYTHON_LITERAL: Final = "Python literal"
"""The format of a list or a dictionary as Python prints it."""
DIFF: Final = "diff"
MARKDOWN: Final = "Markdown"
HTML: Final = "HTML"
CODE: Final = "source code"
LOG: Final = "log"
TABLE: Final = "table"
"""The beginning of the format of a table that a text draws."""
_EDGE_BYTES: Final = 1 << 12
"""Bytes of a text that are decoded at each end."""
_WIDE_BYTES: Final = 1 << 15
"""The same for a text that may have rows with many columns."""
_WIDE_COLUMNS: Final = 100
"""Delimiters from which a text may have such rows."""
_MAX_LINES: Final = 40
"""Lines that are examined."""
_LINE_END: Final = lazy_pattern(r"\r\n?|\n")
_EVEN_SHARE: Final = 0.8
"""Minimum share of rows with as many cells as the first one, for CSV with uneven rows."""
_LOG_SHARE: Final = 0.6
"""Minimum share of matching lines for a log."""
_MIN_LINES, _MIN_COLUMNS = 3, 2
_ROWS_FOLLOW: Final = r"[ \t\r]*\n(?=\{\"|(?![ \t\r]*\n|[^\n]*[,;] ))"
"""The end of a line, if no empty line, list or prose follows."""
_SEPARATOR: Final = r'"?sep=[,;|\t]"?[ \t\r]*'
"""The line that names the delimiter to Excel."""
_COLUMN: Final = r'"?+[^\W\d][\w ()%#-]*+"?+'
_COMMENTS: Final = lazy_pattern(r"(?:#[^\n]*+\n)++")
_HEADINGS: Final = (
    lazy_pattern(rf"{_SEPARATOR}\n"),
    lazy_pattern(r"(?:[^\n]+\n){1,5}?[ \t\r]*\n"),
    lazy_pattern(rf"(?:[^\n]*\n){{0,4}}?[^\n]*:{_ROWS_FOLLOW}"),
    lazy_pattern(rf"(?:(?:[^\n]*\n){{0,3}}?[^\n,;|\t]*\n)??[^\n,;|\t]*(?:---|===){_ROWS_FOLLOW}"),
    lazy_pattern(r"(?:[^\n]*+\n){0,5}?[ \t]*+(?:```|~~~)[\w-]*+[ \t\r]*+\n"),
    _COMMENTS,
    lazy_pattern(rf"(?:[^\n,;|\t]*\n){{0,4}}?[^\n,;|\t]*\.[ \t\r]*\n(?={_COLUMN}(?:[,;|]{_COLUMN})++\r?\n)"),
    lazy_pattern(rf"(?:[^\n\t]*+\n){{1,5}}+(?={_COLUMN}(?:\t{_COLUMN})++\r?\n)"),
)
"""The line for Excel; a few lines before an empty one; up to one that ends with a colon; up to a rule, but not one
below names of columns; up to the beginning of a code block; comments; sentences, or lines without tabs,
before names of columns."""
FOOTER: Final = lazy_pattern(
    r"\n[ \t\r]*+\n(?:[^\n]++(?:\n|\Z)){1,5}\Z"
    r"|\n[ \t]*+(?:```|~~~)[ \t\r]*+(?:\n[^\n]*+){0,6}\Z"
    r"|\n\(\d{1,18} rows?\)\s*+\Z"
)
"""An empty line, or the end of a code block, and a few lines at the end; or the number of rows, as psql prints it."""
_MAX_FOOTER: Final = 1000
"""Characters of the lines below a table that is aligned with spaces."""
_MAX_CELLS: Final = 1 << 14
"""Words of the header times lines: a table with more of them is guessed from its first lines."""
_CUT_ROW: Final = "unexpected end of data"
"""The error of Python's parser at the end of the lines."""
AFTER_HEADING: Final = " after a heading"
_DELIMITERS: Final = {"\t": "TSV", ",": "CSV", ";": "CSV", "|": "CSV"}
_PUNCTUATION: Final = (",", ";")
"""Delimiters that are also in prose and code."""
_CLOSING: Final = {"[": "]", "{": "}", "(": ")"}
_MIN_WORDS: Final = 4
"""Words of a cell, on average, from which lines are prose; cells of a log have at least half as many."""
_WORD: Final = lazy_pattern(r"[^\W\d_]{2,}")
_NUMBER: Final = lazy_pattern(r"\s*[-+]?\d[\d.]*%?\s*")
_DIGIT: Final = lazy_pattern(r"\d")
_LINE_NUMBER: Final = lazy_pattern(r" *\d{1,9}", re.ASCII)
_SENTENCE_END: Final = lazy_pattern(r"[.!?:;\u2026][\"')\]]*\s*$")
_LIST_ITEM: Final = lazy_pattern(r"\s*(?:[-*+]|\d+[.)]) \S")
_ITEM_MARK: Final = lazy_pattern(r"\s*(?:[-*+\u2022]|\(?\w{1,4}[.)])?\s*")
_TIME_WITH_COMMA: Final = lazy_pattern(r"\d\d:\d\d:\d\d,\d{3}(?=[\s\]])")
"""A time with milliseconds, as Python's logging writes it."""
_RULE_CELL: Final = lazy_pattern(r"\s*(?::?-{2,}:?\s*)?")
"""A cell of the rule of a Markdown table, which is empty beside the outer bars."""
_CHANGES: Final = lazy_pattern(r" +(?:\d+ [-+]+|Bin .*)")
"""The end of a line of `git diff --stat`."""
_BAR: Final = lazy_pattern("[|\u2502\u2503\u2551]")
_TABLES: Final = ("CSV", "TSV", TABLE)
_BRACKETS: Final = ("()", "[]", "{}")

_HTML: Final = lazy_pattern(r"\s*<(?:!doctype\s+html|html|head|body)\b", re.IGNORECASE)
_TAGS: Final = lazy_pattern(r"</?(?:div|p|span|a|table|tr|td|ul|li|h[1-6]|br)\b[^>]*>", re.IGNORECASE)
_XML: Final = lazy_pattern(r"\s*<(?:\?xml\b|[A-Za-z_][\w:.-]*(?:\s[^<>]*)?>)")
_DIFF: Final = lazy_pattern(r"^(?:diff --git |@@ -\d+(?:,\d+)? \+\d+)", re.MULTILINE)
_MARKDOWN: Final = (
    lazy_pattern(r"^#{1,6} \S", re.MULTILINE),
    lazy_pattern(r"^(?:```|~~~)", re.MULTILINE),
    lazy_pattern(r"^[ \t]*+(?:[-*+]|\d+\.) \S", re.MULTILINE),
    lazy_pattern(r"\[[^\[\]\n]+\]\([^)\s]{1,500}\)|\*\*[^*\n]+\*\*"),
    lazy_pattern(r"^\|.*\|[ \t\r]*\n\|[-: |]+\|[ \t\r]*$", re.MULTILINE),
)
_TITLES: Final = lazy_pattern(r"(?:\A|\n\n)#{1,6} \S[^\n]*(?=\n\n)|-->\n#{1,6} \S")
"""A heading between empty lines, or below a comment, as the title of a slide."""
_COMMENT_LINES: Final = lazy_pattern(r"^#(?!#)[^\n]*\n(?=#(?!#))", re.MULTILINE)
"""A line that begins as a heading of the first level, before another one: comments, as those of YAML."""
_CODE: Final = lazy_pattern(
    r"\s*(?:#!|#include\b|#define\b|@\w+|def \w|class \w|import [\w{*.\"']|from \S+ import\b"
    r"|(?:package|using|func|fn|const|let|var|val|type|interface|enum|struct) \w|function\b"
    r"|(?:export |async |public |private |protected |static |final |abstract )+\w"
    r"|(?:if|for|while|switch|elif|with)\b.*[:{(]\s*$|return\b|\}|\);?$|//|/\*|\"\"\"|[\w.\[\]]+ = .*"
    r"|\w[\w.]*\(.*\);?$)"
)
_YAML_KEY: Final = lazy_pattern(r"""\s*["']?[\w.$/-]+["']?:(?:\s|$)""")
_YAML_SHARE: Final = 0.5
_FENCE: Final = lazy_pattern(r"\s*(?:```|~~~)")
_COMMENT: Final = lazy_pattern(r"^[ \t]*+/\*|\*/[ \t\r]*+$", re.MULTILINE)
_CODE_OR_COMMENT: Final = lazy_pattern(rf"{_CODE.pattern}|\s*\* ")
"""For texts with a comment of several lines, which may begin with asterisks as items of a list do."""
_CODE_SHARE: Final = 0.45


class Edges(NamedTuple):
    """The beginning and the end of a text; both are the whole of a short one."""

    head: str
    end: str
    """Empty for a longer text: unknown."""
    is_whole: bool
    """The head is the whole text; otherwise its last line may be cut."""
    text: str = ""
    """The whole of a longer text, if all lines decide whether it is a table that is aligned with spaces; else empty."""

    @property
    def whole(self) -> str:
        """The whole text; empty for a very long one."""
        return self.head if self.is_whole else self.text


def read_edges(blob: Buffer, span: Span) -> Edges:
    """Decode the beginning and the end of the JSON string at `span`."""
    is_whole = span.length <= 2 * _EDGE_BYTES
    head = text_start(blob, span, 2 * _EDGE_BYTES if is_whole else _EDGE_BYTES)
    if not is_whole and head.count("\n") < _MIN_LINES and max(map(head.count, _DELIMITERS)) >= _WIDE_COLUMNS:
        is_whole = span.length <= _WIDE_BYTES + _EDGE_BYTES  # then both ends would contain the same lines
        head = text_start(blob, span, span.length if is_whole else _WIDE_BYTES)
    if is_whole:
        return Edges(head, head, is_whole)
    text = text_start(blob, span, span.length) if span.length <= 2 * MAX_CHARACTERS else ""
    return Edges(head, text_end(blob, span, _EDGE_BYTES), is_whole, text if len(text) <= MAX_CHARACTERS else "")


def find_format(edges: Edges) -> str:
    """Guess the format of a text: `CSV, 4 columns`, `log`, `Markdown`, ...; empty if unknown."""
    lines = _read_lines(edges.head, is_whole=edges.is_whole)
    if not lines:
        return ""
    form = next(filter(None, _guess_formats(edges, lines)), "")
    if form and not (form == LOG and _COMMENTS.match(edges.head)):  # rows below comments may begin with times
        return form
    _, rows = _find_rows_after_heading(edges)
    return rows + AFTER_HEADING if rows else form or _detect_rows_and_footer(edges.head, is_whole=edges.is_whole)


def is_heading(text: str) -> bool:
    """Whether a text is empty, or a few lines before rows."""
    return not text.strip() or any(pattern.fullmatch(text) for pattern in _HEADINGS)


def _find_rows_after_heading(edges: Edges) -> tuple[int, str]:
    """The characters of the heading before CSV or JSON lines, and their format; 0 and an empty format without."""
    headings = filter(None, (pattern.match(edges.head) for pattern in _HEADINGS))
    for end in dict.fromkeys(heading.end() for heading in headings):
        form = _detect_rows_and_footer(edges.head[end:], is_whole=edges.is_whole) or _detect_table(edges, end)
        if form:
            return end, form
    return 0, ""


def _detect_rows_and_footer(head: str, *, is_whole: bool) -> str:
    """The format of CSV or JSON lines, below which lines may follow if the text is whole; empty for any other text."""
    footer = FOOTER.search(head) if is_whole else None
    bodies = (head, head[: footer.start()]) if footer else (head,)
    return next(filter(None, (_detect_rows(_read_lines(body, is_whole=is_whole)) for body in bodies)), "")


def _detect_rows(lines: Sequence[str]) -> str:
    if _are_json_lines(lines):
        return JSON_LINES
    columns = _find_columns(lines)
    return "" if columns is None or columns.are_false else f"{columns.name}, {len(columns.rows[0])} columns"


def _detect_table(edges: Edges, start: int) -> str:
    """The format of a table that is aligned with spaces and begins at a character; empty for any other text."""
    head, text = edges.head[start:], edges.whole[start:]
    bodies = _drop_footer(head) if edges.is_whole else (head,)
    lines = ("\n".join(_read_lines(body, is_whole=edges.is_whole)) for body in bodies)
    guess = next(filter(None, map(find_aligned_table, lines)), None)
    if guess is None:
        return _name_table(next(filter(None, map(find_number_table, _drop_footer(text))), None))
    words = text.strip("\r\n").partition("\n")[0].split()
    is_small = 0 < len(words) * text.count("\n") <= _MAX_CELLS
    return _name_table(find_spaced_table(text) if is_small else guess)


def find_spaced_table(text: str) -> PipeTable | None:
    """Find the table that a text aligns with spaces, without the lines below it."""
    tables = (find_aligned_table(body) or find_number_table(body) for body in _drop_footer(text))
    return next(filter(None, tables), None)


def _drop_footer(text: str) -> tuple[str, ...]:
    """A text, and the same without the lines below a table, if there may be some."""
    footer = FOOTER.search(text, max(len(text) - _MAX_FOOTER, 0))
    return (text, text[: footer.start()]) if footer else (text,)


def _ends_in_table(edges: Edges) -> bool:
    """Whether a text that begins with a drawn table may be one to its end: half of its last lines have bars.

    An unknown end may be one.
    """
    lines = edges.end.split("\n")
    return edges.is_whole or not edges.end or 2 * sum(_BAR.search(line) is not None for line in lines) >= len(lines)


def _name_table(table: PipeTable | None) -> str:
    return f"{TABLE}, {format_count(len(table.header), 'column')}" if table else ""


def has_columns(form: str) -> bool:
    """Whether a text of this format has rows and columns."""
    return form.startswith(_TABLES)


def find_delimiter(edges: Edges) -> str:
    """The delimiter of a CSV or TSV text that begins with its first row; empty for any other text."""
    form, columns = find_format(edges), _find_columns(_read_lines(edges.head, is_whole=edges.is_whole))
    begins_with_row = form.startswith(("CSV", "TSV")) and not form.endswith(AFTER_HEADING)
    return columns.delimiter if columns and begins_with_row else ""


def find_uneven_delimiter(edges: Edges) -> str:
    """The delimiter of a text that is CSV or TSV without a few of its first rows; empty for any other text."""
    lines = [] if find_format(edges) else _read_lines(edges.head, is_whole=edges.is_whole)
    for delimiter, name in _DELIMITERS.items():
        rows = _read_rows(lines, delimiter)
        even = [row for row in rows if len(row) == len(rows[0]) >= _MIN_COLUMNS]
        if len(even) >= max(_MIN_LINES, _EVEN_SHARE * len(rows)) and not _Columns(name, delimiter, even).are_false:
            return delimiter
    return ""


def _guess_formats(edges: Edges, lines: Sequence[str]) -> Iterator[str]:
    """The formats that a text may have, the surest first, with an empty text for each that it does not have."""
    head = edges.head
    is_closed = edges.end.rstrip()[-1:] in ("", _CLOSING.get(head.lstrip()[:1]))
    has_lines = len(lines) >= _MIN_LINES
    yield DIFF if _DIFF.search(head) else ""
    yield JSON_LINES if _are_json_lines(lines) else ""
    yield PYTHON_LITERAL if is_closed and _is_one_literal(head, lines) else ""
    yield "JSON with NaN" if is_closed and has_nan(head) else ""
    yield _detect_markup(head, lines)
    yield _name_table(
        find_first_records(lines) or (find_pipe_table("\n".join(lines)) if _ends_in_table(edges) else None)
    )
    yield _detect_rows(lines) or _detect_table(edges, 0)
    yield LOG if has_lines and _share_of_lines(LOG_LINE, lines) >= _LOG_SHARE else ""
    yield MARKDOWN if _is_markdown(head, lines) else ""
    are_settings = SETTINGS.match("\n".join((*lines, "")))
    yield CODE if has_lines and not are_settings and _is_code(head, lines) else ""


def measure_heading(edges: Edges) -> int:
    """Count the characters of the heading before CSV, TSV or JSON lines; 0 if a text is not of this form."""
    return _find_rows_after_heading(edges)[0] if find_format(edges).endswith(AFTER_HEADING) else 0


def has_false_columns(edges: Edges) -> bool:
    """Whether lines have as many commas, semicolons or tabs each without being CSV: prose, a log, a list or code."""
    headings = filter(None, (pattern.match(edges.head) for pattern in _HEADINGS))
    starts = (0, *(heading.end() for heading in headings))
    found = (_find_columns(_read_lines(edges.head[start:], is_whole=edges.is_whole)) for start in starts)
    columns = next(filter(None, found), None)
    return columns is not None and columns.are_false


def _read_lines(head: str, *, is_whole: bool) -> list[str]:
    """The first lines of a text, without empty ones and without a line that may be cut."""
    # `splitlines` would also split at characters within cells, such as the vertical tabs that Excel writes.
    lines = [line for line in _LINE_END.split(head, _MAX_LINES + 1)[: _MAX_LINES + 1] if line.strip()]
    return lines if is_whole and len(lines) <= _MAX_LINES else lines[:-1] or lines


def _detect_markup(head: str, lines: Sequence[str]) -> str:
    if _HTML.match(head):
        return HTML
    if not _XML.match(head):
        return ""
    if _is_markdown(head, lines):  # with tags above its title
        return MARKDOWN
    return HTML if _TAGS.match(head.lstrip()) else "XML"


def _are_json_lines(lines: Sequence[str]) -> bool:
    if len(lines) < _MIN_COLUMNS or not all(line.lstrip()[:1] in ("{", "[") for line in lines):
        return False
    try:
        for line in lines[:3]:
            json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _is_one_literal(head: str, lines: Sequence[str]) -> bool:
    """Whether a text begins as one list or dictionary of Python, and not with a line for each of several."""
    return is_python_literal(head) and (len(lines) == 1 or translate_python_literal(lines[0]) is None)


class _Columns(msgspec.Struct, frozen=True):
    """Lines that a delimiter splits into equally many cells."""

    name: str
    """CSV or TSV."""
    delimiter: str
    rows: list[list[str]]

    @property
    def are_false(self) -> bool:
        """Whether the first line and most others are prose, code, or lines of a log, list or file, and not a row."""
        if _repeats_labels(self.rows) or _are_numbered_lines(self.rows):
            return True
        if self.delimiter == "|":
            return self._are_most(lambda row: bool(_CHANGES.fullmatch(row[-1]))) or _is_rule(self.rows[1])
        if self.delimiter == "\t":
            # `gh run view --log` writes a job and a step before each line of a log.
            return self._are_most(_is_paragraph) or self._are_most(lambda row: _is_logged(row[-1]))
        tests = (
            _has_one_cell,
            self._has_open_brackets,
            self._has_time,
            _is_item,
            _is_log_line,
            _is_prose,
            _has_number_in_words,
        )
        return self.delimiter in _PUNCTUATION and any(map(self._are_most, tests))

    def _are_most(self, test: Callable[[Sequence[str]], bool]) -> bool:
        """Whether the first row and most others pass a test."""
        return test(self.rows[0]) and 2 * sum(map(test, self.rows)) > len(self.rows)

    def _has_open_brackets(self, row: Sequence[str]) -> bool:
        """Whether brackets or quotes open in one cell and close in another, as in a call with two arguments."""
        return _is_balanced(self.delimiter.join(row)) and not all(map(_is_balanced, row))

    def _has_time(self, row: Sequence[str]) -> bool:
        return _TIME_WITH_COMMA.search(self.delimiter.join(row)) is not None


def _find_columns(lines: Sequence[str]) -> _Columns | None:
    for delimiter, name in _DELIMITERS.items():
        if len(lines) < _MIN_LINES or delimiter not in lines[0] or re.fullmatch(_SEPARATOR, lines[0]):
            continue
        rows = _read_rows(lines, delimiter)
        widths = {len(row) for row in rows}
        if len(widths) == 1 and max(widths) >= _MIN_COLUMNS:
            return _Columns(name, delimiter, rows)
    return None


def _read_rows(lines: Sequence[str], delimiter: str) -> list[list[str]]:
    """The rows of CSV; empty for any other text. The last row may end within a cell with line breaks."""
    rows: list[list[str]] = []
    try:
        rows.extend(csv.reader(lines, delimiter=delimiter, strict=True))
    except csv.Error as error:
        return rows if str(error) == _CUT_ROW and len(rows) >= _MIN_LINES else []
    return rows


def _has_one_cell(row: Sequence[str]) -> bool:
    """Whether only the first cell has a text, as in a line that ends with a semicolon."""
    return not any(map(str.strip, row[1:]))


def _is_item(row: Sequence[str]) -> bool:
    return _is_spaced(row) and _LIST_ITEM.match(row[0]) is not None


def _is_paragraph(row: Sequence[str]) -> bool:
    """Whether a tab indents a sentence, also after the sign or the number of a list's item."""
    mark, *words = row
    return len(words) == 1 and len(words[0].split()) >= _MIN_WORDS and _ITEM_MARK.fullmatch(mark) is not None


def _is_log_line(row: Sequence[str]) -> bool:
    return _is_spaced(row) and _is_logged(row[0])


def _is_logged(cell: str) -> bool:
    return 2 * len(_WORD.findall(cell)) >= _MIN_WORDS and LOG_LINE.match(cell) is not None


def _is_prose(row: Sequence[str]) -> bool:
    is_sentence = _SENTENCE_END.search(row[-1]) or _has_long_cells(row)
    return _is_spaced(row) and bool(is_sentence) and not any(map(_NUMBER.fullmatch, row))


def _has_number_in_words(row: Sequence[str]) -> bool:
    """Whether each cell has words, and one a number beside them, as in a line of a log."""
    is_line = _is_spaced(row) or _has_long_cells(row)
    are_words = all(map(_WORD.search, row)) and len(row[0].split()) > 1
    return is_line and are_words and any(map(_DIGIT.search, row))


def _has_long_cells(row: Sequence[str]) -> bool:
    return sum(len(cell.split()) for cell in row) >= _MIN_WORDS * len(row)


def _is_rule(row: Sequence[str]) -> bool:
    """Whether a row is the rule of a Markdown table, of which a text may have several."""
    return any(map(str.strip, row)) and all(map(_RULE_CELL.fullmatch, row))


def _is_spaced(row: Sequence[str]) -> bool:
    """Whether a space follows each delimiter, as in prose."""
    return all(cell[:1] == " " for cell in row[1:])


def _is_balanced(text: str) -> bool:
    return text.count('"') % 2 == 0 and all(
        text.count(opening) == text.count(closing) for opening, closing in _BRACKETS
    )


def _repeats_labels(rows: Sequence[Sequence[str]]) -> bool:
    """Whether lines have the form `Name: value, Name: value`, with the same names in each."""
    labels = [[cell.partition(": ")[0] if ": " in cell else None for cell in row] for row in rows]
    return None not in labels[0] and labels[:1] == labels[1:2]


def _are_numbered_lines(rows: Sequence[Sequence[str]]) -> bool:
    """Whether lines of a file begin with their numbers, as `cat -n` prints them: aligned to the right, then a tab.

    The first number may have lost its spaces, because many tools strip their output.
    """
    is_aligned = any(row[0][:1] == " " for row in rows[:2])
    if not is_aligned or not all(_LINE_NUMBER.fullmatch(row[0]) for row in rows):
        return False
    first = int(rows[0][0])
    return [int(row[0]) for row in rows] == [*range(first, first + len(rows))]


def _is_markdown(head: str, lines: Sequence[str]) -> bool:
    signs = sum(pattern.search(head) is not None for pattern in _MARKDOWN)
    headings = len(_MARKDOWN[0].findall(head))
    is_marked = signs >= _MIN_LINES or (signs >= _MIN_COLUMNS and headings > 0)
    if not is_marked and headings >= _MIN_COLUMNS:
        is_marked = len(_TITLES.findall(head)) >= _MIN_COLUMNS
    are_comments = 2 * len(_COMMENT_LINES.findall(head)) > headings
    return is_marked and not are_comments and not _is_code(head, lines) and not _is_yaml(lines)


def _is_yaml(lines: Sequence[str]) -> bool:
    """Whether half of the lines are keys: the comments and lists of YAML look like headings and lists."""
    plain = [line for line in _drop_code_blocks(lines) if not line.lstrip().startswith("#")]
    return bool(plain) and _share_of_lines(_YAML_KEY, plain) >= _YAML_SHARE


def _is_code(head: str, lines: Sequence[str]) -> bool:
    """Whether most lines are code, without the code blocks of a document."""
    code = _CODE_OR_COMMENT if _COMMENT.search(head) else _CODE
    return _share_of_lines(code, _drop_code_blocks(lines) or lines) >= _CODE_SHARE


def _drop_code_blocks(lines: Sequence[str]) -> list[str]:
    """The lines of a document that are outside of its code blocks."""
    outside: list[str] = []
    is_inside = False
    for line in lines:
        if _FENCE.match(line):
            is_inside = not is_inside
        elif not is_inside:
            outside.append(line)
    return outside


def _share_of_lines(pattern: re.Pattern[str], lines: Sequence[str]) -> float:
    return sum(pattern.match(line) is not None for line in lines) / len(lines)
