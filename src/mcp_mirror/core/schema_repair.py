"""Repairs input schemas that are not valid JSON Schema, so that models see the arguments of the tool.

Many servers write `"type": "float"`, `"required": true`, keywords that are null, patterns that only JavaScript reads or
references without a target. A repaired schema lacks such keywords, so it is not used for validation.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import jsonschema_rs
import msgspec

from mcp_mirror.core.schema_references import References, Schema, as_sequence, read_types

_MAX_DEPTH: Final = 64
_TARGETS: Final = ("$defs", "definitions", "properties")
"""Keywords at the root whose members a repaired schema may reference."""
_TARGET_LENGTH: Final = 2
"""The keys on the way to such a member: the keyword and the name."""
_TYPES: Final = frozenset(("string", "number", "integer", "boolean", "object", "array", "null"))
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
        named = part | {"type": _rename_type(part["type"])} if "type" in part else part
        kept = {key: value for key, value in named.items() if key not in _LEFT_OUT and self._is_valid(key, value)}
        if isinstance(kept.get("items"), list):  # a tuple before JSON Schema 2020-12
            kept["prefixItems"] = kept.pop("items")
        if "array" in read_types(kept.get("type")):
            kept.setdefault("items", {})  # OpenAI requires it
        if "patternProperties" in part and kept.get("additionalProperties") is False:
            del kept["additionalProperties"]
        return {key: self._read_below(key, value, depth + 1) for key, value in kept.items()}

    def _is_valid(self, key: str, value: Any) -> bool:
        return self._has_target(value) if key == "$ref" else _CHECKS.get(key, _is_anything)(value)

    def _has_target(self, reference: Any) -> bool:
        pointer = self.references.pointer(reference)
        if pointer is None or not reference.startswith("#"):
            return False
        is_plain = len(pointer) == _TARGET_LENGTH and pointer[0] in _TARGETS
        return not pointer or (is_plain and isinstance(self.references.at(pointer), dict))

    def _read_below(self, key: str, value: Any, depth: int) -> Any:
        if key in _MAPS:
            return {name: self.read(one, depth) for name, one in value.items()}
        if key in _LISTS:
            return [self.read(one, depth) for one in value]
        return self.read(value, depth) if key in _SINGLES else value


def _rename_type(value: Any) -> Any:
    return _OTHER_NAMES.get(value.lower(), value.lower()) if isinstance(value, str) else value


def _is_anything(_value: Any) -> bool:
    return True


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_positive(value: Any) -> bool:
    return _is_number(value) and value > 0


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_full_list(value: Any) -> bool:
    return bool(as_sequence(value))


def _is_map(value: Any) -> bool:
    return isinstance(value, dict)


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _is_schema_or_tuple(value: Any) -> bool:
    return _is_schema(value) or _is_full_list(value)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value)) and len(set(value)) == len(value)


def _is_type(value: Any) -> bool:
    return (isinstance(value, str) or (_is_full_list(value) and _are_names(value))) and {*read_types(value)} <= _TYPES


_MAPS: Final = ("properties", "$defs", "definitions")
_LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLES: Final = ("items", "contains", "additionalProperties")
_CHECKS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "type": _is_type,
    "required": _are_names,
    "items": _is_schema_or_tuple,
    "multipleOf": _is_positive,
    **dict.fromkeys(_MAPS, _is_map),
    **dict.fromkeys(_LISTS, _is_full_list),
    **dict.fromkeys(("contains", "additionalProperties"), _is_schema),
    **dict.fromkeys(("enum", "examples"), _is_list),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_number),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _is_count),
    **dict.fromkeys(("minContains", "maxContains"), _is_count),
    **dict.fromkeys(("title", "description", "$comment", "format", "contentEncoding", "contentMediaType"), _is_text),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly"), _is_flag),
}
"""Whether the value of a keyword is valid, apart from subschemas in it."""
