"""Explains why an SQL query failed, such as at an unknown name, or why it counts an object in place of its rows."""

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mcp_mirror.core.amounts import shorten
from mcp_mirror.core.texts.embedded_json import read_json_container
from mcp_mirror.paths import escape_token
from mcp_mirror.payload.json_spans import read_keys
from mcp_mirror.query.sql_files import quote_name, quote_text
from mcp_mirror.query.sql_lines import explain_lines
from mcp_mirror.query.sql_rows import list_rows
from mcp_mirror.query.sql_tables import MISSING
from mcp_mirror.security.sanitize import sanitize
from mcp_mirror.system.patterns import lazy_pattern

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

HIDDEN: Final = "__mcp_mirror_"
"""The beginning of the names of views that are not those of a query."""
_NAME: Final = r"(?:\"(?:[^\"]|\"\")*\"|\w+)"
"""A name in the type of an object."""
_SERIES: Final = lazy_pattern(rf"STRUCT\({_NAME} \w+\[\](?:, {_NAME} \w+\[\])+\)")
"""The type of a column with an object of arrays."""
_NAME_ERRORS: Final = ("BinderException", "CatalogException")
"""Errors for which the existing tables and columns are named."""
_CELLS: Final = "json[1] is the first cell of a row, and json[1]::DOUBLE a number."
UNKNOWN_NAME: Final = lazy_pattern(
    r'(?:column named|Referenced column|Referenced table|^Binder Error: Column) "([^"]+)"'
)
"""The name in errors such as `Table "o" does not have a column named "x"`, or of `metric.mode` without a `metric`."""
_UNKNOWN_TABLE: Final = "Referenced table"
MISSING_FIELD: Final = lazy_pattern(r"Cannot extract field '([^']+)'")
"""The key in the error of `note.gift` if the column has no objects."""
_NO_JSON: Final = lazy_pattern(r"Malformed JSON at byte 0 of input")
"""The error of a text that is compared with JSON."""
_UNCONVERTED: Final = lazy_pattern(r"Could not convert string '([^']*)'")
"""The text in errors such as `Could not convert string 'NA' to INT64`."""
_LONG_TEXT: Final = 10
"""Line breaks of a text beside which the other members of an object say little."""
_ERROR_CHARACTERS: Final = 400
_REASON_CHARACTERS: Final = 800
_SCHEMA_CHARACTERS: Final = 1200
_TYPE_CHARACTERS: Final = 80


class SqlFailure(msgspec.Struct, frozen=True):
    """Why a query failed."""

    message: str
    """One or two sentences, which may contain parts of values."""
    kind: str
    is_mistake: bool = False
    """The query itself is wrong. It did not run, and the message does not depend on values."""
    is_limit: bool = False
    """The query exceeded a limit. The message contains no parts of values."""


def describe_error(database: "DuckDBPyConnection", error: Exception, sql: str, texts: Collection[str]) -> SqlFailure:
    """Describe an error of the database, with the tables and columns that exist; `texts` are the tables of texts."""
    import duckdb  # noqa: PLC0415  # an extra

    kind = type(error).__name__
    message = shorten_error(str(error))
    if kind in _NAME_ERRORS:
        with suppress(duckdb.Error):  # the transaction was aborted
            tables = list_columns(database)
            reason = _explain_name(database, message, tables, sql, texts)
            message = " ".join(filter(None, (message, reason, _describe_tables(tables))))
    elif _NO_JSON.search(message):
        message += " A column with values of several types is JSON: write (column->>'$') for its texts."
    elif text := _UNCONVERTED.search(message):
        is_missing = text[1] in MISSING
        message += (
            f" A missing number is NULL: use IS NULL or IS NOT NULL in place of '{text[1]}'."
            if is_missing
            else " TRY_CAST returns NULL for texts that it cannot convert."
        )
    return SqlFailure(message, kind)


