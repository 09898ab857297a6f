"""Runs SQL over values with DuckDB, the extra `sql`: each value becomes a table. Runs in a worker process.

A query can read only its tables, for two reasons. Its syntax tree may contain only SELECT, the tables of the call and
table functions that compute. And when it runs, the database is in memory, has neither files nor network nor extensions,
and its configuration is locked.
"""

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from mcp_mirror.core.texts.python_literals import replace_nan
from mcp_mirror.payload.json_spans import kind_at, skip_space, trim
from mcp_mirror.query.data_texts import MAX_STRING, read_data_text
from mcp_mirror.query.rows import Part
from mcp_mirror.query.sql_errors import (
    HIDDEN,
    MISSING_FIELD,
    UNKNOWN_NAME,
    SqlFailure,
    counts_rows,
    describe_error,
    explain_count,
    list_columns,
    quote_shown,
    shorten_error,
)
from mcp_mirror.query.sql_files import TableSource
from mcp_mirror.query.sql_json_texts import explain_json_texts
from mcp_mirror.query.sql_keywords import quote_names, read_keywords, walk
from mcp_mirror.query.sql_rows import find_rows
from mcp_mirror.query.sql_tables import MISSING, load_table
from mcp_mirror.query.sql_text_order import explain_empty_cells, explain_text_order
from mcp_mirror.query.text_tables import find_main_table_text, find_table_text
from mcp_mirror.query.texts import decode_string, is_text
from mcp_mirror.system.files import BINARY
from mcp_mirror.system.mapped_files import map_sent
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
_NO_PART: Final = "NoPart"
_SYNTAX_ERROR: Final = "parser"
_FETCHED: Final = 2000
"""Rows that are fetched at once."""
_VIEW: Final = f"{HIDDEN}row"
_NODES: Final = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
"""Nodes of the syntax tree that read. The others are parts that write, such as `WITH x AS (INSERT ...)`."""
_FUNCTIONS: Final = frozenset({"range", "generate_series", "unnest", "json_each", "json_tree", "repeat"})
"""Table functions that read only their arguments."""
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


