"""Arrays of numpy as JSON, and tables of other libraries, with small stand-ins for their classes.

`tests/dataframes` has the libraries themselves.
"""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from converted_results import members, result, schema

from mcp_mirror.errors import MirrorError
from mcp_mirror.functions.dataframes import convert_scalar, find_form, is_scalar
from mcp_mirror.functions.results import convert_result


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array([1.5, np.nan, np.inf]), [1.5, None, None]),
        (np.array([True, False]), [True, False]),
        (np.array(["a", "ä"]), ["a", "ä"]),
        (np.array([], dtype=float), []),
        (np.zeros((2, 0)), [[], []]),
        (np.ma.array([1, 2], mask=[False, True]), [1, None]),
        (np.array(["2026-01-02", "NaT"], dtype="M8[D]"), ["2026-01-02", None]),
        (np.array(["2026-01-02T03", "NaT"], dtype="M8[s]"), ["2026-01-02T03:00:00", None]),
        (np.array(["2026-01-02T03", "NaT"], dtype="M8[ns]"), ["2026-01-02T03:00:00", None]),
        (
            np.array([["2026-01-02T03:04:05.000000006", "NaT"]], dtype="M8[ns]"),
            [["2026-01-02T03:04:05.000000006", None]],
        ),
        (np.array([90_000_000_000, "NaT"], dtype="m8[ns]"), ["PT90S", None]),
        (np.array([{"n": np.int64(1)}], dtype=object), [{"n": 1}]),
    ],
    ids=str,
)
def test_an_array_is_nested_lists(array: Any, expected: Any) -> None:
    assert result(array) == expected
    assert schema(array)["shape"] == list(array.shape)
    assert schema(array)["dtype"] == str(array.dtype)


@pytest.mark.parametrize("shape", [(10_000,), (3, 5000), (5000, 3), (2, 70, 80), (1, 1, 9000)])
def test_a_large_array_is_written_in_parts(shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape)).reshape(shape)
    assert result(array) == array.tolist()


@pytest.mark.parametrize(
    ("scalar", "expected"),
    [
        (np.int64(1 << 40), 1 << 40),
        (np.float64("nan"), None),
        (np.float32(0.5), 0.5),
        (np.longdouble(0.5), 0.5),
        (np.True_, True),
        (np.str_("a"), "a"),
        (np.datetime64("2026-01-02T03:04:05.000000006", "ns"), "2026-01-02T03:04:05.000000006"),
        (np.datetime64("NaT", "s"), None),
        (np.timedelta64(90, "s"), "PT90S"),
    ],
    ids=str,
)
def test_a_scalar_of_numpy_is_a_scalar(scalar: object, expected: Any) -> None:
    assert result(scalar) == expected
    assert result({"deep": [scalar]}) == {"deep": [expected]}
    assert "_meta" not in members(scalar)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (np.int64(3), "3"),
        (np.float64(0.5), "0.5"),
        (np.True_, "true"),
        (np.datetime64("2026-01-02"), "2026-01-02"),
        (np.datetime64("NaT", "s"), "null"),
    ],
)
def test_a_scalar_of_numpy_is_a_key_by_its_text(key: Any, expected: str) -> None:
    assert result(Counter([key, key])) == {expected: 2}
    assert result([{key: 1}]) == [{expected: 1}]


def test_records_of_numpy_are_objects() -> None:
    array = np.array([(1, "a"), (2, "b")], dtype=[("n", "i4"), ("name", "U1")])
    assert result(array) == [{"n": 1, "name": "a"}, {"n": 2, "name": "b"}]
    assert schema(array) == {"type": "numpy.ndarray", "rows": 2, "columns": {"n": "int32", "name": "<U1"}}


def test_an_array_item_without_a_json_form_is_an_error() -> None:
    with pytest.raises(MirrorError, match=r"A value of type list cannot be encoded as JSON: "):
        convert_result(np.array([object()]))


class Dtype:
    def __init__(self, kind: str, name: str) -> None:
        self.kind, self.name = kind, name
        self.str = f"|M8[{name[11:13]}]" if kind == "M" else name
        self.names = None
        self.itemsize = 8

    def __str__(self) -> str:
        return self.name


