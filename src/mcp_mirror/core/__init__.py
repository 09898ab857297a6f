"""Pure functions of the gateway: names, schemas, pointers, capture, previews, notices, budgets.

They perform no I/O, use no clock or randomness, write no logs, and do not know their callers.
"""
