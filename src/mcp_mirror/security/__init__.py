"""Flow policy, pinned definitions, rate limits, redaction, sanitizing, SSRF guard.

Each is a rule that others apply. Nothing here calls an upstream or reads a store.
"""
