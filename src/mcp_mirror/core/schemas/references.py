"""Resolves references within a schema, and moves their targets so that they remain valid in a twin's schema.

Only references within the same document are resolved. Of twins, this module knows only the parts of a schema that
they keep.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from itertools import count
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from mcp_mirror.paths import unescape_token
from mcp_mirror.system.patterns import lazy_pattern

Schema = dict[str, Any]

REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
ROOT_COMBINATORS: Final = frozenset(
    ("anyOf", "oneOf", "allOf", "not", "if", "then", "else", "dependentSchemas", "unevaluatedProperties", *REFERENCES)
)
"""Keywords that a twin does not have at its root."""

UNIONS: Final = ("anyOf", "oneOf")
ANCHORS: Final = ("$anchor", "$dynamicAnchor")
_KEPT_KEYWORDS: Final = ("$defs", "definitions", "properties")
"""Members of these at the root can be referenced in a twin too."""
_MAP_KEYWORDS: Final = frozenset((*_KEPT_KEYWORDS, "patternProperties", "dependentSchemas", "dependencies"))
_DEFINITIONS: Final = frozenset(("$defs", "definitions"))
_DEFINITION_MAPS: Final = frozenset((word,) for word in _DEFINITIONS)
_OTHER_SCOPES: Final = frozenset(("$id", "$dynamicRef", "$recursiveRef"))
_SCHEMA_KEYWORDS: Final = frozenset(
    ("items", "additionalItems", "unevaluatedItems", "prefixItems", "contains", "additionalProperties",
     "unevaluatedProperties", "propertyNames", "contentSchema", "anyOf", "oneOf", "allOf", "not", "if", "then", "else")
)  # fmt: skip
_UNSAFE: Final = lazy_pattern(r"[^A-Za-z0-9_-]+")
_INDEX: Final = lazy_pattern(r"0|[1-9][0-9]{0,8}")
_ANYTHING: Final[Schema] = {}
"""The target of an unresolved reference. It is a single object, since walks compare schemas by identity."""
_MAX_DEPTH: Final = 64
_MAX_TOKENS: Final = 1_000
"""Steps of a reference; no definition is that deep."""

JsonPointer = tuple[str, ...]
"""The keys on the way to a place in a schema."""


def as_sequence(value: Any) -> list[Any]:
    """A list unchanged; an empty one for any other value."""
    return value if isinstance(value, list) else []


def as_mapping(value: Any) -> dict[str, Any]:
    """An object unchanged; an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def read_types(value: Any) -> list[str]:
    """The types in a `type` keyword."""
    return [value] if isinstance(value, str) else [name for name in as_sequence(value) if isinstance(name, str)]


def is_nullable(schema: Mapping[str, Any]) -> bool:
    """Whether a schema with a type accepts null too, as OpenAPI 3.0 writes it; JSON Schema has no such keyword."""
    return schema.get("nullable") is True and bool(kinds := read_types(schema.get("type"))) and "null" not in kinds


def read_required(schema: Mapping[str, Any]) -> frozenset[str]:
    """The names in the `required` keyword of a schema."""
    return frozenset(name for name in as_sequence(schema.get("required")) if isinstance(name, str))


def map_below(schema: Schema, step: Callable[[Any], Any]) -> Schema:
    """The schema with `step` applied to each direct subschema; other values are unchanged."""
    return {key: map_keyword(key, value, step) for key, value in schema.items()}


def iterate_subschemas(schema: Schema) -> Iterator[Any]:
    """The direct subschemas that apply to an instance or a part of it, without definitions."""
    for key, value in schema.items():
        if key in _MAP_KEYWORDS - _DEFINITIONS and isinstance(value, dict):
            yield from value.values()
        elif key in _SCHEMA_KEYWORDS:
            yield from value if isinstance(value, list) else (value,)


def map_keyword(key: str, value: Any, step: Callable[[Any], Any]) -> Any:
    """The value of a keyword with `step` applied to each subschema in it; any other value is unchanged."""
    if key in _MAP_KEYWORDS and isinstance(value, dict):
        return {name: step(subschema) for name, subschema in value.items()}
    if key not in _SCHEMA_KEYWORDS:
        return value
    return [step(subschema) for subschema in value] if isinstance(value, list) else step(value)


