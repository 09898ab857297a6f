"""The declared types of arguments, and errors in arguments."""

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_mirror.core.schemas.accepted_types import types_along, types_at
from mcp_mirror.core.schemas.references import Schema
from mcp_mirror.core.schemas.twin_schemas import find_header_locations
from mcp_mirror.core.schemas.validation import SchemaCheck, verify_schema
from mcp_mirror.types import Location

SCHEMA: Schema = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "number": {"type": "number"},
        "both": {"type": ["integer", "number"]},
        "optional": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "ref": {"$ref": "#/$defs/Point"},
        "escaped": {"$ref": "#/$defs/a~1b%25"},
        "list": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
        "tuple": {"prefixItems": [{"type": "string"}, {"type": "null"}], "items": {"type": "boolean"}},
        "old tuple": {"items": [{"type": "string"}, {"type": "null"}]},
        "map": {"additionalProperties": {"type": "number"}, "properties": {"own": {"type": "string"}}},
        "closed": {"additionalProperties": False},
        "patterns": {"patternProperties": {"^x": {"type": "null"}}, "additionalProperties": {"type": "number"}},
        "enum": {"enum": ["a", 1, 1.5, None, True, [1], {"a": 1}]},
        "const": {"const": "a"},
        "typed enum": {"type": "number", "enum": [1, 2]},
        "union": {"oneOf": [{"properties": {"x": {"type": "string"}}}, {"properties": {"x": {"type": "integer"}}}]},
        "loose union": {"anyOf": [{"type": "integer"}, {}]},
        "narrowed": {"type": ["string", "number"], "allOf": [{"type": "integer"}, {"minimum": 1}]},
        "contradiction": {"type": "string", "allOf": [{"type": "null"}]},
        "anything": {},
        "yes": True,
        "everything": {"type": ["string", "number", "boolean", "object", "array", "null"]},
        "outside": {"$ref": "https://x.example/s"},
        "anchor": {"$ref": "#point"},
        "dynamic": {"$dynamicRef": "#node"},
        "recursive": {"$recursiveRef": "#"},
        "same document": {"$ref": ""},
        "deep": {"$ref": "#/properties/optional/anyOf/0"},
        "past the end": {"$ref": "#/properties/optional/anyOf/2"},
        "no anchor": {"$ref": "#nobody"},
        "half an anchor": {"$ref": "#point/x"},
        "nowhere": {"$ref": "#/$defs/none"},
        "loop": {"$ref": "#/$defs/Loop"},
        "broken": {"type": 5, "anyOf": 5, "enum": "x", "$ref": 7},
    },
    "$defs": {
        "Point": {"type": "object", "properties": {"x": {"type": "number"}, "next": {"$ref": "#/$defs/Point"}}},
        "a/b%": {"type": "null"},
        "Named": {"$anchor": "point", "type": "object", "properties": {"x": {"type": "number"}}},
        "Node": {"$dynamicAnchor": "node", "type": "array", "items": {"$dynamicRef": "#node"}},
        "Apart": {"$id": "https://x.example/apart", "$anchor": "nobody", "type": "null"},
        "Loop": {"$ref": "#/$defs/Loop"},
    },
}


@pytest.mark.parametrize(
    ("location", "kinds"),
    [
        ((), {"object"}),
        (("text",), {"string"}),
        (("number",), {"number"}),
        (("both",), {"number"}),
        (("optional",), {"integer", "null"}),
        (("ref",), {"object"}),
        (("ref", "next", "next", "x"), {"number"}),
        (("escaped",), {"null"}),
        (("list",), {"array"}),
        (("list", 4), {"array"}),
        (("list", 4, 0), {"number"}),
        (("list", "x"), set()),
        (("tuple", 0), {"string"}),
        (("tuple", 1), {"null"}),
        (("tuple", 2), {"boolean"}),
        (("old tuple", 1), {"null"}),
        (("old tuple", 2), set()),
        (("map", "any"), {"number"}),
        (("map", "own"), {"string"}),
        (("closed", "x"), set()),
        (("patterns", "xy"), set()),
        (("enum",), set()),
        (("const",), {"string"}),
        (("typed enum",), {"integer"}),
        (("union", "x"), {"string", "integer"}),
        (("loose union",), set()),
        (("narrowed",), {"integer"}),
        (("contradiction",), set()),
        (("anything",), set()),
        (("anything", "x", 1), set()),
        (("yes",), set()),
        (("everything",), set()),
        (("outside",), set()),
        (("anchor",), {"object"}),
        (("anchor", "x"), {"number"}),
        (("dynamic",), {"array"}),
        (("dynamic", 0, 0), {"array"}),
        (("recursive",), {"object"}),
        (("recursive", "text"), {"string"}),
        (("same document", "text"), {"string"}),
        (("deep",), {"integer"}),
        (("past the end",), set()),
        (("no anchor",), set()),
        (("half an anchor",), set()),
        (("nowhere",), set()),
        (("loop",), set()),
        (("loop", "x"), set()),
        (("broken",), set()),
        (("not there",), set()),
    ],
)
def test_the_types_of_an_argument_are_what_the_schema_admits_there(location: Location, kinds: set[str]) -> None:
    assert types_at(SCHEMA)(location) == kinds


