"""Connections to the user's MCP servers: registry, reconnecting connection, session, notifications, elicitation.

An upstream knows nothing of stored values: it receives arguments as bytes and returns results as bytes.
"""
