"""Example MCP servers with real computation: molecules (`demo.molecules`) and documents (`demo.documents`).

They return large and nested results, so that the gateway can be tried without other servers. They must not know the
gateway.
"""
