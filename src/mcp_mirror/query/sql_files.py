"""Gives values to DuckDB as files, creates tables from them, and quotes names and texts of SQL."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from mcp_mirror.query.rows import Part
from mcp_mirror.system.files import BINARY, create_claimed_folder, remove_unclaimed, write_all
from mcp_mirror.types import Buffer, FileSpan, Span

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_PREFIX: Final = "mcp-mirror-table-"
"""The beginning of the names of folders with copies."""


class TableSource(msgspec.Struct, frozen=True):
    """A value that becomes a table."""

    name: str
    value: FileSpan | bytes
    """JSON text: an array, an object, or the text of a CSV, TSV or JSON lines file."""
    is_media: bool = False
    """The value is a content block."""
    part: Part | None = None
    """The part of the value that becomes the table; None: all of it."""
    is_of_text: bool = False
    """The value is the data in a text, so its parts have no paths."""


def describe_columns(database: "DuckDBPyConnection", source: str) -> dict[str, str]:
    """The types of the columns of a table, by name."""
    rows = database.execute(f"DESCRIBE FROM {source}").fetchall()
    return {row[0]: row[1] for row in rows}


def create_table(database: "DuckDBPyConnection", name: str, source: str) -> None:
    """Make a table of a source: `read_json(...)`, or another table and a SELECT."""
    database.execute(f"CREATE OR REPLACE TABLE {quote_name(name)} AS FROM {source}")


def quote_name(name: str) -> str:
    """A name in SQL."""
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    """A text in SQL."""
    return "'" + text.replace("'", "''") + "'"


@contextmanager
def open_as_file(blob: Buffer, value: FileSpan | bytes = b"") -> Iterator[str]:
    """Yield the path, as a text of SQL, of a file with these bytes: theirs in `value`, or one with a copy.

    The copy is in memory, except on systems that have no such files.
    """
    if sys.platform == "linux":
        descriptor = _open_whole_file(value)
        if descriptor is None:
            descriptor = os.memfd_create("value")
            write_all(descriptor, blob)
        try:
            yield quote_text(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
    else:
        remove_unclaimed(Path(tempfile.gettempdir()), _PREFIX)  # those of killed processes
        folder, claim = create_claimed_folder(None, _PREFIX)
        try:
            path = folder / "value"
            path.write_bytes(blob)
            yield quote_text(str(path))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            if claim is not None:
                os.close(claim)


def _open_whole_file(value: FileSpan | bytes) -> int | None:
    """Open the file that contains only a value; None if no file does."""
    if not isinstance(value, FileSpan):
        return None
    try:
        descriptor = os.open(value.path, os.O_RDONLY | BINARY)
    except OSError:  # removed since it was mapped
        return None
    if value.span == Span(0, os.fstat(descriptor).st_size):
        return descriptor
    os.close(descriptor)
    return None
