"""Encodes tables and arrays of other libraries (pandas, polars, pyarrow, numpy) as JSON.

Classes are recognized by their attributes, so no such library is imported here. JSON is encoded a few thousand rows at
a time, so that other threads wait only briefly for the interpreter lock.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Final, Literal

import msgspec

from mcp_mirror.errors import MirrorError

_BATCH_ROWS: Final = 1 << 12
"""Rows of a table, or numbers of an array, per call of the encoder."""
_FINE_UNITS: Final = ("ns", "ps", "fs", "as")
"""Units of time that Python's own types lack."""
_FLOAT_BYTES: Final = 8
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
"""The attributes that identify the classes of each form; the first match counts."""

_SCALARS: Final[Mapping[str, Callable[[Any], object]]] = {
    "NaTType": lambda _: None,
    "NAType": lambda _: None,
    "Timestamp": lambda value: value.isoformat(),
    "Timedelta": lambda value: value.isoformat(),
    "Period": str,
    "Interval": str,
}
"""Scalars in columns of pandas."""


def find_form(kind: type) -> Form | None:
    """The form of a class of tables or arrays; None for any other class."""
    return next((form for form, names in _METHODS.items() if all(hasattr(kind, name) for name in names)), None)


def is_scalar(kind: type) -> bool:
    """Whether a class is a scalar of pandas that `convert_scalar` converts."""
    return kind.__module__.partition(".")[0] == "pandas" and kind.__name__ in _SCALARS


def convert_scalar(value: object) -> object:
    """Convert a pandas scalar to a JSON value: a missing value is None, a time is ISO 8601."""
    return _SCALARS[type(value).__name__](value)


class EncodedData(msgspec.Struct, frozen=True):
    """A table or an array as JSON."""

    raw: bytes
    schema: Mapping[str, Any]
    """The class, and the columns with their types, or the shape and the type of the items."""


def write_data(value: Any, form: Form, encode: Encode) -> EncodedData:
    """Encode a table as an array of objects, an array as nested arrays; `form` is the result of `find_form`.

    `encode` encodes Python values as JSON; NaN and infinity as null.

    Raises:
        MirrorError: Two columns have the same name.
    """
    if form == "polars query":
        value, form = value.collect(), "polars table"
    if (table := _read_table(value, form)) is not None:
        return _write_table(table, _describe_class(value), encode)
    shape = tuple(value.shape) if form == "array" else (len(value),)
    raw = _encode_items(value, shape, _ARRAY_READERS[form], encode)
    dtype = str(value.type if form == "arrow array" else value.dtype)
    return EncodedData(raw, {"type": _describe_class(value), "shape": list(shape), "dtype": dtype})


class _ColumnTable(msgspec.Struct, frozen=True):
    """A table, column by column."""

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    length: int
    columns: Callable[[slice], list[list[Any]]]
    """Returns the Python values of these rows, by column."""


def _read_table(value: Any, form: Form) -> _ColumnTable | None:
    """A table, or an array with named columns; None for any other array."""
    if read := _TABLE_READERS.get(form):
        return read(value)
    if form != "array":
        return None
    if hasattr(value, "to_frame") and hasattr(value, "index") and _list_index_columns(value.index):  # a pandas column
        return _read_pandas_table(value.to_frame(value.name if value.name is not None else "value"))
    is_structured = getattr(value.dtype, "names", None) and len(value.shape) == 1
    return _read_structured_array(value) if is_structured else None


def _read_polars_table(frame: Any) -> _ColumnTable:
    names, dtypes = tuple(frame.schema), tuple(map(str, frame.schema.values()))
    return _ColumnTable(names, dtypes, len(frame), lambda rows: [one[rows].to_list() for one in frame.get_columns()])


def _read_structured_array(array: Any) -> _ColumnTable:
    names = tuple(array.dtype.names)
    dtypes = tuple(str(array.dtype[name]) for name in names)
    return _ColumnTable(names, dtypes, len(array), lambda rows: [_read_array(array[name][rows]) for name in names])


def _write_table(table: _ColumnTable, kind: str, encode: Encode) -> EncodedData:
    repeated = [name for name, times in Counter(table.names).items() if times > 1]
    if repeated:
        raise MirrorError(f"Two columns of the table have the name {repeated[0]!r}. Rename one of them.")
    parts = []
    for start in range(0, table.length if table.names else 0, _BATCH_ROWS):
        columns = table.columns(slice(start, start + _BATCH_ROWS))
        parts.append(encode([dict(zip(table.names, row, strict=True)) for row in zip(*columns, strict=True)])[1:-1])
    schema = {"type": kind, "rows": table.length, "columns": dict(zip(table.names, table.dtypes, strict=True))}
    return EncodedData(b"[%b]" % b",".join(parts), schema)


