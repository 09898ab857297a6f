"""A twin's schema admits all values of the tool's schema, and a memory path for any value."""

import copy
import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_mirror.core.schemas.references import Schema
from mcp_mirror.core.schemas.twin_schemas import admit_paths
from mcp_mirror.payload.json_bounds import is_deeper

PATH = "make_grid-3f2b8c1e-9d4a-4e7b-8f21-0a1b2c3d4e5f/raw_grid"
TEXT = {"type": "string"}
POINT = {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}


def wide(schema: Schema) -> Schema:
    """What also admits a path."""
    return {"anyOf": [schema, TEXT]}


INNER_POINT = {"type": "object", "properties": {"x": wide({"type": "number"})}, "required": ["x"]}

ARGUMENTS: dict[str, tuple[Any, Any]] = {
    "a bare text": (TEXT, TEXT),
    "a number": ({"type": "number"}, wide({"type": "number"})),
    "a bounded number": ({"type": "integer", "minimum": 1}, wide({"type": "integer", "minimum": 1})),
    "an integer of OpenAPI": (
        {"type": "integer", "format": "int64"},
        wide({"type": "integer", "format": "int64"}),
    ),
    "a list of types": (
        {"type": ["null", "integer", "boolean", "number"], "description": "D", "minimum": 1},
        {
            "anyOf": [
                {"type": "integer", "description": "D", "minimum": 1},
                {"type": "boolean"},
                {"type": "number"},
                {"type": "null"},
                TEXT,
            ]
        },
    ),
    "a list of types with objects": (
        {"type": ["integer", "object"], "properties": {"x": {"type": "number"}}},
        {
            "anyOf": [
                {"type": "object", "properties": {"x": wide({"type": "number"})}},
                {"type": "integer"},
                TEXT,
            ]
        },
    ),
    "a list of types with objects and arrays": (
        {"type": ["object", "array"], "items": TEXT},
        wide({"type": ["object", "array"], "items": TEXT}),
    ),
    "a list of one type": ({"type": ["integer"]}, wide({"type": "integer"})),
    "a format of a text or null": (
        {"type": ["string", "null"], "format": "uri"},
        {"anyOf": [{"type": "string", "format": "uri"}, {"type": "null"}, TEXT]},
    ),
    "a list of types in an alternative": (
        {"oneOf": [{"type": ["integer", "null"]}, POINT]},
        {"anyOf": [{"type": "integer"}, {"type": "null"}, INNER_POINT, TEXT]},
    ),
    "a list of types beside text": (
        {"oneOf": [{"type": ["integer", "null"]}, TEXT]},
        {"anyOf": [{"type": "integer"}, {"type": "null"}, TEXT]},
    ),
    "an enumeration without a valid type": ({"type": [], "enum": [1]}, wide({"type": [], "enum": [1]})),
    "a list of types with text": ({"type": ["null", "string"]}, {"type": ["null", "string"]}),
    "an enumeration": (
        {"enum": ["a"], "title": "T", "default": "a"},
        wide({"enum": ["a"], "title": "T", "default": "a"}),
    ),
    "a pattern": (
        {"type": "string", "pattern": "^a$", "description": "D"},
        wide({"type": "string", "pattern": "^a$", "description": "D"}),
    ),
    "a length": ({"type": "string", "maxLength": 3}, {"anyOf": [{"type": "string", "maxLength": 3}, TEXT]}),
    "a constant": ({"const": 5}, {"anyOf": [{"const": 5}, TEXT]}),
    "a format": ({"type": "string", "format": "uri"}, {"anyOf": [{"type": "string", "format": "uri"}, TEXT]}),
    "an optional number": (
        {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
        {"anyOf": [{"type": "integer"}, {"type": "null"}, TEXT], "default": None},
    ),
    "an optional text": ({"anyOf": [TEXT, {"type": "null"}]}, {"anyOf": [TEXT, {"type": "null"}]}),
    "an optional short text": (
        {"anyOf": [{"type": "string", "maxLength": 1}, {"type": "null"}]},
        {"anyOf": [{"type": "string", "maxLength": 1}, {"type": "null"}, TEXT]},
    ),
    "one of several": (
        {"oneOf": [{"type": "integer"}, POINT]},
        {"anyOf": [{"type": "integer"}, INNER_POINT, TEXT]},
    ),
    "alternatives beside a type": (
        {"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        wide({"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}),
    ),
    "oneOf beside anyOf": (
        {"anyOf": [{"type": "array"}], "oneOf": [{"minItems": 1}, {"maxItems": 0}]},
        {"anyOf": [{"anyOf": [{"type": "array"}], "allOf": [{"anyOf": [{"minItems": 1}, {"maxItems": 0}]}]}, TEXT]},
    ),
    "all of several": ({"allOf": [POINT]}, {"anyOf": [{"allOf": [INNER_POINT]}, TEXT]}),
    "a reference": (
        {"$ref": "#/$defs/P", "description": "D"},
        {"description": "D", "anyOf": [{"$ref": "#/$defs/P"}, TEXT]},
    ),
    "an object": (POINT, wide(INNER_POINT)),
    "an array": (
        {"type": "array", "items": {"type": "array", "items": {"type": "number"}}, "minItems": 1},
        wide({"type": "array", "items": wide({"type": "array", "items": wide({"type": "number"})}), "minItems": 1}),
    ),
    "a tuple": (
        {"type": "array", "prefixItems": [TEXT, {"type": "number"}], "items": False},
        wide({"type": "array", "prefixItems": [TEXT, wide({"type": "number"})], "items": False}),
    ),
    "a tuple of old": (
        {"type": "array", "items": [{"type": "number"}], "additionalItems": {"type": "null"}},
        wide({"type": "array", "items": [wide({"type": "number"})], "additionalItems": wide({"type": "null"})}),
    ),
    "a map": (
        {"type": "object", "additionalProperties": {"type": "number"}},
        wide({"type": "object", "additionalProperties": wide({"type": "number"})}),
    ),
    "a map by patterns": (
        {"type": "object", "patternProperties": {"^x": {"type": "number"}}, "additionalProperties": False},
        wide(
            {
                "type": "object",
                "patternProperties": {"^x": wide({"type": "number"})},
                "additionalProperties": False,
            }
        ),
    ),
    "a condition": (
        {"type": "object", "if": {"required": ["x"]}, "then": POINT},
        {"anyOf": [{"type": "object", "if": {"required": ["x"]}, "then": INNER_POINT}, TEXT]},
    ),
    "anything": ({}, {}),
    "anything, described": ({"description": "D"}, {"description": "D"}),
    "an object by its properties alone": (
        {"properties": {"x": {"type": "null"}}},
        {"properties": {"x": wide({"type": "null"})}},
    ),
    "a header": ({"type": "string", "x-mcp-header": "Region"}, TEXT),
    "a header in what is excluded or chosen": (
        {
            "type": "object",
            "not": {"properties": {"x": {"type": "number", "x-mcp-header": "A"}}},
            "if": {"x-mcp-header": "B"},
            "propertyNames": {"maxLength": 3, "x-mcp-header": "C"},
            "properties": {"x-mcp-header": TEXT},
        },
        wide(
            {
                "type": "object",
                "not": {"properties": {"x": {"type": "number"}}},
                "if": {},
                "propertyNames": {"maxLength": 3},
                "properties": {"x-mcp-header": TEXT},
            }
        ),
    ),
    "what is not known": (
        {"type": "number", "$comment": "C", "$anchor": "n", "x-order": [1], "unit": {"type": "m"}},
        wide({"type": "number", "$comment": "C", "$anchor": "n", "x-order": [1], "unit": {"type": "m"}}),
    ),
    "yes": (True, {}),  # clients of the TypeScript SDK read only objects here
    "no": (False, {"not": {}}),
    "open": (
        {"type": "object", "additionalProperties": True},
        wide({"type": "object", "additionalProperties": True}),
    ),
    "what is no schema": (5, 5),
    "keywords that are none": (
        {"type": 5, "anyOf": "x", "properties": [1], "items": None, "oneOf": {"a": 1}},
        {
            "anyOf": [
                {"type": 5, "anyOf": "x", "properties": [1], "items": None, "allOf": [{"anyOf": {"a": 1}}]},
                TEXT,
            ]
        },
    ),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_argument_also_admits_a_path_in_the_cheapest_form(name: str) -> None:
    original, wanted = ARGUMENTS[name]
    schema = {"type": "object", "properties": {"x": original}, "required": ["x"]}
    before = copy.deepcopy(schema)
    twin = admit_paths(schema)
    assert schema == before
    assert twin["properties"]["x"] == wanted
    assert twin["required"] == ["x"]
    assert next(iter(twin)) == "type"


ROOTS: list[tuple[Schema, Schema]] = [
    ({}, {"type": "object", "properties": {}}),
    ({"type": "object"}, {"type": "object", "properties": {}}),
    ({"type": ["object", "null"], "properties": {}}, {"type": "object", "properties": {}}),
    (
        {"type": "object", "additionalProperties": False, "$schema": "s", "x-unknown": 1},
        {"type": "object", "additionalProperties": False, "$schema": "s", "x-unknown": 1, "properties": {}},
    ),
    (
        {"anyOf": [{"properties": {"a": TEXT}, "required": ["a"]}, {"properties": {"b": {"type": "null"}}}]},
        {"type": "object", "properties": {"a": TEXT, "b": wide({"type": "null"})}},
    ),
    (
        {
            "oneOf": [
                {"properties": {"a": {"const": 1}}},
                {"properties": {"a": {"type": "array"}}},
                {"properties": {"a": {"const": 1}}},
            ]
        },
        {"type": "object", "properties": {"a": {"anyOf": [{"const": 1}, {"type": "array"}, TEXT]}}},
    ),
    (
        {
            "properties": {"a": TEXT},
            "anyOf": [{"required": ["a"]}],
            "not": {"required": ["z"]},
            "if": True,
            "then": True,
            "else": True,
        },
        {"type": "object", "properties": {"a": TEXT}},
    ),
    (
        {
            "properties": {"a": TEXT},
            "required": ["a"],
            "allOf": [{"$ref": "#/$defs/B"}, {"properties": {"a": {"type": "null"}}, "required": ["b"]}],
            "unevaluatedProperties": False,
            "$defs": {"B": {"properties": {"b": {"type": "number"}}, "required": ["b"]}},
        },
        {
            "type": "object",
            "properties": {"b": wide({"type": "number"}), "a": TEXT},
            "required": ["a", "b"],
            "$defs": {"B": {"properties": {"b": wide({"type": "number"})}, "required": ["b"]}},
        },
    ),
    (
        {
            "$ref": "#/definitions/a~1b%20c",
            "definitions": {"a/b c": {"type": "object", "properties": {"n": {"type": "integer"}}}},
        },
        {
            "type": "object",
            "properties": {"n": wide({"type": "integer"})},
            "definitions": {"a/b c": {"type": "object", "properties": {"n": wide({"type": "integer"})}}},
        },
    ),
    ({"$ref": "https://x.example/s"}, {"type": "object", "properties": {}}),
    ({"$ref": "#/$defs/none/at/all"}, {"type": "object", "properties": {}}),
    ({"anyOf": 5, "allOf": [5, True], "properties": 5}, {"type": "object", "properties": {}}),
]


@pytest.mark.parametrize(("schema", "twin"), ROOTS)
def test_a_root_keeps_its_properties_and_loses_its_combinators(schema: Schema, twin: Schema) -> None:
    assert admit_paths(schema) == twin


def test_a_recursive_schema_stays_one() -> None:
    tree = {
        "type": "object",
        "properties": {"below": {"type": "array", "items": {"$ref": "#/$defs/T"}}, "n": {"type": "number"}},
    }
    twin = admit_paths({"type": "object", "properties": {"tree": {"$ref": "#/$defs/T"}}, "$defs": {"T": tree}})
    check = jsonschema_rs.validator_for(twin)
    for value in ({"below": [{"below": [], "n": PATH}, PATH], "n": 1}, {"below": PATH}, PATH):
        assert check.is_valid({"tree": value})
    assert not check.is_valid({"tree": {"below": [{"n": []}]}})
    assert admit_paths({"$ref": "#", "allOf": [{"$ref": "#"}]}) == {"type": "object", "properties": {}}


REFERENCE = {"x": {"$ref": "#/$defs/A"}}
NUMBER = {"type": "number"}
DEFINED: list[tuple[Schema, dict[str, list[str]]]] = [
    ({"$defs": {"A": NUMBER}}, {}),
    ({"properties": {"x": NUMBER}, "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}}, {}),
    ({"properties": REFERENCE, "$defs": {"A": NUMBER, "B": NUMBER}}, {"$defs": ["A"]}),
    (
        {
            "properties": REFERENCE,
            "$defs": {"A": {"items": [{"$ref": "#/definitions/B"}]}},
            "definitions": {"B": NUMBER},
        },
        {"$defs": ["A"], "definitions": ["B"]},
    ),
    (
        {"properties": REFERENCE, "$defs": {"A": {"items": {"$ref": "#/$defs/A"}}, "B": NUMBER}, "definitions": {}},
        {"$defs": ["A"]},
    ),
    (
        {"properties": {"x": {"$ref": "#b"}}, "$defs": {"A": NUMBER, "B": {"$anchor": "b", "type": "number"}}},
        {"$defs": ["B"]},
    ),
    ({"$ref": "#/$defs", "$defs": {"A": NUMBER, "B": NUMBER}}, {"$defs": ["A", "B"]}),
    ({"$id": "https://a.example/s", "properties": REFERENCE, "$defs": {"A": NUMBER, "B": NUMBER}}, {"$defs": ["A"]}),
    (
        {"properties": {"x": {"$id": "https://a.example/s"}}, "$defs": {"A": NUMBER, "B": NUMBER}},
        {"$defs": ["A", "B"]},
    ),
    ({"properties": {"x": {"$dynamicRef": "#a"}}, "$defs": {"A": {"$dynamicAnchor": "a"}}}, {"$defs": ["A"]}),
    ({"properties": {"x": {"$ref": "https://a.example/s"}}, "$defs": {"A": NUMBER}}, {}),
    ({"properties": {"x": {"$ref": ["#/$defs/A"]}}, "$defs": 5}, {}),
]
"""Schemas, and the names of the definitions that their twins keep."""


@pytest.mark.parametrize(("schema", "kept"), DEFINED)
def test_a_twin_has_only_the_definitions_that_it_uses(schema: Schema, kept: dict[str, list[str]]) -> None:
    twin = admit_paths(schema)
    found = {word: twin[word] for word in ("$defs", "definitions") if word in twin}
    assert {word: list(names) for word, names in found.items() if isinstance(names, dict)} == kept


def test_a_schema_of_any_depth_is_widened_as_far_as_is_sensible() -> None:
    schema: Schema = {"type": "number"}
    for _ in range(300):
        schema = {"type": "array", "items": schema}
    twin = admit_paths({"type": "object", "properties": {"x": schema}})
    assert twin["properties"]["x"]["anyOf"] == [schema, TEXT]


@pytest.mark.parametrize(("levels", "admitting"), [(3, 3), (13, 13), (14, 14), (15, 9), (18, 9), (24, 5), (50, 1)])
def test_paths_do_not_make_a_deep_schema_too_deep_for_clients(levels: int, admitting: int) -> None:
    schema: Schema = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"x": schema}}
    text = json.dumps(admit_paths(schema))
    assert text.count('{"type": "string"}') == admitting
    assert not is_deeper(text.encode(), max(60, 2 * levels + 3))


def test_a_schema_that_cannot_be_listed_is_widened_too() -> None:
    half = {"type": "integer", "description": "\ud800"}
    assert "anyOf" in admit_paths({"type": "object", "properties": {"x": half}})["properties"]["x"]


# What the original accepts, the twin accepts.

NAMES = st.sampled_from(["a", "b", "c"])
SIMPLE: st.SearchStrategy[tuple[Any, Any]] = st.sampled_from(
    [
        *(({"type": "string"}, "s"), ({"type": "integer"}, 3), ({"type": "number", "minimum": 0}, 1.5)),
        *(
            ({"type": "boolean", "default": False}, True),
            ({"type": ["null", "integer"]}, None),
            ({"enum": [1, "x"]}, 1),
        ),
        *(
            ({"type": "string", "maxLength": 2, "title": "T"}, "ab"),
            ({"const": {"k": [1]}}, {"k": [1]}),
            ({}, [1, {"a": 2}]),
        ),
        *(({"type": "integer", "enum": [1, 2]}, 2), (True, {"a": 1}), ({"$ref": "#/$defs/D"}, {"d": [4]})),
        *(({"$ref": "#/$defs/D/properties/d"}, [4]), ({"$ref": "#dee"}, {"d": []}), ({"$dynamicRef": "#items"}, 4)),
        *(({"type": "string", "pattern": "^x+$"}, "xx"), ({"not": {"type": "string"}}, 7)),
    ]
)
DEFS = {
    "D": {
        "$anchor": "dee",
        "type": "object",
        "properties": {"d": {"type": "array", "items": {"$dynamicAnchor": "items", "type": "integer"}}},
        "required": ["d"],
    }
}


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[tuple[Any, Any]]) -> tuple[Any, Any]:
    parts = draw(st.dictionaries(NAMES, inner, max_size=3))
    closed = {"additionalProperties": False} if draw(st.booleans()) else {}
    schema = {
        "type": "object",
        "properties": {key: part for key, (part, _) in parts.items()},
        "required": list(parts),
        **closed,
    }
    return schema, {key: value for key, (_, value) in parts.items()}


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[tuple[Any, Any]]) -> tuple[Any, Any]:
    prefix, (rest, value) = draw(st.lists(inner, max_size=2)), draw(inner)
    head = {"prefixItems": [part for part, _ in prefix]} if prefix else {}
    return {"type": "array", **head, "items": rest}, [*(item for _, item in prefix), value]


