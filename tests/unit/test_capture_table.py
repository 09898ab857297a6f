"""The value of a result, and the part of it that the model sees."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from mcp_mirror.core.results.capture import CaptureRules, capture
from mcp_mirror.core.results.captured import Captured, ErrorExcerpt
from mcp_mirror.core.results.parsed_result import PARTS, find_unwrapped_key
from mcp_mirror.settings.upstreams import CaptureMode
from mcp_mirror.types import Buffer

SMALL, LARGE = "short", "long " * 100


def words(text: Buffer) -> int:
    """A token for every five bytes."""
    return len(text) // 5


def rules(mode: CaptureMode = "auto", *, wrapped: bool = False, inline: int = 40, error: int = 60) -> CaptureRules:
    return CaptureRules(mode, inline, error, wrapped)


def text(content: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": content, **more}


def image(size: int) -> dict[str, Any]:
    return {"type": "image", "data": "a" * size, "mimeType": "image/png"}


def embedded(content: str, **more: Any) -> dict[str, Any]:
    return {"type": "resource", "resource": {"uri": "file:///x", "text": content, **more}}


LINK = {"type": "resource_link", "uri": "file:///x", "name": "x"}


def result(content: Any = None, structured: Any = None, **more: Any) -> dict[str, bytes]:
    members = {"content": content, "structuredContent": structured, **more}
    return {key: json.dumps(value).encode() for key, value in members.items() if value is not None}


def taken(of: Mapping[str, Buffer], by: CaptureRules | None = None) -> Captured:
    return capture(of, by or rules(), words)


def blob(captured: Captured) -> Any:
    assert captured.value is not None
    return json.loads(bytes(captured.value.blob))


# Which value it is.


def test_structured_content_wins() -> None:
    captured = taken(result([text("Two cities.")], {"cities": ["A", "B"]}))
    assert captured.value is not None
    assert bytes(captured.value.blob) == b'{"cities": ["A", "B"]}'
    assert captured.value.kind == "object"
    assert [member.key for member in captured.value.members] == ["cities"]


@pytest.mark.parametrize(
    ("structured", "wrapped", "value"),
    [
        ({"result": [1]}, True, [1]),
        ({"result": [1]}, False, {"result": [1]}),
        ({"result": None}, True, None),
        ({"result": {"a": 1}}, True, {"a": 1}),
        ({"result": 1, "more": 2}, True, {"result": 1, "more": 2}),
        ({"results": 1}, True, {"results": 1}),
        ([1], True, [1]),
        ({}, True, {}),
    ],
)
def test_the_wrapper_of_fastmcp_is_taken_off_where_the_tool_declares_it(
    structured: Any,
    wrapped: bool,  # noqa: FBT001
    value: Any,
) -> None:
    assert blob(taken(result([], structured), rules("always", wrapped=wrapped))) == value


@pytest.mark.parametrize(
    ("expected", "kind", "stored"),
    [
        ('{"b":1.0, "a":1e400}', "object", b'{"b":1.0, "a":1e400}'),
        (" [1,\n2] ", "array", b" [1,\n2] "),
        ("plain", "text", b'"plain"'),
        ("42", "text", b'"42"'),
        ("true", "text", b'"true"'),
        ('"quoted"', "text", b'"\\"quoted\\""'),
        ("", "text", b'""'),
        (" ", "text", b'" "'),
        ("{not json}", "text", b'"{not json}"'),
        ('{"a":NaN}', "text", b'"{\\"a\\":NaN}"'),
        ('{"a":1} and more', "text", b'"{\\"a\\":1} and more"'),
        ("[" * 300_000 + "]" * 300_000, "text", b'"' + b"[" * 300_000 + b"]" * 300_000 + b'"'),
        ('{"a":"\\ud800"}', "text", b'"{\\"a\\":\\"\\\\ud800\\"}"'),
        ("\ufeff{}", "text", b'"\\ufeff{}"'),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_one_text_is_the_json_that_it_spells_or_itself(expected: str, kind: str, stored: bytes) -> None:
    captured = taken(result([text(expected)]), rules("always"))
    assert captured.value is not None
    assert (captured.value.kind, bytes(captured.value.blob)) == (kind, stored)


@pytest.mark.parametrize(
    ("content", "value"),
    [
        ([text("a"), text("b")], ["a", "b"]),
        ([text("a"), image(3), LINK], ["a", image(3), LINK]),
        ([image(3), image(4)], [image(3), image(4)]),
        ([text("a", annotations={"priority": 1}), text("b")], ["a", "b"]),
        ([LINK], LINK),
        ([{"type": "text", "text": 5}], {"type": "text", "text": 5}),
        ([{"type": "text"}], {"type": "text"}),
        ([5], 5),
        (["a", text("b")], ["a", "b"]),
    ],
)
def test_several_blocks_are_an_array_and_one_is_itself(content: Any, value: Any) -> None:
    assert blob(taken(result(content), rules("always"))) == value


@pytest.mark.parametrize(
    ("texts", "stored"),
    [
        (["1 file:", '{"b":1.0, "a":[1e400]}'], b'["1 file:",{"b":1.0, "a":[1e400]}]'),
        (['{"a":1}', '{"a":2}'], b'[{"a":1},{"a":2}]'),
        (["[1]", "[]", "{}"], b"[[1],[],{}]"),
        (["a", "42", "true", "{not json}"], b'["a","42","true","{not json}"]'),
        (["a", '{"a":1}\n'], b'["a","{\\"a\\":1}\\n"]'),
        (["a", ' {"a":1}'], b'["a"," {\\"a\\":1}"]'),
    ],
)
def test_texts_among_several_are_the_json_that_they_spell(texts: list[str], stored: bytes) -> None:
    captured = taken(result([text(one) for one in texts]), rules("always"))
    assert captured.value is not None
    assert bytes(captured.value.blob) == stored


def test_json_beside_an_image_is_told_from_a_block() -> None:
    captured = taken(result([text('{"type":"image"}'), image(3), text("a")]), rules("always"))
    assert blob(captured) == [{"type": "image"}, image(3), "a"]
    assert json.loads(captured.other_members)[PARTS]["content"] == "value.blocks:0"


@pytest.mark.parametrize(
    ("block", "media_type"),
    [
        (image(5), "image/png"),
        ({"type": "audio", "data": "aa", "mimeType": 5}, None),
        ({"type": "image", "data": "aa", "mimeType": f"image/{'x' * 249}"}, f"image/{'x' * 249}"),
        ({"type": "image", "data": "aa", "mimeType": f"image/{'x' * 250}"}, None),
        ({"type": "image", "data": "aa", "mimeType": "image/png\x1b[2J"}, None),
        ({"type": "image", "data": "aa", "mimeType": ""}, None),
        (
            {"type": "resource", "resource": {"uri": "u", "blob": "aa", "mimeType": "application/pdf"}},
            "application/pdf",
        ),
        ({"type": "resource", "resource": {"uri": "u", "text": "hi"}}, None),
    ],
    ids=range(8),
)
def test_a_file_is_binary_and_keeps_its_media_type(block: Any, media_type: str | None) -> None:
    captured = taken(result([block]), rules("always"))
    assert captured.value is not None
    assert (captured.value.kind, captured.value.media_type) == ("binary", media_type)
    assert [member.key for member in captured.value.members] == list(block)


# Whether it is stored.


@pytest.mark.parametrize(
    ("mode", "given", "is_stored"),
    [
        ("auto", result([text(SMALL)]), False),
        ("auto", result([text(LARGE)]), True),
        ("auto", result([text('{"a": 1}')]), True),
        ("auto", result([text("[1]")]), False),
        ("auto", result([], {"a": 1}), True),
        ("auto", result([], [1]), False),
        ("auto", result([text(SMALL), text(SMALL)]), False),
        ("auto", result([text(LARGE[:150]), text(LARGE[:150])]), True),
        ("auto", result([text("x")] * 25), False),
        ("auto", result([text('{"a": 1}'), text("x")]), False),
        ("auto", result([image(1000)]), True),
        ("large", result([image(1000)]), False),
        ("large", result([image(6_000_000)]), True),
        ("auto", result([image(1000)], isError=True), False),
        ("auto", result([image(6_000_000)]), True),
        ("large", result([image(3_000_000), image(3_000_000)]), True),
        ("auto", result([], {"a": 1}, isError=True), False),
        ("auto", result([text("{ }")]), False),
        ("auto", result([text("{}")], {}), False),
        ("auto", result([text(SMALL)], {}), False),
        ("auto", result([text(LARGE)], {}), True),
        ("always", result([text("{}")], {}), True),
        ("large", result([text(SMALL)]), False),
        ("large", result([text('{"a": 1}')]), False),
        ("large", result([], {"a": 1}), False),
        ("large", result([text(LARGE)]), True),
        ("large", result([image(2_000_000), image(2_000_000)]), False),
        ("large", result([image(10)] * 20), False),
        ("large", result([image(10)] * 21), True),
        ("auto", result([LINK]), False),
        ("auto", result([{**LINK, "description": LARGE}]), True),
        ("auto", result([{"type": "resource", "resource": {"uri": "u", "text": LARGE}}]), True),
        ("auto", result([{"type": "resource", "resource": {"uri": "u", "blob": "a" * 10}}]), True),
        ("auto", result([{"type": "resource", "resource": {"uri": "u", "blob": "a" * 1000}}]), True),
        ("auto", result([{"type": "resource", "resource": {"uri": "u", "blob": "a" * 600_000}}]), True),
        ("auto", result([{"type": "unheard of", "said": LARGE}]), True),
        ("auto", result([]), False),
        ("auto", {}, False),
        ("auto", result(structured=None, content=None, other=1), False),
        ("auto", {"content": b"null"}, False),
        ("auto", {"content": b"[]", "structuredContent": b"null"}, False),
        ("always", result([text(SMALL)]), True),
        ("always", result([]), False),
        ("never", result([text(LARGE)]), False),
        ("never", result([], {"a": LARGE}), False),
        ("auto", result([text(SMALL)], isError=True), False),
        ("auto", result([text('{"a": 1}')], isError=True), False),
        ("always", result([text(SMALL)], isError=True), False),
        ("auto", result([text(LARGE)], isError=True), True),
        ("auto", result([], {"a": LARGE}, isError=True), True),
        ("never", result([text(LARGE)], isError=True), False),
    ],
)
def test_dicts_and_what_is_over_the_budget_are_stored(
    mode: CaptureMode,
    given: dict[str, bytes],
    is_stored: bool,  # noqa: FBT001
) -> None:
    captured = taken(given, rules(mode))
    assert (captured.value is not None) == is_stored
    assert captured.is_error == ("isError" in given)
    if not is_stored:
        assert captured == Captured(is_error=captured.is_error)


@pytest.mark.parametrize(("length", "is_stored"), [(0, False), (204, False), (205, True)])
def test_a_result_of_just_the_budget_is_not_stored(
    length: int,
    is_stored: bool,  # noqa: FBT001
) -> None:
    assert (taken(result([text("x" * length)])).value is not None) == is_stored


def test_a_text_of_many_bytes_a_token_is_over_every_budget() -> None:
    assert capture(result([text(" " * 10_000)]), rules(), lambda _: 1).value is not None


# What the model sees of it.


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (result([text('{ "a":1.0}')]), '{ "a":1.0}'),
        (result([], {"a": "\u00e9"}), '{"a": "\\u00e9"}'),
        (result([], {"a": LARGE}), None),
        (result([text(LARGE)], {"a": 1}), '{"a": 1}'),
        (result([text(LARGE)]), None),
    ],
)
def test_a_stored_value_that_fits_the_budget_is_shown(given: dict[str, bytes], shown: str | None) -> None:
    assert taken(given).shown == shown


def test_a_text_is_shown_as_its_text() -> None:
    assert taken(result([text('a "b"\n')]), rules("always")).shown == 'a "b"\n'


@pytest.mark.parametrize(
    ("content", "passed"),
    [
        ([text(LARGE), image(10), LINK], [image(10), LINK]),
        ([image(6_000_000), image(10)], [image(10)]),
        ([text(LARGE), image(3_000_000), image(3_000_000)], [image(3_000_000)]),
        ([image(10)] * 25, [image(10)] * 20),
        ([{"type": "resource", "resource": {"uri": "u", "text": LARGE * 20}}, LINK], [LINK]),
        ([text(LARGE), *([LINK] * 1000)], [LINK] * (8192 // len(json.dumps(LINK)))),
        ([text(LARGE)], []),
    ],
)
def test_small_media_and_links_pass_with_the_notice(content: list[Any], passed: list[Any]) -> None:
    captured = taken(result(content))
    assert [json.loads(bytes(block)) for block in captured.passed] == passed
    assert captured.other_blocks == tuple(
        len([one for one in of if "data" not in one and "text" not in one]) for of in (passed, content)
    )


ITEMS = [{"a": 1}, "x", 2.50, True]


@pytest.mark.parametrize(
    ("content", "structured", "is_kept", "is_named"),
    [
        ([text('{"a": [1, "\u00e9"]}')], {"a": [1, "\u00e9"]}, False, False),
        ([text('{ "a":[1.0,\n"\\u00e9"]}')], {"a": [1, "\u00e9"]}, False, False),
        ([text('{"b": 1e1, "a": 2}')], {"a": 2, "b": 10}, False, False),
        ([text('{"a": true}')], {"a": 1}, True, True),
        ([text('{"a": 0}')], {"a": False}, True, True),
        ([text('{"a": 0.1000000000000000055511151231257827}')], {"a": 0.1}, True, True),
        ([text('{"a": 1e500}')], {"a": 5}, True, True),
        ([text('{"a": 1e99999999999999999999}')], {"a": 5}, True, True),
        ([text('{"a": NaN}')], {"a": 5}, True, True),
        ([text('{"a": 1}')], {"a": 1, "b": 2}, True, True),
        ([text("It is warm.")], {"a": 1}, True, True),
        ([text("[" * 5000)], {"a": 1}, True, True),
        ([text("")], {"a": 1}, True, True),
        ([text('{"a": 1}', annotations={"audience": ["user"]})], {"a": 1}, True, False),
        ([text('{"a": 1}'), image(10)], {"a": 1}, True, False),
        ([text("It is warm."), image(10)], {"a": 1}, True, True),
        ([image(10), text("5"), text("6")], [5, 6], True, False),
        ([image(10)], {"a": 1}, True, False),
        ([image(6_000_000)], {"a": 1}, True, True),
        ([text("x", annotations={"priority": 1}), image(6_000_000)], None, True, False),
        ([text("x", annotations={"priority": 1})], None, True, False),
        ([text('{"a": 1}'), text("more")], {"a": 1}, True, True),
        ([text("1"), text("1")], {"a": 1}, True, True),
        ([], {"a": 1}, False, False),
        (None, {"a": 1}, False, False),
        ([text('{"a": 1}'), text("x"), text("2.5"), text("true")], ITEMS, False, False),
        ([text('{"a": 1}'), text('"x"'), text("2.5"), text("true")], ITEMS, True, True),
        ([text('{"a": 1}'), text("x"), text("2.5")], ITEMS, True, True),
        ([text("1"), text("x")], {"result": [[1, None], ["x"]]}, False, False),
        ([text("[1]")], [[1]], False, False),
        ([text("[1]")], [1], False, False),
        ([text("x")], "x", False, False),
        ([text('"x"')], "x", True, True),
        ([text("5")], 5, False, False),
        ([text("5")], "5", False, False),
        ([text("null")], {"a": None}, False, False),
    ],
)
def test_repeated_text_is_dropped_and_additional_text_is_named(
    content: Any,
    structured: Any,
    is_kept: bool,  # noqa: FBT001
    is_named: bool,  # noqa: FBT001
) -> None:
    captured = taken(result(content, structured), rules("always", inline=0))
    assert (captured.companion is not None, captured.is_named) == (is_kept, is_named)


def test_beyond_the_bound_of_comparison_a_text_is_kept_and_not_named() -> None:
    value = {"a": "x" * (1 << 20), "b": 1}
    captured = taken(result([text(json.dumps(value).replace("1", "1.0"))], value))
    assert captured.companion is not None
    assert not captured.is_named
    assert taken(result([text(json.dumps(value, indent=1))], value)).companion is None
    assert taken(result([text(json.dumps(value))], value)).companion is None


def test_a_sentence_beside_a_very_large_value_is_named() -> None:
    assert taken(result([text("50,000 rows, without refunds.")], {"rows": ["x" * (1 << 20)]})).is_named
    assert taken(result([text("More."), text("Rows.")], {"rows": ["x" * (1 << 20)]})).is_named


def test_a_text_beside_an_image_is_shown_unless_it_repeats_the_value() -> None:
    assert taken(result([text("It is warm."), image(10)], {"a": 1})).shown == 'It is warm.\n{"a": 1}'
    assert taken(result([text('{"a": 1}'), image(10)], {"a": 1})).shown == '{"a": 1}'
    assert taken(result([text("It is warm."), image(10)], {"result": "It is warm."})).shown == "It is warm."
    assert taken(result([text("It is warm."), image(10)], {"note": "It is warm.", "a": 1})).shown == "It is warm."
    assert taken(result([text("It is warm."), image(10)], {"note": "It is warm.", "a": "x" * 20})).shown == (
        json.dumps({"note": "It is warm.", "a": "x" * 20})
    )


@pytest.mark.parametrize(
    ("structured", "keys"),
    [
        ({"stdout": LARGE, "exit_code": 0, "stderr": ""}, ("stdout",)),
        ({"ok": True, "data": {"title": "A page", "markdown": LARGE}}, ("data", "markdown")),
        ({"a": {"b": {"c": LARGE}}, "n": 1}, ("a", "b", "c")),
        ({"a": {"b": {"c": {"d": LARGE}}}, "n": 1}, ()),
        ({"stdout": LARGE, "log": LARGE * 2}, ()),
        ({"stdout": LARGE + "!", "exit_code": 0}, ()),
        ({"lines": [LARGE], "n": 1}, ()),
        ({"n": 1}, ()),
        ({"stdout": json.dumps({"a": LARGE}), "exit_code": 0}, ()),
    ],
)
def test_a_text_that_is_content_and_most_of_an_object_is_shown(structured: Any, keys: tuple[str, ...]) -> None:
    captured = taken(result([text(LARGE)], structured), rules("always", inline=1000))
    assert captured.main_text_keys == keys
    assert captured.value is not None
    assert json.loads(bytes(captured.value.blob)) == structured
    assert not captured.is_named or not keys
    if keys:
        assert captured.shown == LARGE


@pytest.mark.parametrize(
    ("content", "structured", "is_stored"),
    [
        ("ok", {"result": "ok", "success": True, "took_ms": 12}, False),
        ("ok", {"result": "ok", "id": "an id that the text lacks"}, True),
        ("", {"stdout": "", "exit_code": 1}, True),
        ('{"a": 1}', {"output": '{"a": 1}', "exit_code": 0}, True),
        ("[1]", {"output": "[1]", "exit_code": 0}, False),
        (f"Exit code: 0\n{LARGE[:100]}", {"stdout": LARGE[:100], "exit_code": 0}, False),
        (f"Exit code: 0\n{LARGE[:100]}", {"stdout": LARGE[:100], "exit_code": [0]}, True),
    ],
)
def test_a_small_text_with_a_few_facts_about_it_passes_unchanged(
    content: str,
    structured: Any,
    is_stored: bool,  # noqa: FBT001
) -> None:
    assert (taken(result([text(content)], structured)).value is not None) is is_stored


@pytest.mark.parametrize(
    ("structured", "inline", "shown"),
    [
        ({"list": "a, b, c" * 30, "items": ["a", "b", "c"] * 30, "n": [1] * 9}, 500, False),
        ({"list": "a, b, c" * 30, "items": ["a, b, c" * 30]}, 500, True),
        ({"list": "a, b, c" * 30, "items": ["a, b, c" * 30]}, 20, False),
        ({"list": "a, b, c" * 30, "items": [["a, b, c" * 30] * 2] * 9}, 500, False),
    ],
)
def test_a_list_that_an_object_has_as_text_and_as_items_is_shown_as_text(
    structured: Any,
    inline: int,
    shown: bool,  # noqa: FBT001
) -> None:
    captured = taken(result([text("a, b, c" * 30)], structured), rules("always", inline=inline))
    assert captured.is_paraphrased is shown
    assert (captured.shown == "a, b, c" * 30) is shown


def test_the_excerpt_of_an_error_is_its_text_without_escapes() -> None:
    trace = 'File "a.py"\n' * 300
    captured = taken(result([text(trace)], {"error": trace, "code": 1}, isError=True))
    assert captured.error is not None
    assert captured.error.head.startswith(trace[:500])


@pytest.mark.parametrize("quote", [str, repr, json.dumps])
def test_the_excerpt_of_an_error_names_the_path_of_an_input(quote: Callable[[str], str]) -> None:
    lines = "Zeile \u00fc 'a'\n" * 300
    given = msgspec.structs.replace(rules(), inputs=(("read-1/0", lines), ("read-2", "[1, 2]")))
    error = f"no such file: {quote(lines)} (errno 36)"
    captured = taken(result([text(error), {"type": "resource_link", "name": "a", "uri": "a:b"}], isError=True), given)
    assert captured.error is not None
    mark = "" if quote is str else '"'
    assert captured.error.head.startswith(f"no such file: {mark}<the value of read-1/0>{mark} (errno 36)")
    assert captured.value is not None
    assert json.loads(bytes(captured.value.blob))[0] == error


def test_an_error_that_is_an_object_names_the_paths_of_its_inputs() -> None:
    lines = "Zeile \u00fc\n" * 300
    given = msgspec.structs.replace(rules(), inputs=(("read-1", lines),))
    captured = taken(result([], {"error": f"too long: {lines}"}, isError=True), given)
    assert captured.error is not None
    assert json.loads(captured.error.head) == {"error": "too long: <the value of read-1>"}


def test_no_input_is_searched_in_a_very_large_error() -> None:
    lines = "Zeile \u00fc\n" * 300
    given = msgspec.structs.replace(rules(), inputs=(("read-1", lines),))
    captured = taken(result([text(lines + "x" * 1_100_000)], isError=True), given)
    assert captured.error is not None
    assert captured.error.head.startswith("Zeile")


def test_a_companion_is_the_json_that_its_text_spells_or_the_blocks() -> None:
    one = taken(result([text('[1, "more"]')], {"a": 1})).companion
    several = taken(result([text("a"), text("b")], {"a": 1})).companion
    assert one is not None
    assert several is not None
    assert (one.kind, bytes(one.blob)) == ("array", b'[1, "more"]')
    assert (several.kind, json.loads(bytes(several.blob))) == ("array", [text("a"), text("b")])


@pytest.mark.parametrize(
    ("content", "structured", "head"),
    [
        ([text("it failed: " + "x." * 2500)], None, "it failed: " + "x." * 494),
        ([text("\u00e9" * 5000)], None, "\u00e9" * 166),
        ([text("\U0001f600" * 5000)], None, "\U0001f600" * 83),
        ([text("a" + "\n" * 5000)], None, "a" + "\n" * 499),
        ([text("[1]" + " " * 5000)], None, "[1]" + " " * 997),
        ([], {"error": "\U0001f600" * 2000}, None),
        ([text("x\n" * 50), text("y." * 2500)], None, "x\n" * 50 + "\n" + "y." * 423 + "y"),
        ([text("short"), image(6_000_000)], None, "short"),
        ([image(6_000_000), LINK], None, '[{"type": "image", "data": "' + "a" * 40 + "..."),
    ],
)
def test_of_a_large_error_the_model_sees_the_beginning(content: Any, structured: Any, head: str | None) -> None:
    captured = taken(result(content, structured, isError=True), rules(inline=5000))
    assert captured.is_error
    assert captured.value is not None
    assert captured.shown is None
    assert captured.error is not None
    assert captured.error.head == (bytes(captured.value.blob[:1000]).decode() if head is None else head)


def test_the_end_of_a_large_error_has_its_last_texts() -> None:
    captured = taken(result([text("x." * 2500), text("the cause"), text("its place")], isError=True))
    assert captured.error is not None
    assert captured.error.tail.endswith("x.\nthe cause\nits place")


def test_the_first_hidden_lines_with_an_error_follow_the_beginning() -> None:
    steps = [f"[INFO] step {number}" for number in range(300)]
    cause = ["[ERROR] COMPILATION ERROR :", "[ERROR] Main.java:[42,13] cannot find symbol"]
    output = "\n".join((*steps, *cause, *steps))
    captured = taken(result([text("Command failed: build"), text(output)], isError=True))
    assert captured.error is not None
    assert captured.error.head.startswith("Command failed: build\n[INFO] step 0\n")
    assert "\n...\n{}\n{}\n[INFO] step 0\n".format(*cause) in captured.error.head
    assert len(captured.error.head.encode()) <= 1000
    at_the_end = taken(result([text("\n".join((*steps, *cause)))], isError=True))
    assert at_the_end.error is not None
    assert "COMPILATION" not in at_the_end.error.head
    huge = taken(result([text(output + " " * 1_100_000 + "end")], isError=True))
    assert huge.error is not None
    assert "COMPILATION" not in huge.error.head


def test_base64_in_a_large_error_is_shortened() -> None:
    name = "iVBORw0KGgo" + "A/b+" * 3000
    captured = taken(result([text(f"No such file: '/data/{name}=='.\nThe cause.")], isError=True))
    assert captured.error is not None
    assert captured.error.head == "No such file: '" + f"/data/{name}"[:40] + "..."
    assert captured.error.tail.endswith("...'.\nThe cause.")
    assert len(captured.error.tail) < 100
    path = "/deep/" + "folder/" * 25 + "file.txt"
    captured = taken(result([text(f"Cannot read {path}\n" * 50)], isError=True))
    assert captured.error is not None
    assert path in captured.error.head


def test_a_small_error_over_a_smaller_budget_is_shown_whole_as_its_head() -> None:
    captured = taken(result([text('no "x"')], isError=True), rules(error=0))
    assert captured.error == ErrorExcerpt('no "x"')
    assert taken(
        {"content": '[{"type":"text","text":"\u00e9\u00e9"}]'.encode(), "isError": b"true"}, rules(error=0)
    ).error == ErrorExcerpt("\u00e9\u00e9")


REPEATED: list[tuple[Any, Any, bytes]] = [
    (text("a long text"), {"content": "a long text", "n": 1}, b"repeats.member:content"),
    (text('[ 1, {"a": 2.0} ]'), {"n": 1, "rows": [1, {"a": 2}]}, b"repeats.member:rows"),
    (text("\u00e9"), {"n": 1, "said": "\u00e9"}, b"repeats.member:said"),
    (image(100), {"n": 1, "content": [image(100)]}, b"repeats.content:content"),
]


@pytest.mark.parametrize(("block", "structured", "place"), REPEATED)
def test_content_that_repeats_a_member_is_not_stored_again(block: Any, structured: Any, place: bytes) -> None:
    captured = taken(result([block], structured), rules("always"))
    assert captured.companion is None
    assert captured.is_named is False
    assert place in captured.other_members
    otherwise = json.dumps(structured, ensure_ascii=False, indent=1).encode()
    written = taken(result([block], structured) | {"structuredContent": otherwise}, rules("always"))
    assert (written.companion is None) == (block["type"] == "text")


def test_a_text_that_is_similar_to_a_member_is_stored() -> None:
    captured = taken(result([text("a long text.")], {"content": "a long text"}), rules("always", inline=0))
    assert captured.is_named is True


# Wrappers.


WRAPPED: list[tuple[Any, Any, Any, str]] = [
    ([text("a\nb")], {"content": "a\nb"}, "a\nb", "value.member:content"),
    ([text("caf\u00e9")], {"result": "caf\u00e9"}, "caf\u00e9", "value.member:result"),
    ([text('{"a": [1]}')], {"result": '{"a": [1]}'}, {"a": [1]}, "value.text:result"),
    ([text('{\n "a": [1.0]\n}')], {"applyOutput": {"a": [1]}}, {"a": [1]}, "value.member:applyOutput"),
    ([text("42")], {"result": 42}, 42, "value.member:result"),
    ([text("x"), text('{"a": 1}')], {"items": ["x", {"a": 1}]}, ["x", {"a": 1}], "value.member:items"),
    ([text("x"), image(8)], {"content": [text("x"), image(8)]}, ["x", image(8)], "content.member:content"),
    ([image(8)], {"content": [image(8)]}, image(8), "content.member:content"),
    # Version 1 of the Python SDK dumps a list of blocks with all members that they can have.
    ([text("a\nb")], {"result": [text("a\nb", annotations=None, _meta=None)]}, "a\nb", "content.member:result"),
    ([text('{"a": [1]}')], {"result": [text('{"a": [1]}', _meta=None)]}, {"a": [1]}, "content.member:result"),
    (
        [text("x"), embedded("y")],
        {"result": [text("x", _meta=None), embedded("y", annotations=None, _meta=None)]},
        ["x", embedded("y")],
        "content.member:result",
    ),
]
SINGLE: list[tuple[Any, Any, Any]] = [
    (text("a\nb"), text("a\nb", annotations=None, _meta=None), "a\nb"),
    (text('{"a": [1]}'), text('{"a": [1]}', _meta=None), {"a": [1]}),
    (image(8), image(8), image(8)),
    (embedded("y"), {**embedded("y", _meta=None), "annotations": None}, embedded("y")),
]
NOT_WRAPPED: list[tuple[Any, Any]] = [
    ([text("Two rows.")], {"rows": [1, 2]}),
    ([text('{"rows": [1, 2]}')], {"rows": [1, 2]}),
    ([text("a")], {"content": "b"}),
    ([text("a")], {"content": "a", "more": 1}),
    ([], {"content": "a"}),
    ([text("a"), text("b")], {"content": "a"}),
    ([text("true")], {"content": 1}),
    ([text("a", annotations={"priority": 1}), image(8)], {"content": [text("a"), image(8)]}),
    ([text("a")], {"result": [text("b", _meta=None)]}),
    ([text("a")], {"result": [text("a", _meta={})]}),
    ([text("a")], {"result": [text("a", _meta=None), text("a", _meta=None)]}),
    ([text("a")], {"result": [["text", "a", None]]}),
    ([text("a")], text("b", _meta=None)),
    ([text("a"), text("a")], text("a", _meta=None)),
    ([text("a", annotations=None)], {"result": [text("a", _meta=None)]}),
    ([text("a")], {"result": [{**text("a"), **{f"key {n}": None for n in range(100)}}]}),
    ([text("a", x={"y": {"z": 1}})], {"result": [text("a", x={"y": {"z": 1, "more": None}})]}),
    (
        [text(f"{n}") for n in range(101)],
        {"result": [text(f"{n}", **{"_meta" if n else "annotations": None}) for n in range(101)]},
    ),
]


@pytest.mark.parametrize(("content", "structured", "value", "place"), WRAPPED)
def test_an_object_with_one_member_that_repeats_the_content_is_unwrapped(
    content: Any, structured: Any, value: Any, place: str
) -> None:
    captured = taken(result(content, structured), rules("always"))
    assert blob(captured) == value
    assert captured.companion is None
    assert json.loads(captured.other_members)[PARTS]["structuredContent"] == place


@pytest.mark.parametrize(("block", "structured", "value"), SINGLE)
def test_the_only_block_is_the_value_if_the_object_repeats_it(block: Any, structured: Any, value: Any) -> None:
    captured = taken(result([block], structured), rules("always"))
    assert blob(captured) == value
    assert captured.companion is None
    assert json.loads(captured.other_members)[PARTS]["structuredContent"] == "content.block"


@pytest.mark.parametrize(("content", "structured"), NOT_WRAPPED)
def test_an_object_is_not_unwrapped_if_the_content_differs(content: Any, structured: Any) -> None:
    assert blob(taken(result(content, structured), rules("always"))) == structured


def test_the_key_of_a_wrapper_is_known_from_the_other_members() -> None:
    wrapped = taken(result([text("a:b")], {"k:1": "a:b"}), rules("always"))
    assert find_unwrapped_key(wrapped.other_members) == "k:1"
    assert find_unwrapped_key(taken(result([], {"a": 1})).other_members) is None
    assert find_unwrapped_key(b"{}") is None


def test_json_in_a_declared_wrapper_is_stored_without_content() -> None:
    assert blob(taken(result([], {"result": '{"a": 1}'}), rules(wrapped=True))) == {"a": 1}


def test_a_declared_wrapper_is_unwrapped_beside_additional_text() -> None:
    captured = taken(result([text("Two rows.")], {"result": [1, 2]}), rules("always", wrapped=True))
    assert blob(captured) == [1, 2]
    assert captured.companion is not None
    result_of_text = taken(result([text('{"result": [1, 2]}')], {"result": [1, 2]}), rules("always", wrapped=True))
    assert blob(result_of_text) == {"result": [1, 2]}


def test_a_large_wrapped_text_is_unwrapped_however_it_is_escaped() -> None:
    body = "caf\u00e9 \U0001f600\n" * 200_000
    members = result([text(body)]) | {"structuredContent": json.dumps({"content": body}, ensure_ascii=False).encode()}
    captured = taken(members)
    assert captured.value is not None
    assert captured.value.kind == "text"
    assert blob(captured) == body
    almost = members | {"structuredContent": json.dumps({"content": body + "x"}).encode()}
    assert blob(taken(almost)) == {"content": body + "x"}


def test_a_wrapped_text_that_is_small_passes_as_it_came() -> None:
    assert taken(result([text("short")], {"content": "short"}), rules(inline=400)) == Captured()


def test_a_text_that_spells_a_member_is_not_a_second_value() -> None:
    rows = [{"name": "Alice", "n": n} for n in range(40)]
    captured = taken(result([text(json.dumps(rows, indent=2))], {"rows": rows, "total": 40}))
    assert captured.companion is None


# Bands.


def test_a_text_between_the_bands_is_shown_whole_and_stored() -> None:
    body = "word " * 400
    captured = taken(result([text(body)]), rules(inline=500))
    assert captured.shown == body
    assert captured.value is not None
    assert taken(result([text("word " * 299)]), rules(inline=500)) == Captured()
    assert taken(result([text(body)], isError=True), rules(error=500)) == Captured(is_error=True)


def test_a_text_counts_as_it_is_read_and_not_as_it_is_escaped() -> None:
    body = "\n" * 2499
    assert taken(result([text(body)]), rules("large", inline=500)) == Captured()


def test_equal_values_are_shown_in_their_shortest_form() -> None:
    value = {"a": [1, 2], "b": "x" * 20}
    captured = taken(result([text(json.dumps(value, indent=4))], value))
    assert captured.shown == json.dumps(value)
    shorter = result([text('{"a":1}')]) | {"structuredContent": b'{ "a" : 1 }'}
    assert taken(shorter).shown == '{"a":1}'


def test_a_value_and_its_additional_text_are_shown_if_both_fit() -> None:
    captured = taken(result([text("One row.")], {"rows": [1]}))
    assert (captured.shown, captured.is_named) == ('One row.\n{"rows": [1]}', False)
    long = taken(result([text("word " * 400)], {"rows": [1]}), rules(inline=600))
    assert (long.shown, long.is_named) == ("word " * 400 + '\n{"rows": [1]}', True)


@pytest.mark.parametrize(("size", "quoted"), [(300, 1), (400, 0)])
def test_a_short_text_beside_a_large_value_is_quoted(size: int, quoted: int) -> None:
    captured = taken(result([text("x" * size)], {"rows": [LARGE]}))
    assert captured.quoted_texts == (json.dumps("x" * size),) * quoted


def test_texts_of_several_blocks_are_joined_and_links_pass() -> None:
    captured = taken(result([text("first"), text("second"), LINK]), rules("always", inline=400))
    assert captured.shown == "first\nsecond"
    assert [json.loads(bytes(block)) for block in captured.passed] == [LINK]
    assert taken(result([text("first"), text("second")]), rules("always", inline=400)).in_order == ()


def test_media_that_are_not_shown_are_named_with_their_place() -> None:
    book = {"type": "resource", "resource": {"uri": "u", "blob": "aGVsbG8=" * 500, "mimeType": "application/x"}}
    captured = taken(result([text(SMALL), image(6_000_000), book]), rules(inline=400))
    assert captured.media == (("/1", "image/png, 4.5 MB", True), ("/2/resource/blob", "application/x, 3 kB", False))
    assert captured.passed == ()
    assert captured.shown == SMALL
    assert taken(result([book])).media == (("/resource/blob", "application/x, 3 kB", False),)


def test_pictures_above_the_number_that_is_shown_are_marked() -> None:
    captured = taken(result([image(8)] * 25))
    assert len(captured.passed) == 20
    assert {part.is_hidden for part in captured.media[:20]} == {False}
    assert {part.is_hidden for part in captured.media[20:]} == {True}


def test_mixed_blocks_keep_their_order() -> None:
    blocks = [text("above"), image(8), text("below", annotations={"priority": 1})]
    captured = taken(result(blocks))
    assert [json.loads(bytes(block)) for block in captured.in_order] == blocks
    assert taken(result([image(8)])).in_order == ()
    assert taken(result([text(LARGE), image(8)])).in_order == ()


def test_a_picture_is_shown_with_its_path() -> None:
    alone = taken(result([image(8)]))
    assert (alone.shown, len(alone.passed), alone.media) == ("", 1, ())
    beside = taken(result([text(SMALL), image(8)]))
    assert (beside.shown, beside.media) == (SMALL, (("/1", "image/png, 6 B", False),))
    structured = taken(result([image(8)], {"width": 1}))
    assert structured.media == (("/0", "image/png, 6 B", False),)
    too_large = taken(result([image(6_000_000)]))
    assert (too_large.shown, too_large.passed, too_large.media) == (None, (), ())


def test_the_end_of_a_long_error_is_shown_too() -> None:
    captured = taken(result([text("start " + "x." * 2500 + " the cause")], isError=True))
    assert captured.error is not None
    assert captured.error.tail.endswith("x. the cause")
    structured = taken(result([], {"trace": "x." * 2500 + " the cause"}, isError=True))
    assert structured.error is not None
    assert structured.error.tail.endswith('the cause"}')


def test_of_a_large_error_beside_structured_content_the_text_is_shown_too() -> None:
    trace = "the query failed " + "x." * 2500 + " the cause"
    captured = taken(result([text(trace)], {"code": 7}, isError=True))
    assert captured.is_named
    assert captured.error is not None
    assert captured.error.head == trace[:999]
    assert captured.error.tail.endswith('x. the cause\n{"code": 7}')
    long_value = taken(result([text("it failed")], {"trace": "x." * 2500 + " the cause"}, isError=True)).error
    assert long_value is not None
    assert long_value.head.startswith('it failed\n{"trace": "x.x')
    assert long_value.tail.endswith(' the cause"}')


def test_a_text_that_repeats_a_large_object_is_not_estimated() -> None:
    estimated: list[bytes] = []

    def note(text: Buffer) -> int:
        estimated.append(bytes(text))
        return words(text)

    value = {"rows": [LARGE]}
    members = result([text(json.dumps(value, indent=2))], value)
    captured = capture(members, rules(), note)
    assert captured.value is not None
    assert captured.shown is None
    assert set(estimated) == {members["structuredContent"]}
