"""Makes tables of values with DuckDB, the extra `sql`. Runs in a worker process.

Types are found in all rows. A column with values of several types is JSON. Texts stay as they were sent, also dates
and times. Errors of DuckDB pass on to the caller.
"""

import base64
import binascii
import codecs
import csv
import io
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from mcp_mirror.core.amounts import shorten
from mcp_mirror.core.results.media import locate_content
from mcp_mirror.core.texts.embedded_json import find_embedded_json, find_quoted_text, read_json_container
from mcp_mirror.core.texts.formats import (
    FOOTER,
    JSON_LINES,
    Edges,
    find_delimiter,
    find_format,
    find_spaced_table,
    has_false_columns,
    measure_heading,
)
from mcp_mirror.core.texts.number_tables import MAX_CHARACTERS
from mcp_mirror.core.texts.pipe_tables import find_pipe_table, find_record_table
from mcp_mirror.core.texts.python_literals import is_python_literal, replace_nan
from mcp_mirror.query.sql_files import (
    TableSource,
    create_table,
    describe_columns,
    open_as_file,
    quote_name,
    quote_text,
)
from mcp_mirror.query.sql_json import load_json
from mcp_mirror.query.texts import decode_string
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.types import Buffer

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_CSV: Final = (
    "sample_size = -1, skip = 0, comment = '', "
    "auto_type_candidates = ['BOOLEAN', 'BIGINT', 'HUGEINT', 'DOUBLE', 'VARCHAR']"
)
_LINES: Final = (
    "auto_detect = false, header = false, quote = '', escape = '', new_line = '\\n', columns = {'line': 'VARCHAR'}"
)
_CONTROLS: Final = b"\x01\x02\x03\x04\x05\x06\x07\x08"
"""The characters of marks."""
_LINE_BYTES: Final = 2_000_000
"""The longest line that DuckDB reads by default."""
_NO_CSV: Final = lazy_pattern(
    rb"(?:[^\r\n]{16385,}+|\s*+[\[({][^\r\n]*+)[\r\n]*+\Z"
    rb"|[^|\r\n]*+\|[^\r\n]*+\r?+\n(?=[:| \t]*+-)(?=[-: \t]*+\|)[-:| \t]++\r?+(?:\n|\Z)"
)
"""A single line that is very long or begins a list, or a table of Markdown, whose cells may contain bars."""
_LINE_ENDS: Final = lazy_pattern(rb'("[^"]*")|\r\n?')
"""Values in quotes, as the group, and line ends other than LF."""
_INTEGERS: Final = ("BIGINT", "HUGEINT")
_PREFIXED: Final = lazy_pattern(rb"0[xXbB]")
"""The prefix of hexadecimal and binary integers."""
_PREFIX_LETTERS: Final = (b"x", b"X", b"b", b"B")
"""Its letters: a search for one is twenty times as fast."""
MISSING: Final = (
    *("-", "\u2013", "\u2014", "#N/A", "#NA", "<NA>", "N/A", "NA", "NULL", "NaN", "None", r"\N", "n/a", "nan", "null"),
)
"""Texts for missing numbers, as R, pandas, Excel, databases and pages write them into tables."""
_NUMBER: Final = r"\s*[+-]?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*"
"""Numbers that DuckDB does not take for texts, so without leading zeros."""
_INTEGER: Final = r"\s*[+-]?\d+\s*"
_PLAIN: Final = r"\s*(?i:true|false|[+-]?\d+)\s*"
"""Booleans and integers that have only one meaning."""
_HEADED: Final = lazy_pattern(rb'\s*(?:[^\s\[{].*^[ \t]*+"?|")[\[{]', re.DOTALL | re.MULTILINE)
"""A heading, and a line that may begin JSON, or a string with JSON."""
_BRACKETED: Final = lazy_pattern(rb"\s*(\[[^\n]*\])[ \t\r]*\n.*^[ \t]*[\[{]", re.DOTALL | re.MULTILINE)
"""A line in brackets, which is a heading unless it is JSON, and a line that may begin JSON."""
_FOLLOWED: Final = lazy_pattern(rb"\s*[\[{].*[^\s\]}]\s*", re.DOTALL)
"""The beginning of JSON, and an end that is not that of JSON."""
_SIGN: Final = 64
"""Bytes of a text that show how it begins and ends."""
_HEAD: Final = 4096
"""Bytes from which the format of a text is guessed."""
_COLUMNS: Final = 2
"""Columns from which a text of one type is a CSV file."""
_COLUMN: Final = lazy_pattern(r"(?:[^.!?<>{}()\[\]=]|\([^()]*\)){1,60}")
"""The name of a column in a text of one line."""
_DIGIT: Final = lazy_pattern(r"\d", re.ASCII)
_MIN_DIGITS: Final = 4
"""Digits of a number or date in the first row that is not the name of a column."""
_HASH: Final = "[0-9a-fA-F]{{32,}}|[0-9a-fA-F]{{8}}(-[0-9a-fA-F]{{4}}){{3}}-[0-9a-fA-F]{{12}}"
"""A hash or a UUID, with the braces of a format doubled."""
_LOCATION: Final = r"(\.\.?|~)?/|\w+://"
"""The beginning of a file's path or of an address."""
_DATA: Final = (
    (r"\d+(\.\d+)? ?[kKMGTPE]?i?B?", r".*[^\d ]"),
    (r"\d+(\.\d+)?%", r".*"),
    (r"[0-9a-f]{7,40}", r".*\d.*"),
    (r"(\d+:)?v?\d[\w.+~:-]*", r"v?\d+[.:]\w+[.+~:-]\w.*"),
)
"""Sizes (`1.2M`), percentages, short hashes and versions, with the form of one that is not the name of a column."""
_LINE_FORMATS: Final = ("XML", "HTML", "diff", JSON_LINES)
"""Formats whose lines may have as many commas each."""
_FOOTER: Final = lazy_pattern(FOOTER.pattern.encode())
_MAX_FOOTER: Final = 1000
"""Bytes of a footer."""
_FILLED_BYTES: Final = 1 << 25
"""The largest CSV in which rows with too few cells are filled."""
_SHORT_SHARE: Final = 0.05
"""The largest share of such rows."""
_PARQUET: Final = b"PAR1"
_UTF16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_PARQUET_BASE64: Final = b'"UEFSM'


