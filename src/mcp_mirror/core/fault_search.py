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

from mcp_mirror.core.argument_faults import (
    MAX_NAMED,
    ArgumentFault,
    name_kinds,
    name_types,
    quote_value,
    read_faults,
)
from mcp_mirror.core.schema_references import UNIONS, References, Schema, as_mapping, as_sequence, read_types
from mcp_mirror.core.validation_cost import Cost, CostCounter, UnboundedError
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

    part: Any
    pointer: str
    """The JSON Pointer of the subschema."""
    value: Any
    at: tuple[str, ...] = ()
    """The location of the value."""

    def of_part(self, part: Any, place: str) -> "_Violation":
        """The same value and a subschema below this one."""
        return _Violation(part, f"{self.pointer}/{place}", self.value, self.at)

    def of_value(self, part: Any, place: str, key: str | int, value: Any) -> "_Violation":
        """A value below this one and a subschema below this one."""
        return _Violation(part, f"{self.pointer}/{place}", value, (*self.at, str(key)))


class FaultSearch(msgspec.Struct, dict=True):
    """The search for the faults of one call's arguments."""

    costs: CostCounter
    options: jsonschema_rs.FancyRegexOptions
    room: int = _MAX_COMPILED
    """Subschemas that may still be compiled."""
    _compiled: dict[str, jsonschema_rs.Validator | None] = msgspec.field(default_factory=dict)
    """By pointer."""

    def find_faults(self, arguments: Any) -> tuple[ArgumentFault, ...]:
        """The faults; none if the arguments cannot be judged."""
        violation = _Violation(self._references.root, "#", arguments)
        for _ in range(_MAX_STEPS):
            narrower = None if self._is_cheap(violation) else next(self._find_narrower(violation), None)
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
        self.room -= len(text) // _READ_BYTES
        try:
            cost = self.costs.of(violation.part)
        except UnboundedError:
            return False
        return Cost(cost.subschemas, 0).work(text) <= _ERROR_WORK and cost.copied_bytes(text) <= _ERROR_BYTES

    def _is_wrong(self, violation: _Violation) -> bool:
        validator = self._compile(violation)
        return validator is not None and not validator.is_valid(violation.value)

    def _compile(self, violation: _Violation) -> jsonschema_rs.Validator | None:
        """Compile the violated subschema; None without room for it, or if it is not valid."""
        pointer = violation.pointer
        if pointer not in self._compiled:
            self.room -= self._measure(violation.part)
            self._compiled[pointer] = self._compile_at(pointer) if self.room >= 0 else None
        return self._compiled[pointer]

    def _measure(self, part: Any) -> int:
        try:
            cost = self.costs.of(part)
        except UnboundedError:
            return _UNKNOWN_ROOM
        return _COMPILED_ROOM + cost.subschemas + _PATTERN_ROOM * cost.patterns

    def _compile_at(self, pointer: str) -> jsonschema_rs.Validator | None:
        root = self._references.root
        part = {key: root[key] for key in ("$schema",) if key in root} | {"$ref": self._uri + quote(pointer, "#/~")}
        try:
            return jsonschema_rs.validator_for(part, registry=self._registry, pattern_options=self.options)
        except ValueError:  # such as references within a part that has an `$id`
            return None

    @cached_property
    def _uri(self) -> str:
        own = self._references.root.get("$id")
        return (own.partition("#")[0] if isinstance(own, str) else "") or _URI

    @cached_property
    def _registry(self) -> jsonschema_rs.Registry:
        return jsonschema_rs.Registry([(self._uri, self._references.root)], retriever=lambda _: {})

    def _find_narrower(self, violation: _Violation) -> Iterator[_Violation]:
        """The violations below, or another violated subschema of the same value."""
        part, value = violation.part, violation.value
        if not isinstance(part, dict):
            return
        candidates = self._list_alternatives(violation, part)
        if isinstance(value, dict):
            candidates = chain(_list_members(violation, part), candidates)
        elif isinstance(value, list) and isinstance(items := part.get("items"), dict):
            each = (violation.of_value(items, "items", at, one) for at, one in enumerate(value))
            candidates = chain(each, candidates)
        yield from filter(self._is_wrong, candidates)

    def _list_alternatives(self, violation: _Violation, part: Schema) -> Iterator[_Violation]:
        """The other subschemas of the same value; of several alternatives only the one that is meant."""
        if (target := self._references.pointer(part.get("$ref"))) is not None:
            pointer = "#" + "".join(f"/{escape_token(token)}" for token in target)
            yield _Violation(self._references.at(target), pointer, violation.value, violation.at)
        for index, below in enumerate(as_sequence(part.get("allOf"))):
            yield violation.of_part(below, f"allOf/{index}")
        for word in UNIONS:
            alternatives = [
                violation.of_part(below, f"{word}/{index}") for index, below in enumerate(as_sequence(part.get(word)))
            ]
            by_kind = [below for below in alternatives if self._has_kind(below.part, below.value)]
            by_type = [below for below in alternatives if self._has_type(below.part, below.value)]
            yield from next((meant for meant in (by_kind, by_type) if len(meant) == 1), ())

    def _has_kind(self, part: Any, value: Any) -> bool:
        """Whether the members of a value that name its kind select this alternative."""
        kinds = self._list_constants(part) if isinstance(value, dict) else {}
        return bool(kinds) and all(value.get(name) in allowed for name, allowed in kinds.items())

    def _has_type(self, part: Any, value: Any) -> bool:
        """Whether an alternative accepts values of this type."""
        types = self._list_types(part)
        return part is not False and (not types or not types.isdisjoint(_TYPES.get(type(value), ())))

    def _list_types(self, part: Any) -> frozenset[str]:
        """The types that an alternative accepts; empty if it does not name them."""
        return frozenset(read_types(self._follow(part).get("type")))

    def _list_constants(self, part: Any) -> Mapping[str, list[Any]]:
        """The constants of an alternative by member."""
        properties = as_mapping(self._follow(part).get("properties"))
        constants = {name: _read_constants(below) for name, below in properties.items()}
        return {name: values for name, values in constants.items() if values}

    def _follow(self, part: Any) -> Schema:
        """The subschema to which a reference leads, any other subschema unchanged; empty for `true` and `false`."""
        for _ in range(_MAX_DEPTH):
            if not isinstance(part, dict) or "$ref" not in part:
                break
            part = next(self._references.targets(part))
        return as_mapping(part)

    def _explain(self, violation: _Violation) -> Iterator[ArgumentFault]:
        is_readable = self._is_cheap(violation) and not _accepts_no_member(violation.part)
        validator = self._compile(violation) if is_readable else None
        part = as_mapping(violation.part)
        errors = [*validator.iter_errors(violation.value)] if validator else []
        if not errors:
            cheap_part = _build_cheap_part(part, violation.value)
            errors = [*islice(jsonschema_rs.iter_errors(cheap_part, violation.value), 1)]
        if errors:
            yield from read_faults(errors, violation.at)
            yield from _name_unlisted(violation, errors)
            return
        named = self._explain_unknown_kind(part, violation.value) or self._explain_type(part, violation.value)
        yield ArgumentFault(named or "the value does not fit the schema of this argument", violation.at)

    def _explain_unknown_kind(self, part: Schema, value: Any) -> str | None:
        """The message about the member that names a value's kind, if no alternative has such a kind."""
        alternatives = [self._list_constants(one) for word in UNIONS for one in as_sequence(part.get(word))]
        for name in alternatives[0] if alternatives and isinstance(value, dict) else ():
            allowed = [kind for one in alternatives for kind in one.get(name, ())]
            if value.get(name) not in allowed:
                return name_kinds(name, value, allowed)
        return None

    def _explain_type(self, part: Schema, value: Any) -> str | None:
        """The message about a value whose type no alternative accepts."""
        for alternatives in (as_sequence(part.get(word)) for word in UNIONS):
            types = [self._list_types(one) for one in alternatives]
            if types and all(types) and not any(self._has_type(one, value) for one in alternatives):
                return name_types(value, chain.from_iterable(map(sorted, types)))
        return None


