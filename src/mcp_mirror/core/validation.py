"""Validates arguments against a tool's schema.

A recursive or nested schema can cost exponential time, so the event loop uses only schemas with a small bound
(`core/validation_cost.py`). An error message costs at most a few validations.
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
    shorten_middle,
)
from mcp_mirror.core.schema_references import References, Schema, as_sequence, is_nullable, map_below, read_types
from mcp_mirror.core.validation_cost import Cost, CostCounter, UnboundedError
from mcp_mirror.paths import escape_token
from mcp_mirror.security.sanitize import sanitize

MAX_WORK: Final = 200_000
"""Units of work that the event loop may spend on a validation: about 20 ms."""
_ERROR_WORK: Final = 5_000
"""Units up to which all errors are collected; each error costs far more than a verdict."""
_ERROR_BYTES: Final = 1 << 22
"""Bytes up to which all errors are collected, in about 20 ms: each error has a copy of its value."""
_MAX_DEPTH: Final = 64
_MAX_STEPS: Final = 300
"""Steps that an error message follows into the schema."""
_MAX_COMPILED: Final = 6_000
"""Subschemas that are compiled for one error message, in about 30 ms. They are not kept: those of a deep schema of 50
kB take 100 MB, because each level contains the next ones again."""
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
_BACKTRACK_LIMIT: Final = 100_000
"""Steps after which a pattern is not judged: 100 ms."""
_MAX_PATTERN_BYTES: Final = 1 << 15
"""Bytes of a compiled pattern on the event loop."""
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


class SchemaCheck(msgspec.Struct, gc=False):
    """A check that compiles its schema when it is first called: most tools of a large catalog are never called.

    Nothing is fetched: schemas under a `$ref` to another document are not checked. A required member with a `default`
    may be absent: some generators list such members as required, and their servers fill them in. A member with
    `nullable: true` may be null: servers that are generated from OpenAPI 3.0 clear such a member.
    A compiled schema takes ten times the memory of its text. `gc=False`: a schema has no cycles, and collections take
    less time if they need not visit this object.
    """

    schema: Schema
    """The tool's input schema, which `verify_schema` accepts."""
    is_small: bool = False
    """Reject patterns that are large when compiled."""
    _validators: tuple[jsonschema_rs.Validator, ...] = ()
    """The schema, and if it differs the schema of `_make_lenient`."""
    _costs: CostCounter | None = None

    def compile(self) -> CostCounter:
        """Compile the schema, and return what bounds the work of error messages.

        Raises:
            ValueError: The schema is not a JSON Schema for an object.
        """
        _check_root(self.schema)
        lenient = _make_lenient(self.schema)
        variants = (self.schema,) if lenient == self.schema else (self.schema, lenient)
        options = _build_options(is_small=self.is_small)
        self._validators = tuple(_compile_validator(one, options) for one in variants)
        self._costs = CostCounter(References(variants[-1]), bounds_patterns=False)
        return self._costs

    def is_valid(self, arguments: Any) -> bool:
        """Whether arguments are valid, in a fraction of the time of an error message.

        Raises:
            ValueError: They cannot be judged.
        """
        if self._costs is None:
            self.compile()
        for validator in self._validators:  # noqa: SIM110  # each small call passes here
            if validator.is_valid(arguments):
                return True
        return False

    def __call__(self, arguments: Any) -> tuple[ArgumentFault, ...]:
        """Return the faults of arguments; none if they are valid or cannot be judged."""
        costs = self._costs or self.compile()
        try:
            if self.is_valid(arguments):
                return ()
            json.dumps(arguments, allow_nan=False)  # the library reads numbers beyond the range of doubles as null
            return _Explainer(_Compiler(costs, _build_options(is_small=self.is_small))).of(arguments)
        except (ValueError, RecursionError):
            return ()


def verify_schema(schema: Schema, *, is_small: bool = False) -> None:
    """Verify that a `SchemaCheck` can compile a schema; ValueError if it cannot."""
    _check_root(schema)
    _compile_validator(schema, _build_options(is_small=is_small))


def _check_root(schema: Schema) -> None:
    if "object" not in (read_types(schema.get("type")) or ("object",)):
        raise ValueError("its input schema does not describe an object")


def _build_options(*, is_small: bool) -> jsonschema_rs.FancyRegexOptions:
    return jsonschema_rs.FancyRegexOptions(_BACKTRACK_LIMIT, _MAX_PATTERN_BYTES if is_small else None)