def _read_pandas_table(frame: Any) -> _ColumnTable:
    labels = _list_index_columns(frame.index)
    width = range(len(frame.columns))
    names = [name for name, _ in labels] + [_format_column_name(name) for name in frame.columns]
    dtypes = [str(level.dtype) for _, level in labels] + [str(frame.iloc[:, at].dtype) for at in width]

    def columns(rows: slice) -> list[list[Any]]:
        # A slice of a column itself means labels, not positions, if the labels are floats (pandas 2).
        levels = [level[rows] for _, level in labels]
        return [_read_array(column) for column in (*levels, *(frame.iloc[rows, at] for at in width))]

    return _ColumnTable(tuple(names), tuple(dtypes), len(frame), columns)


def _list_index_columns(index: Any) -> list[tuple[str, Any]]:
    """The levels of a pandas index that contain more than row numbers, with their names."""
    if index.nlevels == 1 and index.name is None and index.dtype.kind in "iu":
        return []
    levels = [index.get_level_values(at) for at in range(index.nlevels)]
    unnamed = [f"level_{at}" for at in range(index.nlevels)] if index.nlevels > 1 else ["index"]
    return [
        (_format_column_name(level.name) if level.name is not None else name, level)
        for level, name in zip(levels, unnamed, strict=True)
    ]


def _format_column_name(label: object) -> str:
    return ".".join(map(str, label)) if isinstance(label, tuple) else str(label)


def _read_arrow_table(table: Any) -> _ColumnTable:
    names, dtypes = tuple(table.column_names), tuple(str(field.type) for field in table.schema)

    def columns(rows: slice) -> list[list[Any]]:
        part = table.slice(rows.start, rows.stop - rows.start)
        return [_read_arrow_column(part.column(at)) for at in range(len(names))]

    return _ColumnTable(names, dtypes, table.num_rows, columns)


def _read_arrow_column(column: Any) -> list[Any]:
    """The values of a column; times as text if Python's own types cannot represent them."""
    if str(column.type).startswith(("timestamp[ns", "duration[ns", "time64[ns")):
        texts = column.cast("int64").cast("string") if str(column.type)[:1] == "d" else column.cast("string")
        return [text if text is None else text.replace(" ", "T", 1) for text in texts.to_pylist()]
    return list(column.to_pylist())


def _read_array(array: Any) -> Any:
    """The Python values of an array or a pandas column; times as Python's own types if these can represent them."""
    kind = getattr(array.dtype, "kind", "")
    if kind in ("M", "m") and type(array.dtype).__module__.partition(".")[0] == "numpy":
        return _read_times(array.to_numpy() if hasattr(array, "to_numpy") else array)  # pandas' own way is slow
    if kind == "f" and array.dtype.itemsize > _FLOAT_BYTES:
        array = array.astype("f8")
    return array.tolist()


def _read_times(array: Any) -> Any:
    """The Python values of a numpy array of times or durations."""
    kind, unit = array.dtype.kind, array.dtype.str.partition("[")[2].rstrip("]")
    if unit not in _FINE_UNITS:
        return array.tolist()
    coarse = array.astype(f"{kind}8[us]")
    if kind == "M" and (coarse.astype(array.dtype).view("i8") != array.view("i8")).any():
        return _replace_missing(array.astype(str).tolist())
    return coarse.tolist()


def _replace_missing(texts: Any) -> Any:
    """Texts of times at any depth, with None for missing ones."""
    if isinstance(texts, list):
        return [_replace_missing(text) for text in texts]
    return None if texts == "NaT" else texts


_TABLE_READERS: Final[Mapping[Form, Callable[[Any], _ColumnTable]]] = {
    "pandas table": _read_pandas_table,
    "polars table": _read_polars_table,
    "arrow table": _read_arrow_table,
}
_ARRAY_READERS: Final[Mapping[Form, Callable[[Any], Any]]] = {
    "array": _read_array,
    "polars column": lambda column: column.to_list(),
    "arrow array": _read_arrow_column,
}


def _encode_items(array: Any, shape: tuple[int, ...], items: Callable[[Any], Any], encode: Encode) -> bytes:
    """The JSON of an array, encoded a few thousand items at a time."""
    if not shape:
        return encode(items(array))
    below = prod(shape[1:])
    if len(shape) > 1 and below > _BATCH_ROWS:
        return b"[%b]" % b",".join(_encode_items(one, shape[1:], items, encode) for one in array)
    step = max(1, _BATCH_ROWS // max(1, below))
    return b"[%b]" % b",".join(encode(items(array[start : start + step]))[1:-1] for start in range(0, shape[0], step))


def _describe_class(value: object) -> str:
    kind = type(value)
    return f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}"