def test_the_address_of_a_schema_before_a_reference_is_its_own() -> None:
    schema = {
        "$id": "https://x.example/s#",
        "properties": {
            "own": {"$ref": "https://x.example/s#/$defs/D"},
            "whole": {"$ref": "https://x.example/s"},
            "other": {"$ref": "https://x.example/other#/$defs/D"},
        },
        "$defs": {"D": {"type": "null"}},
    }
    assert [types_at(schema)((name,)) for name in ("own", "other")] == [{"null"}, set()]
    assert types_at(schema)(("whole", "own")) == {"null"}


def test_types_are_found_quickly_in_a_self_referencing_schema() -> None:
    defs = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(60)}
    schema = {"properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": {**defs, "d60": {"type": "null"}}}
    assert types_at(schema)(("x",)) == {"null"}
    assert types_at(schema)(("x", "y")) == set()
    root = {"anyOf": [{"$ref": "#"}, {"$ref": "#"}], "properties": {"x": {"$ref": "#"}}, "type": "object"}
    assert types_at(root)(("x", "x", "x")) == {"object"}


def test_header_arguments_are_found_where_they_stand() -> None:
    schema = {
        "x-mcp-header": "not an argument",
        "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "x-mcp-header": {"type": "string"},
            "deep": {"properties": {"er": {"x-mcp-header": "Er"}, "plain": True}},
            "broken": {"properties": 5},
        },
    }
    assert find_header_locations(schema) == (("region",), ("deep", "er"))
    endless: Schema = {"properties": {}}
    endless["properties"]["x"] = endless
    assert find_header_locations(endless) == ()


VALID = {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}, "required": ["n"]}


def test_the_types_of_many_places_take_few_visits() -> None:
    rows = {"properties": {"rows": {"items": {"properties": {"n": {"type": "integer"}}}}}}
    find = types_at(rows)
    assert {find(("rows", index, "n")) for index in range(5000)} == {frozenset({"integer"})}


def test_types_are_unknown_once_too_many_subschemas_apply() -> None:
    wide = {"properties": {"x": {"anyOf": [{"type": "integer"} for _ in range(10_000)]}}}
    began = time.process_time()
    assert types_at(wide)(("x",)) == set()
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"n": 1}, ()),
        ({}, ("n", "required")),
        ({"n": "x"}, ("n: ", "integer")),
        ({"n": [{"a": 1}] * 10_000}, ("n: ", " ... ")),
        ({"n": 1, "s": 5}, ("s: ", "string")),
        ([], ("object",)),
    ],
)
def test_validation_errors_are_bounded_and_name_the_location(arguments: Any, words: tuple[str, ...]) -> None:
    faults = SchemaCheck(VALID)(arguments)
    assert len(faults) == bool(words)
    assert all(word in str(fault) for word in words for fault in faults)
    assert all(len(str(fault)) <= 300 for fault in faults)


def test_the_place_of_a_fault_is_bounded_too() -> None:
    (fault,) = SchemaCheck({"additionalProperties": {"type": "null"}})({"k" * 100_000: 1})
    assert len(str(fault)) <= 300


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [float("inf"), float("-inf"), "\ud800", {"\ud800": 1}, nested(600)],
    ids=["1e400", "-1e400", "text", "key", "deep"],
)
def test_values_that_cannot_be_judged_are_accepted(value: Any) -> None:
    assert SchemaCheck(VALID | {"additionalProperties": {"type": "number"}})({"n": 1, "x": value}) == ()


@given(
    st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5) | st.none() | st.booleans()
)
def test_a_check_agrees_with_the_type(value: Any) -> None:
    is_integer = isinstance(value, int | float) and not isinstance(value, bool) and value == int(value)
    assert (SchemaCheck(VALID)({"n": value}) == ()) == is_integer


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": ["array", "null"]},
        {"type": "objct"},
        {"type": {}},
        {"properties": []},
        {"properties": {"a": {"pattern": "("}}},
        {"properties": {"a": {"$ref": "#/nope"}}},
        {"properties": {"a": {"$ref": "#nope"}}},
        {"required": "a"},
        {"properties": {"k" * 5000: {"minimum": "x" * 5000}}},
        {"title": "\ud800"},
        {"$schema": 5},
    ],
    ids=lambda schema: repr(schema)[:30],
)
def test_a_schema_that_is_not_an_object_is_rejected_briefly(schema: Schema) -> None:
    with pytest.raises(ValueError, match="its input schema") as caught:
        verify_schema(schema)
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