def load_table(database: "DuckDBPyConnection", table: TableSource, blob: Buffer) -> bool:
    """Make a table of a value, and return whether its rows are objects that are in no array.

    Raises:
        ValueError: The value is a number, a boolean, null, or a file of an unknown format.
        LookupError: The value has no such part.
    """
    head = bytes(blob[:64]).lstrip()
    if table.is_media:
        return _load_bytes(database, table, _as_utf8(_read_content(blob)))
    if head.startswith(_PARQUET_BASE64) and (decoded := _decode_base64(blob)).startswith(_PARQUET):
        return _load_bytes(database, table, decoded)
    if head.startswith(b'"'):
        blob = find_quoted_text(blob) or blob
        data = decode_string(blob).encode().removeprefix(codecs.BOM_UTF8)
        start = data[:_HEAD]
        has_text = _has_heading(start) or _FOLLOWED.fullmatch(start[:_SIGN] + data[-_SIGN:])
        is_embedded = has_text or is_python_literal(start.decode(errors="ignore"))
        inner = find_embedded_json(blob, include_lines=True) if is_embedded else None
        if inner is None:
            return _load_bytes(database, table, data)
        return load_json(database, table.name, inner, part=table.part)
    if head[:1] in (b"[", b"{"):
        return load_json(database, table.name, blob, table.value, table.part)
    raise ValueError(f"it is {shorten(head.rstrip().decode(), 20)}.")


def _has_heading(start: bytes) -> bool:
    """Whether a text may have JSON below a heading, such as `Found 2 rows:` or `[Reading 40 lines]`."""
    line = _BRACKETED.match(start)
    return _HEADED.match(start) is not None or (
        line is not None and not read_json_container(line[1].decode(errors="ignore"))
    )


def _as_utf8(data: bytes) -> bytes:
    """The bytes of a file: Parquet as it is, text in UTF-8. Any other file is an error."""
    if data.startswith(_PARQUET):
        return data
    try:
        return data.decode("utf-16" if data.startswith(_UTF16) else "utf-8").encode()
    except UnicodeDecodeError:
        raise ValueError("the file is neither Parquet nor text in UTF-8 or UTF-16.") from None


