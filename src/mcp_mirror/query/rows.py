"""Writes values that contain a table in another form as rows. Pure.

These forms are like objects by key, and rows of cells with the names of their columns beside them or in the first row.
"""

import json
from collections.abc import Container, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from mcp_mirror.core.results.main_parts import find_column_names, sample_records
from mcp_mirror.core.results.outlines import sample_items
from mcp_mirror.payload.json_spans import (
    items,
    kind_at,
    locate,
    members,
    read_keys,
    skip_space,
    slice_members,
    trim,
    value_stop,
)
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.types import Buffer, Member, Span

_MAX_BYTES: Final = 1 << 25
"""Bytes of an object that is written as rows."""
_MAX_WRITTEN: Final = 1 << 28
"""Bytes of the rows, which repeat the names of the cells."""
_MAX_CELLS: Final = 1 << 22
"""Cells of a data frame."""
_CELLS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_NAMES: Final = msgspec.json.Decoder(list[str])
_TYPED: Final = lazy_pattern(rb'"?[-+]?\d[\d.,]*(?:[eE][-+]?\d+)?%?"?|true|false')
"""A number, also in a text as spreadsheets send them, or a boolean."""
_EMPTY: Final = (b"null", b'""')
_INDEX: Final = lazy_pattern(r"\d[\d.:TZ+ -]*")
"""The number, date or time of a row of a data frame."""
MANY_MEMBERS: Final = 200
"""Members from which objects of many kinds are rows and not columns, of which a database can have too few."""
_ONE_LINE: Final = bytes.maketrans(b"\r\n", b"  ")
"""Ends of lines in JSON are only between its values."""
_MIN_SERIES: Final = 4
"""Rows of a data frame."""


class Part(NamedTuple):
    """The part of an object that has the rows."""

    keys: tuple[str, ...]
    """The keys to it; none for the whole object."""
    is_by_member: bool = False
    """Each of its members is a row, with the columns `key` and `value`."""


def find_part(blob: Buffer, keys: tuple[str, ...]) -> Buffer | None:
    """Return the part of an object, or of the only object in an array, at these keys; None if it does not exist."""
    start = trim(blob).start
    found = locate(blob, keys if kind_at(blob, start) == "object" else (0, *keys))
    return memoryview(blob)[found.start : found.stop] if isinstance(found, Span) else None


def write_members(blob: Buffer) -> bytes | None:
    """Write each member of an object as a JSON object of its `key` and `value`; None for other or very large values."""
    span = trim(blob)
    if span.length > _MAX_BYTES or kind_at(blob, span.start) != "object":
        return None
    return _write_members(blob, members(blob, span))


def _write_members(blob: Buffer, known: Iterable[Member]) -> bytes:
    read = ((json.dumps(one.key).encode(), bytes(blob[one.span.start : one.span.stop])) for one in known)
    return _join_lines(b'{"key":%b,"value":%b}' % member for member in read)


def _join_lines(rows: Iterable[bytes]) -> bytes:
    """Write each row, JSON, on one line, also if its source is indented: the first row tells DuckDB the form of all."""
    return b"\n".join(row.translate(_ONE_LINE) for row in rows)


def write_rows(blob: Buffer) -> bytes | None:
    """Write the rows of a value, JSON text or JSON lines, as JSON objects; None for other or very large values.

    It has a row for each of its members if these are objects with the same keys: the field `key`, or `_key` if the
    objects have such a field, then the fields of the object. If there are more of these fields than members, and they
    are numbers or dates, the members are columns, as pandas writes them: a row has the field `key`, then a cell of each
    member; an object of cells is the one column `value`. Very many objects with other keys each have a row with the
    fields `key` and `value`. Or one of its members is an array of arrays, the rows, and another one has the names of
    their cells: texts, or objects with a `name`. Many databases answer so. Without such names, also for an array of
    arrays by itself, the first row has them if it is a header, as in spreadsheets.
    """
    span = trim(blob)
    kind = kind_at(blob, span.start)
    is_sheet = kind == "array" and kind_at(blob, skip_space(blob, span.start + 1)) == "array"
    if span.length > _MAX_BYTES or not (is_sheet or kind == "object"):
        return None
    if value_stop(blob, span.start, span.stop) != span.stop:
        return None
    with suppress(msgspec.DecodeError, RecursionError):  # a member is not an object, or a row not an array
        if is_sheet:
            return _write_sheet(blob, span)
        known = members(blob, span)
        if rows := _write_frame(blob, known) or _write_records(blob, known):
            return rows
        arrays = [member.span for member in known if kind_at(blob, member.span.start) == "array"]
        tables = [span for span in arrays if kind_at(blob, skip_space(blob, span.start + 1)) == "array"]
        if len(tables) == 1:
            names = find_column_names(blob, known, tables[0])
            return _join_rows(blob, items(blob, tables[0]), names) if names else _write_sheet(blob, tables[0])
    return None


