"""Real gateways for tests with real monitoring programs."""

import threading
from collections.abc import Iterator

import pytest
from tests.signals.receiver import Receiver
from tests.walk.conftest import configured, raw, serve

__all__ = ["configured", "raw", "serve"]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
