"""From a tool to the advert of its twin, and from its schema to what an argument wants.

Schemas are treated as data of unknown quality: what is not understood is left as it is.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, Final

from mcp_mirror.core.schema_references import ANCHORS, REFERENCES, ROOT_COMBINATORS, References, settle, without
from mcp_mirror.types import Location

Schema = dict[str, Any]

HEADER: Final = "x-mcp-header"
"""Marks an argument that the client mirrors into an HTTP header."""

EXECUTION: Final = "execution"
"""Says that a tool can run as a task, which is not relayed."""

MAX_NAME: Final = 64
"""Characters that OpenAI takes; `[A-Za-z0-9_-]` alone."""
SHORT_NAME: Final = 45
"""Characters that leave room for what clients put before a name (Cursor: 60 with the server's)."""

_ARGUMENT_HINT: Final = "Reads memory paths."
_MAX_DESCRIPTION: Final = 1024
"""Characters past which OpenAI refuses a description, and with it the whole request."""
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")
_SAFE: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_NAME}}}")
_STARTS: Final = re.compile(r"[A-Za-z_]")
"""What a name begins with for Gemini."""
_HASH: Final = 6
_MAX_SUFFIX: Final = MAX_NAME - _HASH - 2
_PATH: Final[Schema] = {"type": "string"}

_LIMITS: Final = frozenset(
    ("enum", "const", "pattern", "format", "minLength", "maxLength", "contentEncoding", "contentMediaType", "allOf",
     "not", "if", *REFERENCES)
)  # fmt: skip
"""Keywords that would bind a path as well as the literal."""
_ANNOTATIONS: Final = ("title", "description", "default", "examples", "deprecated")
"""Keywords that say something of the argument, not of one alternative."""
_UNIONS: Final = ("anyOf", "oneOf")
_MAX_DEPTH: Final = 64


def fit_name(name: str, suffix: str = "", prefix: str = "") -> str:
    """A tool name that every client takes, the same each time.

    One that must be shortened, or that loses letters of another script, gets a hash of the whole. One to which nothing
    is added keeps what providers take.
    """
    if not suffix and not prefix and _SAFE.fullmatch(name):
        return name
    whole = f"{'' if _STARTS.match(prefix) else '_'}{prefix}_{name}" if prefix else name
    safe, suffix = _UNSAFE.sub("_", whole), _UNSAFE.sub("_", suffix)[:_MAX_SUFFIX]
    room = max(SHORT_NAME - len(suffix), _HASH + 2)
    if 0 < len(safe) <= room and whole.isascii():
        return safe + suffix
    digest = hashlib.sha256(f"{prefix}\0{name}".encode("utf-8", "surrogatepass")).hexdigest()[:_HASH]
    return f"{safe[: room - _HASH - 1]}_{digest}{suffix}"


def twin_of(tool: Mapping[str, Any], name: str, widened: Schema, description: str | None) -> Schema:
    """The advert of a tool's twin: all that the tool's has, but for the name, the input and the output schema.

    Args:
        tool: The tool as its upstream lists it.
        name: The twin's.
        widened: Its input schema, which `admit_paths` has made of the tool's.
        description: Instead of the tool's; None for that.
    """
    said = description if description is not None else str(tool.get("description") or "")
    advert = {key: value for key, value in tool.items() if key not in ("outputSchema", EXECUTION)}
    hinted = f"{_ended(said.rstrip())} {_ARGUMENT_HINT}".lstrip()
    if widened.get("properties") and not len(said) <= _MAX_DESCRIPTION < len(hinted):
        said = hinted
    return advert | {"name": name, "description": said, "inputSchema": widened}


def _ended(sentence: str) -> str:
    """With a full stop where a sentence ends in a letter or digit, so that what follows is not read on."""
    return f"{sentence}." if sentence[-1:].isalnum() else sentence


def admit_paths(schema: Schema) -> Schema:
    """The input schema in which each argument, nested ones too, may also be a memory path."""
    widened: Schema = _inside(_flattened(settle(schema)), 0)
    return {"type": "object"} | widened | {"type": "object"}


def types_at(schema: Schema) -> Callable[[Location], frozenset[str]]:
    """A function that returns the JSON types that the schema admits at a location; none where it does not say.

    `number` stands for `integer` too. One function visits 3,000 subschemas at most, over all its calls; beyond
    that it says nothing.
    """
    root = _Place(_Visits(References(schema)), [schema])

    def find(location: Location) -> frozenset[str]:
        place = root
        for token in location:
            place = place.below(token)
        return place.types

    return find


@dataclass(slots=True)
class _Visits:
    """The subschemas of one schema that may still be visited."""

    references: References
    left: int = 3_000

    def parts(self, parts: Iterable[Any]) -> list[Schema]:
        """All schemas that apply where one of these does."""
        seen: dict[int, Any] = {}
        found = (one for part in parts for one, _ in _parts(self.references, part, seen, certain=True))
        visited = list(islice(found, self.left))
        self.left -= len(visited)
        return visited


