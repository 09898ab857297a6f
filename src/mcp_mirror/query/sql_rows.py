"""Finds the rows within an object, such as those of `{"page": 1, "rows": [...]}`, whose table has only one row."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mcp_mirror.core.results.main_parts import SAMPLED_RECORDS, are_of_one_kind
from mcp_mirror.query.rows import MANY_MEMBERS, Part
from mcp_mirror.query.sql_files import quote_name

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_MEMBER_COLUMNS: Final = frozenset({"key", "value"})
_MIN_MEMBERS: Final = 4
"""Members of an object from which they are rows."""
_UNKNOWN: Final = ("MAP(VARCHAR, JSON)", "MAP(VARCHAR, JSON)[]")
"""The types of objects by key, and of an array of objects, whose fields are not known."""
_FAMILIES: Final = {
    "bigint": "number",
    "ubigint": "number",
    "hugeint": "number",
    "double": "number",
    "varchar": "text",
    "boolean": "boolean",
    "list": "array",
    "struct": "object",
    "map": "object",
}


class Rows(NamedTuple):
    """Rows within an object: an array of objects, or an object with similar objects by key."""

    keys: tuple[str, ...]
    """The keys to them."""
    columns: frozenset[str]
    """The names of their columns, folded. Objects by key have one more, of the keys."""
    is_array: bool
    size: str
    """The SQL expression for their number."""

    def has(self, column: str) -> bool:
        """Whether they have a column."""
        key = "key"
        while key in self.columns:
            key = f"_{key}"
        folded = column.casefold()
        return folded in self.columns or (folded == key and not self.is_array)

    def select_items(self, table: str) -> str:
        """The query for the rows of an array; `table` is the table of the object."""
        return f"SELECT unnest({_quote_keys(self.keys)}, max_depth := 2) FROM {quote_name(table)}"  # noqa: S608  # quoted names


def _quote_keys(keys: Sequence[str]) -> str:
    return ".".join(map(quote_name, keys))


def list_rows(kind: Any, keys: tuple[str, ...]) -> Iterator[Rows]:
    """Yield all rows in a type of the database; `keys` are those to the type itself."""
    place = _quote_keys(keys)
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
    """The columns of objects of one kind, which the first ones show; none of others."""
    if any(kind.id != "struct" for kind in kinds):
        return frozenset()
    names = list(map(_fold_names, kinds))
    return frozenset().union(*names) if are_of_one_kind(names[:SAMPLED_RECORDS]) else frozenset()


def _list_members(members: Sequence[tuple[str, Any]], keys: tuple[str, ...]) -> Iterator[Part]:
    """Yield the outermost objects whose values have one type or are many, but not those of one kind: they have columns.

    `keys` are those to the object with these members.
    """
    families = {_FAMILIES.get(kind.id) for _, kind in members if kind.id != "null"}
    are_alike = len(members) >= _MIN_MEMBERS and len(families) == 1 and None not in families
    if are_alike or len(members) > MANY_MEMBERS:
        if not _find_shared([kind for _, kind in members]):
            yield Part(keys, is_by_member=True)
        return
    for key, kind in members:
        if kind.id == "map" and kind.children[1][1].id != "struct":
            yield Part((*keys, key), is_by_member=True)
        elif kind.id == "struct":
            yield from _list_members(kind.children, (*keys, key))


def _list_unknown(kind: Any, keys: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the keys to rows of JSON, as in a table with too many fields: they may have any column."""
    if str(kind) in _UNKNOWN:
        yield keys
    elif kind.id == "struct":
        for key, below in kind.children:
            yield from _list_unknown(below, (*keys, key))


def find_rows(
    database: "DuckDBPyConnection", tables: Mapping[str, Mapping[str, str]], wanted: str | None = None
) -> tuple[str, Part] | None:
    """Find the rows within the object of a table, if no others of these tables can be meant.

    Args:
        database: The tables.
        tables: Tables with the types of their columns.
        wanted: A column that the rows have; None: any rows.

    Returns:
        The table, and the part of its object that has the rows; None without them.
    """
    kinds = {
        table: [(column, database.sqltype(kind)) for column, kind in columns.items()]
        for table, columns in tables.items()
    }
    found = [
        (table, Part(rows.keys))
        for table, columns in kinds.items()
        for column, kind in columns
        for rows in list_rows(kind, (column,))
        if wanted is None or rows.has(wanted)
    ]
    if not found and wanted is not None and wanted.casefold() in _MEMBER_COLUMNS:
        found = [(table, part) for table, columns in kinds.items() for part in _list_members(columns, ())]
    if not found and wanted is not None:
        found = [
            (table, Part(keys))
            for table, columns in kinds.items()
            for column, kind in columns
            for keys in _list_unknown(kind, (column,))
        ]
    if len(found) != 1:
        return None
    first = f"SELECT 1 FROM {quote_name(found[0][0])} LIMIT 2"  # noqa: S608  # a quoted name
    return found[0] if len(database.execute(first).fetchall()) == 1 else None
