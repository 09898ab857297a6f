"""The interface between a script and the gateway: the tools that a script can call, and their results."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from mcp_mirror.memory.code.sandbox import Sandbox
from mcp_mirror.settings.labels import Labels
from mcp_mirror.settings.policies import CodePolicy
from mcp_mirror.types import Buffer


class ScriptTool(msgspec.Struct, frozen=True):
    """A tool as scripts see it."""

    name: str
    """The name of its twin."""
    tool: str
    """Its own name."""
    schema: dict[str, Any]
    """The upstream's own input schema."""
    is_read_only: bool
    """Its server annotates it as read-only, or it is a function of the program."""


class ScriptCall(msgspec.Struct, frozen=True):
    """One call of a tool by a script."""

    tool: ScriptTool
    arguments: bytes
    """A JSON object."""
    labels: Labels
    """The joined flow labels of everything that the script has received."""
    preview: bool
    """The model may see parts of all of it."""


class ScriptToolResult(msgspec.Struct, frozen=True):
    """The result of a tool call for the script."""

    value: Buffer = b"null"
    """JSON text."""
    labels: Labels | None = None
    """The flow labels of the result; None: the result has no content of an upstream."""
    preview: bool = True
    """The model may see parts of it."""
    path: str | None = None
    """The memory path of the stored result."""
    error: str | None = None
    """The message of a failed call."""
    is_refused: bool = False
    """A rule, a limit or the user refused the call, and would refuse it in another script too."""


class Scripts(msgspec.Struct, frozen=True):
    """The objects that run the scripts of one call."""

    sandbox: Sandbox
    policy: CodePolicy
    list_tools: Callable[[], Awaitable[tuple[ScriptTool, ...]]]
    """Returns all tools of the caller."""
    call_tool: Callable[[ScriptCall], Awaitable[ScriptToolResult]]
    """Calls a tool in the same way as a client. Failures are results with an error."""
