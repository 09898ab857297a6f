"""Builds the advertised definition of a twin, and finds the types that a schema accepts for an argument.

Schemas come from upstreams and may be invalid; a keyword that this module does not understand is left unchanged.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from operator import is_
from typing import Any, Final

import msgspec

from mcp_mirror.core.schema_references import (
    ANCHORS,
    REFERENCES,
    ROOT_COMBINATORS,
    References,
    as_sequence,
    drop_unused_definitions,
    is_nullable,
    read_types,
    settle,
    without,
)
from mcp_mirror.payload.json_bounds import is_deeper
from mcp_mirror.types import Location

Schema = dict[str, Any]

HEADER: Final = "x-mcp-header"
"""Marks an argument that clients mirror into an HTTP header."""

EXECUTION: Final = "execution"
"""Marks a tool that can run as a task; the gateway does not relay tasks."""

MAX_NAME: Final = 64
"""Characters that OpenAI accepts, out of `[A-Za-z0-9_-]`."""
SHORT_NAME: Final = 45
"""Characters that leave room for the prefixes of clients (Cursor: 60 with the server's name)."""

_ARGUMENT_HINT: Final = "Reads memory paths."
_CLOSING: Final = ")]}>\"'`\u2019\u201d\u00bb"
_STOPS: Final = ".!?:;,\u2026\u3002\uff01\uff1f"
_MAX_DESCRIPTION: Final = 1024
"""Characters above which OpenAI rejects a description and with it the whole request."""
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")
_SAFE: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_NAME}}}")
_STARTS: Final = re.compile(r"[A-Za-z_]")
"""First characters that Gemini accepts."""
_HASH_LENGTH: Final = 6
_MAX_SUFFIX: Final = MAX_NAME - _HASH_LENGTH - 2
_PATH: Final[Schema] = {"type": "string"}

_RESTRICTIONS: Final = frozenset(
    ("enum", "const", "pattern", "format", "minLength", "maxLength", "contentEncoding", "contentMediaType", "allOf",
     "not", "if", *REFERENCES)
)  # fmt: skip
"""Keywords that would restrict a path as well as a literal."""
_ANNOTATIONS: Final = ("title", "description", "default", "examples", "deprecated")
"""Keywords that describe the argument rather than one alternative."""
_UNIONS: Final = ("anyOf", "oneOf")
_MAX_DEPTH: Final = 64
_MAX_NESTING: Final = 60
"""Levels of nesting of a twin's schema. Clients drop a whole list that is nested too deep: on .NET over 64 levels, on
Rust over 128, on pydantic over 200."""
_ADMITTING_LEVELS: Final = (_MAX_DEPTH, 16, 8, 4, 0)
"""Levels of a schema that may admit paths below the arguments themselves."""


def fit_name(name: str, suffix: str = "", prefix: str = "") -> str:
    """Build a tool name that every client accepts, the same on every call.

    A name that is shortened or that loses letters of another script gets a hash of the whole name. A name without
    prefix and suffix is unchanged if providers accept it.
    """
    if not suffix and not prefix and _SAFE.fullmatch(name):
        return name
    whole = f"{'' if _STARTS.match(prefix) else '_'}{prefix}_{name}" if prefix else name
    safe, suffix = _UNSAFE.sub("_", whole), _UNSAFE.sub("_", suffix)[:_MAX_SUFFIX]
    room = max(SHORT_NAME - len(suffix), _HASH_LENGTH + 2)
    if 0 < len(safe) <= room and whole.isascii():
        return safe + suffix
    digest = hashlib.sha256(f"{prefix}\0{name}".encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_LENGTH]
    return f"{safe[: room - _HASH_LENGTH - 1]}_{digest}{suffix}"


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
    settled = _flatten_root(settle(drop_unused_definitions(schema)))
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


def types_at(schema: Schema) -> Callable[[Location], frozenset[str]]:
    """A function that returns the JSON types that the schema accepts at a location; an empty set if it accepts any.

    `number` includes `integer`. All calls of one function visit at most 3,000 subschemas; after that it returns empty
    sets.
    """
    root = _InstanceLocation(_VisitBudget(References(schema)), [schema])

    def find(location: Location) -> frozenset[str]:
        place = root
        for token in location:
            place = place.below(token)
            if not place.parts:  # no schema applies there and below
                return frozenset()
        return place.types

    return find


class _VisitBudget(msgspec.Struct):
    """The budget of subschemas that may still be visited in one schema."""

    references: References
    left: int = 3_000
    scans: int = 50_000
    """How often a subschema may still be searched for those of a key or item, in about 50 ms together."""
    locations: "dict[tuple[int, ...], _InstanceLocation]" = msgspec.field(default_factory=dict)
    """The locations by the schemas that apply there."""
    _own_types: dict[int, frozenset[str]] = msgspec.field(default_factory=dict)

    def read_own_types(self, part: Schema) -> frozenset[str]:
        """The types that `type`, `const` and `enum` of a schema accept, with `integer` beside each `number`."""
        if (kinds := self._own_types.get(id(part))) is None:
            kinds = self._own_types[id(part)] = _read_own_types(part)
        return kinds

    def parts(self, parts: Iterable[Any]) -> list[Schema]:
        """All schemas that apply where one of these does, within the budget."""
        seen: dict[int, Any] = {}
        found = (one for part in parts for one, _ in _find_applicable_schemas(self.references, part, seen))
        visited = list(islice(found, self.left))
        self.left -= len(visited)
        return visited