@st.composite
def combined(draw: st.DrawFn, inner: st.SearchStrategy[tuple[Any, Any]]) -> tuple[Any, Any]:
    (one, value), (other, _) = draw(inner), draw(inner)
    word = draw(st.sampled_from(["anyOf", "oneOf", "allOf"]))
    return {word: [one] if word == "allOf" else [one, other], "description": "D"}, value


ANY_SCHEMA = st.recursive(SIMPLE, lambda inner: st.one_of(objects(inner), arrays(inner), combined(inner)), max_leaves=8)


@st.composite
def roots(draw: st.DrawFn) -> tuple[Schema, Any]:
    (schema, value), (other, more) = draw(objects(ANY_SCHEMA)), draw(objects(ANY_SCHEMA))
    form = draw(st.sampled_from(["plain", "allOf", "anyOf", "oneOf", "$ref"]))
    if form == "$ref":
        return {"$ref": "#/$defs/R", "$defs": {**DEFS, "R": schema}}, value
    if form == "allOf":
        return {"type": "object", "allOf": [schema], "$defs": DEFS}, value
    if form == "plain":
        return {**schema, "$defs": DEFS}, value
    added = {key: part for key, part in other["properties"].items() if key not in schema["properties"]}
    other = {**other, "properties": added, "required": list(added)}
    more = {key: part for key, part in more.items() if key in added}
    return {"type": "object", form: [schema, other], "$defs": DEFS}, draw(st.sampled_from([value, more]))


