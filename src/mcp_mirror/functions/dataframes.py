"""Tables and arrays of other libraries (pandas, polars, pyarrow, numpy) as JSON.

Classes are recognised by their methods, so that no such library is imported here. JSON is written a few thousand rows
at a time: another thread never waits long for Python's interpreter lock.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final, Literal

from mcp_mirror.errors import MirrorError

_ROWS: Final = 1 << 12
"""Rows of a table, or numbers of an array, that are written at once."""
_FINE_UNITS: Final = ("ns", "ps", "fs", "as")
"""Units of time that Python's own types do not have."""
_FLOAT: Final = 8
"""Bytes of a Python float."""

Encode = Callable[[Any], bytes]

Form = Literal["pandas table", "polars table", "polars query", "arrow table", "arrow array", "polars column", "array"]

_METHODS: Final[Mapping[Form, tuple[str, ...]]] = {
    "pandas table": ("iloc", "dtypes", "columns"),
    "polars query": ("collect", "collect_schema"),
    "polars table": ("iter_slices", "to_dicts", "schema"),
    "arrow table": ("to_pylist", "column_names", "schema"),
    "arrow array": ("to_pylist", "type"),
    "polars column": ("to_list", "to_arrow", "dtype"),
    "array": ("tolist", "shape", "dtype"),
}
"""By which attributes of a class each form is recognised; the first that fits."""

_SCALARS: Final[Mapping[str, Callable[[Any], object]]] = {
    "NaTType": lambda _: None,
    "NAType": lambda _: None,
    "Timestamp": lambda value: value.isoformat(),
    "Timedelta": lambda value: value.isoformat(),
    "Period": str,
    "Interval": str,
}
"""What pandas puts into its columns."""


def form_of(kind: type) -> Form | None:
    """The form of the tables or arrays of a class; None for any other class."""
    return next((form for form, names in _METHODS.items() if all(hasattr(kind, name) for name in names)), None)


def is_scalar(kind: type) -> bool:
    """Whether a class is a scalar of pandas, which `scalar_of` turns into one of Python's."""
    return kind.__module__.partition(".")[0] == "pandas" and kind.__name__ in _SCALARS


def scalar_of(value: object) -> object:
    """The JSON value of a pandas scalar: a missing value is None, a time is ISO 8601."""
    return _SCALARS[type(value).__name__](value)


@dataclass(frozen=True, slots=True)
class Written:
    """A table or an array as JSON."""

    raw: bytes
    schema: Mapping[str, Any]
    """The class, and the columns with their types, or the shape and the type of the items."""


def write_data(value: Any, form: Form, encode: Encode) -> Written:
    """Write a table as an array of objects, an array as nested arrays.

    Args:
        value: An instance of a class of that form.
        form: What `form_of` returns for the class.
        encode: Writes Python values as JSON; NaN and infinity as null.

    Raises:
        MirrorError: Two columns have the same name.
    """
    if form == "polars query":
        value, form = value.collect(), "polars table"
    if (table := _table_of(value, form)) is not None:
        return _write_table(table, _class_of(value), encode)
    shape = tuple(value.shape) if form == "array" else (len(value),)
    raw = _join_items(value, shape, _ITEMS[form], encode)
    dtype = str(value.type if form == "arrow array" else value.dtype)
    return Written(raw, {"type": _class_of(value), "shape": list(shape), "dtype": dtype})


@dataclass(frozen=True, slots=True)
class _Table:
    """A table, column by column."""

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    length: int
    columns: Callable[[slice], list[list[Any]]]
    """The Python values of some rows."""


def _table_of(value: Any, form: Form) -> _Table | None:
    if form == "pandas table":
        return _pandas_table(value)
    if form == "polars table":
        names, dtypes = tuple(value.schema), tuple(map(str, value.schema.values()))
        return _Table(names, dtypes, len(value), lambda rows: [one[rows].to_list() for one in value.get_columns()])
    if form == "arrow table":
        return _arrow_table(value)
    if form == "array" and hasattr(value, "to_frame") and _label_columns(value.index):
        return _pandas_table(value.to_frame(value.name if value.name is not None else "value"))
    if form == "array" and getattr(value.dtype, "names", None) and len(value.shape) == 1:
        return _record_table(value)
    return None


def _write_table(table: _Table, kind: str, encode: Encode) -> Written:
    for at, name in enumerate(table.names):
        if name in table.names[:at]:
            raise MirrorError(f"Two columns of the table have the name {name!r}. Rename one of them.")
    parts = []
    for start in range(0, table.length if table.names else 0, _ROWS):
        columns = table.columns(slice(start, start + _ROWS))
        parts.append(encode([dict(zip(table.names, row, strict=True)) for row in zip(*columns, strict=True)])[1:-1])
    schema = {"type": kind, "rows": table.length, "columns": dict(zip(table.names, table.dtypes, strict=True))}
    return Written(b"[%b]" % b",".join(parts), schema)


