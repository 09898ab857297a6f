"""Flow policy, pinned definitions, rate limits, redaction, sanitizing, SSRF guard.

Each module is a rule that other packages apply. This package must not call upstreams or read stores.
"""
