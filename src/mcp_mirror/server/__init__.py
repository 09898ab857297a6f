"""The MCP server that clients connect to: stdio and HTTP transports, sessions, handlers, notifications.

It translates between the protocol and the gateway. It must not know how values are stored or how upstreams connect.
"""
