"""Arguments are described in bounded JSON text, without values unless wanted."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_mirror.observability.argument_shapes import MAX_CHARACTERS, describe_arguments, explain_unused_paths

PATH = "say-9c1d4f0e-6a55-4b8e-9d0a-0f3b2f6f6a11"
OTHER = PATH.replace("say", "other")
KNOWN = frozenset({"say"})
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=60) | st.dictionaries(st.text(), inner, max_size=60),
)


def describe(value: Any, *, with_values: bool = False) -> Any:
    return json.loads(describe_arguments(json.dumps(value).encode(), with_values=with_values))


def test_keys_and_paths_are_kept_and_values_are_not() -> None:
    given_ = {"a": "secret", "b": [1, 2.5, True, None], "c": {"d": f' "{PATH}/x" '}, "e": "memory://" + PATH}
    assert describe(given_) == {
        "a": "<text, 6 characters>",
        "b": ["<number>", "<number>", True, None],
        "c": {"d": f"{PATH}/x"},
        "e": PATH,
    }


def test_values_are_kept_up_to_a_length_if_wanted() -> None:
    described = describe({"a": "short", "b": 12, "c": "x" * 600}, with_values=True)
    assert described == {"a": "short", "b": 12, "c": "x" * 500 + "... (600 characters)"}


def test_long_arguments_are_described_more_briefly() -> None:
    assert describe({"a": [*range(60)]})["a"][-1] == "<10 more items>"
    assert describe({f"key {number}": 1 for number in range(60)})["..."] == "<10 more members>"
    assert describe({"a": [{"b": [{"c": [1] * 9}]}] * 200})["a"][0] == {"b": [{"c": "<array, 9 items>"}]}
    deep = {"a": {"b": {"c": {"d": {"e": {"f": {"g": {"h": {"i": 1}}, "j": {}}}}}}}}
    assert describe(deep)["a"]["b"]["c"]["d"]["e"]["f"] == {"g": {"h": "<object, 1 members>"}, "j": {}}
    assert describe({"k" * 100: 1}) == {"k" * 80 + "... (100 characters)": "<number>"}
    assert describe_arguments(b'{"%s": 1}' % (b"\\u0000" * 400), with_values=False).startswith('{"\\u0000')


def test_a_number_of_many_digits_leaves_only_the_size() -> None:
    text = b'{"a": %s}' % (b"1" * 3000)
    assert describe_arguments(text, with_values=False) == '{"a":"<number>"}'
    assert describe_arguments(text, with_values=True) == f'"<arguments, {len(text):,} bytes>"'


@pytest.mark.parametrize("text", [b"", b"{", b'{"a": "\\ud800"}', b"[" * 5000])
def test_arguments_that_cannot_be_read_have_only_a_size(text: bytes) -> None:
    assert describe_arguments(text, with_values=True) == f'"<arguments, {len(text):,} bytes>"'


@pytest.mark.slow
@given(st.dictionaries(st.text(), JSON), st.booleans())
def test_a_description_is_bounded_json(value: dict[str, Any], with_values: bool) -> None:  # noqa: FBT001
    text = describe_arguments(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"), with_values=with_values)
    json.loads(text)
    assert len(text) <= MAX_CHARACTERS


def explain(value: Any, *used: str, with_values: bool = False) -> dict[str, str]:
    found = explain_unused_paths(json.dumps(value).encode(), KNOWN, used, with_values=with_values)
    assert all(reason for _, _, reason in found)
    return {at: text for at, text, _ in found}


def test_strings_that_resemble_paths_are_named_without_their_text() -> None:
    arguments = {
        "a": PATH,
        "b": [f"see {PATH} of John"],
        "c": {"d": f"literal:{PATH}"},
        "e": "say-9c1d4f0e-6a55.. of J",
    }
    assert explain(arguments, PATH) == {"b.0": PATH, "c.d": PATH, "e": "<text, 24 characters>"}
    assert explain(arguments, PATH, with_values=True)["b.0"] == f"see {PATH} of John"


def test_the_place_of_a_string_is_bounded() -> None:
    value: Any = OTHER
    for _ in range(100):
        value = {"a key": value}
    (place,) = explain(value)
    assert place == f"{'a key.' * 34}"[:200] + "... (599 characters)"


def test_used_paths_and_other_texts_are_not_explained() -> None:
    assert explain({"a": PATH}, PATH) == {}
    assert explain({"a": "text"}) == {}
    assert explain({"a": PATH}) == {}  # the error of the call names it
    assert explain({"a": OTHER}) == {"a": OTHER}
    assert explain({"a": OTHER}, OTHER) == {}
    assert explain_unused_paths(b'{"a": "%s", "a": 1}' % PATH.encode(), KNOWN, (), with_values=True) == ()
    assert explain_unused_paths(b'{"a": "%s", "b": "\\ud800"}' % PATH.encode(), KNOWN, (), with_values=True) == ()
