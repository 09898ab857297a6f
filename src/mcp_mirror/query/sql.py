"""Runs SQL over values with DuckDB, the extra `sql`: each value becomes a table. Runs in a worker process.

A query can read only its tables, for two reasons. Its syntax tree may contain only SELECT, the tables of the call and
table functions that compute. And when it runs, the database is in memory, has neither files nor network nor extensions,
and its configuration is locked.
"""

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mcp_mirror.core.amounts import shorten
from mcp_mirror.core.texts.embedded_json import read_json_container
from mcp_mirror.core.texts.python_literals import replace_nan
from mcp_mirror.paths import escape_token
from mcp_mirror.payload.json_spans import kind_at, read_keys, skip_space
from mcp_mirror.query.sql_files import quote_name, quote_text
from mcp_mirror.query.sql_tables import MISSING, TableSource, explain_lines, load_table
from mcp_mirror.query.sql_text_order import explain_empty_cells, explain_text_order
from mcp_mirror.security.sanitize import sanitize
from mcp_mirror.system.files import BINARY
from mcp_mirror.system.mapped_files import map_sent
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.types import Buffer, FileSpan, Span

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

DUCKDB: Final = "duckdb"
"""The package of the database, an extra."""
MEMORY: Final = 1 << 30
"""Bytes of memory for the tables and the query."""

_THREADS: Final = 4
_LOADS: Final = 2
"""Tables that are loaded at once."""
_NO_PROGRESS: Final = "SET enable_progress_bar = false"
"""DuckDB would draw a bar on standard output."""
_UTC: Final = "SET TimeZone = 'UTC'"
"""DuckDB would take days and hours of TIMESTAMPTZ in the time zone of the machine."""
_ARROW: Final = "SET lambda_syntax = 'ENABLE_SINGLE_ARROW'"
"""Accepts `x -> x + 1` beside `lambda x: x + 1`. A later version may not have this setting."""
_INLINE_BYTES: Final = 1 << 20
"""Bytes of a result above which it is written to a file."""
_FETCHED: Final = 2000
"""Rows that are fetched at once."""
_VIEW: Final = "__result_row"
_NODES: Final = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
"""Nodes of the syntax tree that read. The others are parts that write, such as `WITH x AS (INSERT ...)`."""
_FUNCTIONS: Final = frozenset({"range", "generate_series", "unnest", "json_each", "json_tree", "repeat"})
"""Table functions that read only their arguments."""
_NAME: Final = r"(?:\"(?:[^\"]|\"\")*\"|\w+)"
"""A name in the type of an object."""
_ROWS: Final = lazy_pattern(
    r"STRUCT\(.*\)\[\]|MAP\(VARCHAR, STRUCT\(.*\)\)"
    rf"|STRUCT\({_NAME} (STRUCT\(.*?\))(?:, {_NAME} \1){{3}}.*"
    rf"|STRUCT\({_NAME} \w+\[\](?:, {_NAME} \w+\[\])+\)",
    re.DOTALL,
)
"""The type of a column with rows: an array of objects, or an object of objects or of arrays."""
_OBJECTS: Final = lazy_pattern(r"STRUCT\(.*\)\[\]", re.DOTALL)
"""The type of a column with an array of objects."""
_NAME_ERRORS: Final = ("BinderException", "CatalogException")
"""Errors for which the existing tables and columns are named."""
_CELLS: Final = "json[1] is the first cell of a row, and json[1]::DOUBLE a number."
_MISSING_COLUMN: Final = lazy_pattern(r'(?:column named|Referenced column) "([^"]+)"')
"""The column in errors such as `Table "o" does not have a column named "x"`."""
_MISSING_FIELD: Final = lazy_pattern(r"Cannot extract field '([^']+)'")
"""The key in the error of `note.gift` if the column has no objects."""
_MISSING_TABLE: Final = 'Referenced table "'
"""The beginning of the error of `metric.mode` if no column has the name `metric`."""
_UNCONVERTED: Final = lazy_pattern(r"Could not convert string '([^']*)'")
"""The text in errors such as `Could not convert string 'NA' to INT64`."""
_ERROR_CHARACTERS: Final = 400
_REASON_CHARACTERS: Final = 800
_SCHEMA_CHARACTERS: Final = 1200
_TYPE_CHARACTERS: Final = 80
_CONFIG: Final[Mapping[str, Any]] = {
    "memory_limit": f"{MEMORY >> 20}MiB",
    "temp_directory": "",
    "secret_directory": "none",
    "allow_persistent_secrets": False,
    "allow_community_extensions": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
}


