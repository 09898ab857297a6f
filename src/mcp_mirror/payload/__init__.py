"""Message bytes: framing, JSON-RPC, spans in JSON text, spool files, pipes.

Payloads are never parsed into objects. This package must not know tools, stored values or policies.
"""