def _compile_validator(schema: Schema, options: jsonschema_rs.FancyRegexOptions) -> jsonschema_rs.Validator:
    try:
        return jsonschema_rs.validator_for(schema, retriever=lambda _: {}, pattern_options=options)
    except (ValueError, RecursionError) as error:
        reason = sanitize(shorten_middle(str(error).partition("\n")[0]))
        raise ValueError(f"its input schema is not valid: {reason}") from None


def _make_lenient(schema: Any, depth: int = 0) -> Any:
    """The schema in which members with a default may be absent, and members that are `nullable` (OpenAPI 3.0) null."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return schema
    lenient = map_below(schema, lambda part: _make_lenient(part, depth + 1))
    required, properties = schema.get("required"), schema.get("properties")
    if isinstance(required, list) and isinstance(properties, dict):
        lenient["required"] = [name for name in required if not _has_default(properties, name)]
    if is_nullable(schema):
        lenient["type"] = [*read_types(schema["type"]), "null"]
        if "enum" in schema:
            lenient["enum"] = [*as_sequence(schema["enum"]), None]
    return lenient


def _has_default(properties: Schema, name: Any) -> bool:
    member = properties.get(name) if isinstance(name, str) else None
    return isinstance(member, dict) and "default" in member


class _Violation(msgspec.Struct, frozen=True):
    """A location in invalid arguments and the subschema that it violates."""

    part: Any
    pointer: str
    """The JSON Pointer of the subschema."""
    value: Any
    at: tuple[str, ...] = ()


class _Compiler(msgspec.Struct, dict=True):
    """Compiles the subschemas that one error message needs, as far as there is room."""

    costs: CostCounter
    options: jsonschema_rs.FancyRegexOptions
    room: int = _MAX_COMPILED
    _known: dict[str, jsonschema_rs.Validator | None] = msgspec.field(default_factory=dict)

    def compile(self, violation: _Violation) -> jsonschema_rs.Validator | None:
        """Compile the violated subschema; None without room for it, or if it is not valid."""
        pointer = violation.pointer
        if pointer not in self._known:
            self.room -= self._measure(violation.part)
            self._known[pointer] = self._compile(pointer) if self.room >= 0 else None
        return self._known[pointer]

    def _measure(self, part: Any) -> int:
        try:
            cost = self.costs.of(part)
        except UnboundedError:
            return _UNKNOWN_ROOM
        return _COMPILED_ROOM + cost.subschemas + _PATTERN_ROOM * cost.patterns

    def _compile(self, pointer: str) -> jsonschema_rs.Validator | None:
        root = self.costs.references.root
        part = {key: root[key] for key in ("$schema",) if key in root} | {"$ref": self._uri + quote(pointer, "#/~")}
        try:
            return jsonschema_rs.validator_for(part, registry=self._registry, pattern_options=self.options)
        except ValueError:  # such as references within a part that has an `$id`
            return None

    @cached_property
    def _uri(self) -> str:
        own = self.costs.references.root.get("$id")
        return (own.partition("#")[0] if isinstance(own, str) else "") or _URI

    @cached_property
    def _registry(self) -> jsonschema_rs.Registry:
        return jsonschema_rs.Registry([(self._uri, self.costs.references.root)], retriever=lambda _: {})


class _Explainer(msgspec.Struct, frozen=True):
    """Explains invalid arguments: follows the schema down by verdicts, which are cheap."""

    compiler: _Compiler

    def of(self, arguments: Any) -> tuple[ArgumentFault, ...]:
        """The faults; none if the arguments cannot be judged."""
        violation = _Violation(self._references.root, "#", arguments)
        for _ in range(_MAX_STEPS):
            narrower = None if self._is_cheap(violation) else next(self._find_narrower(violation), None)
            if narrower is None:
                break
            violation = narrower
        return tuple(self._word(violation))

    @property
    def _references(self) -> References:
        return self.compiler.costs.references

    def _is_cheap(self, violation: _Violation) -> bool:
        text = json.dumps(violation.value).encode()
        self.compiler.room -= len(text) // _READ_BYTES
        try:
            cost = self.compiler.costs.of(violation.part)
        except UnboundedError:
            return False
        return Cost(cost.subschemas, 0).work(text) <= _ERROR_WORK and cost.copied_bytes(text) <= _ERROR_BYTES

    def _is_wrong(self, violation: _Violation) -> bool:
        validator = self.compiler.compile(violation)
        return validator is not None and not validator.is_valid(violation.value)

    def _find_narrower(self, violation: _Violation) -> Iterator[_Violation]:
        """The violations below, or another violated subschema at the same location."""
        part, value = violation.part, violation.value
        if not isinstance(part, dict):
            return
        if isinstance(value, dict):
            yield from filter(self._is_wrong, self._check_object(violation, part))
        elif isinstance(value, list) and isinstance(items := part.get("items"), dict):
            pointer = f"{violation.pointer}/items"
            each = (_Violation(items, pointer, one, (*violation.at, str(at))) for at, one in enumerate(value))
            yield from filter(self._is_wrong, each)
        yield from filter(self._is_wrong, self._check_alternatives(violation, part))

    def _check_object(self, violation: _Violation, part: Schema) -> Iterator[_Violation]:
        properties, others = part.get("properties"), part.get("additionalProperties")
        known = properties if isinstance(properties, dict) else {}
        for name in (name for name in violation.value if name in known):
            pointer = f"{violation.pointer}/properties/{escape_token(name)}"
            yield _Violation(known[name], pointer, violation.value[name], (*violation.at, name))
        if isinstance(others, dict) and "patternProperties" not in part:
            for name in (name for name in violation.value if name not in known):
                pointer = f"{violation.pointer}/additionalProperties"
                yield _Violation(others, pointer, violation.value[name], (*violation.at, name))
        for name in violation.value if "propertyNames" in part else ():
            yield _Violation(part["propertyNames"], f"{violation.pointer}/propertyNames", name, (*violation.at, name))

    def _check_alternatives(self, violation: _Violation, part: Schema) -> Iterator[_Violation]:
        if (target := self._references.pointer(part.get("$ref"))) is not None:
            pointer = "#" + "".join(f"/{escape_token(token)}" for token in target)
            yield _Violation(self._references.at(target), pointer, violation.value, violation.at)
        for index, below in enumerate(as_sequence(part.get("allOf"))):
            yield _Violation(below, f"{violation.pointer}/allOf/{index}", violation.value, violation.at)
        for word in ("anyOf", "oneOf"):
            alternatives = [
                _Violation(below, f"{violation.pointer}/{word}/{index}", violation.value, violation.at)
                for index, below in enumerate(as_sequence(part.get(word)))
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
        target = self._follow(part)
        return frozenset(read_types(target.get("type"))) if isinstance(target, dict) else frozenset()

    def _follow(self, part: Any) -> Any:
        """The subschema to which a reference leads; any other subschema unchanged."""
        for _ in range(_MAX_DEPTH):
            if not isinstance(part, dict) or "$ref" not in part:
                break
            part = next(self._references.targets(part))
        return part

    def _list_constants(self, part: Any) -> Mapping[str, list[Any]]:
        """The constants of an alternative by member."""
        target = self._follow(part)
        properties = target.get("properties") if isinstance(target, dict) else None
        found = properties.items() if isinstance(properties, dict) else ()
        constants = {name: _read_constants(below) for name, below in found}
        return {name: values for name, values in constants.items() if values}

    def _word(self, violation: _Violation) -> Iterator[ArgumentFault]:
        is_readable = self._is_cheap(violation) and not _accepts_no_member(violation.part)
        validator = self.compiler.compile(violation) if is_readable else None
        part = violation.part if isinstance(violation.part, dict) else {}
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
        alternatives = [self._list_constants(one) for word in ("anyOf", "oneOf") for one in as_sequence(part.get(word))]
        for name in alternatives[0] if alternatives and isinstance(value, dict) else ():
            allowed = [kind for one in alternatives for kind in one.get(name, ())]
            if value.get(name) not in allowed:
                return name_kinds(name, value, allowed)
        return None

    def _explain_type(self, part: Schema, value: Any) -> str | None:
        """The message about a value whose type no alternative accepts."""
        for alternatives in (as_sequence(part.get(word)) for word in ("anyOf", "oneOf")):
            types = [self._list_types(one) for one in alternatives]
            if types and all(types) and not any(self._has_type(one, value) for one in alternatives):
                return name_types(value, chain.from_iterable(map(sorted, types)))
        return None


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
