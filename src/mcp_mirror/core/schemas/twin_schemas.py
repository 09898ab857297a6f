"""Builds the advertised definition of a twin.

Schemas come from upstreams and may be invalid; a keyword that this module does not understand is left unchanged.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from operator import is_
from typing import Any, Final

import msgspec

from mcp_mirror.core.schemas.references import (
    ANCHORS,
    REFERENCES,
    ROOT_COMBINATORS,
    References,
    Schema,
    as_mapping,
    as_sequence,
    drop_unused_definitions,
    find_applicable_schemas,
    map_keyword,
    move_targets,
    read_types,
    without,
)
from mcp_mirror.payload.json_bounds import is_deeper

HEADER: Final = "x-mcp-header"
"""Marks an argument that clients mirror into an HTTP header."""

EXECUTION: Final = "execution"
"""Marks a tool that can run as a task; the gateway does not relay tasks."""

_ARGUMENT_HINT: Final = "Reads memory paths."
_CLOSING: Final = ")]}>\"'`\u2019\u201d\u00bb"
_STOPS: Final = ".!?:;,\u2026\u3002\uff01\uff1f"
_MAX_DESCRIPTION: Final = 1024
"""Characters above which OpenAI rejects a description and with it the whole request."""
_PATH: Final[Schema] = {"type": "string"}

_RESTRICTIONS: Final = frozenset(
    ("enum", "const", "pattern", "format", "minLength", "maxLength", "contentEncoding", "contentMediaType", "allOf",
     "not", "if", *REFERENCES)
)  # fmt: skip
"""Keywords that would restrict a path as well as a literal."""
_ANNOTATIONS: Final = ("title", "description", "default", "examples", "deprecated")
"""Keywords that describe the argument rather than one alternative."""
_MAX_DEPTH: Final = 64
_MAX_NESTING: Final = 60
"""Levels of nesting of a twin's schema. Clients drop a whole list that is nested too deep: on .NET over 64 levels, on
Rust over 128, on pydantic over 200."""
_ADMITTING_LEVELS: Final = (_MAX_DEPTH, 16, 8, 4, 0)
"""Levels of a schema that may admit paths below the arguments themselves."""


def build_twin(tool: Mapping[str, Any], name: str, widened: Schema, description: str | None) -> Schema:
    """The advertised definition of a tool's twin: the tool's own except for name, input schema and output schema.

    `widened` is the result of `admit_paths` for the input schema. `description` replaces the tool's, unless it is None.
    """
    text = description if description is not None else str(tool.get("description") or "")
    advert = {key: value for key, value in tool.items() if key not in ("outputSchema", EXECUTION)}
    hinted = f"{_end_sentence(text.rstrip())} {_ARGUMENT_HINT}".lstrip()
    if widened.get("properties") and not len(text) <= _MAX_DESCRIPTION < len(hinted):
        text = hinted
    described = {"description": text} if text or "description" in advert else {}
    return advert | {"name": name, **described, "inputSchema": widened}


def remove_hint(description: str) -> str:
    """The description of a twin without the sentence that `build_twin` adds."""
    return description.removesuffix(_ARGUMENT_HINT).rstrip()


def _end_sentence(sentence: str) -> str:
    """The sentence with a full stop if it ends in a letter or digit, or in brackets or quotes after a part of one."""
    before = sentence.rstrip(_CLOSING)[-1:]
    has_end = not before.isalnum() if sentence.endswith(before) else before.isspace() or before in _STOPS
    return sentence if has_end else f"{sentence}."


def admit_paths(schema: Schema) -> Schema:
    """The input schema in which each argument, also a nested one, may be a memory path; without unused definitions.

    Each admitted path adds two levels of nesting. If the result is nested too deep for some clients, only the upper
    levels admit paths. The result always has properties: OpenAI rejects the request if one tool has none, and some
    clients drop the list.
    """
    settled = _flatten_root(move_targets(drop_unused_definitions(schema)))
    for levels in _ADMITTING_LEVELS:
        widened: Schema = _widen_below(settled, _MAX_DEPTH - levels)
        if not _is_too_deep(widened):
            break
    is_object = next(iter(widened), None) == "type" and widened["type"] == "object"
    twin = widened if is_object else {"type": "object"} | widened | {"type": "object"}
    return twin if "properties" in twin else twin | {"properties": {}}


def _is_too_deep(schema: Schema) -> bool:
    try:
        return is_deeper(msgspec.json.encode(schema), _MAX_NESTING)
    except UnicodeEncodeError:  # a text with half of a surrogate pair, for which the tool is not listed
        return False


def find_header_locations(schema: Schema) -> tuple[tuple[str, ...], ...]:
    """The locations of the arguments that clients mirror into HTTP headers."""

    def walk(subschema: Any, at: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if not isinstance(subschema, dict) or len(at) > _MAX_DEPTH:
            return
        if at and HEADER in subschema:
            yield at
        for key, below in as_mapping(subschema.get("properties")).items():
            yield from walk(below, (*at, key))

    return tuple(walk(schema, ()))


def _flatten_root(schema: Schema) -> Schema:
    """The schema without alternatives or references at its root, for which some clients drop the whole tool.

    Its properties remain: those that apply in every case unchanged, those of single cases as alternatives.
    """
    if ROOT_COMBINATORS.isdisjoint(schema):
        return schema
    certain: list[Schema] = []
    uncertain: list[Schema] = []
    for subschema, is_certain in find_applicable_schemas(References(schema), schema, {}):
        (certain if is_certain else uncertain).append(subschema)
    cases: dict[str, dict[str, Any]] = {}
    for subschema in uncertain:
        for name, value in _read_properties(subschema, schema).items():
            cases.setdefault(name, {}).setdefault(json.dumps(value, sort_keys=True), value)
    properties: dict[str, Any] = {}
    for name, found in cases.items():
        alternatives = list(found.values())
        properties[name] = alternatives[0] if len(alternatives) == 1 else {"anyOf": alternatives}
    for subschema in reversed(certain):
        properties |= _read_properties(subschema, schema)
    required = dict.fromkeys(str(name) for subschema in certain for name in as_sequence(subschema.get("required")))
    flat = {key: value for key, value in schema.items() if key not in ROOT_COMBINATORS} | {"properties": properties}
    return flat | {"required": list(required)} if required else flat


def _read_properties(subschema: Schema, root: Schema) -> Mapping[str, Any]:
    own = as_mapping(subschema.get("properties"))
    return own if subschema is root else {name: without(value, ANCHORS) for name, value in own.items()}


def _widen_below(schema: Any, depth: int) -> Any:
    """The schema with every subschema widened, itself unchanged."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return schema
    inside: Schema = {}
    for key, value in schema.items():
        if step := _STEPS.get(key):
            inside[key] = _share(map_keyword(key, value, partial(step, depth=depth + 1)), value)
        elif key != HEADER:
            inside[key] = value
    if "oneOf" not in inside:
        return _share(inside, schema)
    one_of = inside.pop("oneOf")  # a path would match several of them
    if "anyOf" not in inside:
        return inside | {"anyOf": one_of}
    return inside | {"allOf": [*as_sequence(inside.get("allOf")), {"anyOf": one_of}]}