def test_a_schema_nested_too_deep_is_refused() -> None:
    with pytest.raises(ValueError, match="its input schema"):
        verify_schema({"properties": {"a": nested(3000)}})


@pytest.mark.parametrize(
    "schema", [{}, {"type": ["object", "null"]}, {"$schema": "http://json-schema.org/draft-07/schema#"}]
)
def test_a_schema_of_any_draft_may_describe_an_object(schema: Schema) -> None:
    assert SchemaCheck(schema)({"a": 1}) == ()


@pytest.fixture
def listener() -> Iterator[tuple[str, list[bytes]]]:
    """A local address, and what was sent to it."""
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    received.append(connection.recv(100))

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", received
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def test_nothing_is_fetched_and_what_is_elsewhere_is_not_checked(
    listener: tuple[str, list[bytes]], tmp_path: Path
) -> None:
    url, received = listener
    (tmp_path / "s.json").write_text('{"type": "null"}')
    references = [f"{url}/s.json", f"{url}/s.json#/$defs/x", (tmp_path / "s.json").as_uri(), "https://x.invalid/s"]
    for reference in references:
        schema = {"properties": {"a": {"$ref": reference}, "n": {"type": "integer"}}}
        try:
            verify_schema(schema)
        except ValueError:  # a pointer into what is not there
            assert "#/" in reference
            continue
        check = SchemaCheck(schema)
        assert check({"a": 5}) == ()
        assert check({"n": "x"})
    assert SchemaCheck({"$schema": f"{url}/dialect", "properties": {"n": {"type": "integer"}}})({"n": "x"})
    assert received == []


def test_a_pattern_that_is_meant_to_take_for_ever_is_not_judged() -> None:
    endless = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(a|a|b)*(a|a)*(?=c)\\1"}}}
    check = SchemaCheck(endless)
    began = time.monotonic()
    assert check({"a": "a" * 100_000}) == ()
    assert time.monotonic() - began < 5
    (fault,) = check({"a": "aab"})
    assert "does not match" in str(fault)


@pytest.mark.parametrize(
    "inner",
    [
        {"anyOf": [{"properties": {f"a{number}": {"type": "string"}}} for number in range(2900)]},
        {"allOf": [{"additionalProperties": {"type": "integer"}} for _ in range(2900)]},
        {"properties": {f"{number:x}": {"$ref": "#/$defs/large"} for number in range(1400)}},
    ],
    ids=["alternatives", "maps", "references"],
)
def test_types_of_very_many_keys_are_found_in_bounded_time(inner: Schema) -> None:
    large = {"enum": [f"v{number}" for number in range(60_000)]}
    find = types_at({"properties": {"x": {"type": "object", **inner}}, "$defs": {"large": large}})
    began = time.process_time()
    for number in range(3000):
        find(("x", f"{number:x}"))
    assert time.process_time() - began < 2


def test_the_values_of_a_large_map_have_the_same_types() -> None:
    find = types_at({"properties": {"x": {"additionalProperties": {"type": "integer"}}}})
    assert {find(("x", str(number))) for number in range(10_000)} == {frozenset({"integer"})}


def test_a_nullable_argument_accepts_null() -> None:
    """So a null that clears a field stays while the gateway corrects another argument."""
    properties = {
        "due": {"type": "string", "nullable": True},
        "kind": {"type": "string", "enum": ["a"], "nullable": True},
        "size": {"type": "integer"},
    }
    find = types_at({"type": "object", "properties": properties})
    assert find(("due",)) == find(("kind",)) == {"string", "null"}
    assert find(("size",)) == {"integer"}


class CountedList(list[Any]):
    """A list that counts how often it is read."""

    reads = 0

    def __iter__(self) -> Iterator[Any]:
        self.reads += 1
        return super().__iter__()


def test_a_long_union_is_not_read_again_for_each_argument() -> None:
    cases = CountedList([True] * 6_000)
    names = [f"p{number}" for number in range(500)]
    schema = {"properties": {name: {"$ref": "#/$defs/big"} for name in names}, "$defs": {"big": {"anyOf": cases}}}
    find = types_at(schema)
    assert all(find((name,)) == set() for name in names)
    assert cases.reads < 100  # before: 2,500


def test_a_reference_with_very_many_steps_accepts_every_type() -> None:
    schema = {"properties": {"x": {"$ref": "#" + "/a" * 100_000}, "y": {"type": "null"}}}
    assert types_at(schema)(("x",)) == set()
    assert types_at(schema)(("y",)) == {"null"}


@pytest.mark.parametrize("location", [(), ("anchor", "x"), ("recursive", "text"), ("deep",), ("not there", "x", 1)])
def test_the_types_along_a_location_are_those_of_each_place(location: Location) -> None:
    find, found = types_at(SCHEMA), list(types_along(SCHEMA)(location))
    assert found == [find(location[:depth]) for depth in range(len(found))]
    assert all(find(location[:depth]) == set() for depth in range(len(found), len(location) + 1))
