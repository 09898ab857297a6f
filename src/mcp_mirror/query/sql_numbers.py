"""Makes numbers of texts in tables of CSV: where numbers are missing, and where a comma is before the decimals."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from mcp_mirror.query.sql_files import quote_name, quote_text

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MISSING: Final = ("#N/A", "#NA", "<NA>", "N/A", "NA", "NULL", "NaN", "None", r"\N", "n/a", "nan", "null")
"""Texts for missing numbers, as R, pandas, Excel and databases write them into CSV."""
_NUMBER: Final = r"\s*[+-]?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*"
"""Numbers that DuckDB does not take for texts, so without leading zeros."""
_INTEGER: Final = r"\s*[+-]?\d+\s*"
_COMMA_NUMBER: Final = r"\s*[+-]?(0|[1-9]\d*|[1-9]\d{{0,2}}(\.\d{{3}})+)(,\d+)?\s*"
"""Such numbers as many countries write them, with the braces of a format doubled: `1.234,56`."""
_DECIMALS: Final = r",(\d{{1,2}}|\d{{4,}})\s*$"
"""Digits behind a comma that cannot be thousands."""
_SAMPLED_ROWS: Final = 1000
"""Rows that exclude most columns, because a search in all rows takes longer."""


def clear_missing(database: "DuckDBPyConnection", name: str, columns: Mapping[str, str]) -> dict[str, str]:
    """Make columns of numbers of those columns of a CSV file that are text only because numbers are missing.

    Returns:
        The types of these columns.
    """
    table, missing = quote_name(name), f"({', '.join(map(quote_text, MISSING))})"
    texts = [column for column, kind in columns.items() if kind == "VARCHAR"]
    gaps = find_columns(database, table, texts, f"bool_or({{0}} IN {missing})")
    present = f"FILTER ({{0}} NOT IN {missing})"
    numbers = find_columns(database, table, gaps, f"bool_and(regexp_full_match({{0}}, '{_NUMBER}')) {present}")
    kinds = dict.fromkeys(numbers, "DOUBLE")
    for kind in ("HUGEINT", "BIGINT"):
        is_integer = f"regexp_full_match({{0}}, '{_INTEGER}') AND TRY_CAST({{0}} AS {kind}) IS NOT NULL"
        kinds |= dict.fromkeys(find_columns(database, table, numbers, f"bool_and({is_integer}) {present}"), kind)
    for column, kind in ((quote_name(column), kind) for column, kind in kinds.items()):
        number = f"CASE WHEN {column} NOT IN {missing} THEN {column}::{kind} END"
        database.execute(f"ALTER TABLE {table} ALTER {column} TYPE {kind} USING {number}")
    return kinds


def parse_decimal_commas(database: "DuckDBPyConnection", name: str, columns: Mapping[str, str]) -> dict[str, str]:
    """Make columns of numbers of those columns of a CSV file whose texts are all numbers with a decimal comma.

    Returns:
        The types of these columns.
    """
    table, missing = quote_name(name), f"({', '.join(map(quote_text, MISSING))})"
    texts = [column for column, kind in columns.items() if kind == "VARCHAR"]
    are_numbers = f"bool_and(regexp_full_match({{0}}, '{_COMMA_NUMBER}')) FILTER ({{0}} NOT IN {missing})"
    likely = find_columns(database, f"(FROM {table} LIMIT {_SAMPLED_ROWS})", texts, are_numbers)
    numbers = find_columns(database, table, likely, f"{are_numbers} AND bool_or(regexp_matches({{0}}, '{_DECIMALS}'))")
    for column in map(quote_name, numbers):
        number = f"CASE WHEN {column} NOT IN {missing} THEN replace(replace({column}, '.', ''), ',', '.')::DOUBLE END"
        database.execute(f"ALTER TABLE {table} ALTER {column} TYPE DOUBLE USING {number}")
    return dict.fromkeys(numbers, "DOUBLE")


def find_columns(database: "DuckDBPyConnection", source: str, columns: Sequence[str], test: str) -> list[str]:
    """Return the columns for which an aggregate, with `{0}` for the column, is true."""
    if not columns:
        return []
    tests = ", ".join(test.format(quote_name(column)) for column in columns)
    found = database.execute(f"SELECT {tests} FROM {source}").fetchone()  # noqa: S608  # quoted names
    return [column for column, is_true in zip(columns, found or (), strict=True) if is_true]
