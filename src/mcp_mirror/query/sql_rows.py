"""Finds the rows within an object, such as those of `{"page": 1, "rows": [...]}`, whose table has only one row."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from mcp_mirror.query.sql_files import create_table, quote_name

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

HIDDEN: Final = "__mcp_mirror_"
"""The beginning of the names of tables and views that are not those of a query."""


def list_rows(kind: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], frozenset[str]]]:
    """Yield the keys to each array of objects in a type of the database, and the folded names of its columns.

    `keys` are those to the type itself.
    """
    if kind.id == "struct":
        for key, below in kind.children:
            yield from list_rows(below, (*keys, key))
    elif kind.id == "list" and kind.children[0][1].id == "struct":
        yield keys, frozenset(name.casefold() for name, _ in kind.children[0][1].children)


def open_rows(
    database: "DuckDBPyConnection", tables: Mapping[str, Mapping[str, str]], wanted: str | None = None
) -> str | None:
    """Replace the table of an object by the rows within it, if no others of these tables can be meant.

    Args:
        database: The tables.
        tables: Tables with the types of their columns.
        wanted: A column that the rows have; None: any rows.

    Returns:
        The table; None if none was replaced.
    """
    found = [
        (table, keys)
        for table, columns in tables.items()
        for column, kind in columns.items()
        for keys, names in list_rows(database.sqltype(kind), (column,))
        if wanted is None or wanted.casefold() in names
    ]
    if len(found) != 1:
        return None
    [(table, keys)] = found
    name, hidden = quote_name(table), quote_name(HIDDEN + table)
    if len(database.execute(f"SELECT 1 FROM {name} LIMIT 2").fetchall()) > 1:  # noqa: S608  # a quoted name
        return None
    database.execute(f"ALTER TABLE {name} RENAME TO {hidden}")
    create_table(database, table, f"{hidden} SELECT unnest({'.'.join(map(quote_name, keys))}, max_depth := 2)")
    return table


def close_rows(database: "DuckDBPyConnection", table: str) -> None:
    """Restore a table that `open_rows` has replaced."""
    database.execute(f"DROP TABLE {quote_name(table)}")
    database.execute(f"ALTER TABLE {quote_name(HIDDEN + table)} RENAME TO {quote_name(table)}")
