"""mcp-mirror: an MCP gateway that keeps large tool results out of the model's context.

For programs: `Mirror`, or `SyncMirror` without `async`; `mcp_mirror.prune` for conversations, and `mcp_mirror.errors`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp_mirror.library.mirror import OWN_TOOLS, Call, Mirror, Next, Reply, ScriptReply, Stage, ToolResult
    from mcp_mirror.library.sync_mirror import SyncMirror

    __version__: str

__all__ = [
    "OWN_TOOLS",
    "Call",
    "Mirror",
    "Next",
    "Reply",
    "ScriptReply",
    "Stage",
    "SyncMirror",
    "ToolResult",
    "__version__",
]


if not TYPE_CHECKING:  # type checkers would accept every name

    def __getattr__(name: str) -> Any:
        """Load a public name on first use: the command line and worker processes need few of them."""
        if name == "__version__":
            return import_module("importlib.metadata").version("mcp-mirror")
        if name in __all__:
            module = "mcp_mirror.library.sync_mirror" if name == "SyncMirror" else "mcp_mirror.library.mirror"
            return getattr(import_module(module), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the names with the public ones, for `help` and for the completion of shells and notebooks."""
    return sorted({*globals(), *__all__})