class SqlFailure(msgspec.Struct, frozen=True):
    """Why a query failed."""

    message: str
    """One or two sentences, which may contain parts of values."""
    kind: str
    is_mistake: bool = False
    """The query itself is wrong. It did not run, and the message does not depend on values."""
    is_limit: bool = False
    """The query exceeded a limit. The message contains no parts of values."""


class _FailedError(Exception):
    """A query failed for the reason that it carries."""

    def __init__(self, failure: SqlFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def import_database() -> None:
    """Import the database, which takes longer than most queries."""
    import duckdb  # noqa: F401, PLC0415  # an extra


def run_sql(sql: str, tables: Sequence[TableSource], max_bytes: int, result_file: str) -> FileSpan | bytes | SqlFailure:
    """Load the tables, run the query and return its rows, a JSON array of objects of at most `max_bytes`.

    A large result is written to `result_file`, a new file; empty if no file can be created.

    Raises:
        FileRemovedError: The file of a table no longer exists.
    """
    import duckdb  # noqa: PLC0415  # an extra

    blobs = [map_sent(table.value) for table in tables]
    kinds = {
        table.name: "text" if table.is_media else kind_at(blob, skip_space(blob, 0))
        for table, blob in zip(tables, blobs, strict=True)
    }
    with open_database() as database:
        try:
            nodes = _check_query(database, sql, [table.name for table in tables])
            with ThreadPoolExecutor(_LOADS) as threads:  # DuckDB reads an array in one thread
                list(threads.map(partial(_load, database), tables, blobs))
            lock_database(database)
            columns = _list_columns(database)
            objects = {name: columns[name] for name in columns if kinds.get(name) == "object"}
            if counted := _explain_count(database, nodes, objects):
                return SqlFailure(counted, "Count")
            texts = [name for name in columns if kinds.get(name) == "text"]
            explained = explain_text_order(database, nodes, columns, MISSING)
            if explained := explained or explain_empty_cells(database, nodes, columns, texts):
                return SqlFailure(explained, "TextOrder")
            return _fetch(database, sql, max_bytes, result_file)
        except _FailedError as error:
            return error.failure
        except (duckdb.OutOfMemoryException, MemoryError):
            return SqlFailure(
                f"The tables and the query need more than {MEMORY >> 20:,} MiB of memory. Use parts of the values, "
                "filter before you join, or group.",
                "OutOfMemoryException",
                is_limit=True,
            )
        except duckdb.Error as error:
            return _describe_error(database, error, sql, [name for name in kinds if kinds[name] == "text"])


@contextmanager
def open_database() -> Iterator["DuckDBPyConnection"]:
    """Open an empty database in memory."""
    import duckdb  # noqa: PLC0415  # an extra

    config = {**_CONFIG, "threads": min(_THREADS, os.cpu_count() or 1)}
    with closing(duckdb.connect(":memory:", config=config)) as database:
        database.execute(_NO_PROGRESS)
        database.execute(_UTC)
        with suppress(duckdb.Error):
            database.execute(_ARROW)
        yield database


def lock_database(database: "DuckDBPyConnection") -> None:
    """Take away files, network, extensions and changes of the configuration."""
    database.execute("SET enable_external_access = false")
    database.execute("SET lock_configuration = true")


def _check_query(database: "DuckDBPyConnection", sql: str, tables: Sequence[str]) -> Sequence[Mapping[str, Any]]:
    """Check that the query is one SELECT that reads only its tables, and return all objects of its syntax tree."""
    found = database.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchone()
    try:
        parsed = json.loads(found[0] if found else "{}")
    except RecursionError:
        raise _FailedError(SqlFailure("`sql` is nested too deep. Use WITH.", "Nesting", is_mistake=True)) from None
    if problem := _find_problem(parsed, tables):
        raise _FailedError(SqlFailure(problem, "Statement", is_mistake=True))
    return list(_walk(parsed))


def _find_problem(parsed: Mapping[str, Any], tables: Sequence[str]) -> str | None:
    """Why a parsed query cannot run; None if it can."""
    if parsed.get("error"):
        message = str(parsed.get("error_message"))
        if parsed.get("error_type") == "parser":
            return f"`sql` has a mistake: {_shorten(message)} Write names that are keywords in double quotes."
        return "`sql` must be one SELECT (or WITH, FROM, VALUES, DESCRIBE). PIVOT needs the values: ON column IN (...)."
    if len(parsed["statements"]) != 1:
        return f"`sql` must be one SELECT; it has {len(parsed['statements'])} statements."
    nodes = list(_walk(parsed))
    ctes = {str(entry["key"]) for node in nodes for entry in node.get("cte_map", {}).get("map", ())}
    ctes |= {str(node["cte_name"]) for node in nodes if "cte_name" in node}
    known = {name.casefold() for name in (*tables, *ctes)}
    problems = (_find_problem_in(node, known, tables) for node in nodes)
    return next((problem for problem in problems if problem), None)


def _walk(parsed: object) -> Iterator[dict[str, Any]]:
    """Yield every object of a syntax tree."""
    waiting = [parsed]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node


def _find_problem_in(node: Mapping[str, Any], known: set[str], tables: Sequence[str]) -> str | None:
    kind = str(node.get("type", ""))
    if kind.endswith("_NODE") and kind not in _NODES:
        return "`sql` must be one SELECT: values are read-only."
    if kind == "TABLE_FUNCTION":
        name = str(node["function"].get("function_name", ""))
        if name.lower() not in _FUNCTIONS:
            return f"The table function {_quote(name)} cannot be used: a query reads only the tables of `inputs`."
    if kind == "BASE_TABLE":
        parts = [node.get(part) for part in ("catalog_name", "schema_name", "table_name")]
        name = ".".join(str(part) for part in parts if part)
        if any(parts[:2]) or name.casefold() not in known:
            listed = f"The tables are {', '.join(tables)}." if tables else "The query has no tables."
            return f"Unknown table {_quote(name)}. {listed} Give each value a name in `inputs` and use that name."
    return None


def _quote(name: str) -> str:
    return f'"{sanitize(shorten(name, 80))}"'


def _load(database: "DuckDBPyConnection", table: TableSource, blob: Buffer) -> None:
    import duckdb  # noqa: PLC0415  # an extra

    try:
        with database.cursor() as connection:
            connection.execute(_NO_PROGRESS)
            load_table(connection, table, blob)
    except duckdb.OutOfMemoryException:
        raise
    except (duckdb.Error, ValueError) as error:
        message = (
            f"The input {_quote(table.name)} cannot be read as a table: {_shorten(str(error))} Use an array of "
            "objects, CSV, TSV, JSON lines or Parquet."
        )
        raise _FailedError(SqlFailure(message, type(error).__name__)) from None


def _fetch(database: "DuckDBPyConnection", sql: str, max_bytes: int, result_file: str) -> FileSpan | bytes:
    """Run the query and return its rows as a JSON array; a large one is written to the file."""
    database.execute(f"CREATE TEMP VIEW {_VIEW} AS {sql}")
    pieces, head = _write_rows(database, max_bytes), b""
    for piece in pieces:
        head += piece
        if len(head) > _INLINE_BYTES:
            break
    else:
        return head
    try:
        with os.fdopen(os.open(result_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, 0o600), "wb") as file:
            file.writelines(chain((head,), pieces))
            return FileSpan(result_file, Span(0, file.tell()))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        message = f"The result cannot be written to the gateway's disk: {reason}. Select fewer rows or make room there."
        raise _FailedError(SqlFailure(message, "OSError", is_limit=True)) from None


def _write_rows(database: "DuckDBPyConnection", max_bytes: int) -> Iterator[bytes]:
    """Yield the rows of the query as the pieces of a JSON array."""
    rows = database.execute(f"SELECT to_json({_VIEW})::VARCHAR FROM {_VIEW}")  # noqa: S608  # a constant
    size, mark = len(b"[]"), b"["
    while found := rows.fetchmany(_FETCHED):
        piece = mark + replace_nan(",".join(row[0] for row in found)).encode("utf-8", "replace")
        mark, size = b",", size + len(piece)
        if size > max_bytes:
            message = (
                f"The result has more than {max_bytes:,} bytes (`memory_tools.query_bytes`). Select fewer rows or "
                "columns, or group."
            )
            raise _FailedError(SqlFailure(message, "Size", is_limit=True))
        yield piece
    yield b"]" if mark == b"," else b"[]"


def _describe_error(database: "DuckDBPyConnection", error: Exception, sql: str, texts: Collection[str]) -> SqlFailure:
    """Describe an error of the database, with the tables and columns that exist; `texts` are the tables of texts."""
    import duckdb  # noqa: PLC0415  # an extra

    kind = type(error).__name__
    message = _shorten(str(error))
    if kind in _NAME_ERRORS:
        with suppress(duckdb.Error):  # the transaction was aborted
            tables = _list_columns(database)
            reason = _explain_name(database, message, tables, sql, texts)
            message = " ".join(filter(None, (message, reason, _describe_tables(tables))))
    elif (text := _UNCONVERTED.search(message)) and text[1] in MISSING:
        message += f" A missing number is NULL: use IS NULL or IS NOT NULL in place of '{text[1]}'."
    return SqlFailure(message, kind)


def _explain_name(
    database: "DuckDBPyConnection",
    message: str,
    tables: Mapping[str, Mapping[str, str]],
    sql: str,
    texts: Collection[str],
) -> str:
    """Explain why a name of a query is unknown; empty without a reason."""
    missing = _MISSING_COLUMN.search(message)
    reason = _explain_missing(missing[1], tables, sql) if missing else ""
    if not reason and (missing or _MISSING_TABLE in message):
        explained = (_explain_rows(database, name, tables[name], is_text=name in texts) for name in tables)
        reason = next(filter(None, explained), "")
    if not reason and (key := missing or _MISSING_FIELD.search(message)):
        explained = (_explain_json(database, name, tables[name], key[1], is_text=name in texts) for name in tables)
        reason = next(filter(None, explained), "")
    reason = reason or next(filter(None, (_explain_cells(name, tables[name]) for name in tables)), "")
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
            return f"{_quote(column)} is text with JSON: write {name}->>{quote_text(missing)}."
        if found and count == 1 and not is_text:
            return f"{_quote(table)} has JSON in its column {_quote(column)}: add the key to its path in `inputs`."
    return ""


def _shorten(message: str) -> str:
    """The first part of an error of DuckDB, on one line."""
    first = re.split(
        r"\n\s*(?:\n|LINE \d|Candidate functions|Candidate bindings|Try increasing|Possible Solution| *file =)", message
    )[0]
    line = " ".join(re.sub(r' in file "[^"]*"', "", first).split())
    line = sanitize(shorten(line, _ERROR_CHARACTERS))
    return line if line.endswith((".", "!", "?")) else f"{line}."


def _list_columns(database: "DuckDBPyConnection") -> Mapping[str, Mapping[str, str]]:
    """Return the type of each column of each table."""
    rows = database.execute(
        "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal AND table_name <> ? "
        "ORDER BY table_name, column_index",
        [_VIEW],
    ).fetchall()
    tables: dict[str, dict[str, str]] = {}
    for table, column, kind in rows:
        tables.setdefault(table, {})[column] = kind
    return tables


def _explain_missing(missing: str, tables: Mapping[str, Mapping[str, str]], sql: str) -> str:
    """Name the tables that have a missing column, or explain that a text is in double quotes; empty for any other."""
    wanted = missing.casefold()
    owners = [table for table, columns in tables.items() if wanted in {column.casefold() for column in columns}]
    if owners:
        return f"Only {' and '.join(map(_quote, owners))} {'has' if len(owners) == 1 else 'have'} {_quote(missing)}."
    if _quote(wanted) in sql.casefold():
        return f"Double quotes enclose names of columns; a text has single quotes: {quote_text(missing)}."
    return ""


def _explain_rows_of_text(database: "DuckDBPyConnection", table: str, columns: Mapping[str, str]) -> str:
    """Name the rows in the table of a text, which has no paths below its own, or explain why CSV is a row per line."""
    if list(columns) == ["line"]:
        return explain_lines(database, table)
    for column, kind in columns.items():
        keys = (column, *_find_nested_rows(database.sqltype(kind)))
        if len(keys) > 1 or _OBJECTS.fullmatch(kind):
            rows = ".".join(map(quote_name, keys))
            select = f"SELECT unnest({rows}, max_depth := 2) FROM {quote_name(table)}"  # noqa: S608  # quoted names
            return f"The rows of {_quote(table)} are FROM ({select})."
    return _explain_cells(table, columns)


def _explain_rows(database: "DuckDBPyConnection", table: str, columns: Mapping[str, str], *, is_text: bool) -> str:
    """Name the column that contains the rows of a table, or explain that they are arrays; empty for other tables."""
    if is_text:
        return _explain_rows_of_text(database, table, columns)
    if rows := next((column for column, kind in columns.items() if _ROWS.fullmatch(kind)), None):
        return f"{_quote(table)} has rows in its column {_quote(rows)}: add the key to its path in `inputs`."
    if rows := next((column for column, kind in columns.items() if kind.endswith("[][]")), None):
        return (
            f"{_quote(table)} has rows as arrays in its column {_quote(rows)}: add the key to its path in "
            f"`inputs`. Then {_CELLS}"
        )
    for column, kind in columns.items():
        if kind.startswith("STRUCT(") and (keys := _find_nested_rows(database.sqltype(kind))):
            location = "/".join(map(escape_token, (column, *keys)))
            return f"{_quote(table)} has rows in {_quote(location)}: add this to its path in `inputs`."
    return _explain_cells(table, columns) or _explain_mixed_items(database, table, columns)


def _explain_count(
    database: "DuckDBPyConnection", nodes: Sequence[Mapping[str, Any]], objects: Mapping[str, Mapping[str, str]]
) -> str:
    """Explain that a query only counts the one row of an object, whose rows are in a column; empty for any other.

    `objects` has the columns of the tables of objects.
    """
    functions = {node.get("function_name") for node in nodes}
    if "count_star" not in functions or any(node.get("class") == "COLUMN_REF" for node in nodes):
        return ""
    read = {str(node["table_name"]).casefold() for node in nodes if node.get("type") == "BASE_TABLE"}
    for table in objects:
        columns = [column for column, kind in objects[table].items() if _OBJECTS.fullmatch(kind)]
        if not columns or table.casefold() not in read:
            continue
        sizes = ", ".join(f"any_value(len({quote_name(column)}))" for column in columns)
        count, *found = database.execute(f"SELECT count(*), {sizes} FROM {quote_name(table)}").fetchone() or (0,)  # noqa: S608  # quoted names
        size, column = max(zip((size or 0 for size in found), columns, strict=True), default=(0, ""))
        if count == 1 and size > 1:
            rows = f"{size:,} rows in its column {_quote(column)}: add the key to its path in `inputs`."
            return f"count(*) is 1, because {_quote(table)} is one object with {rows}"
    return ""


def _explain_cells(table: str, columns: Mapping[str, str]) -> str:
    if list(columns) == ["json"] and columns["json"].endswith("[]"):
        return f"Each row of {_quote(table)} is an array: {_CELLS}"
    return ""


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
    return f"{_quote(table)} is an array of different values, {rows}"


def _find_nested_rows(kind: Any) -> tuple[str, ...]:
    """The keys to an array of objects in a type of the database; empty: it has no such array."""
    for key, below in kind.children if kind.id == "struct" else ():
        if below.id == "list" and below.children[0][1].id == "struct":
            return (key,)
        if keys := _find_nested_rows(below):
            return (key, *keys)
    return ()


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
