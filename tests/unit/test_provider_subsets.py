"""If a provider accepts a tool, it accepts the tool's twin: one rejected tool fails the whole request.

The rules come from the provider's documentation or error messages, and name their sources. `owner/name#1` is a thread
on GitHub that quotes the error.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from mcp_mirror.core.naming import fit_name
from mcp_mirror.core.schemas.references import Schema
from mcp_mirror.core.schemas.twin_schemas import admit_paths, build_twin
from mcp_mirror.memory.tools.table import TOOLS

Rule = Callable[[Schema], bool]
"""Whether a tool obeys."""


def schemas(schema: Any) -> Iterator[Schema]:
    """A schema and all within it."""
    if not isinstance(schema, dict):
        return
    yield schema
    for word in ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"):
        for below in schema.get(word, {}).values():
            yield from schemas(below)
    for word in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for below in schema.get(word, ()):
            yield from schemas(below)
    for word in ("items", "additionalProperties", "unevaluatedProperties", "contains", "not", "if", "then", "else"):
        yield from schemas(schema.get(word))


def every(test: Callable[[Schema], bool]) -> Rule:
    return lambda tool: all(map(test, schemas(tool["inputSchema"])))


def root(test: Callable[[Schema], bool]) -> Rule:
    return lambda tool: test(tool["inputSchema"])


def named(pattern: str) -> Rule:
    return lambda tool: re.fullmatch(pattern, tool["name"]) is not None


def without(*words: str) -> Callable[[Schema], bool]:
    return lambda schema: not set(words) & schema.keys()


def is_object(schema: Schema) -> bool:
    return schema.get("type") == "object"


def is_2020_12(schema: Schema) -> bool:
    return jsonschema_rs.meta.is_valid({key: part for key, part in schema.items() if key != "$schema"})


def has_items(schema: Schema) -> bool:
    return "array" not in str(schema.get("type")) or isinstance(schema.get("items"), dict)


# Gemini's `parameters` take this of the OpenAPI 3.0 schema, and no other key: ai.google.dev/api/caching#Schema;
# pizza-bot-app/pizza-bot#62.
OPENAPI_WORDS = frozenset(
    ("type", "format", "title", "description", "nullable", "enum", "maxItems", "minItems", "properties", "required",
     "minProperties", "maxProperties", "minLength", "maxLength", "pattern", "example", "anyOf", "propertyOrdering",
     "default", "items", "minimum", "maximum")
)  # fmt: skip
OPENAPI_TYPES = frozenset(("string", "number", "integer", "boolean", "array", "object", "null"))
OPENAPI_FORMATS = {
    "string": {None, "enum", "date-time"},
    "number": {None, "float", "double"},
    "integer": {None, "int32", "int64"},
}


def has_one_type(schema: Schema) -> bool:
    kind = schema.get("type")
    return "anyOf" in schema or (isinstance(kind, str) and kind in OPENAPI_TYPES)


def lists_texts(schema: Schema) -> bool:
    listed = schema.get("enum")
    return listed is None or (schema.get("type") == "string" and all(isinstance(v, str) and v for v in listed))


def requires_its_own(schema: Schema) -> bool:
    return "required" not in schema or (
        is_object(schema) and set(schema["required"]) <= schema.get("properties", {}).keys()
    )


def has_known_format(schema: Schema) -> bool:
    kind = schema.get("type")
    return schema.get("format") in (OPENAPI_FORMATS.get(kind, {None}) if isinstance(kind, str) else {None})


PROVIDERS: Mapping[str, Mapping[str, Rule]] = {
    "OpenAI, not strict": {
        # platform.openai.com/docs/api-reference, FunctionDefinition
        "a name of 64 letters": named(r"[A-Za-z0-9_-]{1,64}"),
        # modelcontextprotocol/servers#799
        "a short description": lambda tool: len(tool["description"]) <= 1024,
        # langchain-ai/langchainjs#9804
        "an object at the root": root(is_object),
        "no alternatives at the root": root(without("oneOf", "anyOf", "allOf", "enum", "not")),
        # openai/openai-agents-python#449
        "properties at the root": root(lambda schema: isinstance(schema.get("properties"), dict)),
        # PrefectHQ/fastmcp#2464, zed-industries/zed#47578
        "items of each array": every(has_items),
    },
    "Anthropic": {
        # docs.claude.com, "Define tools"
        "a name of 128 letters": named(r"[A-Za-z0-9_-]{1,128}"),
        # anthropics/claude-code#40075
        "an object at the root": root(is_object),
        "no alternatives at the root": root(without("oneOf", "anyOf", "allOf")),
        # anthropics/claude-code#79418; only those of the root: decocms/studio#6874
        "plain names of arguments": root(
            lambda schema: all(re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", key) for key in schema.get("properties", {}))
        ),
        # anthropics/claude-code#63673
        "JSON Schema 2020-12": root(is_2020_12),
    },
    "Gemini, parameters": {
        # cloud.google.com, FunctionDeclaration
        "a name of 64 letters": named(r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}"),
        "an object at the root": root(is_object),
        "known words": every(lambda schema: schema.keys() <= OPENAPI_WORDS),
        # taylorwilsdon/google_workspace_mcp#1099
        "one type": every(has_one_type),
        # Vertex AI: BerriAI/litellm#11164, anomalyco/opencode#14700, patlux/pi-commandcode-provider#103
        "alternatives alone": every(lambda schema: "anyOf" not in schema or schema.keys() == {"anyOf"}),
        # decolua/9router#359, microsoft/azure-devops-mcp#139, Bobsilvio/ha-claude#32
        "enumerations of texts": every(lists_texts),
        # enechange/collmbo#195
        "known formats": every(has_known_format),
        # kkrishnan90/gemini-desktop#7
        "items of each array": every(has_items),
        # goruck/home-generative-agent#525
        "nothing required that is not there": every(requires_its_own),
    },
    "Gemini, parametersJsonSchema": {
        "a name of 64 letters": named(r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}"),
        "an object at the root": root(is_object),
        # cloud.google.com, responseJsonSchema: "no other properties, except for than those starting as a $"
        "references alone": every(lambda schema: "$ref" not in schema or all(key[0] == "$" for key in schema)),
    },
}


def broken_rules(provider: str, tool: Schema) -> list[str]:
    return [name for name, rule in PROVIDERS[provider].items() if not rule(tool)]


def a_tool(schema: Any, name: str = "x", description: str = "Does.") -> Schema:
    return {"name": name, "description": description, "inputSchema": schema}


def twin(tool: Schema, prefix: str = "") -> Schema:
    return build_twin(tool, fit_name(tool["name"], "_mirrored", prefix), admit_paths(tool["inputSchema"]), None)


def of(**arguments: Any) -> Schema:
    return {"type": "object", "properties": arguments}


TEXT = {"type": "string"}
NUMBER = {"type": "integer"}

REFUSED = [
    ("OpenAI, not strict", "a name of 64 letters", a_tool(of(), "x" * 65)),
    ("OpenAI, not strict", "a short description", a_tool(of(), description="x" * 1025)),
    ("OpenAI, not strict", "an object at the root", a_tool({"properties": {}})),
    ("OpenAI, not strict", "no alternatives at the root", a_tool(of() | {"not": {"required": ["x"]}})),
    ("OpenAI, not strict", "properties at the root", a_tool({"type": "object"})),
    ("OpenAI, not strict", "items of each array", a_tool(of(a={"anyOf": [{"type": "array", "prefixItems": [TEXT]}]}))),
    ("Anthropic", "a name of 128 letters", a_tool(of(), "a b")),
    ("Anthropic", "an object at the root", a_tool({"properties": {}})),
    ("Anthropic", "no alternatives at the root", a_tool(of() | {"oneOf": [{"required": ["x"]}]})),
    ("Anthropic", "plain names of arguments", a_tool(of(**{"filter[x]": TEXT}))),
    ("Anthropic", "JSON Schema 2020-12", a_tool(of(a={"type": "array", "items": [TEXT]}))),
    ("Gemini, parameters", "a name of 64 letters", a_tool(of(), "2nd")),
    ("Gemini, parameters", "an object at the root", a_tool(TEXT)),
    ("Gemini, parameters", "known words", a_tool(of(a=NUMBER | {"exclusiveMinimum": 0}))),
    ("Gemini, parameters", "one type", a_tool(of(a={"type": ["integer", "null"]}))),
    ("Gemini, parameters", "alternatives alone", a_tool(of(a={"anyOf": [TEXT, NUMBER], "description": "D"}))),
    ("Gemini, parameters", "enumerations of texts", a_tool(of(a={"type": "integer", "enum": [1, 2]}))),
    ("Gemini, parameters", "known formats", a_tool(of(a=TEXT | {"format": "uuid"}))),
    ("Gemini, parameters", "items of each array", a_tool(of(a={"type": "array"}))),
    ("Gemini, parameters", "nothing required that is not there", a_tool(of(a=TEXT) | {"required": ["b"]})),
    ("Gemini, parametersJsonSchema", "a name of 64 letters", a_tool(of(), "2nd")),
    ("Gemini, parametersJsonSchema", "an object at the root", a_tool(TEXT)),
    ("Gemini, parametersJsonSchema", "references alone", a_tool(of(a={"$ref": "#/$defs/D", "title": "T"}))),
]


@pytest.mark.parametrize(("provider", "name", "tool"), REFUSED, ids=[f"{one}: {two}" for one, two, _ in REFUSED])
def test_each_rule_refuses_what_it_is_about(provider: str, name: str, tool: Schema) -> None:
    assert broken_rules(provider, tool) == [name]


def test_every_rule_has_its_case() -> None:
    assert {(provider, name) for provider, rules in PROVIDERS.items() for name in rules} == {
        (provider, name) for provider, name, _ in REFUSED
    }


CORPUS: list[Schema] = json.loads((Path(__file__).parent / "corpus_of_tools.json").read_text())
"""Tools as servers write them: by zod, by pydantic, by hand, from OpenAPI."""

TAKEN = {"OpenAI, not strict": 27, "Anthropic": 31, "Gemini, parameters": 12, "Gemini, parametersJsonSchema": 33}
"""How many of them each provider takes at least: fewer would prove little."""

HARD = [
    of(a=NUMBER | {"description": "D", "title": "T", "default": 5}),
    of(a=TEXT | {"enum": ["a", "b"], "description": "D", "format": "enum"}),
    of(a=TEXT | {"format": "date-time", "description": "D", "nullable": True}),
    of(a={"type": "array", "description": "D", "items": of(b=NUMBER | {"description": "D"}) | {"required": ["b"]}}),
    of(a={"anyOf": [NUMBER | {"description": "D"}, {"type": "null"}]}),
    of(a={"anyOf": [TEXT | {"maxLength": 3}, {"type": "array", "items": {"type": "boolean", "title": "T"}}]}),
    of(a={"anyOf": [{"anyOf": [NUMBER, {"type": "boolean"}]}, {"type": "object", "properties": {}}]}),
    of(a={"$ref": "#/$defs/D"}, b={"type": "array", "items": {"$ref": "#/$defs/D"}}) | {"$defs": {"D": of(x=NUMBER)}},
    of(a={"type": "array", "items": of(n=NUMBER)}, b={"$ref": "#/properties/a/items"}),
    of(a={"$ref": "#/$defs/D", "$comment": "C"}) | {"$defs": {"D": {"type": "array", "items": {"$ref": "#"}}}},
    of(a={"oneOf": [{"$ref": "#/$defs/D"}, NUMBER], "description": "D"}) | {"$defs": {"D": of(k={"const": "d"})}},
    of(a={"allOf": [{"$ref": "#/$defs/D"}], "description": "D"}) | {"$defs": {"D": of(x=NUMBER)}},
    of(a={"type": ["array", "string", "null"], "items": NUMBER}),
    {
        "type": "object",
        "properties": {},
        "$ref": "#/$defs/R",
        "$defs": {"R": of(a={"$ref": "#/$defs/R/properties/b"}, b=of())},
    },
    {
        "type": "object",
        "properties": {"a": NUMBER},
        "if": {"required": ["a"]},
        "then": {"properties": {"a": {"minimum": 1}}},
    },
    {
        "type": "object",
        "properties": {"a": NUMBER},
        "dependentSchemas": {"a": of(b=TEXT)},
        "unevaluatedProperties": False,
    },
]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_of_real_tools_a_provider_takes_the_twins_too(provider: str) -> None:
    taken = [tool for tool in CORPUS if not broken_rules(provider, tool)]
    assert len(taken) >= TAKEN[provider]
    assert {tool["name"]: broken for tool in taken if (broken := broken_rules(provider, twin(tool)))} == {}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_provider_takes_our_own_tools(provider: str) -> None:
    assert {name: broken for name, tool in TOOLS.items() if (broken := broken_rules(provider, tool.advert))} == {}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_of_hard_cases_a_provider_takes_the_twins_too(provider: str) -> None:
    taken = [tool for tool in map(a_tool, HARD) if not broken_rules(provider, tool)]
    assert len(taken) >= len(HARD) // 3
    for tool in taken:
        assert broken_rules(provider, twin(tool)) == [], tool


@pytest.mark.parametrize("schema", [{}, {"type": "object"}, {"type": "object", "additionalProperties": False}])
def test_openai_takes_the_twin_of_a_tool_without_properties(schema: Schema) -> None:
    assert broken_rules("OpenAI, not strict", a_tool(schema))
    assert broken_rules("OpenAI, not strict", twin(a_tool(schema))) == []


@pytest.mark.parametrize("schema", HARD, ids=json.dumps)
def test_the_twin_of_a_hard_case_is_a_schema_of_its_own(schema: Schema) -> None:
    jsonschema_rs.validator_for(twin(a_tool(schema))["inputSchema"])


# Schemas of all kinds.

EXTRAS = st.fixed_dictionaries({}, optional={"description": st.just("D"), "title": st.just("T"), "default": st.none()})
PLAIN: st.SearchStrategy[Schema] = st.sampled_from(
    [TEXT, NUMBER, {"type": "number", "format": "double"}, {"type": "boolean"}, TEXT | {"enum": ["a", "b"]},
     TEXT | {"format": "date-time"}, TEXT | {"maxLength": 9}, NUMBER | {"minimum": 1}, TEXT | {"pattern": "^a"}]
)  # fmt: skip
FREE: st.SearchStrategy[Schema] = st.sampled_from(
    [{"type": ["integer", "null"]}, {"const": 5}, {"enum": [1, "a"]}, {}, {"$ref": "#"}, {"$ref": "#/$defs/D"},
     {"$ref": "#/$defs/D/items"}, TEXT | {"format": "uri"}, {"not": TEXT},
     {"type": "object", "additionalProperties": NUMBER}, {"type": "array", "prefixItems": [NUMBER], "items": TEXT}]
)  # fmt: skip
NAMES = st.sampled_from(["a", "b", "c.d", "e-f"])


def grown(leaf: st.SearchStrategy[Schema], words: tuple[str, ...]) -> st.SearchStrategy[Schema]:
    def grow(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
        arrays = st.builds(lambda items, extras: {"type": "array", "items": items, **extras}, inner, EXTRAS)
        several = st.builds(
            lambda word, parts: {word: parts}, st.sampled_from(words), st.lists(inner, min_size=1, max_size=3)
        )
        return arrays | several | objects(inner)

    return st.recursive(st.builds(lambda schema, extras: {**schema, **extras}, leaf, EXTRAS) | leaf, grow, max_leaves=8)


def objects(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    def build(properties: Schema, extras: Schema, *, required: bool) -> Schema:
        return {**of(**properties), **extras, **({"required": list(properties)} if required and properties else {})}

    return st.builds(build, st.dictionaries(NAMES, inner, max_size=3), EXTRAS, required=st.booleans())


DEFINITIONS = {"$defs": {"D": {"type": "array", "items": of(x=NUMBER | {"description": "D"})}}}
OPENAPI = objects(grown(PLAIN, ("anyOf",)))
JSON_SCHEMA = objects(grown(PLAIN | FREE, ("anyOf", "oneOf", "allOf"))).map(lambda schema: {**schema, **DEFINITIONS})
TOOL_NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", fullmatch=True)
DESCRIPTIONS = st.sampled_from([0, 9, 1003, 1004, 1005, 1024]).map(lambda length: "d" * length)


@settings(suppress_health_check=[HealthCheck.too_slow])  # too many rejected examples are still reported
@pytest.mark.parametrize("provider", PROVIDERS)
@given(st.data())
def test_a_provider_that_accepts_a_tool_accepts_its_twin(provider: str, data: st.DataObject) -> None:
    kinds = OPENAPI if provider == "Gemini, parameters" else JSON_SCHEMA | OPENAPI
    tool = a_tool(data.draw(kinds), data.draw(TOOL_NAMES), data.draw(DESCRIPTIONS))
    assume(not broken_rules(provider, tool))
    for prefix in ("", "2nd.server"):
        assert broken_rules(provider, twin(tool, prefix)) == []
