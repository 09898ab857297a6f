"""What tests of several folders need."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis_process import COMMAND, MISSING, RedisProcess


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    """A Redis server that is not harmed: tests keep apart by prefix."""
    if COMMAND is None:
        pytest.skip(MISSING)
    with RedisProcess(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisProcess]:
    """A Redis server to be harmed; the test starts it."""
    if COMMAND is None:
        pytest.skip(MISSING)
    server = RedisProcess(tmp_path, "--appendonly", "yes", "--appendfsync", "always")
    yield server
    server.kill()