def without(schema: Any, words: Collection[str], depth: int = 0) -> Any:
    """The schema without these keywords at any depth, except below an `$id`."""
    if not isinstance(schema, dict) or "$id" in schema or depth > _MAX_DEPTH:
        return schema
    bare = {key: value for key, value in schema.items() if key not in words}
    return map_below(bare, lambda subschema: without(subschema, words, depth + 1))


class References(msgspec.Struct, frozen=True, dict=True):
    """The references of one schema."""

    root: Schema

    def targets(self, subschema: Mapping[str, Any]) -> Iterator[Any]:
        """The targets of a schema's references; a schema without restrictions for an unresolved reference."""
        for word in REFERENCES:
            if word in subschema:
                pointer = self.pointer(subschema[word])
                found = None if pointer is None else self.at(pointer)
                yield _ANYTHING if found is None else found

    def pointer(self, reference: Any) -> JsonPointer | None:
        """The path of keys to a reference's target; None for a target in another document."""
        if not isinstance(reference, str):
            return None
        own = self.root.get("$id")
        fragment = reference.removeprefix(own.partition("#")[0]) if isinstance(own, str) else reference
        if fragment and not fragment.startswith("#"):
            return None
        if fragment.count("/") > _MAX_TOKENS:
            return None
        name, *tokens = fragment[1:].split("/")
        if name:
            return None if tokens else self._anchors.get(name)
        return tuple(unescape_token(unquote(token)) for token in tokens)

    def at(self, pointer: JsonPointer) -> Any:
        """The value at a path of keys; None if it does not exist."""
        found: Any = self.root
        for token in pointer:
            if isinstance(found, list):
                is_index = _INDEX.fullmatch(token) and int(token) < len(found)
                found = found[int(token)] if is_index else None
            else:
                found = found.get(token) if isinstance(found, dict) else None
        return found

    @cached_property
    def _anchors(self) -> Mapping[str, JsonPointer]:
        named = ((subschema.get(word), at) for at, subschema in _walk_subschemas(self.root, ()) for word in ANCHORS)
        return {name: at for name, at in named if isinstance(name, str)}


def find_applicable_schemas(
    references: References, subschema: Any, seen: dict[int, Any]
) -> Iterator[tuple[Schema, bool]]:
    """The schemas that apply where a subschema does, except those in `seen`, and whether each applies in every case.

    Each schema is visited once, so the work is linear in the size of the whole schema.
    """
    stack = [(subschema, True)]
    while stack:
        here, is_certain = stack.pop()
        if not isinstance(here, dict) or id(here) in seen:
            continue
        seen[id(here)] = here
        yield here, is_certain
        below = [(schema, is_certain) for schema in (*references.targets(here), *as_sequence(here.get("allOf")))]
        below += [(schema, False) for word in UNIONS for schema in as_sequence(here.get(word))]
        stack += reversed(below)


def _walk_subschemas(subschema: Any, at: JsonPointer) -> Iterator[tuple[JsonPointer, Schema]]:
    """All subschemas with their paths, except those with an `$id` of their own."""
    if not isinstance(subschema, dict) or len(at) > 2 * _MAX_DEPTH or (at and "$id" in subschema):
        return
    yield at, subschema
    for key, value in subschema.items():
        if key in _SCHEMA_KEYWORDS:
            yield from _walk_subschemas(value, (*at, key))
        members = as_mapping(value).items() if key in _MAP_KEYWORDS else ()
        items = enumerate(as_sequence(value)) if key in _SCHEMA_KEYWORDS else ()
        for name, below in (*members, *items):
            yield from _walk_subschemas(below, (*at, key, str(name)))


def drop_unused_definitions(schema: Schema) -> Schema:
    """The schema without the definitions at its root that no reference reaches.

    Some servers repeat all their definitions in each tool. All definitions stay in a schema with dynamic references, or
    with an `$id` below the root, where references have another base.
    """
    if _DEFINITIONS.isdisjoint(schema) or (reached := _find_definitions_in_use(schema)) is None:
        return schema
    kept: Schema = {}
    for key, value in schema.items():
        if key in _DEFINITIONS and isinstance(value, dict) and (key,) not in reached:
            used = {name: definition for name, definition in value.items() if (key, name) in reached}
            kept |= {key: used} if used else {}
        else:
            kept[key] = value
    return kept


