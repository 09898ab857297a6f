"""Bytes on their way: framing, JSON-RPC, spans in JSON text, spool files, pipes.

Payloads pass without being parsed into objects. It must not know what a tool, a value or a policy is.
"""
