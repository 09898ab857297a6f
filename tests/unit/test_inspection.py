"""The inspection of a listed tool."""

from typing import Any

import pytest
from tests.hostile.schemas import page

from mcp_mirror.core.schemas.listed_members import make_properties_readable
from mcp_mirror.core.schemas.tool_inspection import (
    InspectedTool,
    inspect_definition,
    inspect_tool,
    verify_if_cheap,
    verify_tool,
)
from mcp_mirror.settings.limits import UpstreamBounds

BOUNDS = UpstreamBounds(max_tool_bytes=10_000)


def tool(**more: Any) -> dict[str, Any]:
    return {"name": "a", "inputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}}} | more


def test_an_ordinary_tool_has_a_twin_and_is_validated_at_once() -> None:
    found = inspect_tool(tool(), BOUNDS)
    assert (found.name, found.rejection, found.schema_error, found.invalid_members) == ("a", None, None, ())
    assert found.twin_schema["properties"]["n"] == {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    assert found.check is not None
    assert found.check({"n": "x"})


def test_a_recursive_schema_is_not_validated_on_the_event_loop() -> None:
    found = inspect_tool(tool(inputSchema={"type": "object"} | page()), BOUNDS)
    assert found.schema_error is None
    assert (found.check, found.cost) == (None, None)


def test_a_tool_over_a_bound_is_not_looked_through() -> None:
    found = inspect_tool(tool(description="x" * 20_000), BOUNDS)
    assert found.rejection is not None
    assert "max_tool_bytes" in found.rejection
    assert found == verify_tool(found)


def test_a_schema_that_is_not_valid_gives_way_to_any_object() -> None:
    found = inspect_tool(tool(inputSchema={"properties": []}), BOUNDS)
    assert found.schema == {"type": "object"}
    assert found.schema_error
    assert str(found.schema_error).startswith("its input schema is not valid")
    hidden = inspect_tool(tool(inputSchema={"type": "object", "properties": {"a": {"type": "\u202e"}}}), BOUNDS)
    assert '"\\u202e" is not valid' in str(hidden.schema_error)


def test_a_tool_without_a_schema_or_with_odd_members_is_served() -> None:
    found = inspect_tool({"name": "a", "annotations": 5, "title": "A"}, BOUNDS)
    assert (found.schema_error, found.invalid_members) == ("it has no input schema", ("annotations",))
    assert found.valid_members == {"name": "a", "title": "A"}
    assert found.twin_schema == {"type": "object", "properties": {}}
    assert InspectedTool({"name": 5}).name == ""


def test_members_of_a_tool_that_are_null_are_left_out() -> None:
    nulls = dict.fromkeys(("title", "description", "icons", "outputSchema", "execution", "_meta"))
    found = inspect_tool(tool(**nulls, annotations={"title": None, "readOnlyHint": True}, own=None), BOUNDS)
    assert found.invalid_members == ()
    assert found.valid_members == tool(annotations={"readOnlyHint": True}, own=None)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"properties": {"a": True, "b": False, "c": 5}}, {"properties": {"a": {}, "b": {"not": {}}, "c": 5}}),
        ({"properties": {"a": {}}}, {"properties": {"a": {}}}),
        ({"properties": 5}, {"properties": 5}),
        (True, True),
    ],
)
def test_each_property_that_is_a_boolean_becomes_an_object(schema: Any, expected: Any) -> None:
    assert make_properties_readable(schema) == expected


def test_a_hint_that_is_not_a_boolean_is_left_out() -> None:
    found = inspect_tool(tool(annotations={"readOnlyHint": "true"}), BOUNDS)
    assert found.invalid_members == ("annotations",)
    assert found.valid_members == tool()


def test_a_tool_may_be_served_with_its_schema_but_unchecked() -> None:
    found = inspect_definition(tool(), BOUNDS).without_validation("its schema takes too long to compile")
    assert found.schema == tool()["inputSchema"]
    assert found.schema_error


def test_the_event_loop_compiles_only_small_schemas() -> None:
    small = verify_if_cheap(inspect_definition(tool(), BOUNDS))
    assert small is not None
    assert small.check is not None
    recursive = verify_if_cheap(inspect_definition(tool(inputSchema={"type": "object"} | page()), BOUNDS))
    assert recursive is not None
    assert (recursive.check, recursive.schema_error) == (None, None)
    slow = inspect_definition(tool(inputSchema={"type": "object", "unevaluatedProperties": False}), BOUNDS)
    large = inspect_definition(tool(inputSchema={"type": "object", "pattern": "((a{1,100}){1,100}){1,100}"}), BOUNDS)
    invalid = inspect_definition(tool(inputSchema={"properties": []}), BOUNDS)
    assert [verify_if_cheap(one) for one in (slow, large, invalid)] == [None] * 3
    without = inspect_definition({"name": "a"}, BOUNDS)
    assert verify_if_cheap(without) == without
