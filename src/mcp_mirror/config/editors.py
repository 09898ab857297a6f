"""The JSON Schema of a configuration file, by which editors check and complete."""

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, Final, get_args, get_origin

from mcp_mirror.config.clients import CLIENT_BLOCKS
from mcp_mirror.config.scalars import Kind, kind_of
from mcp_mirror.config.shape import Field, Value, alternatives_of, document, is_shorthand_list, keys_of
from mcp_mirror.settings.declarations import (
    SINGLE,
    UPSTREAM_NAME,
    AtLeast,
    Example,
    Group,
    Measure,
    Number,
    Percent,
    Shorthand,
    Text,
    Without,
    Written,
)
from mcp_mirror.settings.policies import Config

_VARIABLE: Final = {"type": "string", "pattern": r"\$\{", "description": "${VAR} or ${VAR:-default}"}


def config_json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a configuration file. A file that fits may still be wrong: `${VAR}` has any value."""
    definitions: dict[str, Any] = {}
    schema = _section(Value(Config, ()), definitions)
    server = {"type": "object", "description": "A server as that client writes it."}
    for block, clients in CLIENT_BLOCKS.items():
        description = f"A block pasted from a client ({clients}), read like 'upstreams'."
        schema["properties"][block] = {
            "title": block,
            "description": description,
            "type": "object",
            "additionalProperties": server,
        }
    schema["properties"]["upstreams"]["propertyNames"] = {"pattern": f"^{UPSTREAM_NAME.pattern}$"}
    schema["properties"]["inputs"] = {"title": "inputs", "description": "VS Code's; ignored with a warning."}
    schema["properties"]["$schema"] = {"title": "$schema", "description": "For editors; ignored.", "type": "string"}
    schema["patternProperties"] = {"^x-": {"description": "Yours, for YAML anchors; ignored."}}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "$defs": definitions}


def _section(value: Value, definitions: dict[str, Any]) -> dict[str, Any]:
    keys = keys_of(value.kind, value.mark(Without))
    properties: dict[str, Any] = {}
    alternatives = alternatives_of(value.kind)
    required = [one.key for one in keys if one.is_required and one.key not in alternatives]
    for one in keys:
        schema = _field(value.kind, one, definitions)
        if one.group:
            group = properties.setdefault(one.group.name, _group(value, one.group, definitions))
            definitions[group["$ref"].rpartition("/")[2]]["properties"][one.key] = schema
        else:
            properties[one.key] = schema
    documentation = " ".join((value.kind.__doc__ or "").split())
    schema = {"type": "object", "description": documentation, "properties": properties, "additionalProperties": False}
    return schema | ({"required": required} if required else {})


def _group(value: Value, group: Group, definitions: dict[str, Any]) -> dict[str, Any]:
    name = f"{value.kind.__name__}_{group.name}"
    definitions.setdefault(
        name,
        {"type": "object", "description": group.documentation, "properties": {}, "additionalProperties": False},
    )
    return {"$ref": f"#/$defs/{name}", "description": group.documentation}


def _field(section: type, one: Field, definitions: dict[str, Any]) -> dict[str, Any]:
    schema = {**_value(one.value, definitions), "title": one.key, "description": document(section, one)}
    default = list(one.default) if isinstance(one.default, tuple) else one.default
    if isinstance(default, str | int | float | list) and one.value.entries is None:
        schema["default"] = default
    example = one.value.mark(Example)
    if example and one.value.entries is None and example.value != "":
        schema["examples"] = [list(example.value) if isinstance(example.value, tuple) else example.value]
    return schema


def _value(value: Value, definitions: dict[str, Any]) -> dict[str, Any]:
    if value.entries is not None:
        return {"type": "object", "additionalProperties": _value(value.entries, definitions)}
    if get_origin(value.kind) is tuple:
        least = value.mark(AtLeast)
        items = _value(value.items, definitions)
        schema = {"type": "array", "items": items, **({"minItems": least.count} if least else {})}
        return {"anyOf": [schema, items]} if value.has(SINGLE) else schema
    if is_dataclass(value.kind):
        return _reference(value, definitions)
    return _scalar(value)


def _reference(value: Value, definitions: dict[str, Any]) -> dict[str, Any]:
    without, shorthand = value.mark(Without), value.mark(Shorthand)
    name = value.kind.__name__ + ("_without_" + "_".join(without.names) if without else "")
    if name not in definitions:
        definitions[name] = {}
        definitions[name] = _section(value, definitions)
    reference = {"$ref": f"#/$defs/{name}"}
    if not shorthand:
        return reference
    [key] = [one for one in keys_of(value.kind) if one.key == shorthand.key]
    short = _value(key.value, definitions)
    if is_shorthand_list(value.kind, shorthand):
        short = {"type": "array", "items": _value(key.value.items, definitions)}
    return {"anyOf": [reference, short]}


def _scalar(value: Value) -> dict[str, Any]:
    kind = kind_of(value)
    if kind is None:
        if value.kind is bool:
            return _or_variable({"type": "boolean"})
        options: list[Any] = list(get_args(value.kind))
        return _or_variable({"enum": [*options, False] if "off" in options else options})  # `off` in YAML 1.1
    return _kind(kind, is_whole=value.kind is int)


def _kind(kind: Kind, *, is_whole: bool) -> dict[str, Any]:
    match kind:
        case Written():
            return {"type": ["string", "number", "boolean"]}
        case Number():
            bounds = {"minimum": kind.minimum, "exclusiveMinimum": kind.above, "maximum": kind.maximum}
            number = {"type": "integer" if is_whole else "number"} | _present(bounds)
            return _or_variable(number, *([{"const": kind.none_word}] if kind.none_word else []))
        case Measure():
            pattern = rf"^\d+(\.\d+)?\s*({kind.pattern})?$"
            text = {"type": "string", "pattern": pattern, "examples": [kind.example]}
            return _or_variable({"type": "number", "exclusiveMinimum": 0}, text)
        case Percent():
            return _or_variable({"type": "string", "pattern": r"^\d{1,2}(\.\d{1,3})?\s*%$", "examples": ["20 %"]})
        case Text(is_shown=True):
            return _or_variable({"type": "string", "pattern": f"^{kind.pattern}$"})
    return {"type": "string"}


def _or_variable(*schemas: Mapping[str, Any]) -> dict[str, Any]:
    return {"anyOf": [*schemas, _VARIABLE]}


def _present(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}
