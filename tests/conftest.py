"""What concerns every test: those of one group stay together, and hypothesis has the same examples on every run.

The variable HYPOTHESIS_PROFILE chooses how many: `quick` (the default) 25 for each test, `same` 150, and `explore` 150
that differ each time. And what tests of several folders need.
"""

import asyncio
import atexit
import gc
import json
import logging
import os
import shlex
import signal
import sys
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from uuid import uuid4
from weakref import WeakKeyDictionary

import pytest
from gateway_processes import COMMAND as GATEWAY
from gateway_processes import Start, forked_python, start_command, start_executable
from hypothesis import HealthCheck, settings
from redis_process import COMMAND, MISSING, RedisProcess
from s3_process import IS_INSTALLED as S3_IS_INSTALLED
from s3_process import MISSING as S3_MISSING
from s3_process import S3Process
from scheduling import ModuleScheduling, rank

settings.register_profile(
    "same", derandomize=True, max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("quick", settings.get_profile("same"), max_examples=25)
settings.register_profile("explore", settings.get_profile("same"), derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_configure(config: pytest.Config) -> None:
    """Set how this process is interrupted and ends.

    Processes that tests start can be interrupted also where a shell runs all of this in the background: such a shell
    has its children ignore SIGINT (POSIX, 2.11), and they theirs.

    A process of pytest-xdist ends without freeing its thousands of tests: that takes over ten seconds, after which
    pytest-xdist kills it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if _is_worker(config):
        atexit.register(os._exit, 0)  # what is registered later runs before


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """Undo what a command that ran in this process set: its handler's stream closes, and later tests would log too."""
    yield
    root, own = logging.getLogger(), logging.getLogger("mcp_mirror")
    if own.level:
        own.setLevel(logging.NOTSET)
        root.setLevel(logging.WARNING)
        root.handlers[:] = [handler for handler in root.handlers if type(handler) is not logging.StreamHandler]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from searching the thousands of collected tests again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Let objects be freed at the end of the process: some extension modules report those that are not."""
    if not _is_worker(config):
        gc.unfreeze()


@pytest.fixture(autouse=True, scope="session")
def _own_caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for caches that is not the user's."""
    folder = tmp_path_factory.mktemp("caches")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(autouse=True, scope="session")
def _named_processes() -> Iterator[None]:
    """Name the process that is left when an event loop closes, in the test that left it.

    Python itself names only its number, whenever the garbage collector finds it, which is in any later test.
    """
    processes = WeakKeyDictionary[asyncio.SubprocessTransport, tuple[asyncio.BaseEventLoop, str]]()
    start, close = asyncio.BaseEventLoop.subprocess_exec, asyncio.BaseEventLoop.close

    async def start_remembered(loop: asyncio.BaseEventLoop, *args: Any, **keys: Any) -> Any:
        transport, protocol = await start(loop, *args, **keys)
        processes[transport] = loop, shlex.join(map(os.fsdecode, args[1:]))
        return transport, protocol

    def close_empty(loop: asyncio.BaseEventLoop) -> None:
        left = [
            command
            for transport, (of, command) in processes.items()
            if of is loop and transport.get_returncode() is None and not transport.is_closing()
        ]
        close(loop)
        assert not left, f"The event loop was closed while it had processes: {left}"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.BaseEventLoop, "subprocess_exec", start_remembered)
        patch.setattr(asyncio.BaseEventLoop, "close", close_empty)
        yield


@pytest.fixture(autouse=True)
def _own_cache(_own_caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache for each test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(_own_caches / uuid4().hex))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Keep tests that share much in one process."""
    return ModuleScheduling(config, log) if config.getoption("dist") == "loadgroup" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what needs more than Windows has, begin long tests first, and run each `xdist_group` in one process.

    pytest-xdist 3.8 writes the group where pytest 9.2 does not look for it (pytest-xdist #1386), so that what a group
    shares is made in every process.
    """
    if sys.platform == "win32":
        for item in items:
            if item.get_closest_marker("posix"):
                item.add_marker(pytest.mark.skip(reason="needs what Windows lacks"))
    if not config.getoption("loadgroup", default=False):
        return
    items.sort(key=lambda item: rank(item.nodeid))
    for item in items:
        groups = sorted({str(mark.args[0]) for mark in item.iter_markers("xdist_group")})
        if groups and not item.nodeid.endswith(suffix := f"@{'_'.join(groups)}"):
            item._id = item.id.parse(item.nodeid + suffix)  # noqa: SLF001  # see above


@pytest.fixture
def start(request: pytest.FixtureRequest) -> Start:
    """Starts a command: as a copy of a process with all imports, or as the executable for tests of `executable`."""
    return start_executable if request.node.get_closest_marker("executable") else start_command


@pytest.fixture(scope="session")
def forking_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that runs a script or a module as a fork of the template, and anything else as Python does."""
    program = tmp_path_factory.mktemp("python") / "python"
    start = shlex.join(forked_python())
    program.write_text(
        f'#!/bin/sh\ncase $1 in -m) ;; -*) exec {shlex.quote(sys.executable)} "$@";; esac\nexec {start} "$@"\n'
    )
    program.chmod(0o755)
    return program


@pytest.fixture(scope="session")
def forking_gateway(forking_python: Path) -> Path:
    """A program beside `forking_python` that runs `mcp-mirror` as a fork of the template."""
    program = forking_python.with_name("mcp-mirror")
    program.write_text(f'#!/bin/sh\nexec {shlex.join(forked_python(GATEWAY))} "$@"\n')
    program.chmod(0o755)
    return program


@pytest.fixture
def forked_servers(forking_python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`${PYTHON}` in configurations runs scripts as forks, and so does `sys.executable`."""
    monkeypatch.setenv("PYTHON", str(forking_python))
    monkeypatch.setattr(sys, "executable", str(forking_python))


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    """A Redis server that is not harmed: tests keep apart by prefix."""
    if COMMAND is None:
        pytest.skip(MISSING)
    with RedisProcess(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Process]:
    """An S3-compatible server with one bucket; stores keep apart by folder."""
    if not S3_IS_INSTALLED:
        pytest.skip(S3_MISSING)
    with S3Process() as server:
        yield server


@pytest.fixture
def bucket(s3_server: S3Process, monkeypatch: pytest.MonkeyPatch) -> S3Process:
    """The server, with its address and credentials in the environment."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return s3_server


@pytest.fixture
def own_s3() -> Iterator[S3Process]:
    """An S3-compatible server to be harmed."""
    if not S3_IS_INSTALLED:
        pytest.skip(S3_MISSING)
    with S3Process() as server:
        yield server


@pytest.fixture
def absent_redis(tmp_path: Path) -> Iterator[RedisProcess]:
    """A Redis server that the test starts, and may harm."""
    if COMMAND is None:
        pytest.skip(MISSING)
    server = RedisProcess(tmp_path, "--appendonly", "yes", "--appendfsync", "always")
    yield server
    server.kill()


@pytest.fixture
def own_redis(absent_redis: RedisProcess) -> RedisProcess:
    """A Redis server that the test may harm."""
    absent_redis.start()
    return absent_redis


@pytest.fixture(scope="session")
def count_tokens() -> Callable[[str], int]:
    """OpenAI's o200k."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the package reads its data in an old way
        import bpe_openai  # noqa: PLC0415  # must stand where the warning is caught

        encoding = bpe_openai.get_encoding("o200k_base")

    def count(text: str) -> int:
        at_once = 50_000  # the package refuses texts of more than 200,000 tokens
        return sum(len(encoding.encode(text[at : at + at_once])) for at in range(0, len(text), at_once))

    return count


_PLAIN: Final = frozenset({"type", "description", "title", "default"})
_ARGUMENTS: Final = ("properties", "patternProperties")
_ITEMS: Final = ("items", "prefixItems", "additionalProperties")
_CASES: Final = ("anyOf", "oneOf", "allOf")
_DEFINITIONS: Final = ("$defs", "definitions")


def _places(schema: Any) -> int:
    """Arguments, their members and items, at any depth, that are more than a bare text."""
    if not isinstance(schema, dict):
        return 0
    inside = [part for key in _CASES for part in schema.get(key, ())]
    inside += [part for key in _DEFINITIONS for part in schema.get(key, {}).values()]
    below = [part for key in _ARGUMENTS for part in schema.get(key, {}).values()]
    for key in _ITEMS:
        value = schema.get(key, ())
        below += value if isinstance(value, list) else [value] if isinstance(value, dict) else []
    costly = [part for part in below if not (part.keys() <= _PLAIN and part.get("type") == "string")]
    return len(costly) + sum(map(_places, (*below, *inside)))


@pytest.fixture(scope="session")
def extra_tokens(
    count_tokens: Callable[[str], int],
) -> Callable[[Mapping[str, Any], Mapping[str, Any]], tuple[int, int]]:
    """How many tokens a twin costs more than its tool, and how many places of that take something other than text."""

    def cost(advert: Mapping[str, Any]) -> int:
        seen = {key: value for key, value in advert.items() if key in ("name", "description", "inputSchema")}
        return count_tokens(json.dumps(seen, separators=(",", ":"), ensure_ascii=False))

    return lambda tool, twin: (cost(twin) - cost(tool), _places(tool["inputSchema"]))
