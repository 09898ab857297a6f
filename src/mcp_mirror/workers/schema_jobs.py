"""The jobs of the schema workers. They run in worker processes, so this module imports little."""

import json
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mcp_mirror.core.schemas.argument_faults import ArgumentFault
from mcp_mirror.core.schemas.references import Schema
from mcp_mirror.core.schemas.validation import SchemaCheck, verify_schema
from mcp_mirror.settings.limits import UpstreamBounds

if TYPE_CHECKING:
    from mcp_mirror.core.schemas.tool_inspection import InspectedTool

_COMPILED: Final = 64
"""Compiled schemas in the cache of one worker process."""


def read_tool(text: bytes) -> dict[str, Any]:
    """Parse a tool of a listing. Returns an empty object if it is not an object or cannot be passed on."""
    try:
        tool = json.loads(text)
        msgspec.json.encode(tool)
    except (ValueError, RecursionError):
        return {}
    return tool if isinstance(tool, dict) else {}


def inspect_text(text: bytes, bounds: UpstreamBounds) -> "InspectedTool":
    """Inspect a tool without verifying its schema. The first call of a process comes after `prepare_inspection`."""
    from mcp_mirror.core.schemas.tool_inspection import inspect_definition  # noqa: PLC0415  # see `prepare_inspection`

    return inspect_definition(read_tool(text), bounds)


def try_compilation(text: bytes) -> str | None:
    """Compile the schema of a tool, to see whether this ends in time. Returns the error, or None."""
    try:
        verify_schema(read_tool(text)["inputSchema"])
    except ValueError as error:
        return str(error)
    return None


def prepare() -> None:
    """Import this module in the worker process."""


def prepare_inspection() -> None:
    """Import in the worker process what only inspections use: the types of MCP take longer than all other imports."""
    import mcp_mirror.core.schemas.tool_inspection  # noqa: F401, PLC0415  # see above


_checks: OrderedDict[bytes, SchemaCheck] = OrderedDict()
"""Compiled schemas by digest, in the order of their last use."""


def compile_schema(digest: bytes, schema: bytes) -> None:
    """Compile a schema for validations, and cache it."""
    parsed: Schema = json.loads(schema)
    check = SchemaCheck(parsed)
    check.compile()
    _checks[digest] = check
    if len(_checks) > _COMPILED:
        _checks.popitem(last=False)


def validate(digest: bytes, arguments: bytes) -> tuple[ArgumentFault, ...] | None:
    """The faults in the arguments of a call; empty if they are valid. None if the schema is not compiled here."""
    if digest not in _checks:
        return None
    _checks.move_to_end(digest)
    try:
        return _checks[digest](json.loads(arguments))
    except (ValueError, RecursionError):
        return ()
