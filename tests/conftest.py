"""What concerns every test: those of one group stay together. And what tests of several folders need."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis_process import COMMAND, MISSING, RedisProcess


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let tests of one `xdist_group` run in one process, one after another.

    pytest-xdist 3.8 writes the group where pytest 9.2 does not look for it (pytest-xdist #1386), so that what a group
    shares is made in every process.
    """
    if not config.getoption("loadgroup", default=False):
        return
    for item in items:
        groups = sorted({str(mark.args[0]) for mark in item.iter_markers("xdist_group")})
        if groups and not item.nodeid.endswith(suffix := f"@{'_'.join(groups)}"):
            node_id = item._id  # noqa: SLF001  # see above
            item._id = node_id.parse(item.nodeid + suffix)  # noqa: SLF001


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
