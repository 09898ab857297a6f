"""mcp-mirror: an MCP gateway that gives every tool a twin which speaks in memory paths."""

from importlib.metadata import version

__version__ = version("mcp-mirror")