def _find_definitions_in_use(schema: Schema) -> set[JsonPointer] | None:
    """The paths of the definitions that references reach; None if that is not known."""
    references = References(schema)
    reached: set[JsonPointer] = set()
    pending: list[Any] = [{key: value for key, value in schema.items() if key not in (*_DEFINITIONS, "$id")}]
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending += node
        elif isinstance(node, dict):
            if not _OTHER_SCOPES.isdisjoint(node):
                return None
            pending += node.values()
            target = (references.pointer(node.get("$ref")) or ())[:2]
            if target[:1] in _DEFINITION_MAPS and target not in reached:
                reached.add(target)
                pending.append(references.at(target))
    return reached


def move_targets(schema: Schema) -> Schema:
    """The schema with all references pointing to places that its twin keeps.

    Targets at deeper places, where a twin has other alternatives, or below a keyword that the twin's root lacks, move
    into the definitions.
    """
    references = References(schema)
    targets = _find_targets_to_move(references)
    if not targets:
        return schema
    word = "definitions" if isinstance(schema.get("definitions"), dict) else "$defs"
    names = _name_definitions(list(targets), schema.get(word))
    move = _Mover(references, {pointer: f"#/{word}/{name}" for pointer, name in names.items()})
    moved: Schema = move.rewrite(schema, 0)
    known = moved.get(word)
    added = {name: move.rewrite(references.at(pointer), 1) for pointer, name in names.items()}
    return moved | {word: {**as_mapping(known), **added}}


def _find_targets_to_move(references: References) -> dict[JsonPointer, None]:
    """The paths of the targets that have to move, each once."""
    moved: dict[JsonPointer, None] = {}
    for at, subschema in _walk_subschemas(references.root, ()):
        for reference in (subschema[word] for word in REFERENCES if at and word in subschema):
            pointer = references.pointer(reference)
            if pointer and not _is_kept(reference, pointer) and references.at(pointer) is not None:
                moved[pointer] = None
    return moved


def _is_kept(reference: str, pointer: JsonPointer) -> bool:
    if not reference.partition("#")[2].startswith("/"):  # an anchor moves with its schema
        return pointer[0] not in ROOT_COMBINATORS
    return len(pointer) == 2 and pointer[0] in _KEPT_KEYWORDS  # noqa: PLR2004  # the keyword and the name


def _name_definitions(pointers: list[JsonPointer], known: Any) -> dict[JsonPointer, str]:
    names: dict[JsonPointer, str] = {}
    taken = set(as_mapping(known))
    numbers: dict[str, Iterator[int]] = defaultdict(lambda: count(2))
    for pointer in pointers:
        name = base = _UNSAFE.sub("_", "_".join(pointer[-3:])).strip("_") or "part"
        while name in taken:
            name = f"{base}_{next(numbers[base])}"
        names[pointer] = name
        taken.add(name)
    return names


class _Mover(msgspec.Struct, frozen=True, dict=True):
    """Replaces moved schemas, and references to them, by references to their new places."""

    references: References
    targets: Mapping[JsonPointer, str]

    @cached_property
    def _moved(self) -> Mapping[int, str]:
        found = ((self.references.at(pointer), target) for pointer, target in self.targets.items())
        return {id(subschema): target for subschema, target in found if isinstance(subschema, dict)}

    def rewrite(self, subschema: Any, depth: int) -> Any:
        if not isinstance(subschema, dict) or depth > _MAX_DEPTH or (depth and "$id" in subschema):
            return subschema
        changed = map_below(subschema, lambda below: self._rewrite_or_refer(below, depth + 1))
        used = ((word, self.references.pointer(subschema[word])) for word in REFERENCES if word in subschema)
        return changed | {word: self.targets[at] for word, at in used if at is not None and at in self.targets}

    def _rewrite_or_refer(self, subschema: Any, depth: int) -> Any:
        target = self._moved.get(id(subschema))
        return self.rewrite(subschema, depth) if target is None else {"$ref": target}
