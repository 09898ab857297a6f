"""Example MCP servers with real computation: molecules (`demo.molecules`) and documents (`demo.documents`).

They exist so that large and nested tool results can be tried without any other server at hand, and they stand apart:
nothing here knows the rest of the package.
"""
