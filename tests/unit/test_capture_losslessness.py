"""The result of an upstream can always be rebuilt from the stored values."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_mirror.core.results.capture import CaptureRules, capture
from mcp_mirror.core.results.captured import Captured
from mcp_mirror.core.results.parsed_result import PARTS
from mcp_mirror.types import Buffer, Draft

VALUES = st.recursive(
    st.sampled_from(
        [None, True, False, 0, 1, 1.0, -0.0, 1.5, 2**70, "", "x", "5", "null", "[1]", "\u00e9\n\U0001f600"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["result", "a", "", "text"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@st.composite
def spelled(draw: st.DrawFn) -> str:
    """A text: of a value's JSON in some spelling, or any."""
    indent, ascii_only = draw(st.sampled_from([None, 1])), draw(st.booleans())
    return json.dumps(draw(VALUES), indent=indent, ensure_ascii=ascii_only)


TEXTS = spelled() | st.sampled_from(
    ["", "plain", "x", "[", "{}", '{"result": 1}', " [1] ", "NaN", '{"a":1,"a":2}', "1e400"]
)
BLOCKS: st.SearchStrategy[Any] = st.one_of(
    TEXTS.map(lambda text: {"type": "text", "text": text}),
    TEXTS.map(lambda text: {"type": "text", "text": text, "annotations": {"priority": 1}}),
    st.sampled_from(
        [
            *({"type": "image", "data": "aGk=", "mimeType": "image/png"}, {"type": "audio", "data": "a" * 600_000}),
            *({"type": "resource_link", "uri": "u"}, {"type": "resource", "resource": {"uri": "u", "text": "x"}}),
            *({"type": "text"}, {"type": "text", "text": 5}, {"type": "unheard of"}, "bare", 5, None, ["x"], {}),
        ]
    ),
)
SIMPLE_BLOCKS = st.sampled_from(
    [*({"type": "text", "text": text} for text in ("plain", "[1]", "null")), {"type": "image", "data": "aGk="}]
)
NULLS = st.sampled_from([{}, {"_meta": None}, {"annotations": None, "_meta": None}])
CONTENTS = st.lists(BLOCKS, max_size=3) | st.sampled_from([None, 5, {"type": "text", "text": "x"}, "text"])


@st.composite
def results(draw: st.DrawFn) -> dict[str, Any]:
    result: dict[str, Any] = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "content": CONTENTS,
                "structuredContent": VALUES,
                "isError": st.booleans(),
                "_meta": st.just({"a/b": [1]}),
                "x-unknown": VALUES,
            },
        )
    )
    if "structuredContent" in result and draw(st.booleans()):  # as servers do: the text again
        value = result["structuredContent"]
        value = value.get("result", value) if isinstance(value, dict) else value
        parts = value if isinstance(value, list) and draw(st.booleans()) else [value]
        parts = leaves_of(parts) if draw(st.booleans()) else parts
        texts = [
            part if isinstance(part, str) else json.dumps(part, indent=draw(st.sampled_from([None, 1])))
            for part in parts
        ]
        result["content"] = [{"type": "text", "text": text} for text in texts]
    if draw(st.booleans()):  # as version 1 of the Python SDK does: the blocks again
        result["content"] = draw(st.lists(SIMPLE_BLOCKS, max_size=3))
        structured = [{**block, **draw(NULLS)} for block in result["content"]]
        is_one = len(structured) == 1 and draw(st.booleans())
        result["structuredContent"] = structured[0] if is_one else {"result": structured}
    return result


def leaves_of(value: list[Any]) -> list[Any]:
    """The items that version 1 of the Python SDK writes for an array: those of inner arrays in their place."""
    inner = [leaves_of(item) if isinstance(item, list) else [item] for item in value]
    return [item for items in inner for item in items if item is not None]