@dataclass
class _Place:
    """A place of an instance, and the schemas for what stands there."""

    visits: _Visits
    parts: list[Any]
    _below: dict[str | int, "_Place"] = field(default_factory=dict)

    def below(self, token: str | int) -> "_Place":
        """The place one step below; all items past the longest tuple are one place."""
        if isinstance(token, int):
            token = min(token, self._longest)
        if token not in self._below:
            found = {id(one): one for branch in self._branches for one in _below(branch, token)}
            self._below[token] = _Place(self.visits, list(found.values()))
        return self._below[token]

    @cached_property
    def types(self) -> frozenset[str]:
        """The types that one of the schemas admits; none where they do not say, or no visit is left."""
        kinds = _admitted(self.visits.references, self.parts, self._branches)
        if not self.visits.left or kinds == _EVERY_TYPE:
            return frozenset()
        return kinds - {"integer"} if "number" in kinds else kinds

    @cached_property
    def _branches(self) -> list[Schema]:
        return self.visits.parts(self.parts)

    @cached_property
    def _longest(self) -> int:
        tuples = (_sequence(one.get(word)) for one in self._branches for word in ("prefixItems", "items"))
        return max(map(len, tuples), default=0)


def header_locations(schema: Schema) -> tuple[tuple[str, ...], ...]:
    """Where the arguments stand that are mirrored into HTTP headers."""

    def walk(part: Any, at: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if not isinstance(part, dict) or len(at) > _MAX_DEPTH:
            return
        if at and HEADER in part:
            yield at
        for key, below in _mapping(part.get("properties")).items():
            yield from walk(below, (*at, key))

    return tuple(walk(schema, ()))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _sequence(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _names(value: Any) -> list[str]:
    """The types that a `type` keyword names."""
    return [value] if isinstance(value, str) else [name for name in _sequence(value) if isinstance(name, str)]


def _flattened(schema: Schema) -> Schema:
    """Without alternatives or a reference at the root, which some clients drop the whole tool for.

    Their properties stay known: what holds in any case as it is, what holds in one of several cases as one of several.
    """
    if ROOT_COMBINATORS.isdisjoint(schema):
        return schema
    parts = list(_parts(References(schema), schema, {}, certain=True))
    properties: dict[str, Any] = {}
    for part in reversed([part for part, certain in parts if certain]):
        properties |= _arguments(part, schema)
    cases: dict[str, dict[str, Any]] = {}
    for part in (part for part, certain in parts if not certain):
        for name, value in _arguments(part, schema).items():
            cases.setdefault(name, {}).setdefault(json.dumps(value, sort_keys=True), value)
    either = {name: _one_of(list(found.values())) for name, found in cases.items()}
    named = [name for part, certain in parts if certain for name in _sequence(part.get("required"))]
    required = {"required": list(dict.fromkeys(map(str, named)))} if named else {}
    kept = {key: value for key, value in schema.items() if key not in ROOT_COMBINATORS}
    return kept | {"properties": either | properties} | required


def _one_of(found: list[Any]) -> Any:
    return found[0] if len(found) == 1 else {"anyOf": found}


def _arguments(part: Schema, root: Schema) -> Mapping[str, Any]:
    own = _mapping(part.get("properties"))
    return own if part is root else {name: without(value, ANCHORS) for name, value in own.items()}


def _parts(references: References, part: Any, seen: dict[int, Any], *, certain: bool) -> Iterator[tuple[Schema, bool]]:
    """The schemas that apply at the place of `part`, those in `seen` left out, and whether each does so in any case.

    Each schema is visited once, so the work is linear in the size of the whole schema.
    """
    stack = [(part, certain)]
    while stack:
        here, is_certain = stack.pop()
        if not isinstance(here, dict) or id(here) in seen:
            continue
        seen[id(here)] = here
        yield here, is_certain
        below = [(one, is_certain) for one in (*references.targets(here), *_sequence(here.get("allOf")))]
        below += [(one, False) for word in _UNIONS for one in _sequence(here.get(word))]
        stack += reversed(below)


def _inside(schema: Any, depth: int) -> Any:
    """The schema with every subschema below it widened, itself as it is."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return schema
    inside = {key: _BELOW.get(key, _kept)(value, depth + 1) for key, value in schema.items() if key != HEADER}
    if "oneOf" not in inside:  # a path would satisfy several of them
        return inside
    one_of = inside.pop("oneOf")
    if "anyOf" not in inside:
        return inside | {"anyOf": one_of}
    return inside | {"allOf": [*_sequence(inside.get("allOf")), {"anyOf": one_of}]}


def _kept(value: Any, _depth: int) -> Any:
    return value


def _bare(value: Any, _depth: int) -> Any:
    """What excludes or chooses: widened it would exclude and choose others."""
    return without(value, (HEADER,))


def _each(step: Callable[[Any, int], Any]) -> Callable[[Any, int], Any]:
    """`step` for each schema that a keyword holds, in a map, in a list, or alone."""

    def each(value: Any, depth: int) -> Any:
        if isinstance(value, list):
            return [step(part, depth) for part in value]
        return {name: step(part, depth) for name, part in value.items()} if isinstance(value, dict) else value

    return each


def _one_or_each(value: Any, depth: int) -> Any:
    return [_widened(part, depth) for part in value] if isinstance(value, list) else _widened(value, depth)


def _widened(schema: Any, depth: int) -> Any:
    """The schema, which a memory path satisfies too: in the cheapest form that every provider's subset has.

    A list of types would cost less, but Gemini's function declarations take one type alone; and beside alternatives
    Vertex AI takes nothing else, so what is said of an argument stays with its first. A reference stands alone.
    """
    if not isinstance(schema, dict):
        return schema
    inner: Schema = _inside(schema, depth)
    kinds = _names(inner.get("type"))
    if (kinds and "string" not in kinds) or not _LIMITS.isdisjoint(inner):
        refers = not inner.keys().isdisjoint(REFERENCES)
        said = {key: inner.pop(key) for key in _ANNOTATIONS if key in inner} if refers else {}
        return said | {"anyOf": [inner, _PATH]}
    alternatives = _sequence(inner.get("anyOf"))
    if not alternatives or any(_admits_text(part) for part in alternatives):
        return inner
    return inner | {"anyOf": [*alternatives, _PATH]}


def _admits_text(schema: Any) -> bool:
    """Whether any text satisfies a schema, as far as a glance tells."""
    kinds = _mapping(schema)
    return "string" in _names(kinds.get("type")) and "anyOf" not in kinds and _LIMITS.isdisjoint(kinds)


_BELOW: Final[Mapping[str, Callable[[Any, int], Any]]] = {
    **dict.fromkeys(("items", "additionalProperties", "unevaluatedProperties"), _one_or_each),
    **dict.fromkeys(("contains", "additionalItems", "unevaluatedItems"), _one_or_each),
    **dict.fromkeys(("properties", "patternProperties", "prefixItems"), _each(_widened)),
    **dict.fromkeys(("anyOf", "oneOf", "allOf", "$defs", "definitions", "dependentSchemas"), _each(_inside)),
    **dict.fromkeys(("then", "else"), _inside),
    **dict.fromkeys(("not", "if", "propertyNames", "contentSchema"), _bare),
}
"""How the schemas under a keyword are treated; what stands for an argument or an item is widened."""


def _below(branch: Schema, token: str | int) -> Iterator[Any]:
    """What a schema says of what stands one step below it."""
    if isinstance(token, int):
        items = branch.get("items")
        prefix = [*_sequence(branch.get("prefixItems")), *_sequence(items)]
        yield from prefix[token : token + 1] or ([items] if isinstance(items, dict) else [])
    elif token in (properties := _mapping(branch.get("properties"))):
        yield properties[token]
    elif "additionalProperties" in branch and "patternProperties" not in branch:
        yield branch["additionalProperties"]


_EVERY_TYPE: Final = frozenset(("string", "number", "integer", "boolean", "object", "array", "null"))


def _admitted(references: References, parts: list[Any], branches: list[Schema]) -> frozenset[str]:
    """The types that satisfy one of several schemas, `integer` beside each `number`.

    Types are narrowed in four rounds; schemas that refer to each other in a way that takes more admit more types.

    Args:
        references: Of the whole schema.
        parts: The schemas.
        branches: All schemas that apply where one of them does.
    """
    known = {id(branch): _EVERY_TYPE for branch in branches}
    for order in (branches[::-1], branches) * 2:
        for branch in order:
            known[id(branch)] = _narrowed(references, branch, known)
    return _any_of(known.get(id(part), _EVERY_TYPE) for part in parts)


def _narrowed(references: References, part: Schema, known: Mapping[int, frozenset[str]]) -> frozenset[str]:
    """The types that one schema admits, by those that the schemas at its place do."""
    kinds = _declared(part)
    for below in (*references.targets(part), *_sequence(part.get("allOf"))):
        kinds &= known.get(id(below), _EVERY_TYPE)
    for word in _UNIONS:
        if cases := _sequence(part.get(word)):
            kinds &= _any_of(known.get(id(below), _EVERY_TYPE) for below in cases)
    return kinds


def _any_of(kinds: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset[str]().union(*kinds)


def _declared(part: Schema) -> frozenset[str]:
    """The types that a schema names itself, or that the values have which it lists."""
    kinds = frozenset(_names(part.get("type"))) or _EVERY_TYPE
    if "number" in kinds:
        kinds |= {"integer"}
    values = [part["const"]] if "const" in part else _sequence(part.get("enum"))
    return kinds & {_TYPE_OF.get(type(value), "object") for value in values} if values else kinds


_TYPE_OF: Final = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    type(None): "null",
}
