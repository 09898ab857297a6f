"""Lists and dictionaries as Python prints them, translated into JSON."""

import json
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pprint import pformat
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_mirror.core.texts.python_literals import count_rows, has_nan, translate_first_rows, translate_python_literal

PLAIN = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False)
NESTED = st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10)


@given(st.lists(st.dictionaries(st.sampled_from(["id", "it's", 'a "b"']), NESTED, min_size=1), min_size=1))
def test_rows_that_python_prints_have_the_same_values(rows: list[dict[str, Any]]) -> None:
    translated = translate_python_literal(str(rows))
    if translated is None:  # as a text in double quotes comes first, or a half of a surrogate pair
        assert not str(rows).startswith("[{'") or "\\ud" in str(rows)
    else:
        assert json.loads(translated) == rows


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([(1, "a"), (2, None)], [[1, "a"], [2, None]]),
        ({"a": (1,), "b": ()}, {"a": [1], "b": []}),
        ({"at": date(2026, 1, 2)}, {"at": "2026-01-02"}),
        ({"at": datetime(2026, 1, 2, 3, 4)}, {"at": "2026-01-02T03:04:00"}),  # noqa: DTZ001  # as a server prints it
        ({"at": datetime(2026, 1, 2, 3, 4, 5, 6, UTC)}, {"at": "2026-01-02T03:04:05.000006+00:00"}),
        ({"at": datetime(2026, 1, 2, 3, 4, tzinfo=timezone(timedelta(hours=-5)))}, {"at": "2026-01-02T03:04:00-05:00"}),
        ({"a": timedelta(days=1, hours=2), "b": timedelta(0)}, {"a": "1 day 2:00:00", "b": "0:00:00"}),
        ({"a": timedelta(seconds=-1, microseconds=5)}, {"a": "-1 day 23:59:59.000005"}),
        ({"at": time(9, 30)}, {"at": "09:30:00"}),
        ({"at": time(9, 30, tzinfo=timezone(timedelta(hours=2)))}, {"at": "09:30:00+02:00"}),
        ({"at": time(9, 30, 0, 5, UTC)}, {"at": "09:30:00.000005+00:00"}),
        ({"id": UUID(int=5)}, {"id": "00000000-0000-0000-0000-000000000005"}),
        ({"a": float("nan"), "b": float("-inf")}, {"a": None, "b": None}),
        ({"a": Decimal("NaN"), "b": Decimal("-Infinity")}, {"a": None, "b": None}),
        ({"a": b"x'\"\x00", "b": [b""]}, {"a": repr(b"x'\"\x00"), "b": ["b''"]}),
        ({"a": bytearray(b"x"), "b": range(3)}, {"a": "bytearray(b'x')", "b": "range(0, 3)"}),
        ({"text": "datetime.date(2026, 1, 2), None (a)"}, {"text": "datetime.date(2026, 1, 2), None (a)"}),
    ],
)
def test_values_of_databases_have_a_form_in_json(value: object, expected: object) -> None:
    translated = translate_python_literal(str(value))
    assert translated is not None
    assert json.loads(translated) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[{"a": NaN, "b": 1.50}]', b'[{"a": null, "b": 1.50}]'),
        ('[{"NaN": "NaN, \\" \\ud83d\\ude00", "b": NaN}]', b'[{"NaN": "NaN, \\" \\ud83d\\ude00", "b": null}]'),
        (' {"a": [-Infinity, Infinity,NaN]}\n', b'{"a": [null, null,null]}'),
        ('[{"a": "x\\ud83d"}, "\\ud83d\\ude00"]', b'[{"a": "x\\ufffd"}, "\\ud83d\\ude00"]'),
        ('{"a": "\\uDE00 \\\\ud83d", "b": NaN}', b'{"a": "\\ufffd \\\\ud83d", "b": null}'),
        ("[{'a': np.float64(1.5), 'b': np.int64(-3), 'c': np.float64(nan)}]", b'[{"a": 1.5, "b": -3, "c": null}]'),
        ("[{'a': Timestamp('2024-01-02 03:04:05')}]", b'[{"a": "2024-01-02 03:04:05"}]'),
        ("[{'a': Timestamp('2024-01-02 03:04:05+0000', tz='UTC')}]", b'[{"a": "2024-01-02 03:04:05+0000"}]'),
        ("[{'a': NaT, 'b': <NA>}]", b'[{"a": null, "b": null}]'),
        (
            "[RealDictRow({'id': 1, 'at': datetime.date(2026, 1, 2), 'of': {}}), RealDictRow({'id': 2, 'n': (1, 2)})]",
            b'[{"id": 1, "at": "2026-01-02", "of": {}}, {"id": 2, "n": [1, 2]}]',
        ),
        ("[Counter({'a': 2}), (Box({}), OrderedDict({\"it's\": None}),)]", b'[{"a": 2}, [{}, {"it\'s": null}]]'),
        ("({'a': Box({'b': (1,)})}, {'c': frozenset({'x'})})", b'[{"a": {"b": [1]}}, {"c": "frozenset({\'x\'})"}]'),
        ("[{'_id': ObjectId('65a1'), 'p': PosixPath('/a')}]", b'[{"_id": "65a1", "p": "/a"}]'),
        ("[{'a': Range(1, 6, '[)'), 'b': 1}]", b'[{"a": "Range(1, 6, \'[)\')", "b": 1}]'),
        ("[{'a': <memory at 0x7f>, 'b': <S.OPEN: 'o'>}]", b'[{"a": "<memory at 0x7f>", "b": "<S.OPEN: \'o\'>"}]'),
        ("[{'a': f(g(h(i(j(1)))))}]", b'[{"a": "f(g(h(i(j(1)))))"}]'),
        ("[{'a': 'b '\n  'c'}]", b'[{"a": "b c"}]'),
        ("[{'a': 'b '\n  'c\\n'\n  \"d'\", 'e': f('g')}]", b'[{"a": "b c\\nd\'", "e": "g"}]'),
    ],
)
def test_missing_values_and_scalars_of_pandas_have_a_form_in_json(text: str, expected: bytes) -> None:
    assert translate_python_literal(text) == expected


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ('[{"a": 1, "b": NaN}, {"a', True),
        ('{"rows": [1, -Infinity, 2', True),
        ('[{"a": "NaN"}]', False),
        ('"NaN"', False),
        ("[a] x: NaN", False),
    ],
)
def test_json_with_nan_is_recognized_by_its_beginning(head: str, expected: bool) -> None:  # noqa: FBT001
    assert has_nan(head) is expected


