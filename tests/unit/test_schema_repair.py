"""Schemas that are not valid JSON Schema, of which models still see the arguments."""

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_mirror.core.schemas.repair import repair_schema
from mcp_mirror.core.schemas.tool_inspection import inspect_tool
from mcp_mirror.settings.limits import UpstreamBounds

TEXT = {"type": "string"}

ARGUMENTS: list[tuple[Any, Any]] = [
    # What servers write.
    ({"type": "float", "description": "D"}, {"type": "number", "description": "D"}),
    ({"type": "String"}, TEXT),
    ({"type": "any", "description": "D"}, {"description": "D"}),
    (TEXT | {"required": True}, TEXT),
    (TEXT | {"description": None, "title": 5, "default": None}, TEXT | {"default": None}),
    (TEXT | {"enum": None, "minLength": None, "maxLength": "9"}, TEXT),
    (TEXT | {"pattern": "^[\\w-\\.]+$", "format": "email"}, TEXT | {"format": "email"}),
    ({"type": "number", "minimum": 0, "exclusiveMinimum": True}, {"type": "number", "minimum": 0}),
    ({"type": "array", "items": [TEXT]}, {"type": "array", "prefixItems": [TEXT], "items": {}}),
    ({"type": "array", "items": []}, {"type": "array", "items": {}}),
    ({"$ref": "#/components/schemas/X", "description": "D"}, {"description": "D"}),
    ({"items": {"$ref": "#/definitions/X"}}, {"items": {}}),
    ({"$ref": "https://x.example/s"}, {}),
    ({"$ref": 5}, {}),
    ("string", {}),
    (None, {}),
    # Valid parts beside them.
    (True, True),
    ({"$ref": "#/$defs/D"}, {"$ref": "#/$defs/D"}),
    ({"$ref": "#"}, {"$ref": "#"}),
    ({"anyOf": [TEXT, {"type": ["integer", "null"]}], "oneOf": []}, {"anyOf": [TEXT, {"type": ["integer", "null"]}]}),
    ({"type": ["integer", "x"], "multipleOf": 0, "maximum": True}, {}),
    ({"type": [[]], "uniqueItems": "yes", "readOnly": True}, {"readOnly": True}),
    ({"type": "object", "additionalProperties": TEXT, "contains": 5}, {"type": "object", "additionalProperties": TEXT}),
    # Keywords that would exclude more values without the ones below them.
    ({"type": "object", "patternProperties": {"[": TEXT}, "additionalProperties": False}, {"type": "object"}),
    ({"patternProperties": {"[": TEXT}, "additionalProperties": True}, {"additionalProperties": True}),
    (TEXT | {"not": {"pattern": "("}}, TEXT),
    ({"x-own": [1], "nullable": True}, {"x-own": [1], "nullable": True}),
]


@pytest.mark.parametrize(("written", "expected"), ARGUMENTS)
def test_the_valid_parts_of_an_argument_remain(written: Any, expected: Any) -> None:
    schema = {"$schema": "s", "type": "object", "properties": {"a": written, "b": 5}, "$defs": {"D": {"type": "str"}}}
    assert repair_schema(schema) == {"type": "object", "properties": {"a": expected, "b": {}}, "$defs": {"D": TEXT}}


def test_a_schema_that_is_nested_very_deep_ends_early() -> None:
    schema: Any = {"required": True}
    for _ in range(200):
        schema = {"properties": {"a": schema}}
    jsonschema_rs.meta.validate(repair_schema(schema))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from(["string", "object", "#/properties/a", "(", ""]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["type", "properties", "items", "required", "$ref", "anyOf", "enum", "pattern", "minItems", "$defs", "a",
             "additionalProperties", "default", "exclusiveMinimum", "format", "$id", "$anchor", "prefixItems"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=20,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(["type", "properties", "required", "$defs", "items", "anyOf"]), JSON))
def test_a_repaired_schema_is_always_valid(schema: Any) -> None:
    repaired = repair_schema(schema)
    jsonschema_rs.meta.validate(repaired)
    assert repair_schema(repaired) == repaired


def test_the_twin_of_a_tool_with_an_invalid_schema_has_its_arguments() -> None:
    schema = {"type": "object", "properties": {"path": TEXT | {"required": True}, "n": {"type": "float"}}}
    found = inspect_tool({"name": "x", "inputSchema": schema}, UpstreamBounds())
    assert str(found.schema_error).startswith("its input schema is not valid")
    assert found.check is None
    assert found.twin_schema == {
        "type": "object",
        "properties": {"path": TEXT, "n": {"anyOf": [{"type": "number"}, TEXT]}},
    }


@pytest.mark.parametrize("schema", [{"type": "string", "properties": {"a": 5}}, {"properties": {"a": "x" * 70_000}}])
def test_a_schema_for_a_text_or_a_large_one_gives_way_to_any_object(schema: Any) -> None:
    found = inspect_tool({"name": "x", "inputSchema": schema}, UpstreamBounds())
    assert (found.schema, found.check) == ({"type": "object"}, None)
    assert found.schema_error
