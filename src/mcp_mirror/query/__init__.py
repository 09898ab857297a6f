"""Reads, searches and edits stored values. A value is bytes, and long tasks check a time limit.

Pure, except the modules `sql*`, which run DuckDB in a worker process. The package must not know tools, stores or
workers.
"""
