"""mcp-mirror: an MCP gateway that gives every tool a twin which speaks in memory paths."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp_mirror.mirror import Mirror, Reply

__all__ = ["Mirror", "Reply", "__version__"]

__version__ = version("mcp-mirror")


def __getattr__(name: str) -> Any:
    """Load the library's face when a program asks for it: the gateway's own processes need little of it."""
    if name in __all__:
        return getattr(import_module("mcp_mirror.mirror"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