def _write_frame(blob: Buffer, known: Sequence[Member]) -> bytes | None:
    """Write the rows of an object of columns; None for any other object."""
    kinds = {kind_at(blob, member.span.start) for member in known}
    view = memoryview(blob)
    if kinds == {"object"}:
        columns = {member.key: slice_members(view[member.span.start : member.span.stop]) for member in known}
    elif kinds <= {"number", "text", "boolean", "null"}:
        columns = {"value": {member.key: view[member.span.start : member.span.stop] for member in known}}
    else:
        return None
    index, *others = columns.values() or ({},)
    is_frame = len(index) >= max(_MIN_SERIES, len(columns) + 1) and all(map(_INDEX.fullmatch, index))
    if not is_frame or any(other.keys() != index.keys() for other in others) or any(map(_INDEX.fullmatch, columns)):
        return None
    if len(columns) * len(index) > _MAX_CELLS:
        return None
    names = [json.dumps(name).encode() for name in (_name_key({*map(str.casefold, columns)}), *columns)]
    rows = ((json.dumps(key).encode(), *(bytes(column[key]) for column in columns.values())) for key in index)
    return _join_lines(b"{%b}" % b",".join(map(b"%b:%b".__mod__, zip(names, row, strict=True))) for row in rows)


def _write_records(blob: Buffer, known: Sequence[Member]) -> bytes | None:
    """Write the rows of objects by key, of one kind or very many; None for any other object."""
    if not sample_records(blob, known):
        are_many = len(known) > MANY_MEMBERS and {kind_at(blob, one.span.start) for one in known} == {"object"}
        return _write_members(blob, known) if are_many else None
    view = memoryview(blob)
    records = [view[member.span.start : member.span.stop] for member in known]
    fields = {key.casefold() for record in records for key in read_keys(record)}
    name = _name_key(fields)
    rows: list[bytes] = []
    for member, record in zip(known, records, strict=True):
        inner = bytes(record[1:-1]).strip()
        rows.append(f'{{"{name}":{json.dumps(member.key)}'.encode() + (b"," + inner if inner else b"") + b"}")
    return _join_lines(rows)


def _name_key(fields: Container[str]) -> str:
    """The name of the column of the keys, which no field has."""
    name = "key"
    while name in fields:
        name = f"_{name}"
    return name


def _write_sheet(blob: Buffer, table: Span) -> bytes | None:
    """Write the rows of an array of arrays below its header; None without one. Rows may lack cells at their end."""
    sampled = sample_items(blob, table)
    names = _NAMES.decode(sampled[0]) if sampled else []
    if len(names) != len(set(map(str.casefold, names)) - {""}):
        return None
    rows = [_CELLS.decode(row) for row in sampled[1:]]
    if not any(_is_heading(name, [bytes(row[at]) for row in rows if at < len(row)]) for at, name in enumerate(names)):
        return None
    return _join_rows(blob, islice(items(blob, table), 1, None), names, may_lack_cells=True)


def _is_heading(name: str, cells: Sequence[bytes]) -> bool:
    """Whether a column has only numbers or booleans below a text that is neither."""
    known = [cell for cell in cells if cell not in _EMPTY]
    is_typed = bool(known) and all(map(_TYPED.fullmatch, known))
    return is_typed and not _TYPED.fullmatch(json.dumps(name).encode())


def _join_rows(
    blob: Buffer, table: Iterable[Span], names: Sequence[str], *, may_lack_cells: bool = False
) -> bytes | None:
    keys = [f"{json.dumps(name)}:".encode() for name in names]
    rows: list[bytes] = []
    left = _MAX_WRITTEN
    for row in table:
        cells = _CELLS.decode(memoryview(blob)[row.start : row.stop])
        rows.append(b"{%b}" % b",".join(key + bytes(cell) for key, cell in zip(keys, cells, strict=False)))
        left -= len(rows[-1]) + 1
        if len(cells) > len(keys) or (len(cells) < len(keys) and not may_lack_cells) or left < 0:
            return None
    return _join_lines(rows)