def _explain_name(
    database: "DuckDBPyConnection",
    message: str,
    tables: Mapping[str, Mapping[str, str]],
    sql: str,
    texts: Collection[str],
) -> str:
    """Explain why a name of a query is unknown; empty without a reason."""
    unknown = UNKNOWN_NAME.search(message)
    missing = None if unknown and _UNKNOWN_TABLE in unknown[0] else unknown
    reason = ""
    if missing:
        reason = _explain_missing(missing[1], tables, sql) or _explain_field(database, missing[1], tables)
        if not reason and missing[1].casefold() == "line":
            explained = (_explain_texts(database, name, tables[name]) for name in tables if name not in texts)
            reason = next(filter(None, explained), "")
    if not reason and unknown:
        explained = (_explain_rows(database, name, tables[name], is_text=name in texts) for name in tables)
        reason = next(filter(None, explained), "")
    if not reason and (key := missing or MISSING_FIELD.search(message)):
        explained = (_explain_json(database, name, tables[name], key[1], is_text=name in texts) for name in tables)
        reason = next(filter(None, explained), "")
    reason = reason or next(filter(None, (_explain_cells(name, tables[name]) for name in tables)), "")
    if missing and "column " not in reason:
        found = ((name, _find_long_text(database, name, tables[name])) for name in tables if name not in texts)
        longest = next((f"{quote_shown(name)} has {place}" for name, place in found if place), "")
        reason = " ".join(filter(None, (reason, longest)))
    return sanitize(shorten(reason, _REASON_CHARACTERS))


def _explain_json(
    database: "DuckDBPyConnection", table: str, columns: Mapping[str, str], missing: str, *, is_text: bool
) -> str:
    """Name the column of texts with JSON that have a missing key, or of the one text with JSON; empty without it."""
    for column in (column for column, kind in columns.items() if kind == "VARCHAR"):
        name, source = quote_name(column), quote_name(table)
        select = f"SELECT {name}, count(*) OVER () FROM {source} WHERE {name} IS NOT NULL LIMIT 1"  # noqa: S608  # quoted names
        text, count = database.execute(select).fetchone() or ("", 0)
        found = read_json_container(text)
        if found and found.startswith(b"{") and missing in read_keys(found):
            return f"{quote_shown(column)} is text with JSON: write {name}->>{quote_text(missing)}."
        if found and count == 1 and not is_text:
            place = f"{quote_shown(table)} has JSON in its column {quote_shown(column)}"
            return f"{place}: add the key to its path in `inputs`."
    return ""


def shorten_error(message: str) -> str:
    """The first part of an error of DuckDB, on one line."""
    first = re.split(
        r"\n\s*(?:\n|LINE \d|Candidate functions|Candidate bindings|Try increasing|Possible Solution| *file =)", message
    )[0]
    line = " ".join(re.sub(r' in file "[^"]*"', "", first).split())
    line = sanitize(shorten(line, _ERROR_CHARACTERS))
    return line if line.endswith((".", "!", "?")) else f"{line}."


def list_columns(database: "DuckDBPyConnection") -> Mapping[str, Mapping[str, str]]:
    """Return the type of each column of each table."""
    rows = database.execute(
        "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal "
        "AND NOT starts_with(table_name, ?) ORDER BY table_name, column_index",
        [HIDDEN],
    ).fetchall()
    tables: dict[str, dict[str, str]] = {}
    for table, column, kind in rows:
        tables.setdefault(table, {})[column] = kind
    return tables


def quote_shown(name: str) -> str:
    """A name as errors show it: in quotes, and cut."""
    return f'"{sanitize(shorten(name, 80))}"'


def _explain_missing(missing: str, tables: Mapping[str, Mapping[str, str]], sql: str) -> str:
    """Name the tables that have a missing column, or explain that a text is in double quotes; empty for any other."""
    wanted = missing.casefold()
    owners = [table for table, columns in tables.items() if wanted in {column.casefold() for column in columns}]
    if owners:
        have = "has" if len(owners) == 1 else "have"
        return f"Only {' and '.join(map(quote_shown, owners))} {have} {quote_shown(missing)}."
    if quote_shown(wanted) in sql.casefold():
        return f"Double quotes enclose names of columns; a text has single quotes: {quote_text(missing)}."
    return ""


