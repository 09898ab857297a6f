"""The jobs of the schema workers. They run in worker processes, so this module imports little."""

import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mcp_mirror.core.schema_references import Schema
from mcp_mirror.core.validation import Check, compile_check
from mcp_mirror.settings.limits import UpstreamBounds

if TYPE_CHECKING:
    from mcp_mirror.core.tool_inspection import InspectedTool

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


@dataclass(frozen=True, slots=True)
class Examination:
    """Examines a tool. The first one of a process comes after `prepare_examination`."""

    text: bytes
    bounds: UpstreamBounds

    def __call__(self) -> "InspectedTool":
        """Examine a tool without compiling its schema."""
        from mcp_mirror.core.tool_inspection import inspect_definition  # noqa: PLC0415  # see `prepare_examination`

        return inspect_definition(read_tool(self.text), self.bounds)


@dataclass(frozen=True, slots=True)
class TrialCompilation:
    """Finds out whether the schema of a tool can be compiled in time."""

    text: bytes

    def __call__(self) -> str | None:
        """Compile the schema of a tool. Returns the error, or None."""
        try:
            compile_check(read_tool(self.text)["inputSchema"])
        except ValueError as error:
            return str(error)
        return None


def prepare() -> None:
    """Import this module in the worker process."""


def prepare_examination() -> None:
    """Import in the worker process what only examinations use: the types of MCP take longer than all other imports."""
    import mcp_mirror.core.tool_inspection  # noqa: F401, PLC0415  # see above


class NotCompiled:
    """The worker process has not compiled the schema."""


_checks: OrderedDict[bytes, Check] = OrderedDict()
"""Compiled schemas by digest, in the order of their last use."""


@dataclass(frozen=True, slots=True)
class Compilation:
    """Compiles a schema for validations."""

    digest: bytes
    schema: bytes

    def __call__(self) -> None:
        """Compile a schema and cache it."""
        schema: Schema = json.loads(self.schema)
        _checks[self.digest] = compile_check(schema)
        if len(_checks) > _COMPILED:
            _checks.popitem(last=False)


@dataclass(frozen=True, slots=True)
class Validation:
    """Validates the arguments of a call."""

    digest: bytes
    arguments: bytes

    def __call__(self) -> str | NotCompiled | None:
        """The error in the arguments; None if they are valid."""
        if self.digest not in _checks:
            return NotCompiled()
        _checks.move_to_end(self.digest)
        try:
            return _checks[self.digest](json.loads(self.arguments))
        except (ValueError, RecursionError):
            return None