def _pandas_table(frame: Any) -> _Table:
    labels = _label_columns(frame.index)
    columns = [values for _, values in labels] + [frame.iloc[:, at] for at in range(len(frame.columns))]
    names = [name for name, _ in labels] + [_name_of(name) for name in frame.columns]
    dtypes = tuple(str(column.dtype) for column in columns)
    return _Table(tuple(names), dtypes, len(frame), lambda rows: [_pandas_items(column[rows]) for column in columns])


def _label_columns(index: Any) -> list[tuple[str, Any]]:
    """The levels of a pandas index that say more than the number of the row, with their names."""
    if index.nlevels == 1 and index.name is None and index.dtype.kind in "iu":
        return []
    levels = [index.get_level_values(at) for at in range(index.nlevels)]
    unnamed = [f"level_{at}" for at in range(index.nlevels)] if index.nlevels > 1 else ["index"]
    return [
        (_name_of(level.name) if level.name is not None else name, level)
        for level, name in zip(levels, unnamed, strict=True)
    ]


def _name_of(label: object) -> str:
    return ".".join(map(str, label)) if isinstance(label, tuple) else str(label)


def _pandas_items(column: Any) -> list[Any]:
    """The values of a column. Times are read from numpy: pandas makes an object of each, which is slow."""
    dtype = column.dtype
    is_time = type(dtype).__module__.partition(".")[0] == "numpy" and dtype.kind in "Mm"
    return list(_array_items(column.to_numpy()) if is_time else column.tolist())


def _arrow_table(table: Any) -> _Table:
    names, dtypes = tuple(table.column_names), tuple(str(field.type) for field in table.schema)

    def columns(rows: slice) -> list[list[Any]]:
        part = table.slice(rows.start, rows.stop - rows.start)
        return [_arrow_items(part.column(at)) for at in range(len(names))]

    return _Table(names, dtypes, table.num_rows, columns)


def _arrow_items(column: Any) -> list[Any]:
    """The values of a column; times that Python's own types cannot hold as text."""
    if str(column.type).startswith(("timestamp[ns", "duration[ns", "time64[ns")):
        said = column.cast("int64").cast("string") if str(column.type)[:1] == "d" else column.cast("string")
        return [text if text is None else text.replace(" ", "T", 1) for text in said.to_pylist()]
    return list(column.to_pylist())


def _record_table(array: Any) -> _Table:
    """The table that a numpy array of records is."""
    names, dtype = tuple(array.dtype.names), array.dtype
    dtypes = tuple(str(dtype[name]) for name in names)
    return _Table(names, dtypes, len(array), lambda rows: [_array_items(array[name][rows]) for name in names])


def _array_items(array: Any) -> Any:
    """The Python values of an array; times as dates, times and durations of Python where these can hold them."""
    kind, unit = getattr(array.dtype, "kind", ""), getattr(array.dtype, "str", "").partition("[")[2].rstrip("]")
    if kind in ("M", "m") and unit in _FINE_UNITS:
        coarse = array.astype(f"{kind}8[us]")
        if kind == "M" and (coarse.astype(array.dtype).view("i8") != array.view("i8")).any():
            return _nulled(array.astype(str).tolist())
        return coarse.tolist()
    return array.astype("f8").tolist() if kind == "f" and array.dtype.itemsize > _FLOAT else array.tolist()


def _nulled(texts: Any) -> Any:
    """Texts of times, at any depth, with None for those that are missing."""
    if isinstance(texts, list):
        return [_nulled(text) for text in texts]
    return None if texts == "NaT" else texts


_ITEMS: Final[Mapping[Form, Callable[[Any], Any]]] = {
    "array": _array_items,
    "polars column": lambda column: column.to_list(),
    "arrow array": _arrow_items,
}


def _join_items(array: Any, shape: tuple[int, ...], items: Callable[[Any], Any], encode: Encode) -> bytes:
    """The JSON of an array, encoded a few thousand items at a time."""
    if not shape:
        return encode(items(array))
    below = prod(shape[1:])
    if len(shape) > 1 and below > _ROWS:
        return b"[%b]" % b",".join(_join_items(one, shape[1:], items, encode) for one in array)
    step = max(1, _ROWS // max(1, below))
    return b"[%b]" % b",".join(encode(items(array[start : start + step]))[1:-1] for start in range(0, shape[0], step))


def _class_of(value: object) -> str:
    kind = type(value)
    return f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}"
