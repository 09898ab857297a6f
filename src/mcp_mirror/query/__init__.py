"""Reads, searches and edits stored values. A value is bytes, and long tasks check a time limit.

Queries, which are structs that can be called, raise `ToolError` if they cannot be answered or reach the time limit.

Pure, except the modules `sql*`, which run DuckDB in a worker process. The package must not know tools, stores or
workers.
"""
