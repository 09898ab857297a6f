"""Objects that hold a table in another form are written as rows."""

import json
from typing import Any

import pytest

from mcp_mirror.query import rows as module
from mcp_mirror.query.rows import find_part, write_members, write_rows

QUOTED = ('a\n"', "b", "\u00e9", "")
RECORDS = {f"r{at}": {"id": at, "name": "x"} for at in range(4)}
INDENTED = json.dumps(RECORDS, indent=2).replace("\n", "\r\n").encode()
LINKS = {f"n{at}": {f"m{at}": 1} for at in range(201)}
DAYS = ("2026-11-01", "2026-11-02", "3", "4")
NUMBERS = dict.fromkeys("12345", 0)
CELLS = (1, "b", None, True)


def written(value: Any) -> list[Any] | None:
    found = write_rows(value if isinstance(value, bytes) else json.dumps(value).encode())
    return None if found is None else [json.loads(line) for line in found.splitlines()]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (RECORDS, [{"key": key} | one for key, one in RECORDS.items()]),
        (INDENTED, [{"key": key} | one for key, one in RECORDS.items()]),
        (json.dumps(LINKS, indent=2).encode(), [{"key": key, "value": one} for key, one in LINKS.items()]),
        (RECORDS | {"r5": {}}, None),
        (LINKS, [{"key": key, "value": one} for key, one in LINKS.items()]),
        (dict(list(LINKS.items())[:200]), None),
        (LINKS | {"last": 1}, None),
        (
            {key: {"KEY": 1} for key in QUOTED},
            [{"_key": key, "KEY": 1} for key in QUOTED],
        ),
        ({f"r{at}": {"n": at} for at in range(25)} | {"last": {}},
         [{"key": f"r{at}", "n": at} for at in range(25)] + [{"key": "last"}]),
        ({f"r{at}": {"n": at} for at in range(25)} | {"last": 1}, None),
        (
            {f"r{at}": {"n": at} for at in range(25)} | {"last": {"n": 25, "Key": "x"}},
            [{"_key": f"r{at}", "n": at} for at in range(25)] + [{"_key": "last", "n": 25, "Key": "x"}],
        ),
        (
            {"open": {"2026-11-01": 1.0, "2026-11-02": 2, "3": None, "4": "x"}, "Key": {day: [1] for day in DAYS}},
            [{"_key": day, "open": cell, "Key": [1]} for day, cell in zip(DAYS, (1.0, 2, None, "x"), strict=True)],
        ),
        (
            dict(zip(DAYS, CELLS, strict=True)),
            [{"key": day, "value": cell} for day, cell in zip(DAYS, CELLS, strict=True)],
        ),
        ({"open": dict.fromkeys(DAYS, 1), "close": dict.fromkeys(DAYS[1:], 1)}, None),
        ({"open": dict.fromkeys(DAYS[1:], 1)}, None),
        (dict.fromkeys(DAYS, 1) | {"sum": 4}, None),
        (dict.fromkeys(DAYS, 1) | {"5": {}}, None),
        (dict.fromkeys(DAYS, NUMBERS), [{"key": day} | NUMBERS for day in DAYS]),
        ({"columns": ["a", "b"], "rows": [[1, 2], [3, [4]]]}, [{"a": 1, "b": 2}, {"a": 3, "b": [4]}]),
        ({"columns": [{"name": "a"}, {"name": "b"}], "rows": [[1, 2]]}, [{"a": 1, "b": 2}]),
        ({"columns": [{"id": "a"}, {"id": "b"}], "rows": [[1, 2]]}, None),
        ({"columns": ["a", "a"], "rows": [[1, 2]]}, None),
        ({"columns": ["a", 1], "names": ["c", "d"], "rows": [[1, 2]]}, [{"c": 1, "d": 2}]),
        ({"columns": ["a", "b"], "columnTypes": ["INT", "TEXT"], "rows": [[1, "x"]]}, [{"a": 1, "b": "x"}]),
        ({"columns": ["a", "b"], "labels": ["A", "B"], "rows": [[1, 2]]}, None),
        ({"columns": ["a", "b"], "rows": [[1, 2], [3]]}, None),
        ({"columns": ["a", "b"], "rows": [[1, 2], {"a": 3}]}, None),
        ({"columns": [], "rows": [[]]}, None),
        ({"columns": ["a", "b"], "rows": []}, None),
        ({"rows": [[1, 2]]}, None),
        ({}, None),
        ([[1, 2]], None),
        (b'{"a":1}\n{"a":2}\n', None),
        (b'{"a":{"x":1},"b":{"x":2}}\n{"a":{"x":3},"b":{"x":4}}', None),
        ({"columns": ["a"], "note": "[[", "rows": [[1]]}, [{"a": 1}]),
        ([["n", "city"], [1, "Bonn"], [], [None, "Oslo"]], [{"n": 1, "city": "Bonn"}, {}, {"n": None, "city": "Oslo"}]),
        ([["city", "2025"], ["Bonn", "3"], ["Oslo", ""]], None),
        ([["at", "share"], ["Bonn", "-3.5%"], ["", ""]], [{"at": "Bonn", "share": "-3.5%"}, {"at": "", "share": ""}]),
        ({"range": "A1:B2", "values": [["a", "is on"], ["x", True]]}, [{"a": "x", "is on": True}]),
        ([["id", "city"], [1, "Bonn", "x"]], None),
        ([["id", "city"], [1, "Bonn"], {"id": 2}], None),
        ([["id", "ID"], [1, 2]], None),
        ([["id", ""], [1, 2]], None),
        ([["id", 1], [1, 2]], None),
        ([["id", "city"], ["a", "Bonn"]], None),
        ([["id", "city"]], None),
        ([[], [1]], None),
        ([["a", "b"], ["c", "d"], [1, "e"]], None),
        (b'{"columns":["a"],"rows":[[' + b"[" * 300_000 + b"]" * 300_000 + b"]]}", None),
        (b'{"columns":["a"],"rows":[[1],[' + b"[" * 300_000 + b"]" * 300_000 + b"]]}", None),
    ],
)  # fmt: skip
def test_rows_of_objects(value: Any, expected: list[Any] | None) -> None:
    assert written(value) == expected


def test_an_object_that_is_very_large_as_rows_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    value = {"columns": ["a" * 100, "b" * 100], "rows": [[1, 2]] * 100}
    monkeypatch.setattr(module, "_MAX_WRITTEN", 10_000)
    assert written(value) is None
    monkeypatch.setattr(module, "_MAX_BYTES", 100)
    assert written(RECORDS) is None


def test_a_very_large_data_frame_is_not_written_as_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert written({"open": dict.fromkeys(DAYS, 1)}) is not None
    monkeypatch.setattr(module, "_MAX_CELLS", 3)
    assert written({"open": dict.fromkeys(DAYS, 1)}) is None


def test_a_part_of_an_object_is_found_by_its_keys() -> None:
    inner = b'{ "a/b": {"c": [1, 2]} }'
    for value in (inner, b" [%b] " % inner, inner + b"\n"):
        assert bytes(find_part(value, ("a/b", "c")) or b"") == b"[1, 2]"
        assert find_part(value, ("a/b", "d")) is None
    assert bytes(find_part(inner, ()) or b"") == inner


def test_each_member_of_an_object_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        write_members(b' {"\xc3\xa4": {"n":  1}, "b": null}')
        == b'{"key":"\\u00e4","value":{"n":  1}}\n{"key":"b","value":null}'
    )
    assert write_members(b"[1]") is None
    monkeypatch.setattr(module, "_MAX_BYTES", 5)
    assert write_members(b'{"a": 1}') is None
