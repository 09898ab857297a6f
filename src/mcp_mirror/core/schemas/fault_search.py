"""Finds the faults of arguments that violate a schema.

Each error of the library has a copy of its value, so the search follows the schema down to the violated part by
verdicts, which are cheap, and lets the library explain only this part.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice
from typing import Any, Final
from urllib.parse import quote

import jsonschema_rs
import msgspec

from mcp_mirror.core.schemas.argument_faults import (
    MAX_NAMED,
    ArgumentFault,
    name_kinds,
    name_types,
    quote_value,
    read_faults,
)
from mcp_mirror.core.schemas.references import UNIONS, References, Schema, as_mapping, as_sequence, read_types
from mcp_mirror.core.schemas.validation_cost import Cost, CostCounter, UnboundedError
from mcp_mirror.paths import escape_token

_ERROR_WORK: Final = 5_000
"""Units of work up to which all errors are collected; each error costs far more than a verdict."""
_ERROR_BYTES: Final = 1 << 22
"""Bytes up to which all errors are collected, in about 20 ms: each error has a copy of its value."""
_MAX_DEPTH: Final = 64
_MAX_STEPS: Final = 300
"""Steps that a search follows into the schema."""
_MAX_COMPILED: Final = 6_000
"""Subschemas that are compiled for one search, in about 30 ms. They are not kept: those of a deep schema of 50 kB take
100 MB, because each level contains the next ones again."""
_COMPILED_ROOM: Final = 2
"""Subschemas that are compiled as fast as another one is found."""
_PATTERN_ROOM: Final = 150
"""The same for a pattern."""
_UNKNOWN_ROOM: Final = 200
"""The same for a subschema without a known cost, which only worker processes compile."""
_READ_BYTES: Final = 100
"""Bytes of a value that are read as fast as a subschema is compiled."""
_URI: Final = "json-schema:///tool"
"""The URI of a schema without an `$id`."""
_MORE_NAMES: Final = frozenset(("$ref", "allOf", "anyOf", "oneOf", "if", "patternProperties", "dependentSchemas"))
"""Keywords that may declare members beside `properties`."""
_LISTING: Final = frozenset(("properties", "patternProperties"))
"""Keywords that name members."""
_CHEAP_KEYWORDS: Final = frozenset(
    ("type", "required", "const", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
     "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
)  # fmt: skip
"""Keywords that apply to a value itself and are cheap."""
_TYPES: Final[Mapping[type, frozenset[str]]] = {
    dict: frozenset(("object",)),
    list: frozenset(("array",)),
    str: frozenset(("string",)),
    bool: frozenset(("boolean",)),
    type(None): frozenset(("null",)),
    int: frozenset(("integer", "number")),
    float: frozenset(("integer", "number")),
}
"""The types of a schema that a value may have. 1.0 is an integer too."""


class _Violation(msgspec.Struct, frozen=True):
    """A value in invalid arguments and the subschema that it violates."""

    subschema: Any
    pointer: str
    """The JSON Pointer of the subschema: `#/properties/rows/items`."""
    value: Any
    location: tuple[str, ...] = ()
    """The place of the value in the arguments."""

    def of_subschema(self, subschema: Any, keywords: str) -> "_Violation":
        """The same value and a subschema below this one."""
        return _Violation(subschema, f"{self.pointer}/{keywords}", self.value, self.location)

    def of_value(self, subschema: Any, keywords: str, key: str | int, value: Any) -> "_Violation":
        """A value below this one and a subschema below this one."""
        return _Violation(subschema, f"{self.pointer}/{keywords}", value, (*self.location, str(key)))


class FaultSearch(msgspec.Struct, dict=True):
    """The search for the faults of one call's arguments."""

    costs: CostCounter
    options: jsonschema_rs.FancyRegexOptions
    _room: int = _MAX_COMPILED
    """Subschemas that may still be compiled."""
    _compiled: dict[str, jsonschema_rs.Validator | None] = msgspec.field(default_factory=dict)
    """By pointer."""

    def find_faults(self, arguments: Any) -> tuple[ArgumentFault, ...]:
        """The faults; none if the arguments cannot be judged."""
        violation = _Violation(self._references.root, "#", arguments)
        for _ in range(_MAX_STEPS):
            narrower = None if self._is_cheap(violation) else next(self._find_violations_below(violation), None)
            if narrower is None:
                break
            violation = narrower
        return tuple(self._explain(violation))

    @property
    def _references(self) -> References:
        return self.costs.references

    def _is_cheap(self, violation: _Violation) -> bool:
        """Whether all errors of a violation can be collected."""
        text = json.dumps(violation.value).encode()
        self._room -= len(text) // _READ_BYTES
        try:
            cost = self.costs.of(violation.subschema)
        except UnboundedError:
            return False
        return Cost(cost.subschemas, 0).work(text) <= _ERROR_WORK and cost.copied_bytes(text) <= _ERROR_BYTES

    def _is_violated(self, violation: _Violation) -> bool:
        validator = self._compile(violation)
        return validator is not None and not validator.is_valid(violation.value)

    def _compile(self, violation: _Violation) -> jsonschema_rs.Validator | None:
        """Compile the violated subschema; None without room for it, or if it is not valid."""
        pointer = violation.pointer
        if pointer not in self._compiled:
            self._room -= self._estimate_compilation(violation.subschema)
            self._compiled[pointer] = self._compile_at(pointer) if self._room >= 0 else None
        return self._compiled[pointer]

    def _estimate_compilation(self, subschema: Any) -> int:
        try:
            cost = self.costs.of(subschema)
        except UnboundedError:
            return _UNKNOWN_ROOM
        return _COMPILED_ROOM + cost.subschemas + _PATTERN_ROOM * cost.patterns

    def _compile_at(self, pointer: str) -> jsonschema_rs.Validator | None:
        root = self._references.root
        reference = {"$ref": self._uri + quote(pointer, "#/~")}
        if "$schema" in root:
            reference["$schema"] = root["$schema"]
        try:
            return jsonschema_rs.validator_for(reference, registry=self._registry, pattern_options=self.options)
        except ValueError:  # such as references within a part that has an `$id`
            return None

    @cached_property
    def _uri(self) -> str:
        own = self._references.root.get("$id")
        return (own.partition("#")[0] if isinstance(own, str) else "") or _URI

    @cached_property
    def _registry(self) -> jsonschema_rs.Registry:
        return jsonschema_rs.Registry([(self._uri, self._references.root)], retriever=lambda _: {})

    def _find_violations_below(self, violation: _Violation) -> Iterator[_Violation]:
        """The violations below, or another violated subschema of the same value."""
        subschema, value = violation.subschema, violation.value
        if not isinstance(subschema, dict):
            return
        candidates = self._list_alternatives(violation, subschema)
        if isinstance(value, dict):
            candidates = chain(_list_members(violation, subschema), candidates)
        elif isinstance(value, list) and isinstance(items := subschema.get("items"), dict):
            of_items = (violation.of_value(items, "items", index, item) for index, item in enumerate(value))
            candidates = chain(of_items, candidates)
        yield from filter(self._is_violated, candidates)

    def _list_alternatives(self, violation: _Violation, subschema: Schema) -> Iterator[_Violation]:
        """The other subschemas of the same value; of several alternatives only the one that is meant."""
        if (target := self._references.pointer(subschema.get("$ref"))) is not None:
            pointer = "#" + "".join(f"/{escape_token(token)}" for token in target)
            yield _Violation(self._references.at(target), pointer, violation.value, violation.location)
        for index, below in enumerate(as_sequence(subschema.get("allOf"))):
            yield violation.of_subschema(below, f"allOf/{index}")
        for word in UNIONS:
            alternatives = [
                violation.of_subschema(below, f"{word}/{index}")
                for index, below in enumerate(as_sequence(subschema.get(word)))
            ]
            by_kind = [below for below in alternatives if self._has_kind(below.subschema, below.value)]
            by_type = [below for below in alternatives if self._has_type(below.subschema, below.value)]
            yield from next((meant for meant in (by_kind, by_type) if len(meant) == 1), ())

    def _has_kind(self, subschema: Any, value: Any) -> bool:
        """Whether the members of a value that name its kind select this alternative."""
        kinds = self._list_constants(subschema) if isinstance(value, dict) else {}
        return bool(kinds) and all(value.get(name) in allowed for name, allowed in kinds.items())

    def _has_type(self, subschema: Any, value: Any) -> bool:
        """Whether an alternative accepts values of this type."""
        types = self._list_types(subschema)
        return subschema is not False and (not types or not types.isdisjoint(_TYPES.get(type(value), ())))

    def _list_types(self, subschema: Any) -> frozenset[str]:
        """The types that an alternative accepts; empty if it does not name them."""
        return frozenset(read_types(self._follow(subschema).get("type")))

    def _list_constants(self, subschema: Any) -> Mapping[str, list[Any]]:
        """The constants of an alternative by member."""
        properties = as_mapping(self._follow(subschema).get("properties"))
        parts = {name: as_mapping(below) for name, below in properties.items()}
        constants = {
            name: [part["const"]] if "const" in part else as_sequence(part.get("enum")) for name, part in parts.items()
        }
        return {name: values for name, values in constants.items() if values}

    def _follow(self, subschema: Any) -> Schema:
        """The subschema to which a reference leads, any other subschema unchanged; empty for `true` and `false`."""
        for _ in range(_MAX_DEPTH):
            if not isinstance(subschema, dict) or "$ref" not in subschema:
                break
            subschema = next(self._references.targets(subschema))
        return as_mapping(subschema)

    def _explain(self, violation: _Violation) -> Iterator[ArgumentFault]:
        is_readable = self._is_cheap(violation) and not _accepts_no_member(violation.subschema)
        validator = self._compile(violation) if is_readable else None
        subschema = as_mapping(violation.subschema)
        errors = [*validator.iter_errors(violation.value)] if validator else []
        if not errors:
            cheap_part = _build_cheap_part(subschema, violation.value)
            errors = [*islice(jsonschema_rs.iter_errors(cheap_part, violation.value), 1)]
        if errors:
            yield from read_faults(errors, violation.location)
            yield from _name_unlisted(violation, errors)
            return
        named = self._explain_unknown_kind(subschema, violation.value) or self._explain_type(subschema, violation.value)
        yield ArgumentFault(named or "the value does not fit the schema of this argument", violation.location)

    def _explain_unknown_kind(self, subschema: Schema, value: Any) -> str | None:
        """The message about the member that names a value's kind, if no alternative has such a kind."""
        alternatives = [self._list_constants(below) for word in UNIONS for below in as_sequence(subschema.get(word))]
        for name in alternatives[0] if alternatives and isinstance(value, dict) else ():
            allowed = [kind for constants in alternatives for kind in constants.get(name, ())]
            if value.get(name) not in allowed:
                return name_kinds(name, value, allowed)
        return None

    def _explain_type(self, subschema: Schema, value: Any) -> str | None:
        """The message about a value whose type no alternative accepts."""
        for alternatives in (as_sequence(subschema.get(word)) for word in UNIONS):
            types = [self._list_types(below) for below in alternatives]
            if types and all(types) and not any(self._has_type(below, value) for below in alternatives):
                return name_types(value, chain.from_iterable(map(sorted, types)))
        return None