def _list_members(violation: _Violation, part: Schema) -> Iterator[_Violation]:
    """The members of an object with their subschemas, and their names with the subschema of names."""
    known, others = as_mapping(part.get("properties")), part.get("additionalProperties")
    for name, value in violation.value.items():
        if name in known:
            yield violation.of_value(known[name], f"properties/{escape_token(name)}", name, value)
    if isinstance(others, dict) and "patternProperties" not in part:
        for name, value in violation.value.items():
            if name not in known:
                yield violation.of_value(others, "additionalProperties", name, value)
    for name in violation.value if "propertyNames" in part else ():
        yield violation.of_value(part["propertyNames"], "propertyNames", name, name)


def _accepts_no_member(part: Any) -> bool:
    """Whether a schema accepts only an empty object. The error of the library does not name the members of another."""
    return isinstance(part, dict) and part.get("additionalProperties") is False and _LISTING.isdisjoint(part)


def _build_cheap_part(part: Schema, value: Any) -> Schema:
    """The keywords of a schema that apply to the value itself, and to the names of its members."""
    cheap_part = {key: kept for key, kept in part.items() if key in _CHEAP_KEYWORDS}
    if isinstance(value, dict) and "required" in part:
        missing = (name for name in as_sequence(part["required"]) if name not in value)
        cheap_part["required"] = list(islice(missing, 1))  # one error, because each has a copy of the value
    if part.get("additionalProperties") is False and "patternProperties" not in part:
        cheap_part["properties"] = dict.fromkeys(part.get("properties", ()), True)
        cheap_part["additionalProperties"] = False
    return cheap_part


def _name_unlisted(violation: _Violation, errors: Sequence[jsonschema_rs.ValidationError]) -> Iterator[ArgumentFault]:
    """Yield a sentence with the arguments that a schema does not list, if it misses one: a name may be misspelled.

    Names inside arguments may be those of a stored value, and are not named.
    """
    kinds = jsonschema_rs.ValidationErrorKind
    found = [error.kind for error in errors if not error.instance_path]
    is_missing = any(isinstance(kind, kinds.Required) for kind in found)
    is_named = any(isinstance(kind, kinds.AdditionalProperties) for kind in found)
    part = violation.part
    if violation.at or is_named or not is_missing or not _MORE_NAMES.isdisjoint(part):
        return
    properties = part.get("properties")
    if isinstance(properties, dict):
        names = islice((name for name in violation.value if name not in properties), MAX_NAMED)
        if unlisted := ", ".join(map(quote_value, names)):
            yield ArgumentFault(f"the schema does not list {unlisted}")


def _read_constants(part: Any) -> list[Any]:
    if not isinstance(part, dict):
        return []
    return [part["const"]] if "const" in part else as_sequence(part.get("enum"))