def _load_bytes(database: "DuckDBPyConnection", table: TableSource, data: bytes) -> bool:
    """Make a table of a file: Parquet, JSON, JSON lines, CSV, TSV, or the lines of any other text; see `load_table`."""
    import duckdb  # noqa: PLC0415  # an extra

    name, data = table.name, data.removeprefix(codecs.BOM_UTF8)
    start = data[:_HEAD].lstrip()
    is_object = re.match(rb'\{\s*["}]', start) is not None
    if is_object and (listed := _list_objects(data)):
        return load_json(database, name, listed, part=table.part)
    if data.startswith(_PARQUET):
        with open_as_file(data) as path:
            create_table(database, name, f"read_parquet({path})")
        return False
    if is_object or (start.startswith(b"[") and data.rstrip().endswith(b"]")):  # DuckDB accepts arrays without an end
        try:
            return load_json(database, name, _clear_nan(data), part=table.part)
        except duckdb.OutOfMemoryException:
            raise
        except duckdb.Error:  # a line of a log may begin so, and one of JSON lines may be cut
            first = data.partition(b"\n")[0].rstrip(b", \t\r")
            if is_object and not read_json_container(first.decode(errors="ignore")):
                raise
    if not _load_columns(database, name, data):
        _load_lines(database, name, data)
    return False


def _list_objects(data: bytes) -> bytes:
    """The array of objects whose lines end with commas, as lines of an array do; empty for any other text."""
    bare = data.strip()
    if not bare.partition(b"\n")[0].rstrip().endswith(b"},"):
        return b""
    listed = b"[%b]" % bare.removesuffix(b",")
    is_whole = read_json_container(bare.decode(errors="ignore")) is not None
    return b"" if is_whole or not read_json_container(listed.decode(errors="ignore")) else listed


def _clear_nan(data: bytes) -> bytes:
    """Replace NaN in JSON as Python writes it by null."""
    if b"NaN" not in data:
        return data
    return replace_nan(data.decode(errors="surrogateescape")).encode(errors="surrogateescape")


def read_text_edges(data: bytes) -> Edges:
    """The beginning of a text by which its format is known, and a short text as a whole."""
    head, is_whole = data[:_HEAD].decode(errors="ignore"), len(data) <= _HEAD
    text = data.decode(errors="replace") if len(data) <= 4 * MAX_CHARACTERS else ""
    return Edges(head, head if is_whole else "", is_whole, text if len(text) <= MAX_CHARACTERS else "")


def _load_columns(database: "DuckDBPyConnection", name: str, data: bytes) -> bool:
    """Make a table of the table that a text draws, or of CSV or TSV, which a heading may precede.

    Return whether the text is such a table.
    """
    edges = read_text_edges(data)
    form, heading = find_format(edges), edges.head[: measure_heading(edges)]
    body = data[len(heading.encode()) :]
    if form.startswith("table"):
        return _load_drawn_table(database, name, data, body)
    if has_false_columns(edges) or form.startswith(_LINE_FORMATS):
        return False
    if form.startswith(("CSV", "TSV")):
        delimiter = find_delimiter(edges._replace(head=edges.head.removeprefix(heading)))
        return _load_rows(database, name, body.lstrip(b"\r\n"), delimiter)
    return _load_csv(database, name, body)


def _load_drawn_table(database: "DuckDBPyConnection", name: str, data: bytes, body: bytes) -> bool:
    """Make a table of the one that a text draws; return whether it draws one. `body` is the text below its heading."""
    text = data.decode(errors="replace")
    drawn = find_record_table(text) or find_pipe_table(text) or find_spaced_table(body.decode(errors="replace"))
    if drawn is None:
        return False
    rows = _write_csv((drawn.header, *drawn.rows), ",")
    with open_as_file(rows) as path:
        _read_csv(database, name, rows, f"{path}, header = true, delim = ',', quote = '\"', escape = '\"'")
    return True


def _write_csv(rows: Iterable[Sequence[str]], delimiter: str) -> bytes:
    written = io.StringIO()
    csv.writer(written, delimiter=delimiter, lineterminator="\n").writerows(rows)
    return written.getvalue().encode()


