"""Members of listed tools, resources, templates and prompts that some clients cannot read.

One such member makes a client drop the lists of all upstreams. In MCP no optional member may be null, and no number
may be a text. The SDK's models accept both; clients of the TypeScript SDK do not.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any, Final

import msgspec
from pydantic import BaseModel, ValidationError

from mcp_mirror.core.schemas.twin_schemas import as_object
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.types import Buffer

_STRUCTURED: Final = frozenset(("annotations", "icons", "arguments"))
"""Members that have members of their own, none of which may be null."""
_LAST_MODIFIED: Final = "lastModified"
_TIME: Final = lazy_pattern(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)", re.ASCII)
"""ISO 8601 with a time zone, as clients of the TypeScript SDK read it."""


def may_have_unreadable_members(text: Buffer) -> bool:
    """Whether `remove_unreadable_members` may change an item with this JSON text."""
    whole = bytes(text)
    return b"null" in whole or _LAST_MODIFIED.encode() in whole


def remove_unreadable_members(members: Mapping[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """The members of an item without optional members that are null, and without times that clients cannot read.

    `model` has the members that clients read; all others are unchanged.
    """
    known = _name_members(model)
    return {
        name: _remove_inner(value) if name in _STRUCTURED else value
        for name, value in members.items()
        if value is not None or name not in known
    }


@cache
def _name_members(model: type[BaseModel]) -> frozenset[str]:
    return frozenset(field.alias or name for name, field in model.model_fields.items())


def _remove_inner(value: Any) -> Any:
    if isinstance(value, list):
        return [_remove_inner(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: member
        for name, member in value.items()
        if member is not None and (name != _LAST_MODIFIED or _is_readable_time(member))
    }


def _is_readable_time(value: Any) -> bool:
    if not isinstance(value, str) or not _TIME.fullmatch(value):
        return False
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return True


def find_invalid_members(item: Buffer | Mapping[str, Any], model: type[BaseModel]) -> tuple[str, ...] | None:
    """The members of an item that clients could not read; None if they could not read the item at all."""
    try:
        text = msgspec.json.encode(item) if isinstance(item, Mapping) else bytes(item)
        model.model_validate_json(text, strict=True, by_name=False)
    except ValidationError as error:
        places = [found["loc"] for found in error.errors(include_url=False, include_input=False)]
        return tuple(sorted({str(place[0]) for place in places})) if all(places) else None
    return ()


def make_properties_readable(schema: Any) -> Any:
    """The same schema with an object for each property: clients of the TypeScript SDK drop the list for `true`."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict) or not any(isinstance(subschema, bool) for subschema in properties.values()):
        return schema
    return schema | {"properties": {name: as_object(subschema) for name, subschema in properties.items()}}
