"""mcp-mirror: an MCP gateway that gives every tool a twin which speaks in memory paths."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp_mirror.library.mirror import Mirror, Reply
    from mcp_mirror.library.sync_mirror import SyncMirror

__all__ = ["Mirror", "Reply", "SyncMirror", "__version__"]

__version__ = version("mcp-mirror")


def __getattr__(name: str) -> Any:
    """Load the library's face when a program asks for it: the gateway's own processes need little of it."""
    if name in __all__:
        module = "mcp_mirror.library.sync_mirror" if name == "SyncMirror" else "mcp_mirror.library.mirror"
        return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
