"""Python functions as MCP tools: schemas from signatures, results from return values.

Pure. It does not know the gateway, sessions or transports.
"""
