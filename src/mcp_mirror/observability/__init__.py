"""Logging and the audit log. Neither ever contains a stored value, an argument or a secret."""
