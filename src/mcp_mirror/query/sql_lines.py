"""Explains why a text is a table of its lines. Runs in a worker process."""

import csv
import io
import re
from typing import TYPE_CHECKING, Final

from mcp_mirror.core.amounts import format_count, shorten
from mcp_mirror.core.texts.formats import find_delimiter, find_uneven_delimiter, measure_heading
from mcp_mirror.query.sql_files import quote_name, quote_text
from mcp_mirror.query.sql_tables import read_text_edges
from mcp_mirror.query.text_tables import list_headers
from mcp_mirror.system.patterns import lazy_pattern

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_TABLE_RULE: Final = lazy_pattern(r"^[ \t]*+\|[ \t]*+:?-++:?[ \t]*+\|[-:| \t]*+$", re.MULTILINE)
"""The rule below the header of a table in Markdown whose rows begin with a bar."""
_SHOWN_HEADERS: Final = 400
"""Characters of the columns of tables in an error."""
_EXPLAINED_LINES: Final = 100_000
"""Lines of a text in which a row is found because of which it is not CSV."""


def explain_lines(database: "DuckDBPyConnection", name: str) -> str:
    """Name the columns of the tables in a text of Markdown or HTML, or the row for which a text is not CSV.

    Empty for any other table of lines.
    """
    lines = f"SELECT line FROM {quote_name(name)} ORDER BY rowid LIMIT {_EXPLAINED_LINES}"  # noqa: S608  # a quoted name
    text = "\n".join(row[0] for row in database.execute(lines).fetchall())
    return _explain_tables(name, text) or _explain_csv(name, text)


def _explain_tables(name: str, text: str) -> str:
    if headers := list_headers(text):
        listed = ", ".join(f"({', '.join(header)})" for header in headers)
        return f'"{name}" is a text with tables. Name columns of only one of them: {shorten(listed, _SHOWN_HEADERS)}.'
    if tables := len(_TABLE_RULE.findall(text)):
        lines = f'"{name}" is a text with {format_count(tables, "table")} and has a row for each line'
        second = "TRY_CAST(split_part(line, '|', 3) AS DOUBLE) is the second one as a number"
        return f"{lines}: trim(split_part(line, '|', 2)) is the first cell, and {second}."
    if "<td" in text:
        found = "unnest(regexp_extract_all(string_agg(line, ' ' ORDER BY rowid), '<tr.*?</tr>')) AS r"
        source = f"(SELECT {found} FROM {quote_name(name)})"  # noqa: S608  # a quoted name
        query = rf"SELECT regexp_extract_all(r, '<t[dh]\b[^>]*>(.*?)</t[dh]>', 1) AS cells FROM {source}"  # noqa: S608
        return f'"{name}" is HTML and has a row for each line. The cells of its tables are {query}.'
    return ""


def _explain_csv(name: str, text: str) -> str:
    body = text[measure_heading(read_text_edges(text.encode())) :].lstrip("\n")
    edges = read_text_edges(body.encode())
    if not (delimiter := find_delimiter(edges) or find_uneven_delimiter(edges)):
        return ""
    try:
        first, *others = csv.reader(io.StringIO(body, newline=""), delimiter=delimiter)
    except csv.Error:  # a very long cell
        return ""
    uneven = [row for row in enumerate(others, 2) if row[1] and len(row[1]) != len(first)]
    if not uneven:
        return ""
    number, row = max(uneven, key=lambda numbered: len(numbered[1]))
    reason = f"row {number:,} has {format_count(len(row), 'cell')}, the first row {len(first)}"
    cell = f"split_part(line, {quote_text(delimiter)}, 1)"
    return f'"{name}" is CSV, but {reason}. So it has a row for each line: {cell} is the first cell.'