def _list_members(violation: _Violation, subschema: Schema) -> Iterator[_Violation]:
    """The members of an object with their subschemas, and their names with the subschema of names."""
    known, others = as_mapping(subschema.get("properties")), subschema.get("additionalProperties")
    for name, value in violation.value.items():
        if name in known:
            yield violation.of_value(known[name], f"properties/{escape_token(name)}", name, value)
    if isinstance(others, dict) and "patternProperties" not in subschema:
        for name, value in violation.value.items():
            if name not in known:
                yield violation.of_value(others, "additionalProperties", name, value)
    for name in violation.value if "propertyNames" in subschema else ():
        yield violation.of_value(subschema["propertyNames"], "propertyNames", name, name)


def _accepts_no_member(subschema: Any) -> bool:
    """Whether a schema accepts only an empty object. The error of the library does not name the members of another."""
    return (
        isinstance(subschema, dict)
        and subschema.get("additionalProperties") is False
        and _LISTING.isdisjoint(subschema)
    )


def _build_cheap_part(subschema: Schema, value: Any) -> Schema:
    """The keywords of a schema that apply to the value itself, and to the names of its members."""
    cheap_part = {key: kept for key, kept in subschema.items() if key in _CHEAP_KEYWORDS}
    if isinstance(value, dict) and "required" in subschema:
        missing = (name for name in as_sequence(subschema["required"]) if name not in value)
        cheap_part["required"] = list(islice(missing, 1))  # one error, because each has a copy of the value
    if subschema.get("additionalProperties") is False and "patternProperties" not in subschema:
        cheap_part["properties"] = dict.fromkeys(subschema.get("properties", ()), True)
        cheap_part["additionalProperties"] = False
    return cheap_part


def _name_unlisted(violation: _Violation, errors: Sequence[jsonschema_rs.ValidationError]) -> Iterator[ArgumentFault]:
    """Yield a sentence with the arguments that a schema does not list, if it misses one: a name may be misspelled.

    Names inside arguments may be those of a stored value, and are not named.
    """
    kinds = jsonschema_rs.ValidationErrorKind
    violated = [error.kind for error in errors if not error.instance_path]
    is_missing = any(isinstance(kind, kinds.Required) for kind in violated)
    is_named = any(isinstance(kind, kinds.AdditionalProperties) for kind in violated)
    subschema = violation.subschema
    if violation.location or is_named or not is_missing or not _MORE_NAMES.isdisjoint(subschema):
        return
    properties = subschema.get("properties")
    if isinstance(properties, dict):
        names = islice((name for name in violation.value if name not in properties), MAX_NAMED)
        if unlisted := ", ".join(map(quote_value, names)):
            yield ArgumentFault(f"the schema does not list {unlisted}")