def _explain_field(database: "DuckDBPyConnection", missing: str, tables: Mapping[str, Mapping[str, str]]) -> str:
    """Name the only column whose objects have a missing column as a field; empty without it."""
    listed = [one for columns in tables.values() for one in columns.items() if not _SERIES.fullmatch(one[1])]
    kinds = [(column, database.sqltype(kind)) for column, kind in listed]
    structs = [(column, kind.children) for column, kind in kinds if kind.id == "struct"]
    found = [(column, name) for column, below in structs for name, _ in below if name.casefold() == missing.casefold()]
    if len(found) != 1:
        return ""
    [(column, name)] = found
    return f"{quote_shown(column)} has objects with {quote_shown(name)}: write {quote_name(column)}.{quote_name(name)}."


def _explain_inner_rows(database: "DuckDBPyConnection", table: str, columns: Mapping[str, str]) -> str:
    """Name the rows in the rows of a table, which no path names."""
    for column, kind in columns.items():
        for rows in list_rows(database.sqltype(kind), (column,)):
            if rows.is_array:
                return f"The rows of {quote_shown(table)} are FROM ({rows.select_items(table)})."
    return _explain_cells(table, columns)


def _explain_rows(database: "DuckDBPyConnection", table: str, columns: Mapping[str, str], *, is_text: bool) -> str:
    """Name the column that contains the rows of a table, or explain that they are arrays; empty for other tables."""
    if is_text and list(columns) == ["line"]:
        return explain_lines(database, table)
    first = f"SELECT 1 FROM {quote_name(table)} LIMIT 2"  # noqa: S608  # a quoted name
    if is_text or len(database.execute(first).fetchall()) > 1:
        reason = _explain_inner_rows(database, table, columns)
        return reason if reason or is_text else _explain_mixed_items(database, table, columns)
    return _explain_rows_of_object(database, table, columns)


def _explain_rows_of_object(database: "DuckDBPyConnection", table: str, columns: Mapping[str, str]) -> str:
    inside = [rows for column, kind in columns.items() for rows in list_rows(database.sqltype(kind), (column,))]
    keys = [rows.keys[0] for rows in inside if len(rows.keys) == 1]
    keys += (column for column, kind in columns.items() if _SERIES.fullmatch(kind))
    if keys:
        return f"{quote_shown(table)} has rows {_name_place(keys[:1])}"
    if key := next((column for column, kind in columns.items() if kind.endswith("[][]")), None):
        return (
            f"{quote_shown(table)} has rows as arrays in its column {quote_shown(key)}: add the key to its path in "
            f"`inputs`. Then {_CELLS}"
        )
    if inside:
        return f"{quote_shown(table)} has rows {_name_place(inside[0].keys)}"
    return _explain_cells(table, columns) or _explain_mixed_items(database, table, columns)


def _name_place(keys: Sequence[str]) -> str:
    if len(keys) == 1:
        return f"in its column {quote_shown(keys[0])}: add the key to its path in `inputs`."
    return f"in {quote_shown('/'.join(map(escape_token, keys)))}: add this to its path in `inputs`."


