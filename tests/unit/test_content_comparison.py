"""Content blocks that repeat a JSON value are recognized."""

import json
from typing import Any

import pytest

from mcp_mirror.core.results.content_comparison import (
    BLOCKS,
    COMPARED_BYTES,
    DIFFERS,
    ITEMS,
    LEAVES,
    SAME,
    UNKNOWN,
    compare_value,
    find_member,
    is_json_text,
)


def literals(*texts: str) -> list[bytes]:
    return [json.dumps(text).encode() for text in texts]


@pytest.mark.parametrize(
    ("value", "texts", "expected"),
    [
        ({"a": 1}, ['{"a": 1}'], SAME),
        ({"a": 1.0}, ['{ "a":1 }'], SAME),
        ("caf\u00e9", ["caf\u00e9"], SAME),
        ("a", ["b"], DIFFERS),
        ("a", ["ab"], DIFFERS),
        ("a", ['"a"'], DIFFERS),
        (5, ["5"], SAME),
        (True, ["1"], DIFFERS),
        (["x", {"a": 1}], ["x", '{"a":1}'], ITEMS),
        (["x"], ["x", "y"], DIFFERS),
        ([["x", 1], [], [[{"a": 1}]]], ["x", "1", '{\n  "a": 1\n}'], LEAVES),
        ([1, None, 2], ["1", "2"], LEAVES),
        ([1, None], ["1", "null"], ITEMS),
        ([["x", 1]], ["x", "2"], DIFFERS),
        ([["x", 1]], ["x"], DIFFERS),
        ({"a": 1}, ["{"], DIFFERS),
        ({"a": 1}, ["[" * 100_000], DIFFERS),
        ({"a": 1}, [], UNKNOWN),
    ],
)
def test_texts_are_compared_with_a_value(value: Any, texts: list[str], expected: str) -> None:
    assert compare_value(json.dumps(value).encode(), literals(*texts), b"[1]") == expected


@pytest.mark.parametrize(
    ("value", "text", "is_same"),
    [
        ('{"a":[1,"b  c"]}', '{"a":[1,"b  c"]}', True),
        ('{"a":[1,"b  c"]}', '{ "a":\n [1, "b  c"] }', True),
        ('{"a":[1,"b  c"]}', '{"a":[1,"b c"]}', False),
        ('{"a":1}', '{"a":1', False),
        ('{"a":1}', '{"a":' + "[" * 5_000, False),
        ('"a"', "a", False),
        (f"[{'1,' * COMPARED_BYTES}1]", f"[{'1,' * COMPARED_BYTES}1 ]", False),
    ],
)
def test_a_text_is_json_of_a_value_with_any_white_space(value: str, text: str, *, is_same: bool) -> None:
    assert is_json_text(literals(text)[0], value.encode()) is is_same


def test_the_blocks_themselves_may_be_the_value() -> None:
    assert compare_value(b'[{"type":"image"}]', [], b'[{"type":"image"}]') == BLOCKS
    assert compare_value(b"[]", [], b"[]") == UNKNOWN
    assert compare_value(b'"a"', [], b'"a"') == UNKNOWN


def test_long_strings_are_compared_at_any_size_however_they_are_escaped() -> None:
    text = "caf\u00e9\n" * (3 * COMPARED_BYTES // 6)
    plain, escaped = json.dumps(text, ensure_ascii=False).encode(), json.dumps(text).encode()
    assert compare_value(plain, [escaped], b"") == SAME
    assert compare_value(plain, [json.dumps(text + "x").encode()], b"") == UNKNOWN
    assert compare_value(plain, [json.dumps("x" + text).encode()], b"") == UNKNOWN


def test_long_json_is_compared_by_its_bytes() -> None:
    rows = json.dumps([1] * COMPARED_BYTES)
    assert compare_value(rows.encode(), literals(rows), b"") == SAME
    assert compare_value(rows.encode(), literals(rows.replace("1]", "2]")), b"") == UNKNOWN


def test_json_text_of_any_size_is_compared_by_its_bytes() -> None:
    value = '{"a":"%s"}' % ("x" * (1 << 24))
    texts = (value, f"{value} ", value[:-1], f'{value[:-3]}y"}}', value.replace("x", "y", 1))
    relations = [compare_value(value.encode(), literals(text), b"") for text in texts]
    assert relations == [SAME, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN]


def test_a_text_beside_one_that_repeats_a_long_value_is_not_dropped() -> None:
    rows = json.dumps([1] * COMPARED_BYTES)
    assert compare_value(rows.encode(), literals(rows, "And this."), b"") == UNKNOWN
    assert compare_value(rows.encode(), literals("And this.", rows), b"") == UNKNOWN


@pytest.mark.parametrize("text", ["a  b", "\\\\", 'say "a" ', "caf\u00e9 \U0001f600", "\t \\ "])
def test_long_json_is_the_same_however_it_is_indented(text: str) -> None:
    value = {"rows": [{"id": n, "text": text * (n % 7)} for n in range(2_000)], "long": text * (COMPARED_BYTES // 2)}
    compact = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    indented = json.dumps(value, indent=2, ensure_ascii=False)
    assert len(compact) > COMPARED_BYTES
    assert compare_value(compact.encode(), literals(indented), b"") == SAME
    assert compare_value(indented.encode(), literals(compact), b"") == SAME


@pytest.mark.parametrize("text", ["no JSON " * COMPARED_BYTES, "[1, " * COMPARED_BYTES, "[1]" + " " * (1 << 24)])
def test_a_long_text_that_is_not_the_value_is_not_compared_further(text: str) -> None:
    value = json.dumps([1] * COMPARED_BYTES).encode()
    assert compare_value(value, literals(text), b"") in (DIFFERS, UNKNOWN)


def test_white_space_within_long_strings_is_compared() -> None:
    rows = json.dumps(["a b"] * (COMPARED_BYTES // 4))
    assert compare_value(rows.encode(), literals(rows.replace("a b", "ab")), b"") == UNKNOWN
    assert compare_value(rows.encode(), literals(rows.replace("a b", "a  b", 1).replace(", ", ",")), b"") == UNKNOWN


@pytest.mark.parametrize(
    ("members", "texts", "found"),
    [
        ({"n": 1, "a": "x"}, ["x"], ("a", SAME)),
        ({"n": 1, "rows": [{"b": 1}]}, ['[ {"b": 1.0} ]'], ("rows", SAME)),
        ({"n": None, "a": 1}, ["null"], None),
        ({"n": True}, ["true"], None),
        ({"n": 1, "a": "x"}, ["x", "y"], None),
        ({"n": 1, "a": "x"}, [], None),
        ({"n": 1, "a": "x"}, ["{"], None),
        ({"n": 1, "a": [5]}, None, ("a", BLOCKS)),
        ({"n": 1, "a": "x" * (COMPARED_BYTES + 1)}, ["y"], None),
    ],
)
def test_a_member_that_the_content_repeats_is_found(members: Any, texts: Any, found: Any) -> None:
    raw = [(key, json.dumps(value).encode()) for key, value in members.items()]
    assert find_member(raw, literals(*(texts or [])), b"[5]" if texts is None else b"[6]") == found


def test_only_the_first_members_are_compared_by_value() -> None:
    raw = [(str(n), b"[ %d ]" % n) for n in range(100)]
    assert find_member(raw, literals("[5]"), b"") == ("5", SAME)
    assert find_member(raw, literals("[90]"), b"") is None
    assert find_member([*raw, ("last", b'"said"')], literals("said"), b"") == ("last", SAME)
