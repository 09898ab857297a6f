"""Tables of pandas, polars and pyarrow as results of functions: `make dataframes` installs these libraries."""

import asyncio
import time
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from converted_results import result, schema

from mcp_mirror import Mirror

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")

ROWS = 1_000_000


def test_every_type_of_a_pandas_column_is_json() -> None:
    frame = pd.DataFrame(
        {
            "number": [1.5, np.nan],
            "whole": pd.array([1 << 60, None], dtype="Int64"),
            "flag": pd.array([True, None], dtype="boolean"),
            "text": ["a", None],
            "kind": pd.Categorical(["x", None]),
            "time": pd.to_datetime(["2026-01-02T03:04:05", None]),
            "fine": pd.Series([1, None], dtype="datetime64[ns]"),
            "zone": pd.to_datetime(["2026-01-02T03:04:05+01:00", None]),
            "span": pd.to_timedelta(["90s", None]),
            "day": [date(2026, 1, 2), None],
            "month": pd.PeriodIndex(["2026-01", None], freq="M"),
            "deep": [{"a": [np.int64(1), pd.NaT]}, None],
            "money": [Decimal("1.10"), None],
        }
    )
    first, second = result(frame)
    assert first == {
        "number": 1.5, "whole": 1 << 60, "flag": True, "text": "a", "kind": "x",
        "time": "2026-01-02T03:04:05", "fine": "1970-01-01T00:00:00.000000001",
        "zone": "2026-01-02T03:04:05+01:00", "span": "PT90S", "day": "2026-01-02", "month": "2026-01",
        "deep": {"a": [1, None]}, "money": "1.10",
    }  # fmt: skip
    assert second == dict.fromkeys(first)
    assert schema(frame)["type"] == "pandas.DataFrame"
    assert schema(frame)["columns"]["kind"] == "category"


def test_labels_of_pandas_rows_are_kept_where_they_say_more_than_a_number() -> None:
    frame = pd.DataFrame({"city": ["Bonn", "Rome", "Bonn"], "n": [1, 2, 3]})
    assert result(frame[frame.n > 1]) == [{"city": "Rome", "n": 2}, {"city": "Bonn", "n": 3}]
    assert result(frame.groupby("city").sum()) == [{"city": "Bonn", "n": 4}, {"city": "Rome", "n": 2}]
    assert result(frame.city.value_counts()) == [{"city": "Bonn", "count": 2}, {"city": "Rome", "count": 1}]
    assert result(frame.groupby(["city", "n"]).size())[0] == {"city": "Bonn", "n": 1, "value": 1}
    assert result(frame.describe())[0] == {"index": "count", "n": 3.0}
    assert result(frame.groupby("city").agg({"n": ["min", "max"]}))[0] == {"city": "Bonn", "n.min": 1, "n.max": 3}
    assert result(frame.n) == [1, 2, 3]
    assert result({"frame": frame.head(1), "at": pd.Timestamp("2026-01-02"), "no": pd.NA}) == {
        "frame": [{"city": "Bonn", "n": 1}], "at": "2026-01-02T00:00:00", "no": None,
    }  # fmt: skip
    assert result(pd.DataFrame()) == []


def test_a_pandas_column_without_its_table_is_the_same_as_in_it() -> None:
    zoned = pd.Series(pd.to_datetime(["2026-01-02T03:04:05+01:00", None]))
    fine = pd.Series([1, None], dtype="datetime64[ns]")
    assert result(zoned) == ["2026-01-02T03:04:05+01:00", None]
    assert result(zoned.dt.as_unit("ns")) == ["2026-01-02T03:04:05+01:00", None]
    assert result(fine) == ["1970-01-01T00:00:00.000000001", None]
    assert result(pd.date_range("2026-01-02", periods=2)) == ["2026-01-02T00:00:00", "2026-01-03T00:00:00"]
    assert result(pd.Index([1.5, 2.5])) == [1.5, 2.5]