class Index:
    """A pandas index of one level, or of several."""

    def __init__(self, *levels: tuple[str | None, list[Any]], kind: str = "O") -> None:
        self.levels, self.nlevels, self.name, self.dtype = levels, len(levels), levels[0][0], Dtype(kind, "str")

    def get_level_values(self, at: int) -> "Series":
        name, values = self.levels[at]
        return Series(values, name=name, dtype=self.dtype)


def numbered(count: int) -> Index:
    return Index((None, list(range(count))), kind="i")


class Series:
    def __init__(
        self, values: list[Any], index: Index | None = None, name: Any = None, dtype: Dtype | None = None
    ) -> None:
        self._values, self.index, self.name = values, index or numbered(len(values)), name
        self.dtype = dtype or Dtype("i", "int64")
        self.shape = (len(values),)

    shape: tuple[int, ...] = ()
    dtype: Any = None

    def __len__(self) -> int:
        return len(self._values)

    def take(self, rows: slice) -> "Series":
        """The rows at these positions."""
        return type(self)(self._values[rows], dtype=self.dtype)

    def __getitem__(self, rows: slice) -> "Series":
        return self.take(rows)

    def tolist(self) -> list[Any]:
        return self._values

    def to_frame(self, name: Any) -> "Frame":
        return Frame({name: self}, self.index)


class Frame:
    """A DataFrame of pandas."""

    dtypes = ()
    iloc: Any = None
    columns: tuple[Any, ...] = ()

    def __init__(self, columns: dict[Any, Series], index: Index | None = None) -> None:
        self._columns, self.columns = list(columns.values()), tuple(columns)
        self.index = index or numbered(len(self))
        self.iloc = self

    def __getitem__(self, key: tuple[slice, int]) -> Any:
        return self._columns[key[1]].take(key[0])

    def __len__(self) -> int:
        return len(self._columns[0]) if self._columns else 3


class NaTType:
    __module__ = "pandas.api.typing"


class Timestamp:
    __module__ = "pandas"

    def isoformat(self) -> str:
        return "2026-01-02T03:04:05+01:00"


class Period(Timestamp):
    __module__ = "pandas"

    def __str__(self) -> str:
        return "2026-01"


def test_scalars_of_pandas_are_null_or_text() -> None:
    assert [convert_scalar(one) for one in (NaTType(), Timestamp(), Period())] == [
        None,
        "2026-01-02T03:04:05+01:00",
        "2026-01",
    ]
    assert result({"at": [Timestamp(), NaTType()]}) == {"at": ["2026-01-02T03:04:05+01:00", None]}
    assert not is_scalar(Dtype)


def test_a_table_is_objects_and_its_labels_a_column_where_they_say_more() -> None:
    plain = Frame({"n": Series([1, 2]), ("a", 1): Series(["x", None])})
    assert result(plain) == [{"n": 1, "a.1": "x"}, {"n": 2, "a.1": None}]
    assert schema(plain)["rows"] == 2
    assert schema(plain)["columns"] == {"n": "int64", "a.1": "int64"}
    assert result(Frame({"n": Series([1])}, Index((None, ["mean"])))) == [{"index": "mean", "n": 1}]
    assert result(Frame({"n": Series([1])}, Index(("city", ["Bonn"])))) == [{"city": "Bonn", "n": 1}]
    levels = Index((None, ["a"]), ("day", ["b"]))
    assert result(Frame({"n": Series([1])}, levels)) == [{"level_0": "a", "day": "b", "n": 1}]
    assert result(Frame({})) == []


def test_a_column_is_a_list_or_objects_where_it_is_labelled() -> None:
    assert result(Series([1, 2])) == [1, 2]
    labelled = Index(("city", ["Bonn"]))
    assert result(Series([1], labelled, "count")) == [{"city": "Bonn", "count": 1}]
    assert result(Series([1], labelled)) == [{"city": "Bonn", "value": 1}]


def test_times_of_a_column_are_read_as_numpy_does() -> None:
    class Times(Series):
        def to_numpy(self) -> Any:
            return np.array(self.tolist(), dtype="M8[ns]")

    times = Times(["2026-01-02", "NaT"], dtype=np.dtype("M8[ns]"))  # type: ignore[arg-type]  # a real one
    assert result(Frame({"at": times})) == [{"at": "2026-01-02T00:00:00"}, {"at": None}]
    assert result(times) == ["2026-01-02T00:00:00", None]


