"""Finds texts with numbers or dates, and empty cells, that a query compares as texts. Runs in a worker process.

DuckDB compares texts letter by letter: `9.991,78` is more than `21.530,81`, and `28.12.2026` more than `03.01.2027`. A
query has no error then, only a wrong result. The same applies to times of several zones, such as
`2026-02-10T00:20+09:00`; a cast to TIMESTAMP ignores their zones.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mcp_mirror.core.amounts import shorten
from mcp_mirror.query.sql_files import quote_name, quote_text
from mcp_mirror.query.sql_keywords import read_keywords
from mcp_mirror.query.text_order import CLOCK, DURATION, LABELED, MAX_ORDERED, find_date_format
from mcp_mirror.security.sanitize import sanitize
from mcp_mirror.system.patterns import lazy_pattern

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Node = Mapping[str, Any]
"""An object of the syntax tree of a query."""

_COMPARISONS: Final = frozenset(
    {"COMPARE_LESSTHAN", "COMPARE_GREATERTHAN", "COMPARE_LESSTHANOREQUALTO", "COMPARE_GREATERTHANOREQUALTO"}
)
_LARGEST: Final = frozenset({"min", "max", "arg_min", "arg_max", "min_by", "max_by"})
_COMPUTING: Final = _LARGEST | {
    *("sum", "avg", "mean", "median", "stddev", "variance", "quantile_cont", "+", "-", "*", "/"),
    *("year", "quarter", "month", "week", "day", "dayofweek", "monthname", "dayname", "date_part", "date_trunc"),
}
"""Functions of numbers and dates."""
_NO_NUMBERS: Final = frozenset({"varchar", "text", "string", "json", "blob"})
"""Types to which any text is cast."""
_TEXT_OF_KEY: Final = frozenset({"->>", "json_extract_string"})
"""Functions that return the member of an object at a key as text."""
_PARTS_OF_TEXT: Final = frozenset(
    {
        *("regexp_extract", "regexp_replace", "split_part", "string_split", "str_split", "split", "array_extract"),
        *("substr", "substring", "left", "right", "replace", "trim", "ltrim", "rtrim", "nullif"),
    }
)
"""Functions that return a part of a text or change it, and lists of such parts."""
_WITHOUT_ZONES: Final = frozenset({"timestamp", "datetime"})
"""Types to which texts with times are cast without their zones."""
_SAMPLED: Final = 1000
"""Texts of a column from which its form is taken."""
_MAX_FORMATS: Final = 3
"""Formats of the dates in a column."""
_MAX_SHOWN: Final = 40
"""Characters of a text that an error quotes."""

_CURRENCY: Final = "[$€£¥₹₩₽]|EUR|USD|GBP|CHF|JPY|CNY"
_BEFORE: Final = rf"[-+]?(?:(?:{_CURRENCY})[ \x{{a0}}]?)?[-+]?"
_AFTER: Final = rf"(?:[ \x{{a0}}\x{{202f}}]?(?:{_CURRENCY}|[%円元]|kr))?"
_SPACES: Final = r" '\x{a0}\x{202f}"
"""Characters that group digits in numbers with a decimal point and with a decimal comma."""
_POINT: Final = rf"{_BEFORE}(?:\d{{1,3}}(?:[,{_SPACES}]\d{{3}})+|\d+)(?:\.\d+)?"
"""A number with a decimal point; commas or spaces may group its digits. `_AFTER`, or a unit, follows."""
_COMMA: Final = rf"{_BEFORE}(?:\d{{1,3}}(?:[.{_SPACES}]\d{{3}})+|\d+)(?:,\d+)?"
"""A number with a decimal comma; points or spaces may group its digits. `_AFTER`, or a unit, follows."""
_UNIT: Final = lazy_pattern(r"(?<=[\d \u00a0\u202f])[A-Za-zµμ°Ω²³][A-Za-zµμ°Ω²³/]{0,11}\Z")
_SIZE: Final = r"(?:\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?) ?(?:[kKMGTPE]i?)?B?"
"""A number of bytes; the expression of `text_order` has groups."""
_VERSION: Final = r"v?\d{1,6}(?:\.\d{1,6}){1,3}(?:[-+.]?[A-Za-z][0-9A-Za-z.+-]*)?"
_MULTIPLE: Final = "[kK]|[mM]n?|[bB]n?|[tT]n?|thousand|million|billion|trillion"
_LITERALS: Final[Mapping[str, str]] = {
    "numbers": "numbers such as 1000.5",
    "sizes": "numbers of bytes such as 1e9",
    "durations": "seconds such as 90",
    "times": "numbers such as 90 for 1:30",
    "versions": "lists such as [1, 10, 0]",
}
"""What converted texts are compared with, if they are not dates."""
_PLAIN: Final = r"[-+]?\d+(?:\.\d+)?"
_DATE: Final = r"\d{{1,2}}{0}\d{{1,2}}{0}\d{{4}}"
_TIMES: Final[Mapping[str, str]] = {
    "": "",
    r" \d{1,2}:\d\d": " %H:%M",
    r" \d{1,2}:\d\d:\d\d": " %H:%M:%S",
    r" \d{1,2}:\d\d [AP]M": " %I:%M %p",
    r" \d{1,2}:\d\d:\d\d [AP]M": " %I:%M:%S %p",
}
"""Patterns of times, with their formats."""
_DAY: Final = r"\d{4}-\d\d-\d\d"
_ZONED: Final[Mapping[str, str]] = {
    rf"{_DAY}[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d(?::\d\d)?)": "TRY_CAST({0} AS TIMESTAMPTZ)",
    rf"{_DAY} \d\d:\d\d:\d\d [+-]\d{{4}}": "try_strptime({0}, '%Y-%m-%d %H:%M:%S %z')",  # of git
}
"""Patterns of times with zones, with conversions."""
_ZONE: Final = lazy_pattern(r"(?:Z|[+-][\d:]+)\Z")


_EMPTY: Final = {"kind": "STRING", "text": ""}
"""The literal '' in the syntax tree."""


class _Operand(NamedTuple):
    """A column, or a text within its objects."""

    names: tuple[str, ...]
    """Its name, after the table and before keys of a STRUCT: `t.note.price`."""
    keys: str = ""
    """The keys of JSON, in SQL: `->'note'->>'price'`."""
    before: str = ""
    """The beginning of the calls that return a part of it: `split_part(`."""
    after: str = ""
    """The end of these calls: `, ' ', 2)`."""


class _Form(NamedTuple):
    """What the texts of a column are."""

    what: str
    test: str
    """SQL of an aggregate with `{0}` for the text: whether all texts have the form."""
    conversions: tuple[str, ...]
    """SQL with `{0}` for the column; of several, the texts do not say which one is meant."""
    is_castable: bool = False
    """A cast converts the texts."""


def explain_text_order(
    database: "DuckDBPyConnection",
    nodes: Sequence[Node],
    tables: Mapping[str, Mapping[str, str]],
    missing: Sequence[str],
) -> str | None:
    """Explain that a query uses texts as numbers or dates, and how to convert them; None for any other query.

    Args:
        database: Has the tables.
        nodes: All objects of the syntax tree of the query.
        tables: The type of each column of each table.
        missing: Texts that stand for a missing value.
    """
    made = {name.casefold() for node in nodes for name in _list_made_names(node)}
    renamed = {str(node["alias"]).casefold(): found for node in nodes if node.get("alias") and (found := _read(node))}
    used = dict.fromkeys(found for node in nodes for found in _find_operands(node))
    for operand, is_cast in used:
        name = operand.names[-1].casefold()
        if name in made:
            continue
        meant = operand if operand.keys else renamed.get(name, operand)
        for table, texts in _locate(database, meant, nodes, tables):
            form = _find_form(database, table, texts, missing)
            if form and not (is_cast and form.is_castable):
                column = _write_name(database, operand)
                return _describe(form, column, _read_texts(database, table, texts, missing)[0])
    return None


def explain_empty_cells(
    database: "DuckDBPyConnection",
    nodes: Sequence[Node],
    tables: Mapping[str, Mapping[str, str]],
    texts: Collection[str],
) -> str | None:
    """Explain that a query compares empty cells, which are NULL in the tables of `texts`, with ''; else None."""
    if any(node.get("type") == "OPERATOR_IS_NULL" for node in nodes):
        return None
    compared = [node for node in nodes if node.get("type") == "COMPARE_EQUAL"]
    sides = [(node[one], node[other]) for node in compared for one, other in (("left", "right"), ("right", "left"))]
    for column, text in sides:
        operand = _read(column) if text.get("literal") == _EMPTY else None
        located = _locate(database, operand, nodes, tables) if operand else ()
        for table, name in located if all(found[0] in texts for found in located) else ():
            counts = f"count(*) FILTER ({name} = ''), count(*) FILTER ({name} IS NULL)"
            empty, missing = database.execute(f"SELECT {counts} FROM {quote_name(table)}").fetchone() or (0, 0)  # noqa: S608  # quoted names
            if missing and not empty:
                shown = sanitize(name)
                return f"Empty cells are NULL: write {shown} IS NULL in place of {shown} = ''."
    return None


def _read(node: Node) -> _Operand | None:
    """The column, or the text within it or a part of it, that a node is; None for any other node."""
    before = after = ""
    while call := _read_call(node):
        node, begin, end = call
        before, after = before + begin, end + after
    keys = ""
    while (kind := node.get("type")) != "COLUMN_REF":
        if kind == "LAMBDA" and keys:  # `a->'b'` within `a->'b'->>'c'`
            arrow, node, key = "->", node["lhs"], node["expr"]
        elif kind == "FUNCTION" and node["function_name"] in _TEXT_OF_KEY:
            arrow = "->>"
            node, key = (argument["expression"] for argument in node["arguments"])
        else:
            return None
        literal = key.get("literal", {})
        if literal.get("kind") != "STRING":
            return None
        keys = f"{arrow}{quote_text(literal['text'])}{keys}"
    return _Operand(tuple(node["column_names"]), keys, before, after)


def _read_call(node: Node) -> tuple[Node, str, str] | None:
    """The text of which a node is a part, and the SQL of the function or index before and after it; else None."""
    name = str(node.get("function_name", "")).lower()
    if node.get("type") == "ARRAY_EXTRACT":
        (text, *others), begin, end = node["children"], "", "[{}]"
    elif name in _PARTS_OF_TEXT and node["arguments"]:
        text, *others = (argument["expression"] for argument in node["arguments"])
        begin, end = f"{name}(", ", {})" if others else ")"
    else:
        return None
    literals = [other.get("literal", {}) for other in others]
    if not {literal.get("kind") for literal in literals} <= {"STRING", "INTEGER"}:
        return None
    texts = (quote_text(literal["text"]) if literal["kind"] == "STRING" else literal["text"] for literal in literals)
    return text, begin, end.replace("{}", ", ".join(texts))


def _list_made_names(node: Node) -> Iterator[str]:
    """The names that a query gives to what it computes: such a column may have another type than that of the table."""
    alias = str(node.get("alias", "")).casefold()
    if alias and not _read(node) and all(found.names[-1].casefold() != alias for found, _ in _find_operands(node)):
        yield alias
    yield from map(str, (*node.get("aliases", ()), *node.get("column_name_alias", ())))
    yield from (str(entry["key"]) for entry in node.get("replace_list", ()))


def _locate(
    database: "DuckDBPyConnection",
    operand: _Operand,
    nodes: Sequence[Node],
    tables: Mapping[str, Mapping[str, str]],
) -> Sequence[tuple[str, str]]:
    """The tables and, in SQL, the texts that an operand may mean; none if it may also mean values of another type."""
    names = operand.names
    read = (node for node in nodes if node.get("type") == "BASE_TABLE")
    named = {str(node["alias"] or node["table_name"]).casefold(): str(node["table_name"]).casefold() for node in read}
    qualifier = names[0].casefold() if len(names) > 1 else ""
    meant = [table for table in tables if table.casefold() == named.get(qualifier)]
    columns = [(table, name, kind) for table in meant or tables for name, kind in tables[table].items()]
    if qualifier and (meant or all(name.casefold() != qualifier for _, name, _ in columns)):
        names = names[1:]
    found = [column for column in columns if column[1].casefold() == names[0].casefold()]
    if len(names) == 1 and not (operand.keys or operand.after):
        are_texts = all(kind == "VARCHAR" for _, _, kind in found)
        return [(table, quote_name(name)) for table, name, _ in found] if are_texts else ()
    within = [
        (table, operand.before + _write_texts((name, *names[1:]), operand.keys, kind) + operand.after)
        for table, name, kind in found
    ]
    return within if all(_are_texts(database, table, texts) for table, texts in within) else ()


def _write_texts(names: Sequence[str], keys: str, kind: str) -> str:
    """The SQL of texts within the objects of a column of a type."""
    objects = ".".join(map(quote_name, names))
    is_json = keys and kind == "VARCHAR"  # some of the texts may not be JSON
    return (f"TRY_CAST({objects} AS JSON)" if is_json else objects) + keys


def _are_texts(database: "DuckDBPyConnection", table: str, values: str) -> bool:
    """Whether values within the objects of a column are texts; False also if the objects do not have them."""
    import duckdb  # noqa: PLC0415  # an extra

    try:
        found = database.execute(f"SELECT typeof({values}) FROM {quote_name(table)} LIMIT 1").fetchone()  # noqa: S608  # quoted names
    except duckdb.Error:
        return False
    return found is not None and found[0] == "VARCHAR"


def _find_operands(node: Node) -> Iterator[tuple[_Operand, bool]]:
    """What a node sorts, compares or computes with, and whether it casts it."""
    kind, function = str(node.get("type", "")), str(node.get("function_name", "")).lower()
    used: list[Any] = [order["expression"] for order in node.get("orders", ())]
    if kind in _COMPARISONS:
        used += [node["left"], node["right"]]
    elif kind == "COMPARE_BETWEEN":
        used.append(node["input"])
    elif kind == "FUNCTION" and function in _COMPUTING:
        arguments = [argument["expression"] for argument in node["arguments"]]
        used += arguments[1:] if function in _LARGEST and len(arguments) > 1 else arguments
    if kind == "SELECT_NODE":  # ORDER BY 2
        used += _list_sorted_by_number(node)
    yield from ((operand, False) for part in used if (operand := _read(part)))
    if kind == "OPERATOR_CAST" and (cast := _read(node["child"])):
        to = str(node.get("type_expr", {}).get("type_name", "")).lower()
        yield from [(cast, to not in _WITHOUT_ZONES)] if to not in _NO_NUMBERS else []


def _list_sorted_by_number(node: Node) -> Iterator[Any]:
    orders = (order for modifier in node.get("modifiers", ()) for order in modifier.get("orders", ()))
    for number in (str(order["expression"].get("literal", {}).get("text", "")) for order in orders):
        if number.isdecimal() and 0 < int(number) <= len(node["select_list"]):
            yield node["select_list"][int(number) - 1]


def _read_texts(database: "DuckDBPyConnection", table: str, texts: str, missing: Sequence[str]) -> list[str]:
    """The first texts of a column, the shortest and the longest, without missing values."""
    begin = f"left({{0}}, {MAX_ORDERED})"
    first = database.execute(f"{_select(begin, table, texts, missing)} LIMIT {_SAMPLED}").fetchall()
    ends = f"unnest([min_by({begin}, length({{0}})), max_by({begin}, length({{0}}))])"
    rows = first and first + database.execute(_select(ends, table, texts, missing)).fetchall()
    return [row[0] for row in rows]


def _select(what: str, table: str, texts: str, missing: Sequence[str]) -> str:
    """A query of texts, with `{0}` for the text."""
    listed = ", ".join(map(quote_text, ("", "-", *missing)))
    return f"SELECT {what.format(f'trim({texts})')} FROM {quote_name(table)} WHERE trim({texts}) NOT IN ({listed})"  # noqa: S608  # quoted names


def _find_form(database: "DuckDBPyConnection", table: str, texts: str, missing: Sequence[str]) -> _Form | None:
    """What all texts of a column are; None for texts that are neither numbers, dates nor versions."""
    read = _read_texts(database, table, texts, missing)
    finders = (
        _find_number,
        _find_size,
        _find_multiple,
        _find_labeled,
        _find_duration,
        _find_date,
        _find_zoned,
        _find_named_date,
        _find_version,
    )
    form = next(filter(None, (find(read) for find in finders)), None)
    if form is None:
        return None
    found = database.execute(_select(form.test, table, texts, missing)).fetchone()
    return form if found and found[0] else None


def _test_pattern(pattern: str) -> str:
    """The SQL that tests whether texts match a pattern in the syntax of RE2."""
    return f"bool_and(regexp_full_match({{0}}, {quote_text(pattern.replace('{', '{{').replace('}', '}}'))}))"


def _match_all(pattern: str, texts: Sequence[str]) -> bool:
    translated = re.compile(pattern.replace(r"\x{a0}", "\u00a0").replace(r"\x{202f}", "\u202f"), re.ASCII)
    return bool(texts) and all(translated.fullmatch(text) for text in texts)


def _find_number(texts: Sequence[str]) -> _Form | None:
    """The form of numbers that are not compared right as texts; None for other texts, and for codes such as `007`."""
    if any(re.search(r"(?<![\d., '\u00a0\u202f])0\d", text) for text in texts):
        return None
    point = "TRY_CAST(regexp_replace({0}, '[^0-9.-]', '', 'g') AS DOUBLE)"
    comma = "TRY_CAST(replace(regexp_replace({0}, '[^0-9,-]', '', 'g'), ',', '.') AS DOUBLE)"
    has_comma = any("," in text for text in texts)
    units = {found[0] if (found := _UNIT.search(text)) else "" for text in texts}
    unit = "".join(units) if len(units) == 1 else ""
    after = rf"[ \x{{a0}}\x{{202f}}]?{unit}" if unit else _AFTER
    with_point, with_comma = _POINT + after, _COMMA + after
    if _match_all(with_point, texts):
        widths = {len(re.sub(r"\.\d+|\D", "", text)) for text in texts}
        is_uneven = has_comma or any("-" in text or (unit and "." in text) for text in texts)
        if len(widths) == 1 and not is_uneven:
            return None  # such as postal codes: the order of the texts is that of the numbers
        if _match_all(_PLAIN, texts):
            return _Form("numbers", _test_pattern(_PLAIN), ("TRY_CAST({0} AS DOUBLE)",), is_castable=True)
        may_be_comma = has_comma and _match_all(with_comma, texts)
        return _Form("numbers", _test_pattern(with_point), (point, comma) if may_be_comma else (point,))
    return (
        _Form("numbers", _test_pattern(with_comma), (comma,)) if has_comma and _match_all(with_comma, texts) else None
    )


def _find_size(texts: Sequence[str]) -> _Form | None:
    """The form of numbers of bytes with several units; None for other texts, and for M beside B, which is a billion."""
    units = {text.lstrip("0123456789., ") for text in texts}
    has_letters = any(unit and unit[-1] not in "Bi" for unit in units)
    if units <= {"", "B"} or (has_letters and "B" in units) or not _match_all(_SIZE, texts):
        return None
    base = 1024 if all("i" in unit for unit in units - {"", "B"}) else 1000
    number = "TRY_CAST(regexp_replace({0}, '[^0-9.]', '', 'g') AS DOUBLE)"
    power = f"pow({base}, strpos(' KMGTPE', upper(regexp_extract({{0}}, '[kKMGTPE]'))) - 1)"
    return _Form("sizes", _test_pattern(_SIZE), (f"{number} * {power}",))


def _find_multiple(texts: Sequence[str]) -> _Form | None:
    """The form of amounts such as `$850M` and `$1.2B`; None for other texts. Without a currency, B may be bytes."""
    has_currency = all(re.search(_CURRENCY, text) for text in texts)
    units = {re.sub(r"[^a-z]", "", re.sub(_CURRENCY, "", text).lower())[:1] for text in texts}
    pattern = rf"{_POINT} ?(?:{_MULTIPLE})?(?: ?(?:{_CURRENCY}))?"
    if len(units) == 1 or not (has_currency or {"m", "b"} <= units) or not _match_all(pattern, texts):
        return None
    number = "TRY_CAST(regexp_replace({0}, '[^0-9.-]', '', 'g') AS DOUBLE)"
    unit = r"lower(regexp_extract({0}, '\d ?([a-zA-Z])', 1))"
    conversions = (
        f"{number} * CASE {unit} WHEN 'k' THEN 1e3 WHEN 'm' THEN 1e6 WHEN 'b' THEN {b} WHEN 't' THEN 1e12 ELSE 1 END"
        for b in (("1e9",) if has_currency else ("1e9", "1"))
    )
    return _Form("numbers", _test_pattern(pattern), tuple(conversions))


def _find_labeled(texts: Sequence[str]) -> _Form | None:
    """The form of numbers such as `12 (5m ago)` or `#9`; None for other texts, and for numbers of the same length."""
    if _match_all(_PLAIN, texts) or not _match_all(LABELED, texts):
        return None
    number = r"regexp_extract({0}, '\d+(\.\d+)?')"
    if len({len(found[0].partition(".")[0]) for text in texts if (found := re.search(r"[\d.]+", text))}) == 1:
        return None
    return _Form("numbers", _test_pattern(LABELED), (f"TRY_CAST({number} AS DOUBLE)",))


def _find_duration(texts: Sequence[str]) -> _Form | None:
    """The form of durations such as `9 ms` and `1m30s`, and times such as `9:05`, unless all have the same digits."""
    if len({re.sub(r"\d", "0", text) for text in texts}) == 1:
        return None  # the order of the texts is that of the times
    if _match_all(f"(?:{DURATION})(?: ago)?", texts):
        has_micro = any(sign in text for sign in "\u00b5\u03bc" for text in texts)
        text = "regexp_replace({0}, '[\u00b5\u03bc]', 'u')" if has_micro else "{0}"
        is_past = any(text.endswith("ago") for text in texts)
        text = f"replace({text}, ' ago', '')" if is_past else text
        conversion = f"epoch(TRY_CAST({text} AS INTERVAL))"
        return _Form("durations", _test_pattern(f"(?:{DURATION})(?: ago)?"), (conversion,), is_castable=not is_past)
    if _match_all(CLOCK, texts):
        parts = "list_transform(string_split({0}, ':'), lambda part: TRY_CAST(part AS DOUBLE))"
        is_castable = len({text.count(":") for text in texts}) == 1
        conversion = f"list_reduce({parts}, lambda first, part: 60 * first + part)"
        return _Form("times", _test_pattern(CLOCK), (conversion,), is_castable)
    return None


def _find_date(texts: Sequence[str]) -> _Form | None:
    """The form of dates that begin with the day or the month, or have no zeros; None for other texts."""
    for sign, (time, time_format) in ((sign, entry) for sign in "./-" for entry in _TIMES.items()):
        from_year = rf"\d{{4}}[{sign}]\d{{1,2}}[{sign}]\d{{1,2}}{time}"
        if len({*map(len, texts)}) > 1 and _match_all(from_year, texts):
            conversion = f"try_strptime({{0}}, '%Y{sign}%m{sign}%d{time_format}')"
            return _Form("dates", _test_pattern(from_year), (conversion,), is_castable=sign != ".")
        pattern = _DATE.format(f"[{sign}]") + time
        if _match_all(pattern, texts):
            numbers = [text.split(sign)[:2] for text in texts]
            formats = [sign.join(order) + time_format for order in (("%d", "%m", "%Y"), ("%m", "%d", "%Y"))]
            is_possible = [all(int(pair[at]) <= 12 for pair in numbers) for at in (1, 0)]  # noqa: PLR2004  # months
            possible = formats[:1] if sign == "." else [f for f, fits in zip(formats, is_possible, strict=True) if fits]
            conversions = tuple(f"try_strptime({{0}}, '{f}')" for f in possible)
            return _Form("dates", _test_pattern(pattern), conversions) if possible else None
    return None


def _find_zoned(texts: Sequence[str]) -> _Form | None:
    """The form of times of several zones; None for other texts. Within one zone, their order is that of the times."""
    pattern = next((pattern for pattern in _ZONED if _match_all(pattern, texts)), None)
    zones = [found[0] for text in texts if (found := _ZONE.search(text))]
    offsets = {zone.replace("Z", "+00").replace(":", "").ljust(len("+0000"), "0") for zone in zones}
    if pattern is None or len(offsets) == 1:
        return None
    return _Form("times of several zones", _test_pattern(pattern), (_ZONED[pattern],), is_castable=True)


def _find_named_date(texts: Sequence[str]) -> _Form | None:
    """The form of dates with the name of the month; None for other texts, and for different times of one day."""
    formats = dict.fromkeys(map(find_date_format, texts))
    written = [form for form in formats if form]
    if not written or len(written) < len(formats) or len(written) > _MAX_FORMATS:
        return None
    converted = ", ".join(f"try_strptime({{0}}, '{form}')" for form in written)  # a list of formats mixes their zones
    conversion = f"coalesce({converted})" if len(written) > 1 else converted
    day = "{0}" if "%p" in converted else r"regexp_replace({0}, '\d\d:\d\d(:\d\d)?', '')"
    return _Form("dates", f"bool_and({conversion} IS NOT NULL) AND count(DISTINCT {day}) > 1", (conversion,))


def _find_version(texts: Sequence[str]) -> _Form | None:
    """The form of versions, some of which have more digits than others, and three numbers; None for other texts."""
    numbers = [text.removeprefix("v").partition("-")[0].split(".") for text in texts]
    lengths = {len(parts) for parts in numbers}
    is_grouped = all(len(part) == len("000") for parts in numbers for part in parts[1:])  # 1.234.567
    if is_grouped or max(lengths) < 3 or lengths == {4} or not _match_all(_VERSION, texts):  # noqa: PLR2004  # addresses have 4
        return None
    if len({tuple(map(len, parts)) for parts in numbers}) == 1:
        return None
    first = r"nullif(regexp_extract({0}, '\d+(\.\d+)*'), '')"  # [NULL] would be more than any version
    return _Form("versions", _test_pattern(_VERSION), (f"TRY_CAST(string_split({first}, '.') AS INT[])",))


def _write_name(database: "DuckDBPyConnection", operand: _Operand) -> str:
    """The name of an operand in SQL."""
    keywords = read_keywords(database)
    names = (
        name if re.fullmatch(r"(?!\d)\w+", name) and name.lower() not in keywords else quote_name(name)
        for name in operand.names
    )
    return operand.before + ".".join(names) + operand.keys + operand.after


def _describe(form: _Form, column: str, text: str) -> str:
    conversions = " or ".join(conversion.format(column) for conversion in form.conversions)
    other = _LITERALS.get(form.what, "dates such as DATE '2026-12-31'")
    as_texts = f" To compare the texts, write concat({column})." if form.is_castable else ""
    shown = shorten(text, _MAX_SHOWN)
    return sanitize(
        f'{column} is text with {form.what} such as "{shown}", which SQL compares letter by letter. '
        f"Write {conversions} in place of {column}, and compare it with {other}.{as_texts}"
    )
