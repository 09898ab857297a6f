"""Repairs input schemas that are not valid JSON Schema, so that models see the arguments of the tool.

Many servers write `"type": "float"`, `"required": true`, keywords that are null, patterns that only JavaScript reads or
references without a target. A repaired schema lacks such keywords, so it is not used for validation.
"""

from collections.abc import Mapping
from typing import Any, Final

import jsonschema_rs
import msgspec

from mcp_mirror.core.schemas.references import References, Schema, map_below, read_types

_MAX_DEPTH: Final = 64
_TARGETS: Final = ("$defs", "definitions", "properties")
"""Keywords at the root whose members a repaired schema may reference."""
_TARGET_LENGTH: Final = 2
"""The keys on the way to such a member: the keyword and the name."""
_OTHER_NAMES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("float", "double", "decimal"), "number"),
    **dict.fromkeys(("int", "long"), "integer"),
    **dict.fromkeys(("str", "text"), "string"),
    **dict.fromkeys(("list", "tuple"), "array"),
    **dict.fromkeys(("dict", "map"), "object"),
    "bool": "boolean",
}
"""Types of other languages, and their types in JSON Schema."""
_LEFT_OUT: Final = frozenset(
    ("$schema", "$id", "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef", "$vocabulary",
     "additionalItems", "contentSchema", "dependencies", "dependentRequired", "dependentSchemas", "if", "then", "else",
     "not", "pattern", "patternProperties", "propertyNames", "unevaluatedItems", "unevaluatedProperties")
)  # fmt: skip
"""Keywords that may be the fault, or that exclude more values if a keyword below them is left out."""


def repair_schema(schema: Schema) -> Schema:
    """The valid parts of an input schema, as JSON Schema 2020-12; an empty schema if they are not valid together."""
    repaired = _Repair(References(schema)).read(schema)
    return repaired if isinstance(repaired, dict) and jsonschema_rs.meta.is_valid(repaired) else {}


class _Repair(msgspec.Struct, frozen=True):
    references: References

    def read(self, part: Any, depth: int = 0) -> Any:
        """The valid parts of a subschema; an empty schema in place of anything else."""
        if isinstance(part, bool):
            return part
        if not isinstance(part, dict) or depth > _MAX_DEPTH:
            return {}
        given = part | {"type": _rename_type(part["type"])} if "type" in part else dict(part)
        if isinstance(given.get("items"), list):  # a tuple before JSON Schema 2020-12
            given["prefixItems"] = given.pop("items")
        kept = {key: value for key, value in given.items() if key not in _LEFT_OUT and self._is_valid(key, value)}
        if "array" in read_types(kept.get("type")):
            kept.setdefault("items", {})  # OpenAI requires it
        if "patternProperties" in part and kept.get("additionalProperties") is False:
            del kept["additionalProperties"]
        return map_below(kept, lambda below: self.read(below, depth + 1))

    def _is_valid(self, key: str, value: Any) -> bool:
        """Whether the value of a keyword is valid, apart from subschemas in it."""
        if key == "$ref":
            return self._has_target(value)
        is_container = isinstance(value, dict | list)
        keyword = map_below({key: value}, lambda _: {}) if is_container else {key: value}
        return jsonschema_rs.meta.is_valid(keyword)

    def _has_target(self, reference: Any) -> bool:
        pointer = self.references.pointer(reference)
        if pointer is None or not reference.startswith("#"):
            return False
        is_plain = len(pointer) == _TARGET_LENGTH and pointer[0] in _TARGETS
        return not pointer or (is_plain and isinstance(self.references.at(pointer), dict))


def _rename_type(value: Any) -> Any:
    return _OTHER_NAMES.get(value.lower(), value.lower()) if isinstance(value, str) else value
