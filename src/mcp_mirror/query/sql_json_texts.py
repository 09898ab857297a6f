"""Explains a query that reads a column of JSON as text, where texts are in quotes: `title LIKE 'The %'` finds none."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from mcp_mirror.query.sql_files import quote_name
from mcp_mirror.security.sanitize import sanitize

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_PATTERNS: Final = frozenset({"~~", "!~~", "~~*", "!~~*"})
"""LIKE, ILIKE and their negations."""
_SEARCHES: Final = frozenset({"regexp_matches", "regexp_extract"})
_ANCHORS: Final = ("^", "$")
_OF_TEXTS: Final = frozenset(
    {
        "lower",
        "upper",
        "lcase",
        "ucase",
        "starts_with",
        "ends_with",
        "^@",
        "prefix",
        "suffix",
        "length",
        "len",
        "strlen",
        "||",
        "concat",
        "substring",
        "substr",
        "left",
        "right",
        "split_part",
        "regexp_full_match",
        "like_escape",
        "ilike_escape",
    }
)
"""Functions whose result differs for a text in quotes."""


def explain_json_texts(
    database: "DuckDBPyConnection", nodes: Sequence[Mapping[str, Any]], tables: Mapping[str, Mapping[str, str]]
) -> str | None:
    """Explain that a query uses texts in a column of JSON with their quotes; None for any other query.

    `nodes` are all objects of its syntax tree. `tables` has the type of each column of each table.
    """
    made = {str(node["alias"]).casefold() for node in nodes if node.get("alias") and node.get("type") != "COLUMN_REF"}
    for name in dict.fromkeys(name for node in nodes for name in _list_used(node)):
        found = [
            (table, column, kind)
            for table, columns in tables.items()
            for column, kind in columns.items()
            if column.casefold() == name and name not in made
        ]
        if all(kind == "JSON" for _, _, kind in found):
            for table, column, _ in found:
                is_text = f"json_type({quote_name(column)}) = 'VARCHAR'"
                if database.execute(f"SELECT 1 FROM {quote_name(table)} WHERE {is_text} LIMIT 1").fetchone():  # noqa: S608  # quoted names
                    shown = sanitize(quote_name(column))
                    return (
                        f"{shown} is JSON, as its values have several types, and its texts are in quotes. Write "
                        f"({shown}->>'$') in place of {shown}."
                    )
    return None


def _list_used(node: Mapping[str, Any]) -> Iterator[str]:
    """The columns, folded, that a node reads as text."""
    if node.get("type") != "FUNCTION":
        return
    function = str(node.get("function_name")).lower()
    arguments = [argument["expression"] for argument in node["arguments"]]
    text = str(arguments[-1].get("literal", {}).get("text", "")) if arguments else ""
    is_whole = function in _PATTERNS and not (text.startswith("%") and text.endswith("%"))
    is_anchored = function in _SEARCHES and any(anchor in text for anchor in _ANCHORS)
    if function in _OF_TEXTS or is_whole or is_anchored:
        yield from (str(one["column_names"][-1]).casefold() for one in arguments if one.get("type") == "COLUMN_REF")
