"""Fixtures of the real gateway, for tests of what an attacker or a heavy load can do to it."""

from tests.walk.conftest import configured, connect, listening, raw, run, serve, speak

__all__ = ["configured", "connect", "listening", "raw", "run", "serve", "speak"]
