"""Real gateways for tests with real monitoring programs."""

from tests.walk.conftest import configured, raw, serve

__all__ = ["configured", "raw", "serve"]
