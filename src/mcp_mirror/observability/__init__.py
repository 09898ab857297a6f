"""Logging, the audit log, the log of calls with the lineage of values, metrics and traces.

None of them contains a stored value or a secret. Only the log of calls describes arguments, with their texts and
numbers if the configuration asks for them.
"""
