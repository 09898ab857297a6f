"""Evaluations with a model: cases, a tool-calling loop, checks, and tables of the results.

The product does not import this package. It runs the gateway as a process and imports only its public modules.
"""
