"""Equal JSON values have the same canonical text."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_mirror.security.pins import hash_json, write_canonical

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("number", "text"),
    [  # RFC 8785, appendix B, and what lies beside its edges
        (0.0, "0"), (-0.0, "0"), (5e-324, "5e-324"), (-5e-324, "-5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"), (-1.7976931348623157e308, "-1.7976931348623157e+308"),
        (9007199254740992.0, "9007199254740992"), (295147905179352830000.0, "295147905179352825856"),
        (1e21, "1e+21"), (9.999999999999997e22, "9.999999999999997e+22"), (1e23, "1e+23"),
        (1.0000000000000001e23, "1.0000000000000001e+23"), (0.000001, "0.000001"),
        (9.999999999999997e-7, "9.999999999999997e-7"), (333333333.3333332, "333333333.3333332"),
        (-0.0000033333333333333333, "-0.0000033333333333333333"), (1424953923781206.2, "1424953923781206.2"),
        (1.5, "1.5"), (0.1, "0.1"), (1e-7, "1e-7"), (1.25e-9, "1.25e-9"), (4.50, "4.5"), (2e-3, "0.002"),
        (float("nan"), "null"), (float("inf"), "null"), (2**70, "1180591620717411303424"), (True, "true"),
    ],
)  # fmt: skip
def test_numbers_are_written_by_rfc_8785(number: float, text: str) -> None:
    assert write_canonical(number) == text


def test_keys_are_sorted_by_utf_16() -> None:
    members = {"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\U0001f600": 5, "\u0080": 6, "\u00f6": 7}  # RFC 8785, 3.2.3
    assert list(json.loads(write_canonical(members)).values()) == [2, 4, 6, 7, 1, 5, 3]
    assert write_canonical({"b": [1, {"d": '\u00e9\u2028\n"\x01', "c": None}], "a": False}) == (
        '{"a":false,"b":[1,{"c":null,"d":"\u00e9\u2028\\n\\"\\u0001"}]}'
    )  # fmt: skip


@given(JSON)
def test_canonical_text_parses_to_the_value(value: Any) -> None:
    text = write_canonical(value)
    assert write_canonical(json.loads(text)) == text
    assert len(hash_json(value)) == 64
    assert hash_json([value]) != hash_json(value)


def _shuffled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shuffled(each) for key, each in reversed(value.items())}
    return [_shuffled(each) for each in value] if isinstance(value, list) else value


@given(JSON)
def test_the_order_of_keys_does_not_matter(value: Any) -> None:
    assert write_canonical(_shuffled(value)) == write_canonical(value)


@pytest.mark.parametrize("other", [1, "true", None, [True], {"a": True}, 0])
def test_values_that_python_compares_equal_differ(other: Any) -> None:
    assert write_canonical(other) != write_canonical(True)  # noqa: FBT003  # the value


@pytest.mark.parametrize("nest", [lambda inner: [inner], lambda inner: {"a": inner}])
def test_deep_nesting_raises_a_recursion_error(nest: Callable[[Any], Any]) -> None:
    value: Any = 1
    for _ in range(5000):
        value = nest(value)
    with pytest.raises(RecursionError):
        hash_json(value)
