"""Reads, searches and edits stored values. Pure: a value is bytes, and long tasks check a time limit.

This package must not know tools, stores or workers.
"""