def replaced(value: Any, schema: Any) -> list[Any]:
    """Copies of the value, each with one argument, property or item replaced by a path."""
    places: list[Any] = []
    if isinstance(value, dict) and "const" not in schema:
        for key, below in value.items():
            places += [{**value, key: new} for new in (PATH, *replaced(below, schema))]
    elif isinstance(value, list):
        for at, below in enumerate(value):
            places += [[*value[:at], new, *value[at + 1 :]] for new in (PATH, *replaced(below, schema))]
    return places


@given(roots())
@example(
    (
        {"type": "object", "properties": {"a": {"oneOf": [POINT, {"type": "object", "required": ["x"]}]}}},
        {"a": {"x": 1}},
    )
)
def test_a_twin_accepts_what_its_tool_accepts(drawn: tuple[Schema, Any]) -> None:
    schema, value = drawn
    twin = jsonschema_rs.validator_for(admit_paths(schema))
    if jsonschema_rs.validator_for(schema).is_valid(value):
        assert twin.is_valid(value)


@given(roots())
def test_a_twin_accepts_a_path_for_every_argument_and_its_parts(drawn: tuple[Schema, Any]) -> None:
    schema, value = drawn
    original = jsonschema_rs.validator_for(schema)
    twin = jsonschema_rs.validator_for(admit_paths(schema))
    if not original.is_valid(value):
        return
    assert all(twin.is_valid({**value, key: PATH}) for key in value)
    if '"const"' not in json.dumps(schema):
        assert all(twin.is_valid(changed) for changed in replaced(value, schema))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["properties", "items", "anyOf", "oneOf", "allOf", "$ref", "type", "$defs", "enum", "required"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_whatever_calls_itself_a_schema_has_a_twin(schema: Any) -> None:
    root = schema if isinstance(schema, dict) else {"properties": {"x": schema}}
    twin = admit_paths(root)
    assert twin["type"] == "object"
    assert {"anyOf", "oneOf", "allOf", "$ref"}.isdisjoint(twin)