class _InstanceLocation(msgspec.Struct, dict=True):
    """A location of an instance and the schemas that apply there."""

    visits: _VisitBudget
    parts: list[Any]
    _children: dict[str | int, "_InstanceLocation"] = msgspec.field(default_factory=dict)

    def below(self, token: str | int) -> "_InstanceLocation":
        """The location one step below; all items after the longest tuple share one."""
        if isinstance(token, int):
            token = min(token, self._longest)
        if token not in self._children:
            self.visits.scans -= len(self._branches)
            branches = self._branches if self.visits.scans >= 0 else ()
            found = {id(one): one for branch in branches for one in _find_subschemas(branch, token)}
            new = _InstanceLocation(self.visits, list(found.values()))
            self._children[token] = self.visits.locations.setdefault(tuple(found), new)
        return self._children[token]

    @cached_property
    def types(self) -> frozenset[str]:
        """The types that one of the schemas accepts; empty if all are accepted or the budget is used up."""
        kinds = _find_accepted_types(self.visits, self.parts, self._branches)
        if not self.visits.left or kinds == _EVERY_TYPE:
            return frozenset()
        return kinds - {"integer"} if "number" in kinds else kinds

    @cached_property
    def _branches(self) -> list[Schema]:
        return self.visits.parts(self.parts)

    @cached_property
    def _longest(self) -> int:
        tuples = (as_sequence(one.get(word)) for one in self._branches for word in ("prefixItems", "items"))
        return max(map(len, tuples), default=0)


