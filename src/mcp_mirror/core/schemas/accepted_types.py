"""Finds the JSON types that a schema accepts for each argument.

Schemas come from upstreams and may be invalid; keywords that this module does not understand accept every type.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from typing import Any, Final

import msgspec

from mcp_mirror.core.schemas.references import (
    REFERENCES,
    UNIONS,
    References,
    Schema,
    as_mapping,
    as_sequence,
    find_applicable_schemas,
    is_nullable,
    read_types,
)
from mcp_mirror.types import Location

_EVERY_TYPE: Final = frozenset(("string", "number", "integer", "boolean", "object", "array", "null"))
_REFERENCES_AT_ONCE: Final = 16
"""References to other schemas that take as long as a visit of a schema."""
_REFERENCE: Final = 64
"""Characters of a usual reference."""
_TYPE_OF: Final = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    type(None): "null",
}


def types_at(schema: Schema) -> Callable[[Location], frozenset[str]]:
    """A function that returns the JSON types that the schema accepts at a location; an empty set if it accepts any.

    `number` includes `integer`. All calls of one function visit at most 3,000 subschemas; after that it returns empty
    sets.
    """
    root = _InstanceLocation(_SchemaVisits(References(schema)), [schema])

    def find(location: Location) -> frozenset[str]:
        place = root
        for token in location:
            place = place.below(token)
            if not place.parts:  # no schema applies there and below
                return frozenset()
        return place.types

    return find


def types_along(schema: Schema) -> Callable[[Location], Iterator[frozenset[str]]]:
    """A function that yields what `types_at` returns for each place on the way to a location, from the root on.

    It ends above the first place that no schema describes.
    """
    root = _InstanceLocation(_SchemaVisits(References(schema)), [schema])

    def find(location: Location) -> Iterator[frozenset[str]]:
        place = root
        yield place.types
        for token in location:
            place = place.below(token)
            if not place.parts:
                return
            yield place.types

    return find


class _SchemaVisits(msgspec.Struct):
    """What is known of one schema, and the work that may still be spent on it."""

    references: References
    left: int = 3_000
    """Subschemas that may still be visited."""
    scans: int = 50_000
    """How often a subschema may still be searched for those of a key or item, in about 50 ms together."""
    locations: "dict[tuple[int, ...], _InstanceLocation]" = msgspec.field(default_factory=dict)
    """The locations by the schemas that apply there."""
    _own_types: dict[int, frozenset[str]] = msgspec.field(default_factory=dict)

    def read_own_types(self, subschema: Schema) -> frozenset[str]:
        """The types that `type`, `const` and `enum` of a schema accept, with `integer` beside each `number`."""
        if (kinds := self._own_types.get(id(subschema))) is None:
            kinds = self._own_types[id(subschema)] = _read_own_types(subschema)
        return kinds

    def parts(self, parts: Iterable[Any]) -> list[Schema]:
        """All schemas that apply where one of these does, within the budget."""
        seen: dict[int, Any] = {}
        found = (
            applicable
            for subschema in parts
            for applicable, _ in find_applicable_schemas(self.references, subschema, seen)
        )
        visited = list(islice(found, max(self.left, 0)))
        self.left -= len(visited) + sum(map(_count_references, visited)) // _REFERENCES_AT_ONCE
        return visited


def _count_references(subschema: Schema) -> int:
    """The alternatives and parts of a schema, which need not be schemas, and the characters of its reference."""
    alternatives = sum(len(as_sequence(subschema.get(word))) for word in ("allOf", *UNIONS))
    return alternatives + sum(len(str(subschema[word])) for word in REFERENCES if word in subschema) // _REFERENCE


class _InstanceLocation(msgspec.Struct, dict=True):
    """A location of an instance and the schemas that apply there."""

    visits: _SchemaVisits
    parts: list[Any]
    _children: dict[str | int, "_InstanceLocation"] = msgspec.field(default_factory=dict)

    def below(self, token: str | int) -> "_InstanceLocation":
        """The location one step below; all items after the longest tuple share one."""
        if isinstance(token, int):
            token = min(token, self._longest)
        if token not in self._children:
            self.visits.scans -= len(self._branches)
            branches = self._branches if self.visits.scans >= 0 else ()
            found = {id(below): below for branch in branches for below in _find_subschemas(branch, token)}
            new = _InstanceLocation(self.visits, list(found.values()))
            self._children[token] = self.visits.locations.setdefault(tuple(found), new)
        return self._children[token]

    @cached_property
    def types(self) -> frozenset[str]:
        """The types that one of the schemas accepts; empty if all are accepted or the budget is used up."""
        kinds = _find_accepted_types(self.visits, self.parts, self._branches)
        if self.visits.left <= 0 or kinds == _EVERY_TYPE:
            return frozenset()
        return kinds - {"integer"} if "number" in kinds else kinds

    @cached_property
    def _branches(self) -> list[Schema]:
        return self.visits.parts(self.parts)

    @cached_property
    def _longest(self) -> int:
        tuples = (as_sequence(branch.get(word)) for branch in self._branches for word in ("prefixItems", "items"))
        return max(map(len, tuples), default=0)


def _find_subschemas(branch: Schema, token: str | int) -> Iterator[Any]:
    """The subschemas for the location one step below."""
    if isinstance(token, int):
        items = branch.get("items")
        prefix = [*as_sequence(branch.get("prefixItems")), *as_sequence(items)]
        yield from prefix[token : token + 1] or ([items] if isinstance(items, dict) else [])
    elif token in (properties := as_mapping(branch.get("properties"))):
        yield properties[token]
    elif "additionalProperties" in branch and "patternProperties" not in branch:
        yield branch["additionalProperties"]


def _find_accepted_types(visits: _SchemaVisits, parts: list[Any], branches: list[Schema]) -> frozenset[str]:
    """The types that at least one of the schemas accepts, with `integer` beside each `number`.

    Types are narrowed in four rounds; schemas that refer to each other in more complicated ways accept more types.
    `branches` has all schemas that apply where one of `parts` does.
    """
    known = {id(branch): _EVERY_TYPE for branch in branches}
    for order in (branches[::-1], branches) * 2:
        for branch in order:
            known[id(branch)] = _narrow_types(visits, branch, known)
    return _join_types(known.get(id(subschema), _EVERY_TYPE) for subschema in parts)


def _read_own_types(subschema: Schema) -> frozenset[str]:
    kinds = frozenset(read_types(subschema.get("type"))) or _EVERY_TYPE
    if "number" in kinds:
        kinds |= {"integer"}
    values = [subschema["const"]] if "const" in subschema else as_sequence(subschema.get("enum"))
    if values:
        kinds &= {_TYPE_OF.get(type(value), "object") for value in values}
    return kinds | {"null"} if is_nullable(subschema) else kinds


def _narrow_types(visits: _SchemaVisits, subschema: Schema, known: Mapping[int, frozenset[str]]) -> frozenset[str]:
    """The types that one schema accepts, given those of the other schemas at its location."""
    kinds = visits.read_own_types(subschema)
    for below in (*visits.references.targets(subschema), *as_sequence(subschema.get("allOf"))):
        kinds &= known.get(id(below), _EVERY_TYPE)
    for word in UNIONS:
        if cases := as_sequence(subschema.get(word)):
            kinds &= _join_types(known.get(id(below), _EVERY_TYPE) for below in cases)
    return kinds


def _join_types(kinds: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset[str]().union(*kinds)
