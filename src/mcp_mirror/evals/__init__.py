"""Prove it with a model: cases, a tool-calling loop, and what came of it, checked and counted."""
