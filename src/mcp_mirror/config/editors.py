"""The JSON Schema of a configuration file, with which editors check and complete it."""

from collections.abc import Mapping
from typing import Any, Final, get_args

import yaml

from mcp_mirror.config.clients import CLIENT_BLOCKS
from mcp_mirror.config.scalars import find_scalar_kind, write_default
from mcp_mirror.config.shape import Field, Value, list_alternatives, list_keys
from mcp_mirror.settings.declarations import (
    ANYTHING,
    OPTIONAL_LIST,
    SINGLE,
    UPSTREAM_NAME,
    AtLeast,
    Example,
    Group,
    Measure,
    Names,
    Number,
    Text,
    Without,
)
from mcp_mirror.settings.policies import Config

_VARIABLE: Final = {"type": "string", "pattern": r"\$\{", "description": "${VAR} or ${VAR:-default}"}


def config_json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a configuration file.

    It accepts any text with `${VAR}`, and does not know the rules between several keys.
    """
    definitions: dict[str, Any] = {}
    schema = _section_schema(Value(Config, ()), definitions, is_entry=True)
    server = {"type": "object", "description": "A server as that client writes it."}
    properties = schema["properties"]
    for block, clients in CLIENT_BLOCKS.items():
        description = f"A block pasted from a client ({clients}), read like 'upstreams'."
        properties[block] = {"title": block, "description": description, **_mapping_schema(server)}
    properties["upstreams"]["propertyNames"] = {"pattern": f"^{UPSTREAM_NAME.pattern}$"}
    properties["inputs"] = {"title": "inputs", "description": "VS Code's; ignored with a warning."}
    properties["$schema"] = {"title": "$schema", "description": "For editors; ignored.", "type": "string"}
    schema["patternProperties"] = {"^x-": {"description": "Yours, for YAML anchors; ignored."}}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "$defs": definitions}


def _section_schema(value: Value, definitions: dict[str, Any], *, is_entry: bool) -> dict[str, Any]:
    """Return the schema of a section. The value of a key may be nothing if no inner key is required."""
    properties: dict[str, Any] = {}
    keys = list_keys(value.kind, value.mark(Without))
    alternatives = sorted(list_alternatives(value.kind))
    for field in keys:
        if field.group:
            group = properties.setdefault(field.group.name, _group_schema(value, field.group, definitions))
            definitions[group["$ref"].rpartition("/")[2]]["properties"][field.key] = _field_schema(field, definitions)
        else:
            properties[field.key] = _field_schema(field, definitions)
    required = [field.key for field in keys if field.is_required and field.key not in alternatives]
    documentation = " ".join((value.kind.__doc__ or "").split())
    return {
        "type": "object" if is_entry or required else ["object", "null"],
        "description": documentation,
        "properties": properties,
        "additionalProperties": False,
        **({"required": required} if required else {}),
        **({"oneOf": [{"required": [key]} for key in alternatives]} if alternatives else {}),
    }


def _group_schema(value: Value, group: Group, definitions: dict[str, Any]) -> dict[str, Any]:
    name = f"{value.kind.__name__}_{group.name}"
    if name not in definitions:
        definitions[name] = {
            "type": "object" if group.is_required else ["object", "null"],
            "description": group.documentation,
            "properties": {},
            "additionalProperties": False,
        }
        if group.is_required:
            definitions[name]["required"] = [field.key for field in list_keys(value.kind) if field.group == group]
    return {"$ref": f"#/$defs/{name}", "description": group.documentation}


def _field_schema(field: Field, definitions: dict[str, Any]) -> dict[str, Any]:
    schema = {**_value_schema(field.value, definitions), "title": field.key, "description": field.documentation}
    if default := write_default(field):
        schema["default"] = yaml.safe_load(default)
    example = field.value.mark(Example)
    if example and field.value.entries is None and example.value != "":
        schema["examples"] = [list(example.value) if isinstance(example.value, tuple) else example.value]
    return schema


def _value_schema(value: Value, definitions: dict[str, Any], *, is_entry: bool = False) -> dict[str, Any]:
    if value.entries is not None:
        return _mapping_schema(_value_schema(value.entries, definitions, is_entry=True), value.mark(Names))
    if value.is_list:
        least = value.mark(AtLeast)
        count = least.count if least else 0
        items = _value_schema(value.items, definitions, is_entry=True)
        kinds = ["array", "null"] if value.has(OPTIONAL_LIST) else "array"
        schema = {"type": kinds, "items": items, "minItems": count}
        return {"anyOf": [schema, items]} if value.has(SINGLE) and count <= 1 else schema
    if value.is_section:
        return _reference_schema(value, definitions, is_entry=is_entry)
    return _scalar_schema(value)


def _mapping_schema(entry: dict[str, Any], names: Names | None = None) -> dict[str, Any]:
    schema = {"type": ["object", "null"], "additionalProperties": entry}
    return {**schema, "propertyNames": {"pattern": f"^(?:{names.pattern})$"}} if names else schema


def _reference_schema(value: Value, definitions: dict[str, Any], *, is_entry: bool) -> dict[str, Any]:
    without, short = value.mark(Without), value.shorthand
    name = value.kind.__name__ + ("_without_" + "_".join(without.names) if without else "")
    if name not in definitions:
        definitions[name] = {}
        definitions[name] = _section_schema(value, definitions, is_entry=is_entry)
    reference = {"$ref": f"#/$defs/{name}"}
    if not short:
        return reference
    if not short.value.is_list:
        return {"anyOf": [reference, _value_schema(short.value, definitions)]}
    return {"anyOf": [reference, {"type": "array", "items": _value_schema(short.value.items, definitions)}]}


def _scalar_schema(value: Value) -> dict[str, Any]:
    match find_scalar_kind(value):
        case None if value.kind is bool:
            return _admit_variable({"type": "boolean"})
        case None:
            options: list[Any] = list(get_args(value.kind))
            return _admit_variable({"enum": [*options, False] if "off" in options else options})  # `off` in YAML 1.1
        case Text() as kind:
            text = {"type": ["string", "number", "boolean"] if kind.is_literal else "string"}
            is_any = kind.pattern == ANYTHING
            return text if is_any else _admit_variable({**text, "pattern": f"^(?:{kind.pattern})$"})
        case Number() as kind:
            bounds = {"minimum": kind.minimum, "exclusiveMinimum": kind.above, "maximum": kind.maximum}
            number: dict[str, Any] = {"type": "integer" if value.kind is int else "number"}
            number |= {name: bound for name, bound in bounds.items() if bound is not None}
            return _admit_variable(number, *([{"const": kind.none_word}] if kind.none_word else []))
        case Measure() as kind:
            text = {"type": "string", "pattern": f"^(?:{kind.pattern})$", "examples": [kind.example]}
            has_plain = any(not unit for unit, _ in kind.units)
            number = {"type": "number", "minimum" if kind.may_be_zero else "exclusiveMinimum": 0}
            return _admit_variable(*([number] if has_plain else []), text)


def _admit_variable(*schemas: Mapping[str, Any]) -> dict[str, Any]:
    return {"anyOf": [*schemas, _VARIABLE]}
