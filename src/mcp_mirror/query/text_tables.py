"""Finds the table with a column among the tables in a text of Markdown or HTML. Pure."""

import html
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final

from mcp_mirror.system.patterns import lazy_pattern

_MAX_CHARACTERS: Final = 1 << 24
"""Characters of a text."""
_MAX_CELLS: Final = 1 << 22
"""Cells of a table whose rows are all as long as the longest one."""
_RULE: Final = lazy_pattern(r"(?=[^|]*+\|)[ \t]*+(?:\|[ \t]*+)?+:?-[-:| \t]*+")
"""The line below the names of columns in Markdown. Lines need not begin with a bar."""
_BAR: Final = lazy_pattern(r"(?<!\\)\|")
_TABLE: Final = lazy_pattern(r"<(/?)table\b[^<>]*>", re.IGNORECASE)
_ROW: Final = lazy_pattern(r"<tr\b[^<>]*>", re.IGNORECASE)
_CELL: Final = lazy_pattern(r"<t[hd]\b[^<>]*>", re.IGNORECASE)
_TAG: Final = lazy_pattern(r"<[^<>]*>")

Table = Sequence[Sequence[str]]
"""The cells of each row, of which the first one has the names of the columns."""


def find_table_text(text: str, column: str) -> str | None:
    """Return the only table of a text that has a column, as Markdown; None without one, with several, or a huge one."""
    wanted = column.casefold()
    found = [table for table in _list_tables(text) if wanted in map(str.casefold, table[0])]
    is_known = len(found) == 1 and max(map(len, found[0])) * len(found[0]) <= _MAX_CELLS
    return _write_table(found[0]) if is_known else None


def find_main_table_text(text: str) -> str | None:
    """Return the table of Markdown that has more than half of the lines of a text; None without one."""
    lines = sum(not line.isspace() for line in text.split("\n") if line)
    tables = () if len(text) > _MAX_CHARACTERS else _list_tables_of_markdown(text)
    return next((_write_table(table) for table in tables if 2 * (len(table) + 1) > lines), None)  # with the rule


def list_headers(text: str) -> list[tuple[str, ...]]:
    """Return the columns of the tables in a text, without those that several tables have."""
    counted = Counter(tuple(table[0]) for table in _list_tables(text))
    return [header for header, count in counted.items() if count == 1]


def _list_tables(text: str) -> Sequence[Table]:
    if len(text) > _MAX_CHARACTERS:
        return ()
    return (*_list_tables_of_markdown(text), *_list_tables_of_html(text))


def _write_table(table: Table) -> str:
    width = max(map(len, table))
    header, *rows = ([*row, *[""] * (width - len(row))] for row in table)
    written = (" | ".join(cell.replace("|", r"\|") for cell in row) for row in (header, ["---"] * width, *rows))
    return "\n".join(f"| {line} |" for line in written)


def _list_tables_of_markdown(text: str) -> Iterator[Table]:
    lines = text.split("\n")
    for at in (at for at, line in enumerate(lines) if at and _RULE.fullmatch(line.rstrip())):
        is_row = _begins_with_bar if _begins_with_bar(lines[at]) else _has_bar
        if is_row(lines[at - 1]) and not (at > 1 and is_row(lines[at - 2])):
            header = _split_row(lines[at - 1])
            if is_row is _begins_with_bar or len(header) == len(_split_row(lines[at])):
                rows = takewhile(is_row, (lines[below] for below in range(at + 1, len(lines))))
                yield [header, *map(_split_row, rows)]


def _begins_with_bar(line: str) -> bool:
    return line.lstrip(" \t").startswith("|")


def _has_bar(line: str) -> bool:
    return _BAR.search(line) is not None


def _split_row(line: str) -> Sequence[str]:
    bare = line.strip()
    cells = _BAR.split(bare.removeprefix("|"))
    cells = cells[:-1] if len(cells) > 1 and not cells[-1] else cells  # after the last bar
    return [cell.strip().replace(r"\|", "|") for cell in cells]


def _list_tables_of_html(text: str) -> Iterator[Table]:
    """Yield the tables that contain no others."""
    start = 0
    for tag in _TABLE.finditer(text):
        if not tag[1]:
            start = tag.end()
        elif start:
            rows = [_read_cells(row) for row in _ROW.split(text[start : tag.start()])[1:]]
            start = 0
            if rows := [row for row in rows if row]:
                yield rows


def _read_cells(row: str) -> Sequence[str]:
    return [" ".join(html.unescape(_TAG.sub(" ", cell)).split()) for cell in _CELL.split(row)[1:]]
