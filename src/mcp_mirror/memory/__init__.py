"""Stored values as the gateway uses them: look up, write, share as resources, count.

It applies the flow policy to each access. It must not know upstreams or clients.
"""
