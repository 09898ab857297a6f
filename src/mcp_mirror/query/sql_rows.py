"""Finds the rows within an object, such as those of `{"page": 1, "rows": [...]}`, whose table has only one row."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mcp_mirror.core.results.main_parts import are_of_one_kind
from mcp_mirror.query.sql_files import quote_name, quote_text
from mcp_mirror.system.patterns import lazy_pattern

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

HIDDEN: Final = "__mcp_mirror_"
"""The beginning of the names of tables and views that are not those of a query."""
_UNSIGNED: Final = lazy_pattern(r'(?<=[:\[])"UBIGINT"')
"""The type of numbers without a negative one, whose differences would be errors."""


class Rows(NamedTuple):
    """Rows within an object: an array of objects, or an object with similar objects by key."""

    keys: tuple[str, ...]
    """The keys to them."""
    columns: frozenset[str]
    """The names of their columns, folded. Objects by key have one more, of the keys."""
    is_array: bool
    size: str
    """The SQL expression for their number."""

    @property
    def place(self) -> str:
        """The SQL expression for them."""
        return ".".join(map(quote_name, self.keys))

    @property
    def key_column(self) -> str:
        """The name of the column of the keys, which no object has."""
        name = "key"
        while name in self.columns:
            name = f"_{name}"
        return name

    def has(self, column: str) -> bool:
        """Whether they have a column."""
        folded = column.casefold()
        return folded in self.columns or (folded == self.key_column and not self.is_array)

    def select_items(self, table: str) -> str:
        """The query for the rows of an array; `table` is the table of the object."""
        return f"SELECT unnest({self.place}, max_depth := 2) FROM {quote_name(table)}"  # noqa: S608  # quoted names

    def select_records(self, database: "DuckDBPyConnection", table: str) -> str:
        """The query for objects by key; values of several types in one column are JSON."""
        members = f"{quote_name(table)}, json_each(to_json({self.place}))"
        found = database.execute(f"SELECT json_group_structure(value)::VARCHAR FROM {members}").fetchone()  # noqa: S608  # quoted names
        types = quote_text(_UNSIGNED.sub('"HUGEINT"', found[0] if found else "{}"))
        columns = f"key AS {self.key_column}, unnest(json_transform(value, {types}))"
        return f"SELECT {columns} FROM {members} ORDER BY id"  # noqa: S608  # quoted names


def list_rows(kind: Any, keys: tuple[str, ...]) -> Iterator[Rows]:
    """Yield all rows in a type of the database; `keys` are those to the type itself."""
    place = ".".join(map(quote_name, keys))
    if kind.id == "list" and kind.children[0][1].id == "struct":
        yield Rows(keys, _fold_names(kind.children[0][1]), is_array=True, size=f"len({place})")
    elif kind.id == "map" and kind.children[1][1].id == "struct":
        yield Rows(keys, _fold_names(kind.children[1][1]), is_array=False, size=f"cardinality({place})")
    elif kind.id == "struct":
        if columns := _find_shared([below for _, below in kind.children]):
            yield Rows(keys, columns, is_array=False, size=str(len(kind.children)))
            return
        for key, below in kind.children:
            yield from list_rows(below, (*keys, key))


def _fold_names(kind: Any) -> frozenset[str]:
    return frozenset(name.casefold() for name, _ in kind.children)


def _find_shared(kinds: Sequence[Any]) -> frozenset[str]:
    """The columns of objects of one kind; none of others."""
    if any(kind.id != "struct" for kind in kinds):
        return frozenset()
    names = list(map(_fold_names, kinds))
    return frozenset().union(*names) if are_of_one_kind(names) else frozenset()


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
    import duckdb  # noqa: PLC0415  # an extra

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
    try:
        select = rows.select_items(hidden) if rows.is_array else rows.select_records(database, hidden)
        database.execute(f"CREATE TABLE {name} AS {select}")
    except duckdb.Error:  # keys that differ only in case, or too many objects of several types
        database.execute(f"ALTER TABLE {quote_name(hidden)} RENAME TO {name}")
        return None
    return table


def close_rows(database: "DuckDBPyConnection", table: str) -> None:
    """Restore a table that `open_rows` has replaced."""
    database.execute(f"DROP TABLE {quote_name(table)}")
    database.execute(f"ALTER TABLE {quote_name(HIDDEN + table)} RENAME TO {quote_name(table)}")