def _load_rows(database: "DuckDBPyConnection", name: str, data: bytes, delimiter: str) -> bool:
    """Make a table of CSV, without the lines below it. Return whether the text is such a table.

    The delimiter is empty if it is not known.
    """
    if _load_csv(database, name, data):
        return True
    if footer := _FOOTER.search(data, max(len(data) - _MAX_FOOTER, 0)):
        data = data[: footer.start() + 1]
        if _load_csv(database, name, data):
            return True
    filled = _fill_rows(data, delimiter) if delimiter and len(data) <= _FILLED_BYTES else b""
    return filled != b"" and _load_csv(database, name, filled)


def _fill_rows(data: bytes, delimiter: str) -> bytes:
    """Fill rows of CSV that have fewer cells than the first one; empty if they are many, or a row has more cells."""
    try:
        text = io.StringIO(data.decode(errors="replace"), newline="")
        rows = [row for row in csv.reader(text, delimiter=delimiter, strict=True) if row]
    except csv.Error:
        return b""
    width = len(rows[0])
    short = sum(len(row) < width for row in rows)
    if short > _SHORT_SHARE * len(rows) or any(len(row) > width for row in rows):
        return b""
    return _write_csv((row + [""] * (width - len(row)) for row in rows), delimiter)


def _load_csv(database: "DuckDBPyConnection", name: str, data: bytes) -> bool:
    """Make a table of CSV. Return whether the text is such a table."""
    if _has_long_line(data) or _NO_CSV.match(data):
        return False
    if _try_csv(database, name, data):
        return True
    both = data.count(b"\r\n")
    has_mixed_ends = [both, data.count(b"\n") - both, data.count(b"\r") - both].count(0) < 2  # noqa: PLR2004
    return has_mixed_ends and _try_csv(database, name, _LINE_ENDS.sub(lambda match: match[1] or b"\n", data))


def _try_csv(database: "DuckDBPyConnection", name: str, data: bytes) -> bool:
    """Make a table of CSV whose rows have the same line ends. Return whether the text is such a table."""
    import duckdb  # noqa: PLC0415  # an extra

    with open_as_file(data) as path:
        # The dialect of the first rows saves two thirds of the time. If it does not fit all rows, all rows decide.
        for sample in ("", ", sample_size = -1"):
            try:
                columns = _read_csv(database, name, data, f"{path}{_sniff_dialect(database, path, sample)}")
            except duckdb.OutOfMemoryException:
                raise
            except duckdb.Error:
                continue
            if len(columns) >= _COLUMNS or "VARCHAR" not in columns.values():
                if database.execute(f"SELECT 1 FROM {quote_name(name)} LIMIT 1").fetchone():  # noqa: S608  # a quoted name
                    return True
                # One line: the names of columns, or prose or code.
                return b", " not in data and b"; " not in data and all(map(_COLUMN.fullmatch, columns))
    return False


def _has_long_line(data: bytes) -> bool:
    """Whether a line is too long for a row of CSV. DuckDB searches one of 40 MB for a dialect for ten seconds."""
    start = 0
    while len(data) - start > _LINE_BYTES:
        end = start + _LINE_BYTES + 1
        start = max(data.rfind(b"\n", start, end), data.rfind(b"\r", start, end)) + 1
        if not start:
            return True
    return False


def _load_lines(database: "DuckDBPyConnection", name: str, data: bytes) -> None:
    """Make a table of the lines of a text, which end with LF or CRLF, or with CR if the text contains no LF."""
    data = data.replace(b"\r\n", b"\n") if b"\n" in data else data.replace(b"\r", b"\n")
    line, delimiter = "line", ""
    if b"\r" in data:  # DuckDB would end a line there
        mark = _find_mark(data)
        data, line = data.replace(b"\r", mark.encode()), f"replace(line, {quote_text(mark)}, chr(13))"
    if b"\0" in data:  # the empty delimiter
        delimiter = _find_mark(data)
    longest = max(map(len, io.BytesIO(data)), default=0)
    options = f"{_LINES}, delim = {quote_text(delimiter)}, max_line_size = {max(longest + 1, _LINE_BYTES)}"
    with open_as_file(data) as path:
        source = f"read_csv({path}, compression = 'none', {options})"
        create_table(database, name, f"{source} SELECT coalesce({line}, '') AS line")  # CSV has NULL for an empty line


