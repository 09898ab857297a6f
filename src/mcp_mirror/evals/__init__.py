"""Evaluations with a model: cases, a tool-calling loop, checks, and tables of the results.

Beside the product, which does not import this package. It runs the gateway as a process, and imports few modules of it.
"""
