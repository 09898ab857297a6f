"""Makes tables of JSON with DuckDB: of arrays of objects, JSON lines, and objects that contain a table.

Types are found in all rows. Texts stay as they were sent, also dates and times. Errors of DuckDB pass on to the caller.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from mcp_mirror.payload.json_strings import replace_half_pairs
from mcp_mirror.query.rows import Part, find_part, write_members, write_rows
from mcp_mirror.query.sql_files import create_table, describe_columns, open_as_file, quote_name, quote_text
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.types import Buffer, FileSpan

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_JSON: Final = r"sample_size = -1, dateformat = E'\x01%d', timestampformat = E'\x01%d'"
"""Types are found in all rows. No text has these formats, so that dates stay as they were sent."""
_HEAD: Final = 4096
"""Bytes in which JSON begins."""
_COLUMNS: Final = 2
"""Arrays from which an object of arrays is a table, by columns."""
_ITEMS: Final = 4
"""Items that these arrays have at least."""
_LIST: Final = lazy_pattern(r".*[^\]]\[\]", re.DOTALL)
"""The type of an array of other values than arrays."""
_MAX_FIELDS: Final = 1_000
"""Fields of objects in columns. Each takes about 1 MB of memory while the table is made, also for one row."""
_DEPTHS: Final = (5, 3, 2, 1)
"""Levels of a table with too many fields, below which its values are JSON."""
_RENAMED: Final = lazy_pattern(r"(.+)_\d+")
_RECORDS: Final = lazy_pattern(rb"(?:\[\s*)?\{")
"""The beginning of objects."""
_NORMALIZED: Final = lazy_pattern(r'"(?:[^"]|"")*"|\b(?:UUID|TIME|DATE|TIMESTAMP)(?=[,)\[]|$)')
"""Names in quotes, and types whose values would not be written as they were sent."""


def load_json(
    database: "DuckDBPyConnection",
    name: str,
    blob: Buffer,
    value: FileSpan | bytes = b"",
    part: Part | None = None,
) -> bool:
    """Make a table of JSON or JSON lines, and return whether its rows are objects that are in no array.

    Args:
        database: Gets the table.
        name: The name of the table.
        blob: The JSON.
        value: Its position in a file.
        part: The part to read in place of the whole JSON.

    Raises:
        LookupError: The JSON has no such part.
    """
    import duckdb  # noqa: PLC0415  # an extra

    if part is not None:
        blob, value = find_part(blob, part.keys) or b"", b""
        if not blob:
            raise LookupError(name)
    rows = write_rows(blob)
    if rows is None and part is not None and part.is_by_member:
        rows = write_members(blob)
    if rows:
        blob, value = rows, b""
    start = bytes(blob[:_HEAD]).lstrip()
    is_records = _RECORDS.match(start) is not None
    try:
        with open_as_file(blob, value) as path:
            _read_json(database, name, path, len(blob), is_records=is_records)
    except duckdb.InvalidInputException as error:
        if "surrogate" not in str(error):
            raise
        whole = replace_half_pairs(bytes(blob))
        with open_as_file(whole) as path:
            _read_json(database, name, path, len(whole), is_records=is_records)
    if rows or not start.startswith(b"{"):
        return False
    _unnest_columns(database, name)
    return True


def _unnest_columns(database: "DuckDBPyConnection", name: str) -> None:
    """Make a row for each position of the arrays of one object, if it has only arrays, of four or more items each."""
    columns = {quote_name(column): kind for column, kind in describe_columns(database, quote_name(name)).items()}
    if len(columns) < _COLUMNS or not all(map(_LIST.fullmatch, columns.values())):
        return
    lengths = ", ".join(f"len({column})" for column in columns)
    found = database.execute(f"SELECT {lengths} FROM {quote_name(name)}").fetchmany(2)  # noqa: S608  # quoted names
    if len(found) == 1 and len(set(found[0])) == 1 and (found[0][0] or 0) >= _ITEMS:
        listed = ", ".join(f"unnest({column}) AS {column}" for column in columns)
        create_table(database, name, f"{quote_name(name)} SELECT {listed}")


def _read_json(database: "DuckDBPyConnection", name: str, path: str, size: int, *, is_records: bool) -> None:
    """Make a table of a file. Objects that do not fit types become JSON columns, or one JSON column."""
    import duckdb  # noqa: PLC0415  # an extra

    flat = f"{_JSON}, maximum_depth = 1"
    whole = "records = false, columns = {'json': 'JSON'}"
    most = ""
    for attempt in ("", "", flat, flat, whole):
        source = f"{path}, compression = 'none'{most}"
        try:
            options = attempt or _find_types(database, source, is_records=is_records)
            create_table(database, name, f"read_json({source}, {options})")
        except duckdb.OutOfMemoryException:
            raise
        except duckdb.Error as error:
            if "maximum_object_size" in str(error):
                most = f", maximum_object_size = {size + 1}"
            last = error
        else:
            return
    raise last


def _find_types(database: "DuckDBPyConnection", source: str, *, is_records: bool) -> str:
    """Return the options for reading JSON: the types of its columns, in which texts stay as they were sent."""
    detected, columns = _detect(database, source, _JSON)
    if list(columns) == ["json"] and columns["json"].startswith("MAP"):
        detected, columns = _detect(database, source, f"{_JSON}, map_inference_threshold = -1")
    names = {column.casefold() for column in columns}
    is_renamed = any((match := _RENAMED.fullmatch(column)) and match[1].casefold() in names for column in columns)
    if is_renamed or ("json" in columns and is_records):
        return detected
    form = "" if is_records or "json" not in columns else ", records = false"
    listed = ", ".join(f"{quote_text(key)}: {quote_text(_keep_texts(kind))}" for key, kind in columns.items())
    return f"columns = {{{listed}}}{form}"


def _detect(database: "DuckDBPyConnection", source: str, options: str) -> tuple[str, Mapping[str, str]]:
    """Find the types of the columns, with JSON below a level if they have too many fields; the options say which."""
    import duckdb  # noqa: PLC0415  # an extra

    for limited in (options, *(f"{options}, maximum_depth = {depth}" for depth in _DEPTHS[:-1])):
        with suppress(duckdb.OutOfMemoryException):
            columns = describe_columns(database, f"read_json({source}, {limited})")
            if sum(kind.count(",") + 1 for kind in columns.values() if "STRUCT" in kind) <= _MAX_FIELDS:
                return limited, columns
    flat = f"{options}, maximum_depth = {_DEPTHS[-1]}"
    return flat, describe_columns(database, f"read_json({source}, {flat})")


def _keep_texts(kind: str) -> str:
    """A type with text in place of types that DuckDB would write differently."""
    return _NORMALIZED.sub(lambda match: match[0] if match[0].startswith('"') else "VARCHAR", kind)