def _find_mark(data: bytes) -> str:
    """Return four different control characters that a text does not contain in this order."""
    for mark in map(bytes, itertools.permutations(_CONTROLS, 4)):
        if mark not in data:
            return mark.decode()
    raise ValueError("it contains too many control characters.")


def _read_csv(database: "DuckDBPyConnection", name: str, data: bytes, source: str) -> dict[str, str]:
    """Make a table of a CSV file, and return the types of its columns. NA, NaN and the like among numbers are NULL.

    Columns with texts that DuckDB would write differently are text: `F` and `yes`, which it takes for booleans, and
    numbers such as `0x1F`. `source` is the path and dialect of the file, as arguments of `read_csv`.
    """
    source = f"{source}, compression = 'none'"
    create_table(database, name, f"read_csv({source}, {_CSV})")
    columns = describe_columns(database, quote_name(name))
    has_prefixes = any(letter in data for letter in _PREFIX_LETTERS) and _PREFIXED.search(data) is not None
    doubtful = [column for column, kind in columns.items() if kind == "BOOLEAN" or (has_prefixes and kind in _INTEGERS)]
    if doubtful:
        checks = ", ".join(f"bool_and(regexp_full_match({quote_name(column)}, '{_PLAIN}'))" for column in doubtful)
        found = database.execute(f"SELECT {checks} FROM read_csv({source}, {_CSV}, all_varchar = true)").fetchone()  # noqa: S608  # quoted names
        texts = [column for column, is_plain in zip(doubtful, found or (), strict=True) if is_plain is False]
        if texts:
            types = ", ".join(f"{quote_text(column)}: 'VARCHAR'" for column in texts)
            create_table(database, name, f"read_csv({source}, {_CSV}, types = {{{types}}})")
        columns |= dict.fromkeys(texts, "VARCHAR")
    numbers = [column for column, kind in columns.items() if kind == "DOUBLE"]
    for column in map(quote_name, _test_columns(database, quote_name(name), numbers, "bool_or(isnan({0}))")):
        database.execute(f"UPDATE {quote_name(name)} SET {column} = NULL WHERE isnan({column})")  # noqa: S608  # quoted names
    return columns | _clear_missing(database, name, columns) if len(columns) >= _COLUMNS else columns


def _clear_missing(database: "DuckDBPyConnection", name: str, columns: Mapping[str, str]) -> dict[str, str]:
    """Make columns of numbers of those that are text only because numbers are missing, and return their types.

    An empty column becomes one of null, which fits all comparisons and functions.
    """
    table, missing = quote_name(name), f"({', '.join(map(quote_text, MISSING))})"
    texts = [column for column, kind in columns.items() if kind == "VARCHAR"]
    for column in map(quote_name, _test_columns(database, table, texts, "count({0}) = 0 AND count(*) > 0")):
        database.execute(f'ALTER TABLE {table} ALTER {column} TYPE "NULL" USING NULL')
    gaps = _test_columns(database, table, texts, f"bool_or({{0}} IN {missing})")
    present = f"FILTER ({{0}} NOT IN {missing})"
    numbers = _test_columns(database, table, gaps, f"bool_and(regexp_full_match({{0}}, '{_NUMBER}')) {present}")
    kinds = dict.fromkeys(numbers, "DOUBLE")
    for kind in ("HUGEINT", "BIGINT"):
        is_integer = f"regexp_full_match({{0}}, '{_INTEGER}') AND TRY_CAST({{0}} AS {kind}) IS NOT NULL"
        kinds |= dict.fromkeys(_test_columns(database, table, numbers, f"bool_and({is_integer}) {present}"), kind)
    for column, kind in ((quote_name(column), kind) for column, kind in kinds.items()):
        number = f"CASE WHEN {column} NOT IN {missing} THEN {column}::{kind} END"
        database.execute(f"ALTER TABLE {table} ALTER {column} TYPE {kind} USING {number}")
    return kinds


