"""Validates arguments against a tool's schema.

A recursive or nested schema can cost exponential time, so the event loop uses only schemas with a small bound
(`core/schemas/validation_cost.py`). `core/schemas/fault_search.py` explains what is wrong.
"""

import json
from typing import Any, Final

import jsonschema_rs
import msgspec

from mcp_mirror.core.schemas.argument_faults import ArgumentFault, shorten_middle
from mcp_mirror.core.schemas.fault_search import FaultSearch
from mcp_mirror.core.schemas.references import (
    References,
    Schema,
    as_mapping,
    as_sequence,
    is_nullable,
    map_below,
    read_types,
)
from mcp_mirror.core.schemas.validation_cost import CostCounter
from mcp_mirror.security.sanitize import sanitize

MAX_WORK: Final = 200_000
"""Units of work that the event loop may spend on a validation: about 20 ms."""
_MAX_DEPTH: Final = 64
_BACKTRACK_LIMIT: Final = 100_000
"""Steps after which a pattern is not judged: 100 ms."""
_MAX_PATTERN_BYTES: Final = 1 << 15
"""Bytes of a compiled pattern on the event loop."""


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
    _references: References | None = None
    """Those of the last of these schemas."""

    def compile(self) -> References:
        """Compile the schema, and return the references for error messages.

        Raises:
            ValueError: The schema is not a JSON Schema for an object.
        """
        _check_root(self.schema)
        lenient = _make_lenient(self.schema)
        variants = (self.schema,) if lenient == self.schema else (self.schema, lenient)
        options = _build_options(is_small=self.is_small)
        self._validators = tuple(_compile_validator(one, options) for one in variants)
        self._references = References(variants[-1])
        return self._references

    def is_valid(self, arguments: Any) -> bool:
        """Whether arguments are valid, in a fraction of the time of an error message; ValueError if it cannot tell."""
        if self._references is None:
            self.compile()
        for validator in self._validators:  # noqa: SIM110  # each small call passes here
            if validator.is_valid(arguments):
                return True
        return False

    def __call__(self, arguments: Any) -> tuple[ArgumentFault, ...]:
        """Return the faults of arguments; none if they are valid or cannot be judged."""
        references = self._references or self.compile()
        costs = CostCounter(references, bounds_time=False)  # of this call: another thread may search too
        try:
            if self.is_valid(arguments):
                return ()
            json.dumps(arguments, allow_nan=False)  # the library reads numbers beyond the range of doubles as null
            return FaultSearch(costs, _build_options(is_small=self.is_small)).find_faults(arguments)
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
        defaults = {name for name, part in properties.items() if "default" in as_mapping(part)}
        lenient["required"] = [name for name in required if not (isinstance(name, str) and name in defaults)]
    if is_nullable(schema):
        lenient["type"] = [*read_types(schema["type"]), "null"]
        if "enum" in schema:
            lenient["enum"] = [*as_sequence(schema["enum"]), None]
    return lenient