def counts_rows(nodes: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a query counts rows and names no column."""
    functions = {node.get("function_name") for node in nodes}
    return "count_star" in functions and all(node.get("class") != "COLUMN_REF" for node in nodes)


def explain_count(
    database: "DuckDBPyConnection",
    nodes: Sequence[Mapping[str, Any]],
    objects: Mapping[str, Mapping[str, str]],
    texts: Collection[str],
) -> tuple[str, str] | None:
    """The table of an object if a query that only counts rows counts its one row, and its rows are in a column.

    None for any other. `objects` has the columns of the tables of objects, and `texts` the tables of texts. A long text
    in an object has rows too. The second text is an error about it.
    """
    read = {str(node["table_name"]).casefold() for node in nodes if node.get("type") == "BASE_TABLE"}
    for table in objects:
        listed = (list_rows(database.sqltype(kind), (column,)) for column, kind in objects[table].items())
        inside = list(chain.from_iterable(listed))
        if table.casefold() not in read:
            continue
        if not inside:
            if table not in texts and (text := _find_long_text(database, table, objects[table])):
                return table, f"count(*) is 1, because {quote_shown(table)} is one object with {text}"
            continue
        sizes = ", ".join(f"any_value({rows.size})" for rows in inside)
        count, *found = database.execute(f"SELECT count(*), {sizes} FROM {quote_name(table)}").fetchone() or (0,)  # noqa: S608  # quoted names
        size, keys = max((size or 0, rows.keys) for size, rows in zip(found, inside, strict=True))
        if count == 1 and size > 1:
            rows = f"{size:,} rows {_name_place(keys)}"
            return table, f"count(*) is 1, because {quote_shown(table)} is one object with {rows}"
    return None


def _find_long_text(database: "DuckDBPyConnection", table: str, columns: Mapping[str, str]) -> str:
    """Name the column of the longest text of the only row of a table; empty for other rows, and for short texts."""
    names = [column for column, kind in columns.items() if kind == "VARCHAR"]
    breaks = ", ".join(
        f"length({name}) - length(replace({name}, chr(10), '')) - ends_with({name}, chr(10))::INT"
        for name in map(quote_name, names)
    )
    found = database.execute(f"SELECT {breaks} FROM {quote_name(table)} LIMIT 2").fetchall() if names else ()  # noqa: S608  # quoted names
    if len(found) != 1:
        return ""
    most, column = max(zip((count or 0 for count in found[0]), names, strict=True))
    return f"a text of {most + 1:,} lines {_name_place([column])}" if most >= _LONG_TEXT else ""


def _explain_cells(table: str, columns: Mapping[str, str]) -> str:
    if list(columns) == ["json"] and columns["json"].endswith("[]"):
        return f"Each row of {quote_shown(table)} is an array: {_CELLS}"
    return ""


def _explain_texts(database: "DuckDBPyConnection", table: str, columns: Mapping[str, str]) -> str:
    """Name the lines of texts such as the pages of a document; empty without texts of several lines in an array."""
    if columns not in ({"json": "JSON"}, {"json": "VARCHAR"}):
        return ""
    text, source = "json", quote_name(table)
    if columns["json"] == "JSON":
        text, source = "json->>'$'", f"{source} WHERE json_type(json) = 'VARCHAR'"
    items = f"(SELECT {text} AS text FROM {source})"  # noqa: S608  # a quoted name
    if not database.execute(f"SELECT 1 FROM {items} WHERE contains(text, chr(10)) LIMIT 1").fetchall():  # noqa: S608
        return ""
    lines = f"FROM (SELECT unnest(string_split({text}, chr(10))) AS line FROM {source})"  # noqa: S608  # a quoted name
    return f"{quote_shown(table)} has texts of several lines. Their lines are {lines}."


def _explain_mixed_items(database: "DuckDBPyConnection", table: str, columns: Mapping[str, str]) -> str:
    """Name the item with rows in an array of different values, such as a sentence and the data; empty without it."""
    if columns != {"json": "JSON"}:
        return ""
    select = f"SELECT rowid FROM {quote_name(table)} WHERE json_type(json) IN ('ARRAY', 'OBJECT')"  # noqa: S608  # a quoted name
    found = database.execute(f"{select} LIMIT 2").fetchall()
    if len(found) != 1:
        return ""
    [(item,)] = found
    rows = f"of which only /{item} has rows: add it to its path in `inputs`."
    return f"{quote_shown(table)} is an array of different values, {rows}"


def _describe_tables(tables: Mapping[str, Mapping[str, str]]) -> str:
    if not tables:
        return "The query has no tables: give `inputs`."
    listed = sanitize(
        "; ".join(
            f"{table}({', '.join(f'{column} {shorten(kind, _TYPE_CHARACTERS)}' for column, kind in columns.items())})"
            for table, columns in tables.items()
        )
    )
    return f"Tables: {shorten(listed, _SCHEMA_CHARACTERS)}."
