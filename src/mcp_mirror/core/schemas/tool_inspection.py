"""Inspection of a tool definition, once per definition: size limits, schemas, validation cost.

The result does not depend on names, pins or other configuration of the catalog.
"""

from collections.abc import Mapping
from typing import Any, Final

import mcp_types as types
import msgspec
from msgspec.structs import replace

from mcp_mirror.core.schemas.listed_members import find_invalid_members, remove_unreadable_members
from mcp_mirror.core.schemas.references import Schema, read_types
from mcp_mirror.core.schemas.repair import repair_schema
from mcp_mirror.core.schemas.twin_schemas import admit_paths, find_header_locations
from mcp_mirror.core.schemas.validation import SchemaCheck, verify_schema
from mcp_mirror.core.schemas.validation_cost import Cost, estimate_cost
from mcp_mirror.payload.json_bounds import is_deeper
from mcp_mirror.settings.limits import UpstreamBounds

_ANY: Final[Schema] = {"type": "object"}
_MAX_CHARACTERS: Final = 1 << 16
"""Characters of a schema that the event loop may compile."""
_MAX_CHARACTERS_UNKNOWN_COST: Final = 1 << 13
"""The same for a schema without a known cost."""
_SLOW_KEYWORDS: Final = ("unevaluated", "$dynamicRef", "$recursiveRef", "pattern")
"""Keywords that can make the compilation of a small schema take seconds."""
_MAX_PATTERNS: Final = 20
"""Patterns that the event loop may compile: each takes 0.3 ms at most."""


def find_excess(tool: Mapping[str, Any], bounds: UpstreamBounds) -> str | None:
    """The limit that a tool's definition exceeds, as a clause; None if it exceeds none."""
    try:
        text = msgspec.json.encode(tool)
    except (ValueError, TypeError):  # `find_invalid_members` reports them
        return None
    except RecursionError:
        return _describe_nesting_excess(bounds)
    if len(text) > bounds.max_tool_bytes:
        return f"its definition has {len(text):,} bytes; `limits.max_tool_bytes` is {bounds.max_tool_bytes:,}"
    if len(str(tool.get("name")).encode()) > bounds.max_name_bytes:
        return f"its name is longer than `limits.max_name_bytes` ({bounds.max_name_bytes:,})"
    return _describe_nesting_excess(bounds) if is_deeper(text, bounds.max_schema_depth) else None


def _describe_nesting_excess(bounds: UpstreamBounds) -> str:
    return f"its definition is nested deeper than `limits.max_schema_depth` ({bounds.max_schema_depth})"


class InspectedTool(msgspec.Struct, frozen=True, gc=False):
    """A tool as its upstream lists it, and the results of its inspection."""

    raw: Mapping[str, Any]
    """The whole definition."""
    rejection: str | None = None
    """Why the gateway does not serve the tool."""
    invalid_members: tuple[str, ...] = ()
    """Members of the definition that clients could not read."""
    schema: Schema = msgspec.field(default_factory=lambda: dict(_ANY))
    """The input schema; any object if the upstream's schema cannot be used."""
    twin_schema: Schema = msgspec.field(default_factory=lambda: admit_paths(_ANY))
    headers: tuple[tuple[str, ...], ...] = ()
    """Locations of the arguments that clients mirror into HTTP headers."""
    cost: Cost | None = None
    """An upper bound on the work of validation; None if validation may take exponential time."""
    schema_error: str | None = None
    """Why the gateway does not validate the arguments; None if it does."""
    check: SchemaCheck | None = None
    """Validates arguments; None if that is too much work for the event loop."""

    @property
    def name(self) -> str:
        """The tool's name; empty if it has no usable name."""
        name = self.raw.get("name")
        return name if isinstance(name, str) else ""

    @property
    def valid_members(self) -> Mapping[str, Any]:
        """The definition without its invalid members: one invalid tool makes clients drop the whole list."""
        valid = {key: value for key, value in self.raw.items() if key not in self.invalid_members}
        return remove_unreadable_members(valid, types.Tool)

    def without_validation(self, schema_error: str) -> "InspectedTool":
        """The same tool, served with its schema but without validation."""
        return replace(self, schema_error=schema_error, check=None)


def inspect_tool(raw: Mapping[str, Any], bounds: UpstreamBounds) -> InspectedTool:
    """Inspect a tool and verify its schema."""
    return verify_tool(inspect_definition(raw, bounds))


def inspect_definition(raw: Mapping[str, Any], bounds: UpstreamBounds) -> InspectedTool:
    """Inspect a tool without verifying its schema. The work is linear in the size of the definition."""
    if excess := find_excess(raw, bounds):
        return InspectedTool(raw, excess)
    readable = remove_unreadable_members(raw, types.Tool) | {"inputSchema": _ANY}
    found = InspectedTool(raw, invalid_members=find_invalid_members(readable, types.Tool) or ())
    schema = raw.get("inputSchema")
    if not isinstance(schema, dict):
        return replace(found, schema_error="it has no input schema")
    return replace(
        found,
        schema=schema,
        twin_schema=admit_paths(schema),
        headers=find_header_locations(schema),
        cost=estimate_cost(schema),
    )


def verify_tool(found: InspectedTool) -> InspectedTool:
    """The same tool with a check of its arguments, or with a repaired schema if its own schema is not valid."""
    if found.rejection or found.schema_error:
        return found
    try:
        verify_schema(found.schema)
    except ValueError as error:
        return reject_schema(found, str(error))
    return _with_check(found, is_small=False)


def reject_schema(found: InspectedTool, schema_error: str) -> InspectedTool:
    """The same tool with the valid parts of its schema, because the schema cannot be used as it is.

    A schema that is not for an object, or that is large, is replaced by one for any object.
    """
    schema = dict(_ANY)
    is_for_object = "object" in (read_types(found.schema.get("type")) or ("object",))
    if is_for_object and len(str(found.schema)) <= _MAX_CHARACTERS:
        schema = repair_schema(found.schema) | schema
    usable = replace(found, schema=schema, twin_schema=admit_paths(schema), headers=(), cost=None)
    return usable.without_validation(schema_error.rstrip("."))


def verify_if_cheap(found: InspectedTool) -> InspectedTool | None:
    """The same as `verify_tool`; None if the schema is not valid, or may be too much work for the event loop."""
    if found.rejection or found.schema_error:
        return found
    if not is_cheap_to_compile(found) and not _is_cheap_to_verify(found.schema):
        return None
    try:
        verify_schema(found.schema, is_small=True)
    except ValueError:  # the schema is not valid, or one of its patterns is large
        return None
    return _with_check(found, is_small=True)


def _with_check(found: InspectedTool, *, is_small: bool) -> InspectedTool:
    return replace(found, check=SchemaCheck(found.schema, is_small)) if is_cheap_to_compile(found) else found


def is_cheap_to_compile(found: InspectedTool) -> bool:
    """Whether the event loop may compile the schema."""
    cost = found.cost
    return cost is not None and cost.patterns <= _MAX_PATTERNS and len(str(found.schema)) <= _MAX_CHARACTERS


def _is_cheap_to_verify(schema: Schema) -> bool:
    """Whether the event loop may compile a schema only to see that it is valid."""
    text = str(schema)
    return len(text) <= _MAX_CHARACTERS_UNKNOWN_COST and not any(word in text for word in _SLOW_KEYWORDS)
