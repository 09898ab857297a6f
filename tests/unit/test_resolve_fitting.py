"""Values replace pointers, converted to the types of the arguments."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_mirror.core.conversion import MisfitError, Resolved, coerce, fits
from mcp_mirror.core.resolve import (
    Correction,
    Pointer,
    find_corrections,
    find_pointers,
    find_refused_text,
    measure_substitution,
    open_texts,
    substitute_pointers,
    unwrap_pointer,
)
from mcp_mirror.errors import ToolError
from mcp_mirror.paths import MemoryPath
from mcp_mirror.types import Kind, Location

BASE = "make_grid-3f2b8c1e-9d4a-4e7b-8f21-0a1b2c3d4e5f"
KNOWN = frozenset({"make_grid"})

IMAGE = b'{"type":"image","data":"aGk=","mimeType":"image/png"}'
FILE = b'{"type":"resource","resource":{"uri":"u","blob":"aGk="}}'
NOTE = b'{"type":"resource","resource":{"uri":"u","text":"hi"}}'
ROWS = b'{"type":"resource","resource":{"uri":"u","text":" [1.0]"}}'
LINK = b'{"type":"resource","resource":{"uri":"u"}}'
VALUES: dict[str, tuple[bytes, Kind]] = {
    "object": (b'{ "a":1.0,"a":1e400}', "object"),
    "array": (b"[1, 2.50]", "array"),
    "text": (b'"plain \\u0061"', "text"),
    "empty text": (b'""', "text"),
    "array far below": (json.dumps("\n" * 5000 + "[1]").encode(), "text"),
    "object in text": (b'" {\\"a\\": 1.0}\\n"', "text"),
    "array in text": (b'"[1e400]"', "text"),
    "integer in text": (b'" 42 "', "text"),
    "number in text": (b'"4.25e1"', "text"),
    "whole number in text": (b'"4.20e1"', "text"),
    "boolean in text": (b'"true"', "text"),
    "null in text": (b'"null"', "text"),
    "broken json in text": (b'"{a:1}"', "text"),
    "two values in text": (b'"1 2"', "text"),
    "string in text": (b'"\\"x\\""', "text"),
    "integer": (b"42", "number"),
    "whole number": (b"42.0", "number"),
    "number": (b"42.5", "number"),
    "huge integer": (b"9" * 5000, "number"),
    "true": (b"true", "boolean"),
    "null": (b"null", "null"),
    "array in a code block": (json.dumps(f"The script returned:\n```json\n{[1.0] * 40}\n```").encode(), "text"),
    "object below a line": (json.dumps(f'Configuration:\n{{\n "a": {"1" * 40}\n}}').encode(), "text"),
    "rows of Python": (b"\"[{'a': None}]\"", "text"),
    "JSON lines": (json.dumps('{"a": 1.0}\n\n{"a": 1e400}\n').encode(), "text"),
    "JSON lines below a line": (json.dumps('2 rows:\n{"a": 1}\n{"a": 2}\n').encode(), "text"),
    "a little JSON in text": (json.dumps("Many words before the data.\n[1]\n").encode(), "text"),
    "image": (IMAGE, "binary"),
    "file": (FILE, "binary"),
    "note": (NOTE, "binary"),
    "rows": (ROWS, "binary"),
    "link": (LINK, "binary"),
    "image in an array": (b'["here:", ' + IMAGE + b"]", "array"),
    "file in an array": (b"[" + LINK + b", " + FILE + b"]", "array"),
    "note in an array": (b'["here:", ' + NOTE + b', {"type": "image"}]', "array"),
}
SAME = object()
NO = None


def text_of(name: str) -> bytes:
    return json.dumps(VALUES[name][0].decode()).encode()


def row(**changes: Any) -> dict[str, Any]:
    return dict.fromkeys(("object", "array", "string", "integer", "number", "boolean", "null"), NO) | changes


TABLE: dict[str, dict[str, Any]] = {
    "object": row(object=SAME, string=text_of("object")),
    "array": row(array=SAME, string=text_of("array")),
    "text": row(string=SAME),
    "array far below": row(array=b"[1]", string=SAME),
    "empty text": row(string=SAME),
    "object in text": row(string=SAME, object=b'{"a": 1.0}'),
    "array in text": row(string=SAME, array=b"[1e400]"),
    "integer in text": row(string=SAME, integer=b"42", number=b"42"),
    "number in text": row(string=SAME, number=b"4.25e1"),
    "whole number in text": row(string=SAME, integer=b"4.20e1", number=b"4.20e1"),
    "boolean in text": row(string=SAME, boolean=b"true"),
    "null in text": row(string=SAME, null=b"null"),
    "broken json in text": row(string=SAME),
    "two values in text": row(string=SAME),
    "string in text": row(string=SAME),
    "array in a code block": row(string=SAME, array=str([1.0] * 40).encode()),
    "object below a line": row(string=SAME, object=b'{\n "a": %s\n}' % (b"1" * 40)),
    "rows of Python": row(string=SAME, array=b'[{"a": null}]'),
    "JSON lines": row(string=SAME, array=b'[{"a": 1.0},{"a": 1e400}]'),
    "JSON lines below a line": row(string=SAME, array=b'[{"a": 1},{"a": 2}]'),
    "a little JSON in text": row(string=SAME),
    "integer": row(integer=SAME, number=SAME, string=b'"42"'),
    "whole number": row(integer=SAME, number=SAME, string=b'"42.0"'),
    "number": row(number=SAME, string=b'"42.5"'),
    "huge integer": row(integer=SAME, number=SAME, string=b'"' + b"9" * 5000 + b'"'),
    "true": row(boolean=SAME, string=b'"true"'),
    "null": row(null=SAME),
    "image": row(object=SAME, string=b'"aGk="'),
    "file": row(object=SAME, string=b'"aGk="'),
    "note": row(object=SAME, string=b'"hi"'),
    "rows": row(object=SAME, array=b"[1.0]", string=b'" [1.0]"'),
    "link": row(object=SAME),
    "image in an array": row(array=SAME),
    "file in an array": row(array=SAME),
    "note in an array": row(array=SAME, string=text_of("note in an array")),
}


def resolved(name: str) -> Resolved:
    blob, kind = VALUES[name]
    return Resolved(MemoryPath(BASE, ("x",)), blob, kind)


@pytest.mark.parametrize(("name", "wanted"), [(name, wanted) for name, cells in TABLE.items() for wanted in cells])
def test_a_value_is_converted_to_the_declared_type_by_the_table(name: str, wanted: str) -> None:
    expected = TABLE[name][wanted]
    assert fits(resolved(name), frozenset({wanted})) == (expected is not NO)
    if expected is NO:
        with pytest.raises(MisfitError) as caught:
            coerce(resolved(name), frozenset({wanted}), ("grid", 0))
        message = str(caught.value)
        kind = "text" if name in ("note", "rows") else VALUES[name][1]
        assert all(word in message for word in ("'grid.0'", wanted, f"is {kind}.", BASE))
        assert ("path below it" in message) == (VALUES[name][1] in ("object", "array"))  # the others have nothing below
    else:
        assert b"".join(coerce(resolved(name), frozenset({wanted}), ("grid", 0))) == (
            VALUES[name][0] if expected is SAME else expected
        )


def test_json_in_a_text_is_found_if_small_or_if_it_is_the_whole_text() -> None:
    rows = [{"id": number, "name": "x" * 80} for number in range(20_000)]
    for text, is_accepted in ((f"Rows:\n{json.dumps(rows[:5000])}\n", True), (f"Rows:\n{json.dumps(rows)}\n", False)):
        assert (
            fits(Resolved(MemoryPath(BASE, ("x",)), json.dumps(text).encode(), "text"), frozenset({"array"}))
            == is_accepted
        )
    for text, is_accepted in ((str(rows[:5000]), True), (str(rows), False), (json.dumps(rows), True)):
        assert (
            fits(Resolved(MemoryPath(BASE, ("x",)), json.dumps(text).encode(), "text"), frozenset({"array"}))
            == is_accepted
        )


@pytest.mark.parametrize("name", TABLE)
def test_a_value_of_an_accepted_type_stays_unchanged(name: str) -> None:
    blob = VALUES[name][0]
    assert coerce(resolved(name), frozenset(), ()) == (blob,)
    own = next((kind for kind, cell in TABLE[name].items() if cell is SAME), None)
    if own:
        assert coerce(resolved(name), frozenset({own, "null", "string"}), ()) == (blob,)


@pytest.mark.parametrize(
    ("name", "wanted", "expected"),
    [
        ("object in text", {"array", "object"}, b'{"a": 1.0}'),
        ("integer in text", {"integer", "null"}, b"42"),
        ("object", {"array", "string"}, text_of("object")),
        ("number", {"integer", "string"}, b'"42.5"'),
        ("image", {"array", "string"}, b'"aGk="'),
    ],
)
def test_of_several_types_the_richest_that_fits_is_taken(name: str, wanted: set[str], expected: bytes) -> None:
    assert b"".join(coerce(resolved(name), frozenset(wanted), ())) == expected


def test_an_error_names_every_type_and_is_bounded() -> None:
    value = Resolved(MemoryPath(BASE, ("k" * 10_000,)), b"null", "null")
    with pytest.raises(ToolError, match=r"expects integer or number, but '.*' is null") as caught:
        coerce(value, frozenset({"number", "integer"}), ("k" * 10_000,))
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize("shift", range(4))
def test_a_large_value_becomes_text_whole_wherever_it_is_cut(shift: int) -> None:
    blob = b'{"a' + b"a" * shift + b'":"' + "é€😀\\\\n".encode() * 300_000 + b'"}'
    pieces = coerce(Resolved(MemoryPath(BASE), blob, "object"), frozenset({"string"}), ())
    assert len(pieces) > len(blob) >> 20
    assert json.loads(b"".join(pieces)).encode() == blob


NUMBERS = st.sampled_from(
    ["1e2", "1.5e1", "1.5e0", "10e-1", "1e-1", "0.0", "-0", "0e-999999999999999999999", "0.10e1", "1.0e-0"]
)


@given(NUMBERS | st.integers().map(str) | st.floats(allow_nan=False, allow_infinity=False).map(repr))
@example("1e99999999999999999999999")
@example("1e-99999999999999999999999")
@example("1e400")
def test_an_integer_is_a_number_without_a_fraction_by_value(text: str) -> None:
    value = Resolved(MemoryPath(BASE), text.encode(), "number")
    mantissa, _, exponent = text.lower().partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("-").rstrip("0")
    dropped = len((whole + fraction).lstrip("-")) - len(digits)
    is_integer = not digits or dropped - len(fraction) + int(exponent or 0) >= 0
    if is_integer:
        assert coerce(value, frozenset({"integer"}), ()) == (text.encode(),)
    else:
        with pytest.raises(ToolError):
            coerce(value, frozenset({"integer"}), ())


def put(
    arguments: bytes, blob: bytes, kind: Kind = "array", types_at: Callable[[Location], frozenset[str]] | None = None
) -> bytes:
    found = find_pointers(arguments, KNOWN)
    values = {one: Resolved(one.path, blob, kind) for one in found if isinstance(one, Pointer) and one.path}
    return b"".join(substitute_pointers(arguments, found, values, types_at or (lambda _: frozenset())))


LITERALS = st.sampled_from(
    [
        b"1.0",
        b"1e400",
        b"9" * 400,
        b'"\\u0061\\/"',
        b'"\xc3\xa9"',
        b" null ",
        b"[ 1 ,2]",
        b'{"b":1,"b":2, "a":[]}',
        b'"x-1234567-ab"',
    ]
)
POINTER = f'"{BASE}/raw"'.encode()


@given(
    st.lists(LITERALS | st.just(POINTER), max_size=6),
    st.sampled_from([b"[]", b"[" + POINTER + b"]", b'"literal"', b"[1e400]"]),
)
def test_only_pointers_are_replaced_and_values_are_not_scanned(parts: list[bytes], blob: bytes) -> None:
    keys = [b'"k%d" : ' % at for at in range(len(parts))]

    def text(values: list[bytes]) -> bytes:
        return (
            b' {"z":1.0,\n'
            + b"".join(key + value + b" ,\t" for key, value in zip(keys, values, strict=True))
            + b'"a":1e1}'
        )

    assert put(text(parts), blob) == text([blob if part == POINTER else part for part in parts])


def test_arguments_without_pointers_are_the_very_same() -> None:
    arguments = b'{"a": 1.0}'
    assert substitute_pointers(arguments, (), {}, lambda _: frozenset()) == (arguments,)


def test_a_pointer_without_a_value_stays_and_an_escaped_path_is_sent() -> None:
    arguments = f'{{"a": "order-{BASE[10:]}", "b": "literal:{BASE}", "c": "{BASE}"}}'.encode()
    found = find_pointers(arguments, KNOWN)
    values = {one: Resolved(MemoryPath(BASE), b"[1]", "array") for one in found[2:] if isinstance(one, Pointer)}
    sent = b"".join(substitute_pointers(arguments, found, values, lambda _: frozenset()))
    assert sent == f'{{"a": "order-{BASE[10:]}", "b": "{BASE}", "c": [1]}}'.encode()


def test_each_pointer_meets_the_type_of_its_own_place() -> None:
    arguments = f'{{"a":"{BASE}","b":["{BASE}"]}}'.encode()
    types: dict[Location, frozenset[str]] = {("a",): frozenset({"array"}), ("b", 0): frozenset({"string"})}
    assert put(arguments, b"[ 1]", types_at=lambda at: types[at]) == b'{"a":[ 1],"b":["[ 1]"]}'


def test_a_value_is_not_copied() -> None:
    blob = memoryview(b"[1]")
    arguments = f'{{"a":"{BASE}"}}'.encode()
    found = find_pointers(arguments, KNOWN)
    values = {one: Resolved(MemoryPath(BASE), blob, "array") for one in found if isinstance(one, Pointer)}
    pieces = substitute_pointers(arguments, found, values, lambda _: frozenset())
    assert any(piece is blob for piece in pieces)


def test_very_many_pointers_are_substituted_in_one_pass() -> None:
    arguments = b'{"a":[' + b",".join([POINTER] * 20_000) + b"]}"
    assert put(arguments, b"1", "number") == b'{"a":[' + b",".join([b"1"] * 20_000) + b"]}"


@pytest.mark.parametrize(
    ("types", "text", "sent"),
    [
        ("integer", "31", "31"),
        ("integer", " 31\n", "31"),
        ("integer", "1e400", "1e400"),
        ("number", "0.10", "0.10"),
        ("boolean", "true", "true"),
        ("array", "[1, 2]", "[1, 2]"),
        ("object", '{"a": "1"}', '{"a": "1"}'),
        ("null integer", "null", "null"),
        ("integer", "31.5", None),
        ("integer", "thirty", None),
        ("integer", "", None),
        ("integer", "031", None),
        ("boolean", "True", "true"),
        ("boolean", " False\n", "false"),
        ("boolean", "TRUE", None),
        ("boolean", "yes", None),
        ("boolean", "true" + " " * 9999 + "x", None),
        ("array", "[1, 2", None),
        ("string integer", "31", None),
        ("", "31", None),
    ],
)
def test_a_text_that_spells_what_is_wanted_where_no_text_is_goes_as_that(
    types: str, text: str, sent: str | None
) -> None:
    arguments = json.dumps({"number": text, "text": "31"}).encode()
    wanted: dict[Location, frozenset[str]] = {("number",): frozenset(types.split()), ("text",): frozenset({"string"})}
    found = find_corrections(arguments, (), wanted.__getitem__)
    assert [str(b"".join(item.value), "utf-8") for item in found] == ([] if sent is None else [sent])
    substituted = b"".join(substitute_pointers(arguments, found, {}, wanted.__getitem__))
    assert substituted == arguments.replace(json.dumps(text).encode(), (sent or json.dumps(text)).encode(), 1)


@pytest.mark.parametrize(
    ("types", "value", "sent"),
    [
        ("string", "31", '"31"'),
        ("string", "1.10", '"1.10"'),
        ("string null", "true", '"true"'),
        ("string", '{"a": "b"}', r'"{\"a\": \"b\"}"'),
        ("string", "[1, null]", '"[1, null]"'),
        ("string", '"31"', '"31"'),
        ("string null", '"null"', '"null"'),
        ("string integer", "31.5", "31.5"),
        ("", "31", "31"),
        ("string", '{"a": "get_order-03381d7c-ea34-408f-8c2d-16e7326f8d9b"}', None),
    ],
)
def test_a_value_where_only_text_is_accepted_goes_as_its_text(types: str, value: str, sent: str | None) -> None:
    arguments = f'{{"rows": [{{"id": {value}}}, {{"id": {value}}}]}}'.encode()
    found = find_pointers(arguments, frozenset({"get_order"}))

    def types_at(at: Location) -> frozenset[str]:
        return frozenset(types.split()) if at[2:] == ("id",) else frozenset()

    corrections = find_corrections(arguments, found, types_at)
    substituted = b"".join(substitute_pointers(arguments, corrections, {}, types_at))
    assert substituted == arguments.replace(value.encode(), (sent or value).encode())


PATH = "get_order-03381d7c-ea34-408f-8c2d-16e7326f8d9b"


@pytest.mark.parametrize(
    ("types", "text", "is_opened"),
    [
        ("object", json.dumps({"id": PATH}), True),
        ("array null", json.dumps([PATH, {"a": f"{PATH}/b"}]), True),
        ("array", f'["{PATH}","{PATH}"]', True),
        ("object", f"Body:\n{json.dumps({'id': PATH}, indent=1)}", True),
        ("object", str({"id": PATH}), True),
        ("object string", json.dumps({"id": PATH}), False),
        ("integer", json.dumps([PATH]), False),
        ("", json.dumps([PATH]), False),
        ("object", json.dumps([PATH]), False),
        ("object", json.dumps({"id": PATH})[:-1], False),
        ("object", json.dumps({"id": 1}), False),
        ("object", json.dumps({"type": "text", "text": PATH}), False),
        ("object", PATH, False),
        ("object", f"literal:{PATH}", False),
    ],
)
def test_json_text_with_a_path_is_opened_where_no_text_is_accepted(types: str, text: str, *, is_opened: bool) -> None:
    accepted = frozenset(types.split())
    wanted: dict[Location, frozenset[str]] = {
        ("body",): accepted,
        ("more",): accepted,
        ("note",): frozenset({"string"}),
    }
    arguments = json.dumps({"note": text, "body": text, "n": 1, "more": text}).encode()
    opened = open_texts(arguments, frozenset({"get_order"}), lambda at: wanted.get(at, frozenset()))
    if not is_opened:
        assert opened is arguments
        return
    parsed = json.loads(bytes(opened))
    assert (parsed["note"], parsed["n"], parsed["more"]) == (text, 1, parsed["body"])
    found = find_pointers(opened, frozenset({"get_order"}))
    first = next(one for one in found if isinstance(one, Pointer) and one.path)
    assert (first.path, first.location[0]) == (MemoryPath(PATH), "body")


def test_a_value_that_goes_as_its_text_keeps_the_texts_in_it() -> None:
    wanted: dict[Location, frozenset[str]] = {("a",): frozenset({"string"}), ("a", "b"): frozenset({"integer"})}
    corrections = find_corrections(b'{"a": {"b": "1"}}', (), wanted.__getitem__)
    assert [json.loads(b"".join(one.value)) for one in corrections] == ['{"b": "1"}']


def test_a_value_below_many_levels_stays() -> None:
    arguments = b'{"a": ' + b"[" * 20 + b"1" + b"]" * 20 + b"}"
    assert find_corrections(arguments, (), lambda at: frozenset({"string"} if len(at) > 20 else ())) == ()


def test_texts_of_other_types_are_found_at_any_depth_and_pointers_not() -> None:
    path = "get_order-03381d7c-ea34-408f-8c2d-16e7326f8d9b"
    arguments = json.dumps({"rows": [{"n": "1"}, {"n": path}, {"n": "2"}], "deep": "3"}).encode()
    found = find_pointers(arguments, frozenset({"get_order"}))
    spelled = find_corrections(arguments, found, lambda _: frozenset({"integer"}))
    in_order = sorted((*found, *spelled), key=lambda item: item.span.start)
    assert [type(item) for item in in_order] == [Correction, Pointer, Correction, Correction]
    assert find_refused_text(arguments, found, lambda _: frozenset({"integer"})) is None
    null = frozenset({"null"})
    assert find_refused_text(arguments, found, lambda _: null) == ("1", ("rows", 0, "n"), null, False)
    assert find_refused_text(arguments, found, lambda _: frozenset({"string"})) is None
    names = {(): frozenset({"object"}), ("names",): frozenset({"array"}), ("names", 0): frozenset({"string"})}
    refused = find_refused_text(b'{"names": "a"}', (), names.__getitem__)
    assert refused == ("a", ("names",), frozenset({"array"}), True)
    sent = json.loads(b"".join(substitute_pointers(arguments, tuple(in_order), {}, lambda _: frozenset())))
    assert sent == {"rows": [{"n": 1}, {"n": path}, {"n": 2}], "deep": 3}


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ('{"n": null}', "{}"),
        ('{ "n" : null , "keep": 1 }', '{"keep": 1}'),
        ('{"keep": 1, "n": null}', '{"keep": 1}'),
        ('{"keep": 1, "n": null, "m": null, "any": null}', '{"keep": 1, "any": null}'),
        ('{"n": null, "m": null, "any": null, "maybe": null}', '{"any": null, "maybe": null}'),
        ('{"n": null, "m":null}', "{}"),
        ('{"rows": [{"n": null, "keep": "null"}, null, {"n": 1}]}', '{"rows": [{"keep": "null"}, null, {"n": 1}]}'),
        ('{"n": "null", "keep": null}', None),
        ('{"null": 1}', None),
    ],
)
def test_a_null_where_the_tool_accepts_none_is_left_out(arguments: str, sent: str | None) -> None:
    def types_at(location: Location) -> frozenset[str]:
        name = location[-1] if location else ""
        return frozenset({"n": {"integer"}, "m": {"object"}, "maybe": {"null", "integer"}}.get(str(name), set()))

    found = sorted(find_corrections(arguments.encode(), (), types_at), key=lambda item: item.span.start)
    substituted = str(b"".join(substitute_pointers(arguments.encode(), tuple(found), {}, types_at)), "utf-8")
    assert json.loads(substituted) == json.loads(sent or arguments)
    assert bool(found) == (sent is not None)


@given(
    st.recursive(
        st.dictionaries(st.sampled_from(["n", "keep", "maybe"]), st.none() | st.integers() | st.just("null")),
        lambda inner: st.dictionaries(st.sampled_from(["n", "keep", "rows"]), st.lists(inner, max_size=3) | inner),
        max_leaves=8,
    ),
    st.sampled_from([None, 1]),
)
def test_only_refused_nulls_are_left_out_of_any_arguments(arguments: Any, indent: int | None) -> None:
    def remove(value: Any, depth: int = 0) -> Any:
        if isinstance(value, list):
            return [remove(one, depth + 1) for one in value]
        if not isinstance(value, dict) or depth > 8:
            return value
        return {key: remove(one, depth + 1) for key, one in value.items() if key != "n" or one is not None}

    def types_at(location: Location) -> frozenset[str]:
        return frozenset({"object", "integer", "string", "array"}) if location[-1:] == ("n",) else frozenset()

    text = json.dumps(arguments, indent=indent).encode()
    found = sorted(find_corrections(text, (), types_at), key=lambda item: item.span.start)
    assert json.loads(b"".join(substitute_pointers(text, tuple(found), {}, types_at))) == remove(arguments)


@pytest.mark.parametrize(
    "large",
    [json.dumps([{"n": "1"}] * 2000), "null" * 5000, [{"row": "a"}] * 5000, [None] * 5000],
    ids=["JSON text", "text", "objects", "nulls"],
)
def test_small_arguments_beside_large_ones_are_corrected(large: Any) -> None:
    arguments = json.dumps({"large": large, "options": {"indent": "3", "limit": None}}).encode()
    wanted: dict[Location, frozenset[str]] = {("options", name): frozenset({"integer"}) for name in ("indent", "limit")}

    def types_at(location: Location) -> frozenset[str]:
        return wanted.get(location, frozenset())

    found = sorted(find_corrections(arguments, (), types_at), key=lambda item: item.span.start)
    sent = json.loads(b"".join(substitute_pointers(arguments, tuple(found), {}, types_at)))
    assert sent == {"large": large, "options": {"indent": 3}}


@pytest.mark.parametrize(
    ("given", "replaced"),
    [
        ('{"rows": ["%s"]}', '{"rows": %s}'),
        ('{"in": {"rows": [ "%s" ]}}', '{"in": {"rows": %s}}'),
        ('{"rows": ["%s", 1]}', None),
        ('{"rows": {"0": "%s"}}', None),
        ('{"row": ["%s"]}', None),
    ],
)
def test_the_only_item_of_an_array_may_be_the_array(given: str, replaced: str | None) -> None:
    before, row, rows = f'{{"plain": "{BASE}", ', frozenset({"object"}), frozenset({"array"})
    arguments = f"{before}{(given % BASE)[1:]}".encode()
    found = find_pointers(arguments, KNOWN)

    def types_at(location: Location) -> frozenset[str]:
        return frozenset() if location == ("plain",) else rows if location[-1] == "rows" else row

    values = {one: Resolved(MemoryPath(BASE), b"[1]", "array") for one in found if isinstance(one, Pointer)}
    with pytest.raises(MisfitError) as caught:
        substitute_pointers(arguments, found, values, types_at)
    unwrapped = unwrap_pointer(arguments, found, caught.value, types_at)
    assert (unwrapped is None) == (replaced is None)
    if unwrapped and replaced:
        assert unwrapped[0].location == caught.value.location
        sent = substitute_pointers(arguments, (unwrapped[1],), {unwrapped[1]: values[unwrapped[0]]}, types_at)
        assert b"".join(sent) == f"{before}{(replaced % '[1]')[1:]}".encode()


def test_the_work_of_a_replacement_counts_a_repeated_value_once() -> None:
    arguments = json.dumps([BASE] * 3).encode()
    found = find_pointers(arguments, KNOWN)
    values = {one: Resolved(MemoryPath(BASE), b"1" * 1000, "number") for one in found if isinstance(one, Pointer)}
    assert 1000 < measure_substitution(found, values) < 1100
    assert measure_substitution(found * 100, values) > measure_substitution(found, values) + 1000
    deep = tuple(msgspec.structs.replace(one, location=("a",) * 700) for one in found if isinstance(one, Pointer))
    assert measure_substitution(deep, values) >= measure_substitution(found, values) + 600