def test_a_time_zone_keeps_the_times_of_pandas() -> None:
    zoned = Series([Timestamp(), NaTType()], dtype=Dtype("M", "datetime64[ns, UTC]"))
    assert result(zoned) == ["2026-01-02T03:04:05+01:00", None]


def test_rows_are_found_by_position_where_slices_mean_labels() -> None:
    class FloatLabelled(Series):
        def __getitem__(self, rows: slice) -> "Series":
            raise KeyError(rows)

    labels = Index((None, [-0.5, 0.5]), kind="f")
    assert result(Frame({"n": FloatLabelled([1, 2])}, labels)) == [{"index": -0.5, "n": 1}, {"index": 0.5, "n": 2}]


def test_labels_without_a_table_are_a_list() -> None:
    class Labels(Series):
        def __init__(self, values: list[Any], dtype: Dtype | None = None) -> None:
            super().__init__(values, dtype=dtype)
            del self.index

    assert result(Labels(["a", "b"])) == ["a", "b"]


def test_two_columns_of_one_name_are_an_error() -> None:
    with pytest.raises(MirrorError, match=r"Two columns of the table have the name '1'\. Rename one of them\."):
        convert_result(Frame({1: Series([1]), "1": Series([2])}))


class PolarsColumn:
    dtype = "Int64"

    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, rows: slice) -> "PolarsColumn":
        return PolarsColumn(self._values[rows])

    def to_list(self) -> list[Any]:
        return self._values

    def to_arrow(self) -> None: ...


class PolarsFrame:
    schema: Any = None

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self._columns = columns
        self.schema = dict.fromkeys(columns, "Int64")

    def __len__(self) -> int:
        return max(map(len, self._columns.values()))

    def get_columns(self) -> list[PolarsColumn]:
        return [PolarsColumn(values) for values in self._columns.values()]

    def iter_slices(self) -> None: ...

    def to_dicts(self) -> None: ...


class Query:
    def collect(self) -> PolarsFrame:
        return PolarsFrame({"n": [1]})

    def collect_schema(self) -> None: ...


def test_tables_and_columns_of_polars_are_objects_and_lists() -> None:
    count = 10_000
    rows = result(PolarsFrame({"n": list(range(count)), "m": [None] * count}))
    assert rows == [{"n": number, "m": None} for number in range(count)]
    assert result(Query()) == [{"n": 1}]
    assert result(PolarsColumn([1, None])) == [1, None]
    assert schema(PolarsColumn([1, None]))["shape"] == [2]


class ArrowArray:
    def __init__(self, values: list[Any], type: str = "int64") -> None:  # noqa: A002  # as pyarrow has it
        self._values, self.type = values, type

    type: Any = ""

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, rows: slice) -> "ArrowArray":
        return ArrowArray(self._values[rows], self.type)

    def to_pylist(self) -> list[Any]:
        return self._values

    def cast(self, type: str) -> "ArrowArray":  # noqa: A002  # as pyarrow has it
        return ArrowArray([None if value is None else str(value) for value in self._values], type)


class ArrowTable:
    column_names: Any = ()
    schema: Any = ()

    def __init__(self, columns: dict[str, ArrowArray]) -> None:
        self._columns, self.column_names, self.schema = columns, list(columns), list(columns.values())

    @property
    def num_rows(self) -> int:
        return len(next(iter(self._columns.values())))

    def slice(self, start: int, length: int) -> "ArrowTable":
        return ArrowTable({name: column[start : start + length] for name, column in self._columns.items()})

    def column(self, at: int) -> ArrowArray:
        return list(self._columns.values())[at]

    def to_pylist(self) -> None: ...


def test_tables_and_arrays_of_arrow_are_objects_and_lists() -> None:
    times = ArrowArray(["2026-01-02 03:04:05.000000006", None], "timestamp[ns]")
    spans = ArrowArray([5, None], "duration[ns]")
    assert result(ArrowTable({"n": ArrowArray([1, None]), "at": times, "in": spans})) == [
        {"n": 1, "at": "2026-01-02T03:04:05.000000006", "in": "5"},
        {"n": None, "at": None, "in": None},
    ]
    assert result(ArrowArray([1, None])) == [1, None]
    assert schema(ArrowArray([1, None]))["dtype"] == "int64"


def test_classes_of_other_kinds_have_no_form() -> None:
    assert [find_form(kind) for kind in (dict, str, Dtype, Index, type)] == [None] * 5
