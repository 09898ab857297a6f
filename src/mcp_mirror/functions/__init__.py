"""Python functions as MCP tools: from a signature to a schema, from a return value to a result.

Pure. It must not know the gateway, sessions or transports.
"""