def raw(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def spelling(draft: Draft) -> str:
    """The text that a block had whose text is the value."""
    return str(json.loads(bytes(draft.blob))) if draft.kind == "text" else str(bytes(draft.blob), "utf-8")


def text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def with_nulls(block: Any, nulls: Any) -> Any:
    """An object with the members that only the structured content has."""
    if nulls is None:
        return None
    return {**block, **{key: with_nulls(block.get(key), inner) for key, inner in nulls.items()}}


def as_text(value: Any) -> dict[str, Any]:
    return text_block(value if isinstance(value, str) else json.dumps(value))


def rebuild(captured: Captured) -> dict[str, Any]:
    """The result that a value, its companion and its other members tell of."""
    assert captured.value is not None
    result: dict[str, Any] = json.loads(captured.other_members)
    parts = result.pop(PARTS)
    value = json.loads(bytes(captured.value.blob))
    draft = captured.value
    kind, _, key = parts.pop("structuredContent", "").partition(":")
    wrapped: dict[str, Callable[[], Any]] = {
        "value": lambda: value,
        "value.member": lambda: {key: value},
        "value.text": lambda: {key: spelling(draft)},
    }
    if kind in wrapped:
        result["structuredContent"] = wrapped[kind]()
    if "content" not in parts:
        return result
    companion = captured.companion or captured.value
    builders: dict[str, Callable[[], Any]] = {
        "value.text": lambda: [text_block(spelling(companion))],
        "companion.text": lambda: [text_block(spelling(companion))],
        "value.block": lambda: [value],
        "value.blocks": lambda: [
            as_text(part) if isinstance(part, str) or str(at) in member.split(",") else part
            for at, part in enumerate(value)
        ],
        "value.texts": lambda: [as_text(part) for part in value],
        "companion.content": lambda: json.loads(bytes(companion.blob)),
        "repeats": lambda: [text_block(spelling(draft))] if kind == "value.text" else [as_text(value)],
        "repeats.items": lambda: [as_text(part) for part in value],
        "repeats.leaves": lambda: [as_text(part) for part in leaves_of(value)],
    }
    place, _, member = parts["content"].partition(":")
    builders["repeats.member"] = lambda: [as_text(value[member])]
    builders["repeats.content"] = lambda: value[member]
    content = builders[place]()
    if kind in ("content.member", "content.block"):
        nulls = parts.get("nulls", [{}])
        nulls = nulls if len(nulls) == len(content) else nulls * len(content)
        structured = [*map(with_nulls, content, nulls)] if "nulls" in parts else content
        result["structuredContent"] = {key: structured} if kind == "content.member" else structured[0]
    return {**result, "content": content}


def by_value(result: dict[str, Any]) -> Any:
    """A result so that two are equal only if they say the same: a text that is JSON counts by its value."""

    def typed(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: typed(part) for key, part in value.items()}
        if isinstance(value, list):
            return [typed(part) for part in value]
        return ("truth", value) if isinstance(value, bool) else value

    def opened(block: Any) -> Any:
        if not isinstance(block, dict) or block.get("type") != "text" or not isinstance(block.get("text"), str):
            return typed(block)
        try:
            return typed({**block, "text": json.loads(block["text"])})
        except (ValueError, RecursionError):
            return typed(block)

    content = result.get("content")
    opened_content = [opened(block) for block in content] if isinstance(content, list) else typed(content)
    return {**typed(result), "content": opened_content}


def words(text: Buffer) -> int:
    return len(text) // 5


@given(results(), st.sampled_from(["auto", "always"]), st.booleans(), st.sampled_from([0, 3, 1000]))
@example(result={"content": [text_block('["a","b"]')]}, mode="always", wrapped=False, budget=0)
@example(result={"content": [text_block("a"), text_block("b")]}, mode="always", wrapped=False, budget=0)
@example(
    result={"content": [text_block("true")], "structuredContent": {"result": 1}}, mode="always", wrapped=True, budget=0
)
@example(
    result={"content": [text_block('"x"')], "structuredContent": {"result": "x"}}, mode="always", wrapped=True, budget=0
)
@example(result={"content": [], "structuredContent": None}, mode="always", wrapped=True, budget=0)
@example(
    result={"content": [text_block("a:b")], "structuredContent": {"x": 1, "k:1": "a:b"}},
    mode="auto",
    wrapped=False,
    budget=0,
)
@example(
    result={
        "content": [{"type": "image", "data": "QQ=="}],
        "structuredContent": {"c": [{"type": "image", "data": "QQ=="}]},
    },
    mode="auto",
    wrapped=False,
    budget=0,
)
@example(
    result={
        "content": [text_block("a"), {"type": "resource", "resource": {"uri": "u", "text": "x"}}],
        "structuredContent": {
            "c": [
                {**text_block("a"), "_meta": None},
                {"type": "resource", "resource": {"uri": "u", "text": "x", "_meta": None}, "annotations": None},
            ]
        },
        "nulls": [1],
    },
    mode="auto",
    wrapped=True,
    budget=0,
)
def test_nothing_is_lost(
    result: dict[str, Any],
    mode: Any,
    wrapped: bool,  # noqa: FBT001
    budget: int,
) -> None:
    rules = CaptureRules(mode, budget, budget, wrapped)
    captured = capture({key: raw(value) for key, value in result.items()}, rules, words)
    if captured.value is None:
        assert captured.companion is None
        return
    assert by_value(rebuild(captured)) == by_value(result)


ALWAYS = CaptureRules("always", 0, 0, is_wrapped=True)
RESOURCE = {"type": "resource", "resource": {"uri": "u", "text": "x"}}


@pytest.mark.parametrize(
    ("content", "structured"),
    [
        ([text_block("a"), text_block("b")], [text_block("a") | {"_meta": None}, text_block("c")]),
        ([text_block("a")], [text_block("a"), text_block("a") | {"_meta": None}]),
        ([text_block("a") | {"x": 1}], [text_block("a") | {"annotations": None, "_meta": None}]),
        ([RESOURCE], [RESOURCE | {"resource": {"uri": "u", "text": "x", "_meta": 5}}]),
        ([RESOURCE | {"annotations": 5}], [RESOURCE | {"annotations": {"priority": None}}]),
        ([RESOURCE | {"_meta": {"a": {}}}], [RESOURCE | {"_meta": {"a": {"b": None}}}]),
    ],
)
def test_blocks_that_almost_equal_structured_content_replace_nothing(content: list[Any], structured: list[Any]) -> None:
    result = {"content": content, "structuredContent": {"result": structured}}
    captured = capture({key: raw(value) for key, value in result.items()}, ALWAYS, words)
    assert by_value(rebuild(captured)) == by_value(result)


@pytest.mark.parametrize(("nulls", "is_text"), [(["_meta"], True), (["_meta", "annotations"], False)])
def test_many_blocks_are_the_value_if_they_lack_the_same_nulls(nulls: list[str], *, is_text: bool) -> None:
    content = [text_block(str(number)) for number in range(150)]
    structured = [block | {nulls[number % len(nulls)]: None} for number, block in enumerate(content)]
    result = {"content": content, "structuredContent": {"result": structured}}
    captured = capture({key: raw(value) for key, value in result.items()}, ALWAYS, words)
    assert captured.value is not None
    assert isinstance(json.loads(bytes(captured.value.blob))[0], str | int) is is_text
    assert by_value(rebuild(captured)) == by_value(result)


@given(results())
def test_a_value_that_is_not_stored_leaves_the_result_as_it_came(result: dict[str, Any]) -> None:
    given_members = {key: raw(value) for key, value in result.items()}
    captured = capture(given_members, CaptureRules("never", 0, 0, is_wrapped=False), words)
    assert captured == Captured(is_error=result.get("isError") is True)


@pytest.mark.parametrize("number", [b"1.0", b"1e400", b"-0", b"9" * 5000, b"0.10"])
def test_digits_are_stored_as_they_were_sent(number: bytes) -> None:
    for structured, blob in ((b'{"a": %s}', b'{"a": %s}'), (b'{"result": [%s ]}', b"[%s ]")):
        captured = capture({"structuredContent": structured % number, "_meta": b'{"n": %s}' % number}, ALWAYS, words)
        assert captured.value is not None
        assert bytes(captured.value.blob) == blob % number
        assert b'{"n": %s}' % number in captured.other_members
    inner = capture({"content": b'[{"type":"text","text":"{\\"a\\":%s}"}]' % number}, ALWAYS, words)
    assert inner.value is not None
    assert bytes(inner.value.blob) == b'{"a":%s}' % number