class _FailedError(Exception):
    """A query failed for the reason that it carries."""

    def __init__(self, failure: SqlFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class _Meant(NamedTuple):
    """What a query that failed may mean by a table: the rows within its object, or the data in its text."""

    table: str
    change: Mapping[str, Part | bytes | bool]
    """The members of its `TableSource` that differ."""
    failure: SqlFailure | None
    """The error if the query fails with it, too; None: that of the second failure."""


class _Query(msgspec.Struct, frozen=True):
    """A query that was checked."""

    sql: str
    nodes: Sequence[Mapping[str, Any]]
    """All objects of its syntax tree."""
    texts: Collection[str]
    """The tables of texts."""
    unread: Mapping[str, Buffer]
    """The values that are not the data in a text, by table."""
    objects: AbstractSet[str]
    """The tables whose rows are objects that are in no array."""
    whole: AbstractSet[str]
    """The tables of whole values."""
    max_bytes: int
    """The largest result."""
    result_file: str

    def list_lines(self, columns: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
        """Yield the tables of the lines of texts; `columns` has the columns of all tables."""
        return (name for name in self.unread if list(columns.get(name, ())) == ["line"])


def import_database() -> None:
    """Import the database, which takes longer than most queries."""
    import duckdb  # noqa: F401, PLC0415  # an extra


def run_sql(sql: str, tables: Sequence[TableSource], max_bytes: int, result_file: str) -> FileSpan | bytes | SqlFailure:
    """Load the tables, run the query and return its rows, a JSON array of objects of at most `max_bytes`.

    If the query counts the one row of an object with rows, or names columns of the only rows within an object, these
    rows are the table. If it names other columns than the lines of a text, the text is read as YAML, TOML or XML, or
    its table with the column is the table. So are a list in it and its main table, if the query only counts rows.

    A large result is written to `result_file`, a new file; empty if no file can be created.

    Raises:
        FileRemovedError: The file of a table no longer exists.
    """
    answer, failure = _run(sql, tables, max_bytes, result_file), None
    while isinstance(answer, _Meant):
        table, change, failure = answer._replace(failure=failure or answer.failure)
        tables = [msgspec.structs.replace(one, **change) if one.name == table else one for one in tables]
        answer = _run(sql, tables, max_bytes, result_file)
    return failure if failure and isinstance(answer, SqlFailure) and _is_unknown(answer) else answer


def _is_unknown(failure: SqlFailure) -> bool:
    """Whether a query names what its tables do not have, so that it does not mean the rows within an object."""
    is_name = UNKNOWN_NAME.search(failure.message) or MISSING_FIELD.search(failure.message)
    return failure.kind == _NO_PART or (failure.kind == "BinderException" and is_name is not None)


def _run(
    sql: str, tables: Sequence[TableSource], max_bytes: int, result_file: str
) -> FileSpan | bytes | SqlFailure | _Meant:
    """Load the tables and run the query once; see `run_sql`."""
    import duckdb  # noqa: PLC0415  # an extra

    blobs = [map_sent(table.value) for table in tables]
    names = [table.name for table in tables]
    texts = frozenset(
        table.name
        for table, blob in zip(tables, blobs, strict=True)
        if table.is_media or table.is_of_text or kind_at(blob, skip_space(blob, 0)) == "text"
    )
    whole = frozenset(table.name for table in tables if table.part is None)
    unread = {table.name: blob for table, blob in zip(tables, blobs, strict=True) if not table.is_of_text}
    with open_database() as database:
        try:
            sql, nodes = _check_query(database, sql, dict(zip(names, blobs, strict=True)))
            with ThreadPoolExecutor(_LOADS) as threads:  # DuckDB reads an array in one thread
                loaded = list(threads.map(partial(_load, database), tables, blobs))
            lock_database(database)
            objects = frozenset(name for name, is_object in zip(names, loaded, strict=True) if is_object)
            return _select(database, _Query(sql, nodes, texts, unread, objects, whole, max_bytes, result_file))
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
            return describe_error(database, error, sql, texts)


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


def _check_query(
    database: "DuckDBPyConnection", sql: str, tables: Mapping[str, Buffer]
) -> tuple[str, Sequence[Mapping[str, Any]]]:
    """Check that the query is one SELECT that reads only its tables, and return it with the objects of its syntax tree.

    A query with names that are keywords, such as `SELECT max(at) FROM t`, is returned with quotes around them.
    """
    parsed = _parse(database, sql)
    if parsed.get("error_type") == _SYNTAX_ERROR:
        sql, parsed = quote_names(sql, read_keywords(database), tables, partial(_parse, database)) or (sql, parsed)
    if problem := _find_problem(parsed, [*tables]):
        raise _FailedError(SqlFailure(problem, "Statement", is_mistake=True))
    return sql, list(walk(parsed))


def _parse(database: "DuckDBPyConnection", sql: str) -> Mapping[str, Any]:
    """The syntax tree of a query, or the error of the parser."""
    found = database.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchone()
    try:
        parsed: Mapping[str, Any] = json.loads(found[0] if found else "{}")
    except RecursionError:
        raise _FailedError(SqlFailure("`sql` is nested too deep. Use WITH.", "Nesting", is_mistake=True)) from None
    return parsed


def _find_problem(parsed: Mapping[str, Any], tables: Sequence[str]) -> str | None:
    """Why a parsed query cannot run; None if it can."""
    if parsed.get("error"):
        message = str(parsed.get("error_message"))
        if parsed.get("error_type") == _SYNTAX_ERROR:
            return f"`sql` has a mistake: {shorten_error(message)} Write names that are keywords in double quotes."
        return "`sql` must be one SELECT (or WITH, FROM, VALUES, DESCRIBE). PIVOT needs the values: ON column IN (...)."
    if len(parsed["statements"]) != 1:
        return f"`sql` must be one SELECT; it has {len(parsed['statements'])} statements."
    nodes = list(walk(parsed))
    ctes = {str(entry["key"]) for node in nodes for entry in node.get("cte_map", {}).get("map", ())}
    ctes |= {str(node["cte_name"]) for node in nodes if "cte_name" in node}
    known = {name.casefold() for name in (*tables, *ctes)}
    problems = (_find_problem_in(node, known, tables) for node in nodes)
    return next((problem for problem in problems if problem), None)


def _find_problem_in(node: Mapping[str, Any], known: set[str], tables: Sequence[str]) -> str | None:
    kind = str(node.get("type", ""))
    if kind.endswith("_NODE") and kind not in _NODES:
        return "`sql` must be one SELECT: values are read-only."
    if kind == "TABLE_FUNCTION":
        name = str(node["function"].get("function_name", ""))
        if name.lower() not in _FUNCTIONS:
            return f"The table function {quote_shown(name)} cannot be used: a query reads only the tables of `inputs`."
    if kind == "BASE_TABLE":
        parts = [node.get(part) for part in ("catalog_name", "schema_name", "table_name")]
        name = ".".join(str(part) for part in parts if part)
        if any(parts[:2]) or name.casefold() not in known:
            listed = f"The tables are {', '.join(tables)}." if tables else "The query has no tables."
            return f"Unknown table {quote_shown(name)}. {listed} Give each value a name in `inputs` and use that name."
    return None


def _load(database: "DuckDBPyConnection", table: TableSource, blob: Buffer) -> bool:
    import duckdb  # noqa: PLC0415  # an extra

    try:
        with database.cursor() as connection:
            connection.execute(_NO_PROGRESS)
            return load_table(connection, table, blob)
    except duckdb.OutOfMemoryException:
        raise
    except LookupError:
        raise _FailedError(SqlFailure("", _NO_PART)) from None
    except (duckdb.Error, ValueError) as error:
        message = (
            f"The input {quote_shown(table.name)} cannot be read as a table: {shorten_error(str(error))} Use an array "
            "of objects, CSV, TSV, JSON lines or Parquet."
        )
        raise _FailedError(SqlFailure(message, type(error).__name__)) from None


def _select(database: "DuckDBPyConnection", query: _Query) -> FileSpan | bytes | SqlFailure | _Meant:
    """Run the query, unless it orders or counts what it does not mean."""
    import duckdb  # noqa: PLC0415  # an extra

    columns = list_columns(database)
    if counted := _find_counted(database, query, columns):
        return counted
    explained = explain_text_order(database, query.nodes, columns, MISSING)
    explained = explained or explain_json_texts(database, query.nodes, columns)
    if explained := explained or explain_empty_cells(database, query.nodes, columns, query.texts):
        return SqlFailure(explained, "TextOrder")
    try:
        return _fetch(database, query)
    except duckdb.BinderException as error:
        failure = describe_error(database, error, query.sql, query.texts)
        unknown = _read_unknown_name(str(error), columns)
        candidates = {name: columns[name] for name in columns if name in query.whole}
        if unknown and (meant := find_rows(database, candidates, unknown)):
            return _Meant(meant[0], {"part": meant[1]}, failure)
        means_lines = any("line" in node.get("column_names", ()) for node in query.nodes)
        for name in query.list_lines(columns):
            if data := _read_data(query.unread[name], unknown):
                return _Meant(name, {"value": data, "is_of_text": True}, failure if means_lines else None)
        return failure


def _read_unknown_name(message: str, tables: Collection[str]) -> str | None:
    """The unknown column in an error of DuckDB, which takes the first names in `response.content.size` for a table."""
    if (unknown := UNKNOWN_NAME.search(message)) is None:
        return None
    known = {table.casefold() for table in tables}
    names = [name for name in unknown[1].split(".") if name.casefold() not in known]
    return names[0] if names and unknown[0].startswith("Referenced table") else unknown[1]


def _read_data(blob: Buffer, column: str | None) -> bytes | None:
    """Read a text that is a table of lines as YAML, TOML or XML, or find its table with a column.

    None for other values, and for very large ones.
    """
    if len(blob) > MAX_STRING or not is_text(blob, trim(blob)):
        return None
    text = decode_string(blob)
    table = None if (data := read_data_text(text)) or column is None else find_table_text(text, column)
    return msgspec.json.encode(table) if table else data


def _find_counted(
    database: "DuckDBPyConnection", query: _Query, columns: Mapping[str, Mapping[str, str]]
) -> SqlFailure | _Meant | None:
    """What a query that only counts rows means in place of an object or of lines; None for any other query."""
    if not counts_rows(query.nodes):
        return None
    objects = {name: columns[name] for name in columns if name in query.whole & query.objects}
    counted = explain_count(database, query.nodes, objects, query.texts)
    if counted is None:
        return _find_rows_of_text(query, columns)
    table, message = counted
    failure = SqlFailure(message, "Count")
    meant = find_rows(database, {table: columns[table]})
    return _Meant(meant[0], {"part": meant[1]}, failure) if meant else failure


def _find_rows_of_text(query: _Query, columns: Mapping[str, Mapping[str, str]]) -> _Meant | None:
    """The rows in a text whose lines a query would count: elements of XML, a list of YAML, or the rows of a table."""
    for name in query.list_lines(columns):
        blob = query.unread[name]
        if len(blob) > MAX_STRING or not is_text(blob, trim(blob)):
            continue
        text = decode_string(blob).strip()
        is_list = text.startswith(("<", "- ", "---")) or "\n---\n" in text
        data = read_data_text(text) if is_list else None
        if data and not text.startswith("<") and not data.startswith(b"["):
            data = None
        if data is None and (table := find_main_table_text(text)):
            data = msgspec.json.encode(table)
        if data:
            return _Meant(name, {"value": data, "is_of_text": True}, None)
    return None


def _fetch(database: "DuckDBPyConnection", query: _Query) -> FileSpan | bytes:
    """Run the query and return its rows as a JSON array; a large one is written to the file."""
    database.execute(f"CREATE TEMP VIEW {_VIEW} AS {query.sql}")
    pieces, head = _write_rows(database, query.max_bytes), b""
    for piece in pieces:
        head += piece
        if len(head) > _INLINE_BYTES:
            break
    else:
        return head
    try:
        with os.fdopen(os.open(query.result_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, 0o600), "wb") as file:
            file.writelines(chain((head,), pieces))
            return FileSpan(query.result_file, Span(0, file.tell()))
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
