"""From a tool to the advert of its twin, and from its schema to what an argument wants.

Schemas are treated as data of unknown quality: what is not understood is left as it is.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import jsonschema_rs

from mcp_mirror.models import Location

Schema = dict[str, Any]

HEADER: Final = "x-mcp-header"
"""Marks an argument that the client mirrors into an HTTP header."""

MAX_NAME: Final = 64
"""Characters that OpenAI takes; `[A-Za-z0-9_-]` alone."""
SHORT_NAME: Final = 45
"""Characters that leave room for what clients put before a name (Cursor: 60 with the server's)."""

_ARGUMENT_HINT: Final = "Arguments may be memory paths."
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")
_HASH: Final = 6
_PATH: Final[Schema] = {"type": "string"}

_LIMITS: Final = frozenset(
    ("enum", "const", "pattern", "format", "minLength", "maxLength", "contentEncoding", "contentMediaType", "allOf",
     "not", "if", "$ref", "$dynamicRef")
)  # fmt: skip
"""Keywords that would bind a path as well as the literal."""
_ANNOTATIONS: Final = ("title", "description", "default", "examples", "deprecated")
"""Keywords that say something of the argument, not of one alternative."""
_ROOT_COMBINATORS: Final = ("anyOf", "oneOf", "allOf", "not", "if", "then", "else", "dependentSchemas")

_ONE: Final = ("items", "additionalProperties", "unevaluatedProperties", "contains", "additionalItems")
_MAPS: Final = ("properties", "patternProperties")
_LISTS: Final = ("prefixItems",)
_ALTERNATIVES: Final = ("anyOf", "oneOf", "allOf")
_MAX_DEPTH: Final = 64


def fit_name(name: str, suffix: str = "", prefix: str = "") -> str:
    """A tool name that every client takes, the same each time; one that must be shortened gets a hash of the whole."""
    safe = _UNSAFE.sub("_", f"{prefix}_{name}" if prefix else name)
    room = max(SHORT_NAME, min(MAX_NAME, len(suffix) + _HASH + 2)) - len(suffix)
    if len(safe) <= room and safe:
        return safe + suffix
    digest = hashlib.sha256(f"{prefix}\0{name}".encode()).hexdigest()[:_HASH]
    return f"{safe[: room - _HASH - 1]}_{digest}{suffix}"[:MAX_NAME]


def twin_of(tool: Mapping[str, Any], name: str, schema: Schema, description: str | None) -> Schema:
    """The advert of a tool's twin: all that the tool's has, but for the name, the input and the output schema."""
    said = description if description is not None else str(tool.get("description") or "")
    advert = {key: value for key, value in tool.items() if key not in ("outputSchema", "execution")}
    hint = f" {_ARGUMENT_HINT}" if schema.get("properties") else ""
    return advert | {"name": name, "description": f"{said.rstrip()}{hint}".strip(), "inputSchema": admit_paths(schema)}


def admit_paths(schema: Schema) -> Schema:
    """The input schema in which each argument, nested ones too, may also be a memory path."""
    root = _flattened(schema)
    widened: Schema = _inside(root, 0)
    for key in ("$defs", "definitions"):
        if isinstance(root.get(key), dict):
            widened[key] = {name: _inside(part, 0) for name, part in root[key].items()}
    return {"type": "object"} | widened


def types_at(schema: Schema, location: Location) -> frozenset[str]:
    """The JSON types that the schema declares for what stands at `location`; empty where it declares none."""
    here: list[Any] = [schema]
    for token in location:
        here = [below for part in here for below in _below(schema, part, token)]
    return frozenset(kind for part in here for kind in _declared(schema, part, 0))


def header_locations(schema: Schema) -> tuple[tuple[str, ...], ...]:
    """Where the arguments stand that are mirrored into HTTP headers."""

    def walk(part: Any, at: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if not isinstance(part, dict) or len(at) > _MAX_DEPTH:
            return
        if at and HEADER in part:
            yield at
        if isinstance(properties := part.get("properties"), dict):
            for key, below in properties.items():
                yield from walk(below, (*at, key))

    return tuple(walk(schema, ()))


def compile_check(schema: Schema) -> Callable[[Any], str | None]:
    """A function that says what is wrong with arguments, None where nothing is.

    Raises:
        ValueError: The schema is not a JSON Schema for an object.
    """
    if schema.get("type", "object") != "object":
        raise ValueError("its input schema does not describe an object")
    try:
        validator = jsonschema_rs.validator_for(schema)
    except Exception as error:  # noqa: BLE001  # the library raises several kinds, one of them a plain ValueError
        raise ValueError(f"its input schema is not valid: {str(error).splitlines()[0][:200]}") from None

    def check(arguments: Any) -> str | None:
        for error in validator.iter_errors(arguments):
            at = ".".join(str(step) for step in error.instance_path)
            return f"{at}: {_bounded(error.message)}" if at else _bounded(error.message)
        return None

    return check


def _bounded(message: str) -> str:
    return message if len(message) <= 300 else f"{message[:140]} ... {message[-140:]}"  # noqa: PLR2004


def _flattened(schema: Schema) -> Schema:
    """Without alternatives at the root, which some clients drop the whole tool for; their properties stay known."""
    root = {key: value for key, value in schema.items() if key not in _ROOT_COMBINATORS}
    properties = dict(schema.get("properties") or {})
    for word in ("allOf", "anyOf", "oneOf"):
        for part in schema.get(word) or ():
            if isinstance(part, dict) and isinstance(part.get("properties"), dict):
                properties = {**part["properties"], **properties}
    return root | {"properties": properties} if properties or "properties" in root else root


def _inside(schema: Any, depth: int) -> Any:
    """The schema with every subschema below it widened, itself as it is."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return schema
    return {key: _member(key, value, depth) for key, value in schema.items() if key != HEADER}


def _member(key: str, value: Any, depth: int) -> Any:
    """One keyword's value, with the subschemas in it widened."""
    if key in _ONE and isinstance(value, dict):
        return _widened(value, depth)
    if key in _MAPS and isinstance(value, dict):
        return {name: _widened(part, depth) for name, part in value.items()}
    if key in _LISTS and isinstance(value, list):
        return [_widened(part, depth) for part in value]
    if key in _ALTERNATIVES and isinstance(value, list):
        return [_inside(part, depth + 1) for part in value]
    return value


def _widened(schema: Any, depth: int) -> Any:
    """The schema, which a memory path satisfies too: in the form that costs the fewest tokens."""
    if not isinstance(schema, dict) or not schema:
        return schema
    inner: Schema = _inside(schema, depth + 1)
    alternatives = inner.get("anyOf") or inner.get("oneOf")
    limited = not _LIMITS.isdisjoint(inner)
    if isinstance(alternatives, list) and not limited:
        rest = {key: value for key, value in inner.items() if key not in ("anyOf", "oneOf")}
        return rest | {"anyOf": alternatives if _PATH in alternatives else [*alternatives, _PATH]}
    if limited:
        said = {key: inner.pop(key) for key in _ANNOTATIONS if key in inner}
        return said | {"anyOf": [inner, _PATH]}
    kinds = inner.get("type", "object" if "properties" in inner else [])
    kinds = [kinds] if isinstance(kinds, str) else list(kinds)
    return inner if not kinds or "string" in kinds else inner | {"type": [*kinds, "string"]}


def _target(root: Schema, part: Any, depth: int = 0) -> Any:
    """What a local `$ref` points to."""
    while isinstance(part, dict) and isinstance(ref := part.get("$ref"), str) and depth < _MAX_DEPTH:
        if not ref.startswith("#"):
            return {}
        found: Any = root
        for token in ref.lstrip("#").split("/")[1:]:
            found = found.get(token.replace("~1", "/").replace("~0", "~"), {}) if isinstance(found, dict) else {}
        part, depth = found, depth + 1
    return part


def _branches(root: Schema, part: Any, depth: int = 0) -> Iterator[Schema]:
    """The schema itself and every alternative in it."""
    part = _target(root, part)
    if not isinstance(part, dict) or depth > _MAX_DEPTH:
        return
    yield part
    for key in _ALTERNATIVES:
        for branch in part.get(key) or ():
            yield from _branches(root, branch, depth + 1)


def _below(root: Schema, part: Any, token: str | int) -> Iterator[Any]:
    for branch in _branches(root, part):
        if isinstance(token, int):
            prefix = branch.get("prefixItems") or ()
            yield prefix[token] if token < len(prefix) else branch.get("items", {})
        elif token in (branch.get("properties") or {}):
            yield branch["properties"][token]
        elif isinstance(extra := branch.get("additionalProperties"), dict):
            yield extra


def _declared(root: Schema, part: Any, depth: int) -> Iterator[str]:
    for branch in _branches(root, part, depth):
        kinds = branch.get("type", ())
        yield from (kinds,) if isinstance(kinds, str) else kinds
        for value in (*branch.get("enum", ()), *((branch["const"],) if "const" in branch else ())):
            yield _TYPE_OF.get(type(value), "object")


_TYPE_OF: Final = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    type(None): "null",
}