def test_rows_with_labels_that_are_floats_are_complete() -> None:
    labels = np.arange(5000) * 10.0 - 1
    rows = result(pd.DataFrame({"n": range(5000)}, index=labels))
    assert rows == [{"index": label, "n": n} for n, label in enumerate(labels)]
    assert result(pd.Series(range(5000), labels, name="n")) == rows


def test_every_type_of_a_polars_column_is_json() -> None:
    frame = pl.DataFrame(
        {
            "number": [1.5, float("nan")],
            "whole": [1 << 60, None],
            "time": [datetime(2026, 1, 2, 3, 4, 5), None],  # noqa: DTZ001  # one without a zone
            "day": [date(2026, 1, 2), None],
            "deep": [{"a": [1, 2]}, None],
            "money": [Decimal("1.10"), None],
        }
    ).with_columns(kind=pl.Series(["x", None], dtype=pl.Categorical))
    first, second = result(frame)
    assert first == {
        "number": 1.5, "whole": 1 << 60, "time": "2026-01-02T03:04:05", "day": "2026-01-02", "deep": {"a": [1, 2]},
        "money": "1.10", "kind": "x",
    }  # fmt: skip
    assert second == dict.fromkeys(first)
    assert schema(frame)["columns"]["whole"] == "Int64"
    assert schema(frame)["type"] == "polars.DataFrame"
    assert result(frame.lazy().select("whole")) == [{"whole": 1 << 60}, {"whole": None}]
    assert result(frame["whole"]) == [1 << 60, None]


def test_every_type_of_a_pyarrow_column_is_json() -> None:
    table = pa.table(
        {
            "number": pa.array([1.5, None]),
            "whole": pa.array([1 << 60, None]),
            "time": pa.array([datetime(2026, 1, 2, 3, 4, 5), None]),  # noqa: DTZ001  # one without a zone
            "fine": pa.array([1, None], pa.timestamp("ns")),
            "kind": pa.array(["x", None]).dictionary_encode(),
            "deep": pa.array([{"a": [1]}, None]),
            "span": pa.array([1, None], pa.duration("ns")),
        }
    )
    first, second = result(table)
    assert first == {
        "number": 1.5, "whole": 1 << 60, "time": "2026-01-02T03:04:05", "fine": "1970-01-01T00:00:00.000000001",
        "kind": "x", "deep": {"a": [1]}, "span": "1",
    }  # fmt: skip
    assert second == dict.fromkeys(first)
    assert schema(table)["columns"]["whole"] == "int64"
    assert result(table.to_batches()[0]) == [first, second]
    assert result(table["whole"]) == [1 << 60, None]
    assert result(pa.array([1, None])) == [1, None]


def large(kind: str) -> Any:
    frame = pd.DataFrame(
        {
            "n": np.arange(ROWS),
            "value": np.arange(ROWS) / 7,
            "name": np.array(["one", "two"])[np.arange(ROWS) % 2],
            "time": pd.date_range("2020", periods=ROWS, freq="s"),
            "kind": pd.Categorical(np.array(["x", "y"])[np.arange(ROWS) % 2]),
        }
    )
    if kind == "pandas":
        return frame
    return pl.from_pandas(frame) if kind == "polars" else pa.Table.from_pandas(frame)


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow"])
async def test_a_million_rows_take_seconds_and_do_not_block_other_calls(kind: str, record_property: Any) -> None:
    mirror, table = Mirror(), large(kind)

    @mirror.tool
    async def load() -> Any:
        return table

    @mirror.tool
    def count(rows: list[Any]) -> int:
        return len(rows)

    pauses = []

    async def watch() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.01)
            pauses.append(time.perf_counter() - began)

    async with mirror:
        watching = asyncio.create_task(watch())
        began = time.process_time()
        reply = await mirror.call("load_mirrored")
        spent = time.process_time() - began
        watching.cancel()
        record_property("seconds of CPU", spent)
        record_property("longest pause of the event loop", max(pauses))
        assert reply.schema is not None
        assert reply.schema["rows"] == ROWS
        assert (await mirror.read(f"{reply.path}/999999"))["n"] == 999_999
        assert spent < 40
        assert max(pauses) < 2