def _test_columns(database: "DuckDBPyConnection", source: str, columns: Sequence[str], test: str) -> list[str]:
    """The columns for which an aggregate, with `{0}` for the column, is true."""
    if not columns:
        return []
    tests = ", ".join(test.format(quote_name(column)) for column in columns)
    found = database.execute(f"SELECT {tests} FROM {source}").fetchone()  # noqa: S608  # quoted names
    return [column for column, is_true in zip(columns, found or (), strict=True) if is_true]


def _sniff_dialect(database: "DuckDBPyConnection", path: str, sample: str) -> str:
    """Return the options for the delimiter, the quotes and the header of a sample; quotes may follow in later rows."""
    missing = ", ".join(map(quote_text, ("", *MISSING)))
    sniffed = f"sniff_csv({path}, compression = 'none', skip = 0, comment = '', nullstr = [{missing}]{sample})"
    columns = "Delimiter, Quote, Escape, HasHeader, Columns"
    [(delimiter, quote, escape, has_header, known)] = database.execute(f"SELECT {columns} FROM {sniffed}").fetchall()  # noqa: S608  # a path of this module
    quote = quote if len(quote) == 1 else '"'
    options = {"delim": delimiter, "quote": quote, "escape": escape if len(escape) == 1 else quote}
    dialect = "".join(f", {name} = {quote_text(value)}" for name, value in options.items())
    if has_header and all(column["type"] == "VARCHAR" for column in known):  # DuckDB takes the first texts for names
        has_header = not _is_first_row_data(database, f"{path}{dialect}")
    return f"{dialect}, header = {has_header or _has_index_header(database, f'{path}{dialect}')}"


def _has_index_header(database: "DuckDBPyConnection", source: str) -> bool:
    """Whether the first row is a header as pandas writes it: no name for the index, which begins with 0 below."""
    table = f"read_csv({source}, compression = 'none', header = false, all_varchar = true)"
    first, *others = database.execute(f"FROM {table} LIMIT 2").fetchall() or [()]
    names = [cell and not _DIGIT.search(cell) for cell in first[1:]]
    return bool(names) and all(names) and first[0] is None and [row[0] for row in others] == ["0"]


def _is_first_row_data(database: "DuckDBPyConnection", source: str) -> bool:
    """Whether the first row has a number, size, date or hash of the form of the other rows, or a path as most have.

    `source` is the path and dialect of a CSV file, as arguments of `read_csv`.
    """
    table = f"read_csv({source}, compression = 'none', header = false, all_varchar = true)"
    first = database.execute(f"FROM {table} LIMIT 1").fetchone() or ()
    cells = {column: cell or "" for column, cell in zip(describe_columns(database, table), first, strict=True)}
    numbered = [column for column, cell in cells.items() if len(_DIGIT.findall(cell)) >= _MIN_DIGITS]
    located = [column for column, cell in cells.items() if re.match(_LOCATION, cell)]
    plain = f"regexp_replace({{0}}, '{_HASH}', '0', 'g')"
    form = rf"regexp_replace(regexp_replace(replace({plain}, '-', '+'), '\d+', '0', 'g'), '\s+', ' ', 'g')"
    is_path = f"2 * count(*) FILTER (regexp_matches({{0}}, '^({_LOCATION})')) > count({{0}})"
    tests = [(numbered, f"count(DISTINCT {form}) = 1"), (located, is_path)]
    for pattern, of_first in _DATA:
        alike = [
            column for column, cell in cells.items() if all(re.fullmatch(form, cell) for form in (pattern, of_first))
        ]
        tests.append((alike, f"bool_and(regexp_full_match({{0}}, '{pattern.replace('{', '{{').replace('}', '}}')}'))"))
    return any(_test_columns(database, table, columns, f"{test} AND count({{0}}) > 1") for columns, test in tests)


def _decode_base64(blob: Buffer) -> bytes:
    try:
        return base64.b64decode(decode_string(blob).encode())
    except binascii.Error:
        return b""


def _read_content(blob: Buffer) -> bytes:
    """The bytes of the file in a content block."""
    if (found := locate_content(blob)) is None:
        return b""
    location, span = found
    part = memoryview(blob)[span.start : span.stop]
    return decode_string(part).encode() if location[-1] == "text" else _decode_base64(part)