@pytest.mark.parametrize(
    ("zone", "expected"), [("Etc/UTC", "2026-01-02T03:04:00+00:00"), ("Asia/Tokyo", "2026-01-02T03:04:00 Asia/Tokyo")]
)
def test_the_name_of_a_time_zone_follows_the_time(zone: str, expected: str) -> None:
    text = f"[{{'at': datetime.datetime(2026, 1, 2, 3, 4, tzinfo=zoneinfo.ZoneInfo(key='{zone}'))}}]"
    assert json.loads(translate_python_literal(text) or b"") == [{"at": expected}]


@pytest.mark.parametrize("digits", ["-1.50", "0E-20", "1.5E+40"])  # PostgreSQL's average of zeros has 20 places
def test_a_decimal_keeps_its_digits(digits: str) -> None:
    assert translate_python_literal(str([{"sum": Decimal(digits)}])) == b'[{"sum": %b}]' % digits.encode()


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text",
    [
        "[{'a': 1}" + " " * 300_000 + "x",
        "[" + " " * 300_000,
        "[" + '"NaN' * 300_000 + "]",
        "[NaN," + '\\"' * 300_000 + "]",
        "[{'a': " + "\\'" * 300_000 + "}]",
        "[{'a': '" + "\\'" * 300_000,
        "[{'a': " + "f(" * 300_000 + "}]",
        "[{'a': f(" + "(1)" * 300_000 + "}]",
    ],
)
def test_long_texts_that_are_no_literals_are_read_in_linear_time(text: str) -> None:
    assert translate_python_literal(text) is None


@pytest.mark.parametrize(
    "text",
    [
        '["a", "b"]',
        "['a'] and more",
        "['a', 'b]",
        "[('a', 1",
        "[{'a': b'x}]",
        "[{'a': f(g(h(i(j(k(1))))))}]",
        "[{'a': f(1}]",
        "[{'a': {1, 2}}]",
        "[{'a': '\\ud800'}]",
        "[{'a': '\\x'}]",
        "[{'at': datetime.date(2026, 13, 1)}]",
        "[{'at': datetime.date(99999999999999999999, 1, 1)}]",
        "[{'at': datetime.timedelta(days=99999999999999999999)}]",
        "[{'at': datetime.datetime(2026, 1, 2, 3, 4, tzinfo=datetime.timezone(datetime.timedelta(days=2)))}]",
        "['a', " + "[" * 10**6,
        "['a', " + "[" * 10**6 + "]" * (10**6 + 1),
        '[{"a": NaN',
        '[{"a": NaNs}]',
        '[{"a": "NaN"} x]',
        "words",
        "words (1)",
        "",
    ],
)
def test_any_other_text_is_not_translated(text: str) -> None:
    assert translate_python_literal(text) is None


@pytest.mark.parametrize(
    ("head", "rows"),
    [
        ("[{'id': 1}, {'id': None}, {'id': 3}, {'i", [{"id": 1}, {"id": None}, {"id": 3}]),
        ("[{'id': 1}, {'text': 'a}, {b}, {c", [{"id": 1}]),
        ("[{'id': 1}]", [{"id": 1}]),
        ("[{'id': 1, 'text': '...", None),
        ("[{'id': 1}, {'text': 'a}, {b}, {c}, {d", None),
        ("[('a', 1), ('b', 2)]", [["a", 1]]),
        ("[(1, 'a), (b'), (2, 'c'), (3, 'd), (", [[1, "a), (b"], [2, "c"]]),
        ("[('a',), ('b', (1, 2)), ('c', (1, ", [["a"], ["b", [1, 2]]]),
        ("['a', 'b']", None),
        ("{'id': 1}", None),
    ],
)
def test_the_first_rows_are_those_that_are_whole(head: str, rows: list[Any] | None) -> None:
    found = translate_first_rows(head)
    assert (None if found is None else json.loads(found)) == rows


@pytest.mark.parametrize(
    "rows",
    [
        [{"id": 1}],
        [{"a": "}, {", "b": [{"c": 1}, {"d": (1, 2)}]}, {"a": 'it\'s "x"', "b": ()}],
        [(1, "a), (b", datetime(2026, 1, 2, tzinfo=UTC)), (2, b"'", Decimal("1.0")), None],
        [{"text": f"line {n}\n", "quote": "\\'" * n} for n in range(500)],
    ],
)
def test_rows_that_python_prints_are_counted(rows: list[Any]) -> None:
    assert count_rows(str(rows)) == len(rows)
    assert count_rows(pformat(rows, width=20)) == len(rows)


@pytest.mark.parametrize("text", ["", "{'a': [{'b': 1}, {'b': 2}]}", "['a']", "a, b", "[{'a': 1}, {'b", "[{1}, {"])
def test_only_a_list_of_dictionaries_or_tuples_has_rows(text: str) -> None:
    assert count_rows(text) == 0
