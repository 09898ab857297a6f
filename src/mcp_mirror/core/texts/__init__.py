"""Texts of results: their format, and the tables, JSON and headings in them."""