def find_header_locations(schema: Schema) -> tuple[tuple[str, ...], ...]:
    """The locations of the arguments that clients mirror into HTTP headers."""

    def walk(part: Any, at: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if not isinstance(part, dict) or len(at) > _MAX_DEPTH:
            return
        if at and HEADER in part:
            yield at
        for key, below in _as_mapping(part.get("properties")).items():
            yield from walk(below, (*at, key))

    return tuple(walk(schema, ()))


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _flatten_root(schema: Schema) -> Schema:
    """The schema without alternatives or references at its root, for which some clients drop the whole tool.

    Its properties remain: those that apply in every case unchanged, those of single cases as alternatives.
    """
    if ROOT_COMBINATORS.isdisjoint(schema):
        return schema
    parts = list(_find_applicable_schemas(References(schema), schema, {}))
    properties: dict[str, Any] = {}
    for part in reversed([part for part, is_certain in parts if is_certain]):
        properties |= _read_properties(part, schema)
    cases: dict[str, dict[str, Any]] = {}
    for part in (part for part, is_certain in parts if not is_certain):
        for name, value in _read_properties(part, schema).items():
            cases.setdefault(name, {}).setdefault(json.dumps(value, sort_keys=True), value)
    either = {name: _join_alternatives(list(found.values())) for name, found in cases.items()}
    named = [name for part, is_certain in parts if is_certain for name in as_sequence(part.get("required"))]
    required = {"required": list(dict.fromkeys(map(str, named)))} if named else {}
    kept = {key: value for key, value in schema.items() if key not in ROOT_COMBINATORS}
    return kept | {"properties": either | properties} | required


def _join_alternatives(found: list[Any]) -> Any:
    return found[0] if len(found) == 1 else {"anyOf": found}


def _read_properties(part: Schema, root: Schema) -> Mapping[str, Any]:
    own = _as_mapping(part.get("properties"))
    return own if part is root else {name: without(value, ANCHORS) for name, value in own.items()}


def _find_applicable_schemas(references: References, part: Any, seen: dict[int, Any]) -> Iterator[tuple[Schema, bool]]:
    """The schemas that apply at the location of `part`, except those in `seen`, and whether each applies in every case.

    Each schema is visited once, so the work is linear in the size of the whole schema.
    """
    stack = [(part, True)]
    while stack:
        here, is_certain = stack.pop()
        if not isinstance(here, dict) or id(here) in seen:
            continue
        seen[id(here)] = here
        yield here, is_certain
        below = [(one, is_certain) for one in (*references.targets(here), *as_sequence(here.get("allOf")))]
        below += [(one, False) for word in _UNIONS for one in as_sequence(here.get(word))]
        stack += reversed(below)


def _widen_below(schema: Any, depth: int) -> Any:
    """The schema with every subschema widened, itself unchanged."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return schema
    inside = {
        key: _BELOW[key](value, depth + 1) if key in _BELOW else value for key, value in schema.items() if key != HEADER
    }
    if "oneOf" not in inside:
        return _share(inside, schema)
    one_of = inside.pop("oneOf")  # a path would match several of them
    if "anyOf" not in inside:
        return inside | {"anyOf": one_of}
    return inside | {"allOf": [*as_sequence(inside.get("allOf")), {"anyOf": one_of}]}


def _share(changed: Any, original: Any) -> Any:
    """The original if all members are the same objects: a twin shares most of the memory of its tool's schema."""
    before, after = (one.values() if isinstance(one, dict) else one for one in (original, changed))
    return original if len(before) == len(after) and all(map(is_, before, after)) else changed


def _drop_header_marks(value: Any, _depth: int) -> Any:
    """A subschema that excludes or selects values, unchanged: widened, it would exclude or select others."""
    return without(value, (HEADER,))


def _apply_to_each(step: Callable[[Any, int], Any]) -> Callable[[Any, int], Any]:
    """Apply `step` to each schema in the map or list of a keyword."""

    def each(value: Any, depth: int) -> Any:
        if isinstance(value, list):
            return _share([step(part, depth) for part in value], value)
        if isinstance(value, dict):
            return _share({name: step(part, depth) for name, part in value.items()}, value)
        return value

    return each


def _widen_one_or_each(value: Any, depth: int) -> Any:
    if isinstance(value, bool):
        return value
    return [_widen(part, depth) for part in value] if isinstance(value, list) else _widen(value, depth)


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
        return annotations | {"anyOf": [alternative, _PATH]}
    alternatives = as_sequence(inner.get("anyOf"))
    if not alternatives or any(_accepts_any_text(part) for part in alternatives):
        return inner
    return inner | {"anyOf": [*alternatives, _PATH]}


def _accepts_any_text(schema: Any) -> bool:
    """Whether a schema obviously accepts every text."""
    kinds = _as_mapping(schema)
    return "string" in read_types(kinds.get("type")) and "anyOf" not in kinds and _RESTRICTIONS.isdisjoint(kinds)


_BELOW: Final[Mapping[str, Callable[[Any, int], Any]]] = {
    **dict.fromkeys(("items", "additionalProperties", "unevaluatedProperties"), _widen_one_or_each),
    **dict.fromkeys(("contains", "additionalItems", "unevaluatedItems"), _widen_one_or_each),
    **dict.fromkeys(("properties", "patternProperties", "prefixItems"), _apply_to_each(_widen)),
    **dict.fromkeys(
        ("anyOf", "oneOf", "allOf", "$defs", "definitions", "dependentSchemas"), _apply_to_each(_widen_below)
    ),
    **dict.fromkeys(("then", "else"), _widen_below),
    **dict.fromkeys(("not", "if", "propertyNames", "contentSchema"), _drop_header_marks),
}
"""How the subschemas of each keyword are treated; those of arguments and items are widened."""


def _find_subschemas(branch: Schema, token: str | int) -> Iterator[Any]:
    """The subschemas for the location one step below."""
    if isinstance(token, int):
        items = branch.get("items")
        prefix = [*as_sequence(branch.get("prefixItems")), *as_sequence(items)]
        yield from prefix[token : token + 1] or ([items] if isinstance(items, dict) else [])
    elif token in (properties := _as_mapping(branch.get("properties"))):
        yield properties[token]
    elif "additionalProperties" in branch and "patternProperties" not in branch:
        yield branch["additionalProperties"]


_EVERY_TYPE: Final = frozenset(("string", "number", "integer", "boolean", "object", "array", "null"))


def _find_accepted_types(visits: _VisitBudget, parts: list[Any], branches: list[Schema]) -> frozenset[str]:
    """The types that at least one of the schemas accepts, with `integer` beside each `number`.

    Types are narrowed in four rounds; schemas that refer to each other in more complicated ways accept more types.
    `branches` has all schemas that apply where one of `parts` does.
    """
    known = {id(branch): _EVERY_TYPE for branch in branches}
    for order in (branches[::-1], branches) * 2:
        for branch in order:
            known[id(branch)] = _narrow_types(visits, branch, known)
    return _join_types(known.get(id(part), _EVERY_TYPE) for part in parts)


def _read_own_types(part: Schema) -> frozenset[str]:
    kinds = frozenset(read_types(part.get("type"))) or _EVERY_TYPE
    if "number" in kinds:
        kinds |= {"integer"}
    values = [part["const"]] if "const" in part else as_sequence(part.get("enum"))
    if values:
        kinds &= {_TYPE_OF.get(type(value), "object") for value in values}
    return kinds | {"null"} if is_nullable(part) else kinds


def _narrow_types(visits: _VisitBudget, part: Schema, known: Mapping[int, frozenset[str]]) -> frozenset[str]:
    """The types that one schema accepts, given those of the other schemas at its location."""
    kinds = visits.read_own_types(part)
    for below in (*visits.references.targets(part), *as_sequence(part.get("allOf"))):
        kinds &= known.get(id(below), _EVERY_TYPE)
    for word in _UNIONS:
        if cases := as_sequence(part.get(word)):
            kinds &= _join_types(known.get(id(below), _EVERY_TYPE) for below in cases)
    return kinds


def _join_types(kinds: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset[str]().union(*kinds)


_TYPE_OF: Final = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    type(None): "null",
}
