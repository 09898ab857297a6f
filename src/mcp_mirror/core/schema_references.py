"""What the references in a schema point to, and how they find it still once a twin's schema is put together.

Only what stands in the same document is looked at. This module must not know what a twin looks like beyond which
places of a schema it keeps.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any, Final
from urllib.parse import unquote

Schema = dict[str, Any]

REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
ROOT_COMBINATORS: Final = frozenset(
    ("anyOf", "oneOf", "allOf", "not", "if", "then", "else", "dependentSchemas", "unevaluatedProperties", *REFERENCES)
)
"""What a twin does not have at its root."""

ANCHORS: Final = ("$anchor", "$dynamicAnchor")
_KEPT: Final = ("$defs", "definitions", "properties")
"""What stands directly in one of these at the root can be pointed to in a twin as well."""
_MAPS: Final = frozenset((*_KEPT, "patternProperties", "dependentSchemas", "dependencies"))
_DEFINITIONS: Final = frozenset(("$defs", "definitions"))
_SCHEMAS: Final = frozenset(
    ("items", "additionalItems", "unevaluatedItems", "prefixItems", "contains", "additionalProperties",
     "unevaluatedProperties", "propertyNames", "contentSchema", "anyOf", "oneOf", "allOf", "not", "if", "then", "else")
)  # fmt: skip
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]+")
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}")
_ANYTHING: Final[Schema] = {}
"""What a reference that is not found stands for; one object, since walks tell schemas apart by identity."""
_MAX_DEPTH: Final = 64

Pointer = tuple[str, ...]
"""The keys on the way to a place in a schema."""


def map_below(schema: Schema, step: Callable[[Any], Any]) -> Schema:
    """The schema with `step` done to each schema directly below it; what is data is left as it is."""
    return {key: _mapped(key, value, step) for key, value in schema.items()}


def applied_by(schema: Schema) -> Iterator[Any]:
    """The schemas directly below that apply to an instance or to a part of it, definitions not among them."""
    for key, value in schema.items():
        if key in _MAPS - _DEFINITIONS and isinstance(value, dict):
            yield from value.values()
        elif key in _SCHEMAS:
            yield from value if isinstance(value, list) else (value,)


def _mapped(key: str, value: Any, step: Callable[[Any], Any]) -> Any:
    if key in _MAPS and isinstance(value, dict):
        return {name: step(part) for name, part in value.items()}
    if key not in _SCHEMAS:
        return value
    return [step(part) for part in value] if isinstance(value, list) else step(value)


def without(schema: Any, words: Collection[str], depth: int = 0) -> Any:
    """The schema without these keywords at any depth, but for parts that have an address of their own."""
    if not isinstance(schema, dict) or "$id" in schema or depth > _MAX_DEPTH:
        return schema
    bare = {key: value for key, value in schema.items() if key not in words}
    return map_below(bare, lambda part: without(part, words, depth + 1))


@dataclass(frozen=True)
class References:
    """The references of one schema."""

    root: Schema

    def targets(self, part: Mapping[str, Any]) -> Iterator[Any]:
        """What the references of one place point to; anything at all for what is not found."""
        for word in REFERENCES:
            if word in part:
                pointer = self.pointer(part[word])
                found = None if pointer is None else self.at(pointer)
                yield _ANYTHING if found is None else found

    def pointer(self, reference: Any) -> Pointer | None:
        """The keys on the way to what a reference names; None if that is not of this document."""
        if not isinstance(reference, str):
            return None
        own = self.root.get("$id")
        fragment = reference.removeprefix(own.partition("#")[0]) if isinstance(own, str) else reference
        if fragment and not fragment.startswith("#"):
            return None
        name, *tokens = fragment[1:].split("/")
        if name:
            return None if tokens else self._anchors.get(name)
        return tuple(unquote(token).replace("~1", "/").replace("~0", "~") for token in tokens)

    def at(self, pointer: Pointer) -> Any:
        """What stands there; None if nothing does."""
        found: Any = self.root
        for token in pointer:
            if isinstance(found, list):
                is_index = _INDEX.fullmatch(token) and int(token) < len(found)
                found = found[int(token)] if is_index else None
            else:
                found = found.get(token) if isinstance(found, dict) else None
        return found

    @cached_property
    def _anchors(self) -> Mapping[str, Pointer]:
        named = ((part.get(word), at) for at, part in _places(self.root, ()) for word in ANCHORS)
        return {name: at for name, at in named if isinstance(name, str)}


def _places(part: Any, at: Pointer) -> Iterator[tuple[Pointer, Schema]]:
    """Every schema in a schema with the way to it, but for those that have an address, and names, of their own."""
    if not isinstance(part, dict) or len(at) > 2 * _MAX_DEPTH or (at and "$id" in part):
        return
    yield at, part
    for key, value in part.items():
        if key in _SCHEMAS:
            yield from _places(value, (*at, key))
        members = value.items() if key in _MAPS and isinstance(value, dict) else ()
        items = enumerate(value) if key in _SCHEMAS and isinstance(value, list) else ()
        for name, below in (*members, *items):
            yield from _places(below, (*at, key, str(name)))


def settle(schema: Schema) -> Schema:
    """The schema whose references all point to places that its twin keeps too.

    What stands deeper, where a twin has alternatives around it, or under what a twin's root does not have, moves into
    the definitions, and is pointed to there.
    """
    references = References(schema)
    homes = _homes(references)
    if not homes:
        return schema
    word = "definitions" if isinstance(schema.get("definitions"), dict) else "$defs"
    names = _names(list(homes), schema.get(word))
    move = _Move(references, {pointer: f"#/{word}/{name}" for pointer, name in names.items()})
    moved: Schema = move.inside(schema, 0)
    known = moved.get(word)
    added = {name: move.inside(references.at(pointer), 1) for pointer, name in names.items()}
    return moved | {word: (known if isinstance(known, dict) else {}) | added}


def _homes(references: References) -> dict[Pointer, None]:
    """Where that stands which has to move, each once."""
    used = (part[word] for at, part in _places(references.root, ()) for word in REFERENCES if at and word in part)
    found = ((reference, references.pointer(reference)) for reference in used)
    return {
        pointer: None
        for reference, pointer in found
        if pointer and not _is_kept(reference, pointer) and references.at(pointer) is not None
    }


def _is_kept(reference: str, pointer: Pointer) -> bool:
    if not reference.partition("#")[2].startswith("/"):  # by a name, which goes wherever the schema goes
        return pointer[0] not in ROOT_COMBINATORS
    return len(pointer) == 2 and pointer[0] in _KEPT  # noqa: PLR2004  # the word and the name


def _names(pointers: list[Pointer], known: Any) -> dict[Pointer, str]:
    names: dict[Pointer, str] = {}
    taken = set(known) if isinstance(known, dict) else set()
    numbers: dict[str, Iterator[int]] = defaultdict(lambda: count(2))
    for pointer in pointers:
        name = base = _UNSAFE.sub("_", "_".join(pointer[-3:])).strip("_") or "part"
        while name in taken:
            name = f"{base}_{next(numbers[base])}"
        names[pointer] = name
        taken.add(name)
    return names


@dataclass(frozen=True)
class _Move:
    """Exchanges what moves, and the references to it, for references to where it goes."""

    references: References
    homes: Mapping[Pointer, str]

    @cached_property
    def _gone(self) -> Mapping[int, str]:
        found = ((self.references.at(pointer), home) for pointer, home in self.homes.items())
        return {id(part): home for part, home in found if isinstance(part, dict)}

    def inside(self, part: Any, depth: int) -> Any:
        if not isinstance(part, dict) or depth > _MAX_DEPTH or (depth and "$id" in part):
            return part
        changed = map_below(part, lambda below: self._at_place(below, depth + 1))
        used = ((word, self.references.pointer(part[word])) for word in REFERENCES if word in part)
        return changed | {word: self.homes[at] for word, at in used if at is not None and at in self.homes}

    def _at_place(self, part: Any, depth: int) -> Any:
        home = self._gone.get(id(part))
        return self.inside(part, depth) if home is None else {"$ref": home}
