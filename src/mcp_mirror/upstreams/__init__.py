"""Connections to the user's MCP servers."""
