"""Reads a query that names columns or tables which are keywords, such as `SELECT max(at) FROM t`, as it is meant."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

from mcp_mirror.query.sql_files import quote_name
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.types import Buffer

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_WORD: Final = lazy_pattern(
    r"""'(?:[^']|'')*+'?+|"(?:[^"]|"")*+"?+|--[^\n]*+|/\*(?:[^*]|\*(?!/))*+|(?<![\w.$])(?P<word>[^\W\d]\w*+)(?!\s*+\()"""
)
"""A word that may be a column or a table, or a text, a quoted name or a comment. A name after a dot needs no quotes."""
_KEYWORDS: Final = "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category IN ('reserved', 'type_function')"
"""The words that name no column or table without quotes."""
_HEAD: Final = 1 << 20
"""Bytes of a value in which the names of its columns are searched."""
_MAX_WORDS: Final = 9
"""Keywords in a query that may be names: the readings double with each of them."""

Parsed = Mapping[str, Any]
"""A query as `json_serialize_sql` parses it."""


def read_keywords(database: "DuckDBPyConnection") -> frozenset[str]:
    """The keywords of SQL that need quotes as names, in lower case."""
    return frozenset(str(keyword) for (keyword,) in database.execute(_KEYWORDS).fetchall())


def quote_names(
    sql: str, keywords: Collection[str], tables: Mapping[str, Buffer], parse: Callable[[str], Parsed]
) -> tuple[str, Parsed] | None:
    """Quote the names that are keywords in a query that cannot be parsed, and return it with its syntax tree.

    None if no reading, or more than one, has the fewest quotes. `tables` are the values by the names of their tables;
    the values contain the names of columns.
    """
    found = [word for word in _WORD.finditer(sql) if (word["word"] or "").lower() in keywords]
    known, values = {table.lower() for table in tables}, tables.values()
    names = {word[0].lower() for word in found}
    known |= {name for name in names - known if any(_contains(value, name) for value in values)}
    words = [word for word in found if word[0].lower() in known]
    for size in range(1, len(words) + 1) if len(words) <= _MAX_WORDS else ():
        readings = [*_read(sql, size, words, parse)]
        if readings:
            return readings[0] if len(readings) == 1 else None
    return None


def _contains(value: Buffer, name: str) -> bool:
    return re.search(rb"\b(?i:%s)\b" % re.escape(name.encode()), value[:_HEAD]) is not None


def _read(
    sql: str, size: int, words: Sequence[re.Match[str]], parse: Callable[[str], Parsed]
) -> Iterator[tuple[str, Parsed]]:
    """Yield the queries with quotes around `size` words that are columns or tables then, and their syntax trees."""
    for chosen in combinations(words, size):
        quoted, end = "", 0
        for word in chosen:
            quoted += sql[end : word.start()] + quote_name(word[0])
            end = word.end()
        quoted += sql[end:]
        parsed = parse(quoted)
        if parsed.get("error"):
            continue
        names = Counter(name.lower() for node in walk(parsed) if (name := _read_name(node)))
        if Counter(word[0].lower() for word in chosen) <= names:  # otherwise a keyword became an alias
            yield quoted, parsed


def _read_name(node: Parsed) -> str:
    """The first part of the name of a column, or the name of a table; empty for any other part of a syntax tree."""
    columns = node.get("column_names")
    return str(columns[0] if columns else node.get("table_name") or "")


def walk(parsed: object) -> Iterator[dict[str, Any]]:
    """Yield every object of a syntax tree."""
    waiting = [parsed]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
