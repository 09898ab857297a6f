"""The decisions of the gateway as pure functions: names, schemas, pointers, capture, previews, notices, budgets.

No I/O, clock, randomness or logging, and no knowledge of who calls.
"""