def _share(changed: Any, original: Any) -> Any:
    """The original if all members are the same objects: a twin shares most of the memory of its tool's schema."""
    if isinstance(original, dict):
        is_same = len(original) == len(changed) and all(map(is_, original.values(), changed.values()))
    else:
        is_same = isinstance(original, list) and all(map(is_, original, changed))
    return original if is_same else changed


def as_object(schema: Any) -> Any:
    """The same schema as an object, if it is true or false: clients of the TypeScript SDK read no other argument."""
    if isinstance(schema, bool):
        return {} if schema else {"not": {}}
    return schema


def _widen(schema: Any, depth: int) -> Any:
    """The schema extended to accept a memory path, in the cheapest form within every provider's subset.

    A list of types would cost fewer tokens, but Gemini's function declarations accept a single type. Vertex AI accepts
    no keywords beside `anyOf`, so annotations stay with the first alternative. A reference has no keywords beside it.
    """
    if not isinstance(schema, dict):
        return as_object(schema)
    inner: Schema = _widen_below(schema, depth)
    kinds = read_types(inner.get("type"))
    if (kinds and "string" not in kinds) or not _RESTRICTIONS.isdisjoint(inner):
        is_reference = not inner.keys().isdisjoint(REFERENCES)
        annotations = {key: inner[key] for key in _ANNOTATIONS if key in inner} if is_reference else {}
        alternative = {key: value for key, value in inner.items() if key not in annotations} if annotations else inner
        return annotations | {"anyOf": [*_split_types(alternative), _PATH]}
    alternatives = as_sequence(inner.get("anyOf"))
    if not alternatives:
        return inner
    split = [part for alternative in alternatives for part in _split_types(alternative)]
    return inner | {"anyOf": split if any(map(_accepts_any_text, split)) else [*split, _PATH]}


def _split_types(alternative: Any) -> list[Any]:
    """An alternative for each type of a list of types: langchain-google-genai, for one, rejects a list below `anyOf`.

    Only one alternative has the other keywords: copies of subschemas would double the schema at each level. So a list
    with objects and arrays, which both have subschemas, stays.
    """
    kinds = as_mapping(alternative).get("type")
    named = dict.fromkeys(read_types(kinds) if isinstance(kinds, list) else ())
    if not named or {"object", "array"} <= named.keys():
        return [alternative]
    described = next((kind for kind in ("object", "array", *named) if kind in named and kind != "null"), "null")
    others = sorted((kind for kind in named if kind != described), key="null".__eq__)
    return [alternative | {"type": described}, *({"type": kind} for kind in others)]


def _accepts_any_text(schema: Any) -> bool:
    """Whether a schema obviously accepts every text."""
    kinds = as_mapping(schema)
    return "string" in read_types(kinds.get("type")) and "anyOf" not in kinds and _RESTRICTIONS.isdisjoint(kinds)


_STEPS: Final[Mapping[str, Callable[..., Any]]] = {
    **dict.fromkeys(
        ("items", "additionalProperties", "unevaluatedProperties", "contains", "additionalItems", "unevaluatedItems"),
        lambda part, depth: part if isinstance(part, bool) else _widen(part, depth),
    ),
    **dict.fromkeys(("properties", "patternProperties", "prefixItems"), _widen),
    **dict.fromkeys(
        ("anyOf", "oneOf", "allOf", "$defs", "definitions", "dependentSchemas", "then", "else"), _widen_below
    ),
    # Widened, these would exclude or select other values.
    **dict.fromkeys(("not", "if", "propertyNames", "contentSchema"), partial(without, words=(HEADER,))),
}
"""How the subschemas of each keyword are treated; those of arguments and items are widened."""
