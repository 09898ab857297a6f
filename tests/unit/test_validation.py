"""The cost of validation, and the errors for wrong arguments."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from computing import least_seconds
from tests.hostile.schemas import blocks, doubling, levels, page

from mcp_mirror.core.schemas.validation import MAX_WORK, SchemaCheck
from mcp_mirror.core.schemas.validation_cost import Cost, estimate_cost


def nested(depth: int, value: Any) -> Any:
    for _ in range(depth):
        value = {"x": value}
    return value


def check(schema: Any, arguments: Any) -> str:
    return "; ".join(map(str, SchemaCheck(schema)(arguments)))


@pytest.mark.parametrize(
    ("schema", "cost"),
    [
        ({}, Cost(1, 0)),
        ({"properties": {"a": True, "b": {"enum": [1, 2]}}, "required": ["a"]}, Cost(6, 0)),
        ({"properties": {"a": {"pattern": "^a"}}, "patternProperties": {"b": {"format": "uri"}}}, Cost(3, 3)),
        ({"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"items": {}}, "b": {"not": {}}}}, Cost(4, 0)),
        ({"allOf": [{"$ref": "#/$defs/a"}] * 3, "$defs": {"a": {"type": "null"}}}, Cost(7, 0)),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "$id": "x"}, Cost(1, 0)),
        ({"properties": {"a": {"$ref": "https://x.example"}}}, Cost(3, 0)),
        ({"contentMediaType": "application/json"}, Cost(1, 1)),
        ({"contentEncoding": "base64"}, Cost(1, 1)),
        ({"properties": {"a": {"multipleOf": 0.01}, "b": {"multipleOf": 5}}}, Cost(3, 0, multiples=2)),
        ({"properties": {"a": {"multipleOf": 1e-300}}}, None),
        ({"properties": {"a": {"multipleOf": 10**400}}}, None),
        (doubling("anyOf", 8), Cost(1023, 0)),
        (doubling("allOf"), None),
        (page(), None),
        ({"properties": {"a": {"$ref": "#"}}}, None),
        ({"properties": {"a": {"$id": "x"}}}, None),
        ({"unevaluatedProperties": False}, None),
        ({"properties": {"a": {"$dynamicRef": "#x"}}}, None),
        ({"properties": {"a": {"pattern": "(?=a)b"}}}, None),
        ({"properties": {"a": {"pattern": r"(a)\1"}}}, None),
        ({"properties": {"a": {"format": "regex"}}}, None),
        ({"$schema": "https://x.example/dialect"}, None),
        ({"$schema": 5}, None),
        ({"allOf": [{"allOf": [{}] * 101}] * 101}, None),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_the_cost_of_a_schema_is_bounded_or_unknown(schema: Any, cost: Cost | None) -> None:
    assert estimate_cost(schema) == cost


def test_a_long_chain_of_references_has_no_known_cost() -> None:
    defs: dict[str, Any] = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(5000)}
    assert estimate_cost({"$ref": "#/$defs/d0", "$defs": defs}) is None


def test_work_grows_with_values_and_texts() -> None:
    assert Cost(3, 0).work(b'{"a":[1,2]}') == 3 * 4
    assert Cost(1, 2).work(b'"abcd"') == 1 + 20 * 2 * 6


@pytest.mark.parametrize("number", ["12.34", "1e300", "5e-324", "9" * 4000, "0." + "3" * 4000, "1234567890123456789"])
@pytest.mark.parametrize("of", [0.01, 1e-9, 3, 1_000_000])
def test_the_bound_of_the_work_includes_multiples_of_any_numbers(number: str, of: float) -> None:
    schema = {"properties": {"a": {"type": "array", "items": {"multipleOf": of}}}}
    cost, bounded = estimate_cost(schema), SchemaCheck(schema)
    assert cost is not None
    assert cost.work(b'{"a":[0.5,12.25]}') <= MAX_WORK / 100
    count = 1
    while cost.work(text := b'{"a":[%b]}' % b",".join([number.encode()] * count)) <= MAX_WORK:
        count *= 2
    text = b'{"a":[%b]}' % b",".join([number.encode()] * (count // 2))
    arguments = json.loads(text)
    assert least_seconds(lambda: bounded.is_valid(arguments)) < 0.1


@pytest.mark.parametrize("depth", [0, 3, 30])
def test_the_error_of_a_recursive_schema_names_the_innermost_value(depth: int) -> None:
    began = time.process_time()
    error = check(page(), blocks(depth, "cardd"))
    assert time.process_time() - began < 5
    assert '\'type\' is "cardd"; the schema has alternatives for "section", "columns", "card", "tabs"' in error
    assert error.startswith("page" + ".children.0" * min(depth, 3))
    assert len(error) <= 300


def test_the_error_of_very_deep_arguments_ends_where_the_steps_end() -> None:
    assert "the value does not fit the schema of this argument" in check(page(), blocks(150, "cardd"))


def test_the_error_of_a_recursive_schema_names_a_wrong_member() -> None:
    arguments = blocks(5, "tabs")
    arguments["page"]["children"][0]["title"] = 7
    assert check(page(), arguments) == 'page.children.0.title: 7 is not of type "string"'


@pytest.mark.parametrize("properties", [{"properties": {"page": {"$ref": "#/$defs/block"}}}, {"properties": {}}, {}])
def test_the_error_names_an_argument_that_the_schema_does_not_allow(properties: Any) -> None:
    schema = {"type": "object", "$defs": page()["$defs"], "additionalProperties": False} | properties
    assert check(schema, {"pgae": {}}) == "Additional properties are not allowed ('pgae' was unexpected)"


RECURSIVE = {"$ref": "#/$defs/tree"}
TREE = {"type": "object", "additionalProperties": RECURSIVE, "properties": {"n": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "arguments", "expected"),
    [
        ({"$defs": {"tree": TREE}, "allOf": [{}, RECURSIVE]}, {"n": "x"}, 'n: "x" is not of type "integer"'),
        ({"$defs": {"tree": TREE}, "properties": {"a": RECURSIVE}}, {"a": 5}, 'a: 5 is not of type "object"'),
        ({"$defs": {"tree": TREE}, "properties": {"a~/b %": RECURSIVE}}, {"a~/b %": {"n": {}}}, "a~/b %.n: {}"),
        (
            {"$defs": {"tree": TREE}, "properties": {"a": {"anyOf": [RECURSIVE, {"type": "null"}]}}},
            {"a": 5},
            'a: 5 is not of type "object" or "null"',
        ),
        (
            {"$defs": {"tree": TREE}, "properties": {"a": {"not": RECURSIVE}}},
            {"a": {}},
            "a: the value does not fit the schema of this argument",
        ),
        (
            {
                "$defs": {"tree": TREE},
                "oneOf": [
                    {"properties": {"kind": {"enum": ["a", "b"]}, "x": RECURSIVE}, "required": ["kind"]},
                    {"properties": {"kind": {"const": "c"}, "x": {"type": "null"}}, "required": ["kind"]},
                ],
            },
            {"kind": "c", "x": 1},
            'x: 1 is not of type "null"',
        ),
        (
            {"$defs": {"tree": TREE}, "properties": {"a": {"anyOf": [False, RECURSIVE]}}},
            {"a": []},
            "a: the value does not fit the schema of this argument",
        ),
        (
            {"properties": {"a": {"$ref": "#"}}, "maxProperties": 1},
            {"a": {"a": {}, "b": {}}},
            'a: {"a":{},"b":{}} has more than 1 property',
        ),
        ({"properties": {"a": {"$ref": "#"}}}, {}, ""),
        (
            {"$defs": {"tree": TREE}, "properties": {"a": {"items": RECURSIVE, "maxItems": 1}}},
            {"a": [{}, {}]},
            "a: [{}",
        ),
        ({"$defs": {"tree": TREE}, "properties": {"a": False, "b": RECURSIVE}}, {"a": 1}, "a: False schema does not"),
        ({"$defs": {"tree": TREE}, "properties": {"a": {"items": RECURSIVE}}}, {"a": [{}, {"n": ""}]}, "a.1.n: "),
        (
            {"$defs": {"a": {"$ref": "#/$defs/a", "type": "null"}}, "anyOf": [{"$ref": "#/$defs/a"}, False]},
            {},
            "the value does not fit the schema of this argument",
        ),
        (
            {
                "$defs": {"tree": TREE},
                "anyOf": [
                    {"properties": {"v": {"const": 1}, "kind": {"const": "a"}, "x": RECURSIVE, "y": True}},
                    {"properties": {"v": {"const": 1}, "kind": {"const": "b"}, "x": RECURSIVE}},
                ],
            },
            {"v": 1, "kind": "c"},
            '\'kind\' is "c"; the schema has alternatives for "a", "b"',
        ),
    ],
)
def test_an_error_follows_references_and_alternatives(schema: Any, arguments: Any, expected: str) -> None:
    assert check(schema, arguments).startswith(expected)
    assert bool(check(schema, arguments)) == bool(expected)


NUMBERS = {"type": "array", "items": {"type": "number"}}


@pytest.mark.parametrize(
    ("alternatives", "value", "expected"),
    [
        ([{"type": "string"}, {"type": "null"}], 5, 'a: 5 is not of type "string" or "null"'),
        ([{"type": ["array", "null"]}, {"type": "null"}], "x", 'a: "x" is not of type "null" or "array"'),
        ([NUMBERS, {"type": "null"}], [1, "x"], 'a.1: "x" is not of type "number"'),
        ([{"anyOf": [NUMBERS, {"type": "string"}]}, {"type": "null"}], ["x"], 'a.0: "x" is not of type "number"'),
        ([{"type": "object", "required": ["id"]}, {"type": "string"}], {}, 'a: "id" is a required property'),
        (
            [{"type": "integer", "minimum": 3}, {"const": "x"}],
            2,
            'a: 2 is less than the minimum of 3; or "x" was expected',
        ),
        (
            [{"minimum": n} for n in (3, 3, 4, 5, 6)],
            2,
            "a: 2 is less than the minimum of 3; or 2 is less than the minimum of 4",
        ),
    ],
)
@pytest.mark.parametrize("word", ["anyOf", "oneOf"])
def test_an_error_names_what_the_alternatives_expect(
    word: str, alternatives: list[Any], value: Any, expected: str
) -> None:
    error = check({"properties": {"a": {word: alternatives}}}, {"a": value})
    assert error.startswith(expected)
    assert error.count("; or ") <= 2


CAT = {"properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}}, "required": ["lives"]}
DOG = {"properties": {"kind": {"enum": ["dog"]}, "tricks": {"type": "array"}}, "required": ["tricks"]}
BIRD = {"properties": {"kind": {"const": "bird"}, "song": {}}, "required": ["song"]}
STONE = {"properties": {"weight": {}}, "required": ["weight"]}


@pytest.mark.parametrize(
    ("alternatives", "value", "expected"),
    [
        ([CAT, DOG, BIRD], {"kind": "dog"}, 'a: "tricks" is a required property'),
        ([CAT, DOG], {"kind": "cat", "lives": "x"}, 'a.lives: "x" is not of type "integer"'),
        ([CAT, {"anyOf": [DOG, BIRD]}], {"kind": "bird"}, 'a: "song" is a required property'),
        (
            [CAT, DOG, BIRD],
            {"kind": "cow"},
            'a: \'kind\' is "cow"; the schema has alternatives for "cat", "dog", "bird"',
        ),
        ([CAT, DOG], {"kind": None}, 'a: \'kind\' is null; the schema has alternatives for "cat", "dog"'),
        ([CAT, DOG, STONE], {"kind": "cow"}, 'a: "weight" is a required property'),
        ([CAT, DOG], {}, 'a: "lives" is a required property; or "tricks" is a required property'),
        ([CAT, CAT], {"kind": "cat"}, 'a: "lives" is a required property'),
    ],
)
@pytest.mark.parametrize("word", ["anyOf", "oneOf"])
def test_an_error_is_about_the_alternative_that_a_value_names(
    word: str, alternatives: list[Any], value: Any, expected: str
) -> None:
    assert check({"properties": {"a": {word: alternatives}}}, {"a": value}) == expected


PATTERN = "^(?:[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])T(?:[01][0-9]|2[0-3]):[0-5][0-9]Z)$"


def test_an_error_names_the_format_of_a_text_and_not_its_pattern_too() -> None:
    at = {"type": "string", "format": "date-time", "pattern": PATTERN}
    other = {"properties": {"n": {"format": "date-time"}, "p": {"pattern": PATTERN}}}
    properties = {"at": at, "or": {"anyOf": [at, {"type": "null"}]}, "other": other}
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "properties": properties}
    error = check(schema, {"at": "tomorrow", "or": "x", "other": {"n": "y", "p": "z"}})
    assert error.startswith(
        'at: "tomorrow" is not a "date-time"; or: "x" is not a "date-time"; other.n: "y" is not a "'
    )
    assert error.endswith(f'; other.p: "z" does not match "{PATTERN}"')


def test_an_error_does_not_say_null_of_a_kind_that_is_absent() -> None:
    error = check({"$defs": {"tree": TREE}, "anyOf": [_of_kind("a"), _of_kind("b")]}, {})
    assert error == '\'kind\' is missing; the schema has alternatives for "a", "b"'


def _of_kind(kind: str) -> Any:
    return {"properties": {"kind": {"const": kind}, "x": RECURSIVE}, "required": ["kind"]}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            {"sise": 3},
            ["Additional properties are not allowed ('sise' was unexpected)", '"size" is a required property'],
        ),
        (
            {"size": "x", "row": {"id": "y"}},
            [
                'row.id: "y" is not of type "integer"',
                'row: "name" is a required property',
                'size: "x" is not of type "integer"',
            ],
        ),
        (
            {"size": 1, "rows": [*range(9)]},
            ['rows.0: 0 is not of type "null" (the same in 8 more, the last rows.8)'],
        ),
        ({"size": 1, "same": 5}, ['same: 5 is not of type "string"']),
    ],
)
def test_the_error_names_several_faults_each_once(arguments: Any, expected: list[str]) -> None:
    row = {"properties": {"id": {"type": "integer"}, "name": {}}, "required": ["id", "name"]}
    text = {"type": "string"}
    properties = {
        "size": {"type": "integer"},
        "row": row,
        "rows": {"items": {"type": "null"}},
        "same": {"allOf": [text, text]},
    }
    schema = {"properties": properties, "required": ["size"], "additionalProperties": False}
    assert set(check(schema, arguments).split("; ")) == set(expected)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            {"rows": [{"n": 1}] * 50},
            [
                'rows.0: "name" is a required property (the same in 49 more, the last rows.49)',
                'rows.0.n: 1 is not of type "string" (the same in 49 more, the last rows.49.n)',
            ],
        ),
        (
            {"rows": [{}, {"name": "b"}, {}]},
            ['rows.0: "name" is a required property (the same in rows.2)'],
        ),
        ({"map": {"a": 1, "b": 2}}, ['map.a: 1 is not of type "string" (the same in map.b)']),
        (
            {"rows": [{"name": "a", "x": 1}, {"name": "b", "x": 1}, {"name": "c", "y": 1}]},
            [
                "rows.0: Additional properties are not allowed ('x' was unexpected) (the same in rows.1)",
                "rows.2: Additional properties are not allowed ('y' was unexpected)",
            ],
        ),
        (
            {"cells": [[1, 2], [3]]},
            ['cells.0.0: 1 is not of type "string" or "null" (the same in 2 more, the last cells.1.0)'],
        ),
        (
            {"one": {"name": 1}, "two": {"name": 1}},
            ['one.name: 1 is not of type "string"', 'two.name: 1 is not of type "string"'],
        ),
        (
            {"kinds": [{"kind": "a"}, {"kind": "c"}, {"kind": "a"}]},
            [
                'kinds.0: "size" is a required property (the same in kinds.2)',
                'kinds.1: \'kind\' is "c"; the schema has alternatives for "a", "b"',
            ],
        ),
        ({"rows": [{"name": "a"}] * 5}, []),
    ],
)
def test_the_same_fault_of_several_items_is_named_once(arguments: Any, expected: list[str]) -> None:
    row: Any = {"properties": {"name": {"type": "string"}, "n": {"type": "string"}}, "required": ["name"]}
    row["additionalProperties"] = False
    text = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    kinds = [{"properties": {"kind": {"const": one}, "size": {}}, "required": ["kind", "size"]} for one in "ab"]
    properties = {
        "rows": {"items": {"$ref": "#/$defs/row"}},
        "map": {"additionalProperties": {"type": "string"}},
        "cells": {"items": {"items": text}},
        "one": {"$ref": "#/$defs/row"},
        "two": {"$ref": "#/$defs/row"},
        "kinds": {"items": {"anyOf": kinds}},
    }
    faults = SchemaCheck({"properties": properties, "$defs": {"row": row}})(arguments)
    assert sorted(map(str, faults)) == sorted(expected)


LISTED = {"properties": {"path": {"type": "string"}, "head": {}}, "required": ["path"]}


@pytest.mark.parametrize(
    ("schema", "arguments", "named"),
    [
        (LISTED, {"pth": "a", "head": 1}, '"pth"'),
        (LISTED, {"pth": "a", "x" * 90: 1}, f'"pth", "{"x" * 39}...'),
        (LISTED, {str(index): 1 for index in range(99)}, ", ".join(f'"{index}"' for index in range(8))),
        (LISTED, {"head": 1}, None),
        (LISTED, {"path": 1, "pth": "a"}, None),
        (LISTED | {"properties": {"path": {}, "row": LISTED}}, {"path": "a", "row": {"pth": 1}}, None),
        (LISTED | {"patternProperties": {"^p": {}}}, {"pth": "a"}, None),
        (LISTED | {"allOf": [{"properties": {"pth": {}}}]}, {"pth": "a"}, None),
        ({"required": ["path"]}, {"pth": "a"}, None),
    ],
)
def test_an_error_about_a_missing_argument_names_unlisted_ones(schema: Any, arguments: Any, named: str | None) -> None:
    error = check(schema, arguments)
    assert error
    assert error.partition("the schema does not list ")[2] == (named or "")


def test_an_error_of_a_costly_schema_names_unlisted_arguments() -> None:
    costly = {"type": "array", "items": {"anyOf": [{"const": n} for n in range(90)]}}
    schema = LISTED | {"properties": {"path": {}, "rows": costly}}
    error = check(schema, {"pth": "a", "rows": [1] * 5000})
    assert error == '"path" is a required property; the schema does not list "pth"'


KINDS = ["schema", "table", "column", "procédure", 5, None]
COUNTRIES = [f"country {number}" for number in range(300)]


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ({"enum": KINDS[:3]}, "views", '"views" is not one of "schema", "table" or "column"'),
        ({"enum": KINDS}, "views", '"views" is not one of "schema", "table", "column", "procédure", 5 or null'),
        ({"anyOf": [{"enum": KINDS}, {"type": "array"}]}, "é", '"é" is not one of "schema", "table", "column", "procé'),
        ({"enum": COUNTRIES}, "Country 217", '"Country 217" is not one of "country 217", '),
        ({"enum": COUNTRIES}, 5, '5 is not one of "country 0", "country 1", "country 2", "country 3", "country 4", '),
        ({"enum": []}, "x", 'a: "x" '),
        ({"enum": COUNTRIES}, "x", '"country 6", "country 7" or 292 others'),
    ],
)
def test_an_error_names_the_values_that_are_accepted(schema: Any, value: Any, expected: str) -> None:
    assert expected in check({"properties": {"a": schema}}, {"a": value})


def test_a_value_that_fits_several_alternatives_of_one_of_is_an_error() -> None:
    error = check({"properties": {"a": {"oneOf": [{"minimum": 1}, {"type": "integer"}]}}}, {"a": 5})
    assert error == "a: 5 is valid under more than one of the schemas listed in the 'oneOf' keyword"


def test_an_error_of_many_values_costs_few_validations() -> None:
    schema = {"properties": {"a": {"items": {"enum": list(range(50))}}}}
    arguments = {"a": [1] * 5000 + ["x"]}
    began = time.process_time()
    assert check(schema, arguments).startswith('a.5000: "x" is not one of')
    assert time.process_time() - began < 2
    assert json.dumps(arguments).count(",") == 5000


ROW = {"properties": {"id": {"type": "integer"}, "name": {"type": "string"}}, "required": ["id", "name"]}
ROWS = {"type": "array", "items": ROW}
NULL = {"type": "null"}
MANY = [{"id": number, "name": "n"} for number in range(2000)]


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ({"anyOf": [ROWS, NULL]}, [*MANY, {"id": "x", "name": "n"}], 'a.2000.id: "x" is not of type "integer"'),
        ({"oneOf": [NULL, ROWS]}, [*MANY, {"id": 1}], 'a.2000: "name" is a required property'),
        ({"anyOf": [{"$ref": "#/$defs/rows"}, NULL]}, [*MANY, {"id": 1}], 'a.2000: "name" is a required property'),
        ({"anyOf": [{"type": "array", "items": ROWS}, NULL]}, MANY, 'a.0: {"id":0,"name":"n"} is not of type "array"'),
        ({"anyOf": [{"type": "string"}, NULL]}, MANY, '"name... is not of type "string" or "null"'),
        ({"additionalProperties": ROWS}, {"b": MANY, "c": [*MANY, {"id": 1}]}, "a.c.2000: "),
        (
            {"properties": {"b": ROWS}, "additionalProperties": NULL},
            {"b": MANY, "c": 5},
            'a.c: 5 is not of type "null"',
        ),
        ({"patternProperties": {"b": ROWS}, "additionalProperties": NULL}, {"b": [*MANY, {}]}, "a: the value does not"),
        (
            {"propertyNames": {"maxLength": 1}, "additionalProperties": ROWS},
            {"b": MANY, "cc": []},
            'a.cc: "cc" is longer',
        ),
    ],
)
def test_the_error_of_a_large_optional_value_names_the_place(schema: Any, value: Any, expected: str) -> None:
    error = check({"properties": {"a": schema}, "$defs": {"rows": ROWS}}, {"a": value})
    assert expected in error
    assert error.startswith("a")


LONG = "x" * 200_000
MANY_NAMES = [f"z{number}" for number in range(1200)]


@pytest.mark.parametrize(
    ("schema", "arguments", "expected"),
    [
        ({"required": MANY_NAMES}, {"a": LONG}, '"z0" is a required property'),
        ({"dependentRequired": {"a": MANY_NAMES}}, {"a": LONG}, "the value does not fit the schema of this argument"),
        ({"properties": {"a": {"allOf": [{"type": "null"}] * 800}}}, {"a": LONG}, f'a: "{"x" * 50}'),
        ({"propertyNames": {"maxLength": 3}}, dict.fromkeys(MANY_NAMES, 1), 'z100: "z100" is longer than 3 characters'),
    ],
    ids=["required", "dependentRequired", "allOf", "propertyNames"],
)
def test_an_error_has_few_copies_of_a_large_value(schema: Any, arguments: Any, expected: str) -> None:
    checked = SchemaCheck(schema)
    checked.compile()
    assert str(checked(arguments)[0]).startswith(expected)
    assert least_seconds(lambda: checked(arguments)) < 0.25  # 0.6 to 1.3 s with an error for each name or alternative


@pytest.mark.parametrize(
    ("depth", "members", "expected"),
    [
        (8, 100, 'x.x.x.x.x.x.x.x: 5 is not of type "string"'),
        (60, 1, '.x.x: 5 is not of type "string"'),
        (60, 20, "x.x.x: the value does not fit the schema of this argument"),
    ],
)
def test_an_error_in_a_deep_schema_compiles_only_a_few_parts(depth: int, members: int, expected: str) -> None:
    schema: Any = {"type": "string"}
    for _ in range(depth):
        others = {f"m{number}": {"type": "string", "minLength": 1} for number in range(members)}
        schema = {"properties": {"x": schema, **others}}
    assert check(schema, nested(depth, 5)).endswith(expected)
    seconds = least_seconds(lambda: SchemaCheck(schema)(nested(depth, 5)))
    assert seconds < 0.3  # 0.2 s and 90 MB with all parts of the last schema, at each error


def test_an_error_of_long_values_in_a_deep_schema_ends_early() -> None:
    error = check(levels(40, 1), nested(40, ["x"] * 15_000))
    assert error.endswith("x.x: the value does not fit the schema of this argument")
    assert error.count("x.") < 20


INTEGER = {"type": "integer"}
DRAFT_4 = {"$schema": "http://json-schema.org/draft-04/schema#", "id": "https://x.example/a.json"}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"properties": {"x": {"$ref": "#/$defs/a%20b%25~01"}}}, "x.m: ["),
        ({"$id": "https://x.example/a.json", "properties": {"x": {"$ref": "a.json#/$defs/n"}}}, "x: the value"),
        ({"$id": "a.json#", "properties": {"x": {"$ref": "#/$defs/n"}}}, 'x: {"m"'),
        ({**DRAFT_4, "properties": {"x": {"$ref": "a.json#/$defs/n"}}}, ("x: the value", "the value does not fit")),
        ({"properties": {"x": {"pattern": "^(?=a)a$", **INTEGER}}}, 'x: {"m"'),
        ({"properties": {"x": {"$id": "https://y.example/", "$ref": "#/$defs/q", "$defs": {"q": INTEGER}}}}, "x: the"),
    ],
)
def test_an_error_names_the_place_whatever_names_the_schema_has(schema: Any, expected: str | tuple[str, ...]) -> None:
    long = {"m": ["x"] * 6000}
    definitions = {"n": INTEGER, "a b%~1": {"properties": {"m": {"maxItems": 1}}, "maxProperties": 0}}
    assert check({**schema, "$defs": definitions}, {"x": long}).startswith(expected)


def test_wrong_names_of_a_small_object_are_all_named() -> None:
    error = check({"properties": {"a": {"propertyNames": {"maxLength": 1}}}}, {"a": {"bb": 1, "c": 2, "dd": 3}})
    assert error == 'a: "bb" is longer than 1 character; a: "dd" is longer than 1 character'


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"properties": {"a": False}}, "a: the value does not fit the schema of this argument"),
        ({"propertyNames": {"maxLength": 9}, "required": ["b"]}, '"b" is a required property'),
    ],
)
def test_an_error_of_many_values_with_valid_names_is_that_of_the_schema(schema: Any, expected: str) -> None:
    assert check(schema, {"a": [1] * 6000}) == expected


def test_a_verdict_needs_no_message_before() -> None:
    assert SchemaCheck({"required": ["a"]}).is_valid({"a": 1})
    assert not SchemaCheck({"required": ["a"]}).is_valid({})


DEFAULTED = {
    "properties": {
        "scale": {"enum": ["css", "device"], "default": "css"},
        "edits": {"items": {"properties": {"all": {"type": "boolean", "default": False}}, "required": ["all"]}},
        "path": {"type": "string"},
    },
    "required": ["scale", "path"],
}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"path": "a"}, ""),
        ({"path": "a", "edits": [{}]}, ""),
        ({"path": "a", "scale": "css"}, ""),
        ({"path": "a", "scale": "other"}, "scale"),
        ({}, '"path" is a required property'),
    ],
)
def test_a_required_member_with_a_default_may_be_absent(arguments: Any, expected: str) -> None:
    found = check(DEFAULTED, arguments)
    assert expected in found
    assert bool(expected) == bool(found)


@pytest.mark.parametrize("required", [[1], "a", ["unknown"]])
def test_an_odd_list_of_required_members_never_excuses_others(required: Any) -> None:
    schema = {"properties": {"a": {"default": 1}, "b": {}}, "allOf": [{"properties": {"b": {}}, "required": ["b"]}]}
    try:
        found = check(schema | {"required": required}, {})
    except ValueError as error:
        found = str(error)
    assert found


@pytest.mark.parametrize(
    ("arguments", "is_valid"),
    [
        ({"due": None, "kind": None, "rows": [{"n": None}], "size": None}, True),
        ({"due": "today", "kind": "a", "rows": [{"n": 1}], "size": 1}, True),
        ({"due": 1}, False),
        ({"kind": "c"}, False),
        ({"strict": None}, False),
        ({"nullable": None}, False),
    ],
)
def test_a_nullable_member_may_be_null(arguments: Any, *, is_valid: bool) -> None:
    """Servers that are generated from OpenAPI 3.0 write `nullable` and clear a field that is null."""
    properties = {
        "due": {"type": "string", "format": "date", "nullable": True},
        "kind": {"type": "string", "enum": ["a", "b"], "nullable": True},
        "rows": {"type": "array", "items": {"$ref": "#/$defs/row"}},
        "size": {"type": ["integer", "string"], "nullable": True},
        "strict": {"type": "string", "nullable": False},
        "nullable": {"type": "string"},
    }
    row = {"type": "object", "properties": {"n": {"type": "integer", "nullable": True}}}
    check = SchemaCheck({"type": "object", "properties": properties, "$defs": {"row": row}})
    assert check.is_valid(arguments) == is_valid
    assert (not check(arguments)) == is_valid


def test_one_alternative_is_still_enough_where_a_default_would_fit_two() -> None:
    member = {"properties": {"kind": {"default": "x"}}, "required": ["kind"]}
    assert check({"oneOf": [member, {"maxProperties": 0}]}, {}) == ""
