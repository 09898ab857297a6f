"""Lists and dictionaries as Python prints them, translated into JSON."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_mirror.core.python_literals import translate_python_literal

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
        ({"id": UUID(int=5)}, {"id": "00000000-0000-0000-0000-000000000005"}),
        ({"text": "datetime.date(2026, 1, 2), None (a)"}, {"text": "datetime.date(2026, 1, 2), None (a)"}),
    ],
)
def test_values_of_databases_have_a_form_in_json(value: object, expected: object) -> None:
    translated = translate_python_literal(str(value))
    assert translated is not None
    assert json.loads(translated) == expected


def test_a_decimal_keeps_its_digits() -> None:
    assert translate_python_literal(str([{"sum": Decimal("-1.50")}])) == b'[{"sum": -1.50}]'


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", ["[{'a': 1}" + " " * 300_000 + "x", "[" + " " * 300_000, "[{'a': '" + "\\'" * 300_000])
def test_long_texts_that_are_no_literals_are_read_in_linear_time(text: str) -> None:
    assert translate_python_literal(text) is None


@pytest.mark.parametrize(
    "text",
    [
        '["a", "b"]',
        "['a'] and more",
        "['a', 'b]",
        "[('a', 1",
        "[{'a': b'x'}]",
        "[{'a': nan}]",
        "[{'a': {1, 2}}]",
        "[{'a': '\\ud800'}]",
        "[{'a': '\\x'}]",
        "[{'at': datetime.date(2026, 13, 1)}]",
        "[{'at': datetime.date(99999999999999999999, 1, 1)}]",
        "['a', " + "[" * 10_000,
        "words",
        "",
    ],
)
def test_any_other_text_is_not_translated(text: str) -> None:
    assert translate_python_literal(text) is None
