"""Summaries of tools for search results: the name with its arguments, and one line of the description."""

import re
from collections.abc import Mapping
from typing import Any, Final

from mcp_mirror.core.schema import Schema, remove_hint, types_at
from mcp_mirror.security.sanitize import cut, sanitize

_MAX_LINE_BYTES: Final = 160
_MAX_SIGNATURE_BYTES: Final = 400
_MAX_ARGUMENTS: Final = 24
_MAX_CHOICES: Final = 6
"""The most values of an enumeration that a signature shows."""
_MAX_SCANNED: Final = 2_000
"""Characters of a description that are searched for the end of its first sentence."""
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s")
_SHORT: Final[Mapping[str, str]] = {"integer": "int", "boolean": "bool"}
_EVERY_TYPE: Final = 5
"""The number of JSON types other than null, counting `integer` as a number."""


def summarize_tool(name: str, advert: Mapping[str, Any], schema: Schema) -> str:
    """Return two lines: the tool's name with its arguments, and the first sentence of its description.

    Args:
        name: The name under which clients call the tool.
        advert: Its definition.
        schema: The input schema of its upstream.
    """
    line = describe_in_one_line(remove_hint(str(advert.get("description") or "")))
    return f"{name}({write_signature(advert, schema)})" + (f"\n  {line}" if line else "")


def describe_in_one_line(description: str) -> str:
    """Return the first sentence of a description on one line, at most 160 bytes."""
    text = " ".join(description[:_MAX_SCANNED].split())
    return cut(sanitize(_SENTENCE_END.split(text, maxsplit=1)[0]), _MAX_LINE_BYTES)


def write_signature(advert: Mapping[str, Any], schema: Schema) -> str:
    """Return the arguments of a tool with their types, required ones first; `?` marks the others."""
    own = advert["inputSchema"]
    properties, originals = (_read_properties(one) for one in (own, schema))
    required = own["required"] if isinstance(own.get("required"), list) else ()
    find_types = types_at(schema)
    names = sorted(properties, key=lambda name: name not in required)
    written = [
        f"{name}{'' if name in required else '?'}: {_write_type(originals.get(name), find_types((name,)))}"
        for name in names[:_MAX_ARGUMENTS]
    ]
    written += ["..."] if len(names) > _MAX_ARGUMENTS else []
    return cut(sanitize(", ".join(written)), _MAX_SIGNATURE_BYTES)


def _read_properties(schema: Schema) -> Mapping[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _write_type(schema: object, types: frozenset[str]) -> str:
    choices = schema.get("enum") if isinstance(schema, Mapping) else None
    if isinstance(choices, list) and 0 < len(choices) <= _MAX_CHOICES:
        return "|".join(str(choice) for choice in choices)
    shown = sorted(types - {"null"} - ({"integer"} if "number" in types else set()))
    return "|".join(_SHORT.get(one, one) for one in shown) if 0 < len(shown) < _EVERY_TYPE else "any"
