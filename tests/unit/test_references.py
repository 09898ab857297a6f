"""References of a schema have the same targets in its twin."""

import copy
import json
import time
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_mirror.core.schemas.references import References, Schema, move_targets, without
from mcp_mirror.core.schemas.twin_schemas import admit_paths

PATH = "make_grid-3f2b8c1e-9d4a-4e7b-8f21-0a1b2c3d4e5f/raw_grid"
NUMBER = {"type": "integer"}
POINT = {"type": "object", "properties": {"x": NUMBER}, "required": ["x"]}


def of(**properties: Any) -> Schema:
    return {"type": "object", "properties": properties}


LIST = {"type": "array", "items": POINT}
"""Its items stand one level deeper in a twin."""

SCHEMAS: dict[str, tuple[Schema, Any, Any]] = {
    "the items of an argument": (of(a=LIST, b={"$ref": "#/properties/a/items"}), {"b": {"x": 1}}, {"b": {"x": []}}),
    "a property of an argument": (of(a=POINT, b={"$ref": "#/properties/a/properties/x"}), {"b": 1}, {"b": []}),
    "an alternative": (
        of(a={"anyOf": [NUMBER, POINT]}, b={"$ref": "#/properties/a/anyOf/1"}),
        {"b": {"x": 1}},
        {"b": 1},
    ),
    "one of several": (
        of(a={"oneOf": [NUMBER, POINT]}, b={"$ref": "#/properties/a/oneOf/1"}),
        {"b": {"x": 1}},
        {"b": 1},
    ),
    "an argument": (of(a=LIST, b={"$ref": "#/properties/a"}), {"b": [{"x": 1}]}, {"b": [{"x": []}]}),
    "a definition": (of(b={"$ref": "#/$defs/P"}) | {"$defs": {"P": POINT}}, {"b": {"x": 1}}, {"b": {"x": []}}),
    "part of a definition": (
        of(b={"$ref": "#/$defs/L/items"}) | {"$defs": {"L": LIST, "L_items": True, "defs_L_items": True}},
        {"b": {"x": 1}},
        {"b": {"x": []}},
    ),
    "part of a definition within one": (
        of(b={"$ref": "#/definitions/D/properties/l/items"}) | {"definitions": {"D": of(l=LIST)}},
        {"b": {"x": 1}},
        {"b": {"x": []}},
    ),
    "itself": (of(n=NUMBER, b={"$ref": "#"}), {"b": {"b": {"n": 1}}}, {"b": {"b": {"n": []}}}),
    "itself, deeper": (
        of(
            a={
                "type": "array",
                "items": of(n=NUMBER, more={"type": "array", "items": {"$ref": "#/properties/a/items"}}),
            }
        ),
        {"a": [{"more": [{"n": 1, "more": []}]}]},
        {"a": [{"more": [{"n": 1, "more": [{"n": []}]}]}]},
    ),
    "one within another": (
        of(a=LIST, b={"$ref": "#/properties/a/items"}, c={"$ref": "#/properties/a/items/properties/x"}),
        {"b": {"x": 1}, "c": 1},
        {"c": []},
    ),
    "what the root loses": (
        {"allOf": [of(a=NUMBER)], "properties": {"b": {"$ref": "#/allOf/0"}}},
        {"b": {"a": 1}},
        {"b": {"a": []}},
    ),
    "a name": (of(a={"$anchor": "p", **POINT}, b={"$ref": "#p"}), {"b": {"x": 1}}, {"b": {"x": []}}),
    "a name below a definition": (
        {"$ref": "#/$defs/R", "$defs": {"R": of(a={"$anchor": "p", **POINT}, b={"$ref": "#p"})}},
        {"b": {"x": 1}},
        {"b": {"x": []}},
    ),
    "a name that the root loses": (
        {"allOf": [{"$anchor": "base", **of(a=NUMBER)}], "properties": {"b": {"$ref": "#base"}}},
        {"b": {"a": 1}},
        {"b": {"a": []}},
    ),
    "a name that moves": (
        of(
            a={"type": "array", "items": {"$anchor": "p", **POINT}},
            b={"$ref": "#/properties/a/items"},
            c={"$ref": "#p"},
        ),
        {"b": {"x": 1}, "c": {"x": 1}},
        {"c": {"x": []}},
    ),
    "a name that is looked up as it is used": (
        {"$dynamicAnchor": "node", **of(n=NUMBER, below={"type": "array", "items": {"$dynamicRef": "#node"}})},
        {"below": [{"n": 1, "below": []}]},
        {"below": [{"n": []}]},
    ),
    "an address of its own": (
        {"$id": "https://x.example/s", **of(a=LIST, b={"$ref": "https://x.example/s#/properties/a/items"})},
        {"b": {"x": 1}},
        {"b": {"x": []}},
    ),
    "a part with an address": (
        of(a={"$id": "https://x.example/a", **of(k=NUMBER, l={"$ref": "#/properties/k"})}),
        {"a": {"l": 1}},
        {"a": {"l": []}},
    ),
    "yes": (of(a={"type": "array", "items": True}, b={"$ref": "#/properties/a/items"}), {"b": [1]}, None),
    "anything": (of(a={"type": "array", "items": {}}, b={"$ref": "#/properties/a/items"}), {"b": [1]}, None),
    "an odd name": (
        of(**{"~/%": LIST, "b": {"$ref": "#/properties/~0~1%25/items"}}),
        {"b": {"x": 1}},
        {"b": {"x": []}},
    ),
    "a tuple": (
        of(a={"type": "array", "prefixItems": [POINT]}, b={"$ref": "#/properties/a/prefixItems/0"}),
        {"b": {"x": 1}},
        {"b": {"x": []}},
    ),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_reference_leads_in_a_twin_to_what_it_led_to(name: str) -> None:
    schema, good, bad = SCHEMAS[name]
    before = copy.deepcopy(schema)
    original, twin = jsonschema_rs.validator_for(schema), jsonschema_rs.validator_for(admit_paths(schema))
    assert schema == before
    assert original.is_valid(good)
    assert twin.is_valid(good)
    assert bad is None or not original.is_valid(bad)
    assert bad is None or not twin.is_valid(bad)
    assert twin.is_valid(dict.fromkeys(good, PATH))


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_with_settled_references_validates_the_same(name: str) -> None:
    schema, good, bad = SCHEMAS[name]
    settled = jsonschema_rs.validator_for(move_targets(schema))
    assert settled.is_valid(good)
    assert bad is None or not settled.is_valid(bad)
    assert not settled.is_valid(5)


KEPT = [
    of(a=NUMBER, b={"$ref": "#/properties/a"}),
    of(b={"$ref": "#/$defs/none/at/all"}),
    of(b={"$ref": "#/properties/b/anyOf/x"}, c={"anyOf": [True]}, d={"$ref": "#/properties/c/anyOf/x"}),
    of(b={"$ref": "https://x.example/other#/a/b/c"}, c={"$ref": 5}, d={"$ref": "#nobody"}, e={"$ref": "#a/b"}),
    of(a={"enum": [{"$ref": "#/properties/b/items"}], "default": {"$ref": "#/properties/b/items"}}, b=LIST),
    of(a={"properties": 5, "anyOf": 5, "items": [True]}, b={"$ref": "#/properties/a/anyOf/0"}),
]


@pytest.mark.parametrize("schema", KEPT, ids=json.dumps)
def test_a_schema_in_which_nothing_has_to_move_is_kept(schema: Schema) -> None:
    assert move_targets(schema) is schema


def test_a_moved_schema_is_written_once_among_the_definitions() -> None:
    schema = of(a=LIST, b={"$ref": "#/properties/a/items"}, c={"$ref": "#/properties/a/items"})
    here = {"$ref": "#/$defs/properties_a_items"}
    assert move_targets(schema) == {
        **of(a={"type": "array", "items": here}, b=here, c=here),
        "$defs": {"properties_a_items": POINT},
    }
    broken = move_targets(schema | {"$defs": 5})
    assert broken["$defs"] == {"properties_a_items": POINT}


def test_places_of_one_name_get_names_of_their_own() -> None:
    schema = of(
        a={"anyOf": [of(p=of(q=NUMBER)), of(p=of(q=POINT))]},
        b={"$ref": "#/properties/a/anyOf/0/properties/p/properties/q"},
        c={"$ref": "#/properties/a/anyOf/1/properties/p/properties/q"},
        d={"type": "array", "items": {"properties": {"\u6570": NUMBER}}},
        e={"$ref": "#/properties/d/items/properties/\u6570"},
    )
    settled = move_targets(json.loads(json.dumps(schema | {"$defs": {"p_properties_q_2": True}})))
    assert list(settled["$defs"]) == ["p_properties_q_2", "p_properties_q", "p_properties_q_3", "items_properties"]
    assert settled["$defs"]["p_properties_q_3"] == POINT


def test_a_part_with_an_address_keeps_its_names() -> None:
    named = {
        "$anchor": "a",
        "items": {"$dynamicAnchor": "b", "not": {"$id": "x", "$anchor": "c"}},
        "enum": [{"$anchor": 1}],
    }
    assert without(named, ("$anchor", "$dynamicAnchor")) == {
        "items": {"not": {"$id": "x", "$anchor": "c"}},
        "enum": [{"$anchor": 1}],
    }
    assert without(5, ("$anchor",)) == 5


def test_a_schema_that_contains_itself_terminates() -> None:
    endless: Schema = {"properties": {}}
    endless["properties"]["x"] = endless
    assert move_targets(endless) is endless
    endless["properties"]["y"] = {"$ref": "#/properties/x/properties/x"}
    assert move_targets(endless)["properties"]["y"]["$ref"].startswith("#/$defs/")
    assert without(endless, ())["properties"]["x"]["properties"].keys() == {"x", "y"}


def test_ten_thousand_references_are_settled_soon() -> None:
    arguments: Schema = {
        f"a{n}": {"properties": {"x": {"properties": {"y": NUMBER | {"minimum": n}}}}} for n in range(10_000)
    }
    arguments |= {f"b{n}": {"$ref": f"#/properties/a{n}/properties/x/properties/y"} for n in range(10_000)}
    started = time.process_time()
    settled = move_targets({"type": "object", "properties": arguments})
    assert len(settled["$defs"]) == 10_000
    assert time.process_time() - started < 5


@given(st.lists(st.sampled_from(["properties", "a", "items", "0", "anyOf", "~0", "%41", ""]), max_size=5))
def test_any_way_leads_somewhere_or_nowhere(tokens: list[str]) -> None:
    references = References(of(a={"anyOf": [LIST]}, A={"items": [{}]}))
    pointer = references.pointer("#" + "".join(f"/{token}" for token in tokens))
    assert pointer is not None
    assert len(pointer) == len(tokens)
    references.at(pointer)
