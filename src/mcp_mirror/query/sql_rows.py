"""Finds the rows within an object, such as those of `{"page": 1, "rows": [...]}`, whose table has only one row."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mcp_mirror.query.sql_files import quote_name, quote_text

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

HIDDEN: Final = "__mcp_mirror_"
"""The beginning of the names of tables and views that are not those of a query."""
_MIN_RECORDS: Final = 4
"""Objects by key that are rows."""
_NULL: Final = '"NULL"'
"""The type of values that are all null."""


class Rows(NamedTuple):
    """Rows within an object: an array of objects, or an object with similar objects by key."""

    keys: tuple[str, ...]
    """The keys to them."""
    types: Mapping[str, str]
    """The type of each column. Objects by key have one more, of the keys."""
    is_array: bool
    size: str
    """The SQL expression for their number."""

    @property
    def key_column(self) -> str:
        """The name of the column of the keys, which no object has."""
        name, used = "key", set(map(str.casefold, self.types))
        while name in used:
            name = f"_{name}"
        return name

    def has(self, column: str) -> bool:
        """Whether they have a column."""
        columns = (*self.types, *(() if self.is_array else (self.key_column,)))
        return column.casefold() in map(str.casefold, columns)

    def select(self, table: str) -> str:
        """The query for them; `table` is the table of the object."""
        place, source = _write_place(self.keys), quote_name(table)
        if self.is_array:
            return f"SELECT unnest({place}, max_depth := 2) FROM {source}"  # noqa: S608  # quoted names
        columns = f"key AS {self.key_column}, unnest(json_transform(value, {quote_text(json.dumps(self.types))}))"
        return f"SELECT {columns} FROM {source}, json_each(to_json({place})) ORDER BY id"  # noqa: S608  # quoted names


def list_rows(kind: Any, keys: tuple[str, ...]) -> Iterator[Rows]:
    """Yield all rows in a type of the database; `keys` are those to the type itself."""
    place = _write_place(keys)
    if kind.id == "list" and kind.children[0][1].id == "struct":
        yield Rows(keys, _read_types([kind.children[0][1]]), is_array=True, size=f"len({place})")
    elif kind.id == "map" and kind.children[1][1].id == "struct":
        yield Rows(keys, _read_types([kind.children[1][1]]), is_array=False, size=f"cardinality({place})")
    elif kind.id == "struct":
        kinds = [below for _, below in kind.children]
        if _are_similar(kinds):
            yield Rows(keys, _read_types(kinds), is_array=False, size=str(len(kinds)))
            return
        for key, below in kind.children:
            yield from list_rows(below, (*keys, key))


def _write_place(keys: tuple[str, ...]) -> str:
    return ".".join(map(quote_name, keys))


def _are_similar(kinds: Sequence[Any]) -> bool:
    """Whether there are four or more objects that share at least half of their columns."""
    if len(kinds) < _MIN_RECORDS or any(kind.id != "struct" for kind in kinds):
        return False
    names = [{name for name, _ in kind.children} for kind in kinds]
    return 2 * len(names[0].intersection(*names)) >= len(set().union(*names))


def _read_types(kinds: Sequence[Any]) -> Mapping[str, str]:
    """The type of each column of objects: JSON if its values have several types."""
    found: dict[str, set[str]] = {}
    for kind in kinds:
        for name, below in kind.children:
            found.setdefault(name, set()).add(str(below))
    types: dict[str, str] = {}
    for name, several in found.items():
        known = several - {_NULL} or {"VARCHAR"}
        types[name] = known.pop() if len(known) == 1 else "DOUBLE" if known == {"BIGINT", "DOUBLE"} else "JSON"
    return types


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
        (table, rows)
        for table, columns in tables.items()
        for column, kind in columns.items()
        for rows in list_rows(database.sqltype(kind), (column,))
        if wanted is None or rows.has(wanted)
    ]
    if len(found) != 1:
        return None
    [(table, rows)] = found
    name, hidden = quote_name(table), HIDDEN + table
    if len(database.execute(f"SELECT 1 FROM {name} LIMIT 2").fetchall()) > 1:  # noqa: S608  # a quoted name
        return None
    database.execute(f"ALTER TABLE {name} RENAME TO {quote_name(hidden)}")
    database.execute(f"CREATE TABLE {name} AS {rows.select(hidden)}")
    return table


def close_rows(database: "DuckDBPyConnection", table: str) -> None:
    """Restore a table that `open_rows` has replaced."""
    database.execute(f"DROP TABLE {quote_name(table)}")
    database.execute(f"ALTER TABLE {quote_name(HIDDEN + table)} RENAME TO {quote_name(table)}")
