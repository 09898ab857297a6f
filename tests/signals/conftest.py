"""Real gateways for tests with real monitoring programs."""

import threading
from collections.abc import Iterator

import pytest
from tests.end_to_end.conftest import configured, raw, serve
from tests.signals.receiver import Receiver

__all__ = ["configured", "raw", "serve"]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
