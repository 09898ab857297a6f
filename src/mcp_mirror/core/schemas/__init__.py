"""Schemas of tools: the definitions of twins, and the validation of arguments with its errors."""
