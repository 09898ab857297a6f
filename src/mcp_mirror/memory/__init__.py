"""Looks up and stores values, lists them as MCP resources, and counts tokens.

It applies the flow policy to each access. It must not know upstreams or clients.
"""
