"""Real upstream servers behind a real gateway process, and the official SDK's client before it.

The client lives on an event loop of its own thread, so that one connection serves the tests of a session; every
request and every wait for a process is bounded.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from gateway_processes import forked_upstream
from mcp import Client, StdioServerParameters
from mcp_types import CallToolResult, ContentBlock, TextContent, Tool
from notices import path_in
from redis_process import free_port

REQUEST: Final = 30.0
"""Seconds that one request to a gateway or a server may take."""
START: Final = 60.0
"""Seconds that a gateway may take until it accepts connections."""
STOP: Final = 60.0
"""Seconds that a gateway may take to leave."""

NODE_MODULES: Final = Path(__file__).parents[1] / "node" / "node_modules"
PACKAGES: Final = NODE_MODULES / "@modelcontextprotocol"

NAMES: Final = ("git", "time", "everything", "files")
"""The four upstreams, in the order of the configuration."""

Servers = Mapping[str, StdioServerParameters]
Missing = Callable[[str], NoReturn]
Target = StdioServerParameters | str


@dataclass(frozen=True, slots=True)
class Connection:
    """One client's connection to a gateway or, to compare, to a server itself."""

    portal: BlockingPortal
    client: Client

    def tools(self) -> list[Tool]:
        """All tools, page after page."""
        page = self.portal.call(self.client.list_tools)
        found = list(page.tools)
        while page.next_cursor:
            page = self.portal.call(partial(self.client.list_tools, cursor=page.next_cursor))
            found += page.tools
        return found

    def call(self, tool: str, **arguments: Any) -> CallToolResult:
        """The result of one call, an error or not."""
        result: CallToolResult = self.portal.call(self.client.call_tool, tool, arguments)
        return result

    def content(self, tool: str, **arguments: Any) -> list[ContentBlock]:
        """What one call, which succeeds, answers."""
        result = self.call(tool, **arguments)
        assert not result.is_error, result.content
        return result.content

    def text(self, tool: str, **arguments: Any) -> str:
        """The one text that one call, which succeeds, answers."""
        (block,) = self.content(tool, **arguments)
        assert isinstance(block, TextContent)
        return block.text

    def store(self, tool: str, **arguments: Any) -> str:
        """The memory path that one call answers, in its notice of the compact style."""
        return path_in(self.text(tool, **arguments))

    def recall(self, path: str) -> str:
        """The value at a memory path."""
        return self.text("retrieve_final_answer_from_memory", memory_path=path)


Connect = Callable[[Target], Connection]


@dataclass(frozen=True, slots=True)
class Place:
    """The folders that the servers work in."""

    notes: Path
    """Whose files the filesystem server serves."""
    repo: Path
    """A git repository whose first and last commit are more than a megabyte apart."""


@pytest.fixture(scope="session")
def missing() -> Missing:
    """Leave a test whose ground is missing; on CI, where nothing may be missing, fail it."""

    def leave(what: str) -> NoReturn:
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(f"{what} With CI=true that is a failure.", pytrace=False)
        pytest.skip(what)

    return leave


@pytest.fixture(scope="session")
def node(missing: Missing) -> str:
    """The Node 22 that comes as an npm package."""
    program = NODE_MODULES / "node" / "bin" / ("node.exe" if sys.platform == "win32" else "node")
    packages = [PACKAGES / name for name in ("inspector", "server-everything", "server-filesystem", "../ai")]
    absent = [path.name for path in (program, *packages) if not path.exists()]
    if absent:
        missing(f"Not installed: {', '.join(absent)}; `make node` installs the Node packages where npm is.")
    return str(program)


RunGit = Callable[..., bytes]


@pytest.fixture(scope="session")
def run_git(missing: Missing) -> RunGit:
    """Run git in a folder without user settings, and return its output."""
    program = shutil.which("git") or missing("There is no git.")
    environ = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}

    def run(folder: Path, *arguments: str) -> bytes:
        argv = [program, *arguments]
        return subprocess.run(argv, cwd=folder, env=environ, check=True, capture_output=True, timeout=REQUEST).stdout

    return run


NewRepo = Callable[[], Path]


@pytest.fixture(scope="session")
def new_repo(run_git: RunGit, tmp_path_factory: pytest.TempPathFactory) -> NewRepo:
    """An empty git repository, with an author."""

    def make() -> Path:
        repo = tmp_path_factory.mktemp("repo").resolve()
        run_git(repo, "init", "--quiet", "--initial-branch", "main")
        for key, value in (("user.name", "Ada"), ("user.email", "ada@example.org"), ("core.autocrlf", "false")):
            run_git(repo, "config", key, value)
        return repo

    return make


@pytest.fixture(scope="session")
def command() -> str:
    """The installed command `mcp-mirror`."""
    found = shutil.which("mcp-mirror", path=sysconfig.get_path("scripts"))
    assert found, "the package is not installed in the environment that runs the tests"
    return found


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory, run_git: RunGit, new_repo: NewRepo) -> Place:
    repo = new_repo()
    _make_history(run_git, repo)
    return Place(tmp_path_factory.mktemp("notes").resolve(), repo)


@pytest.fixture(scope="session")
def servers(node: str, place: Place) -> Servers:
    """How each of the four upstreams is started."""
    package = "dist/index.js"
    return {
        "git": StdioServerParameters(**forked_upstream("-m", "mcp_server_git")),
        "time": StdioServerParameters(**forked_upstream("-m", "mcp_server_time", "--local-timezone", "UTC")),
        "everything": StdioServerParameters(
            command=node, args=[str(PACKAGES / "server-everything" / package), "stdio"]
        ),
        "files": StdioServerParameters(
            command=node, args=[str(PACKAGES / "server-filesystem" / package), str(place.notes)]
        ),
    }


WriteConfig = Callable[..., Path]


@pytest.fixture(scope="session")
def write_config(tmp_path_factory: pytest.TempPathFactory) -> WriteConfig:
    """A configuration with these upstreams and these other sections."""

    def write(upstreams: Servers, **sections: Mapping[str, Any]) -> Path:
        entries = {name: {"command": one.command, "args": one.args} for name, one in upstreams.items()}
        folder = tmp_path_factory.mktemp("config")
        path, store = folder / "mirror.json", {"kind": "disk", "path": str(folder / "store")}
        path.write_text(json.dumps({"upstreams": entries, "store": store, **sections}), encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def config(write_config: WriteConfig, servers: Servers) -> Path:
    """The configuration with all four upstreams and nothing else."""
    return write_config(servers)


@pytest.fixture(scope="session")
def connect() -> Iterator[Connect]:
    with start_blocking_portal() as portal, ExitStack() as open_connections:

        def connect(target: Target) -> Connection:
            client = Client(target, read_timeout_seconds=REQUEST)
            return Connection(portal, open_connections.enter_context(portal.wrap_async_context_manager(client)))

        yield connect


Serve = Callable[[Path], StdioServerParameters]


@pytest.fixture(scope="session")
def serve(command: str) -> Serve:
    """How a gateway with a configuration is started on stdio."""
    return lambda path: StdioServerParameters(command=command, args=["serve", "--config", str(path)])


@pytest.fixture(scope="session")
def gateway(connect: Connect, serve: Serve, config: Path) -> Connection:
    """The gateway before all four upstreams, over stdio."""
    return connect(serve(config))


@pytest.fixture(scope="session")
def direct(connect: Connect, servers: Servers) -> Callable[[str], Connection]:
    """A connection to one of the servers itself, with no gateway between."""
    known: dict[str, Connection] = {}
    return lambda name: known.get(name) or known.setdefault(name, connect(servers[name]))


@pytest.fixture(scope="session")
def http_gateway(command: str, config: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a gateway before all four upstreams that serves HTTP."""
    log = tmp_path_factory.mktemp("http") / "stderr.txt"
    port = free_port()
    with (
        log.open("wb") as stderr,
        running([command, "serve", "--config", str(config), "--http", f"127.0.0.1:{port}"], stderr) as process,
    ):
        wait_until_it_listens(process, port, log)
        yield f"http://127.0.0.1:{port}/mcp"


@contextmanager
def running(argv: list[str], stderr: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process; terminate it at the end, and kill it if it does not exit."""
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP)
            raise


def wait_until_it_listens(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Try to connect until that succeeds or the process has ended."""
    deadline = time.monotonic() + START
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            try:
                process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
            break
        else:
            return
    pytest.fail(f"the gateway does not listen:\n{log.read_text(errors='replace')}")


def _make_history(run_git: RunGit, repo: Path) -> None:
    """Commits that each rewrite a file of text which is hard to carry."""
    for version in range(12):
        lines = (f'{version * number:x} "\\{number}" \u00e9\u2028\U0001f600\t{"x" * 40}' for number in range(20_000))
        ending = "\r\n" if version % 2 else "\n"
        (repo / "notes.txt").write_bytes(ending.join(lines).encode())
        run_git(repo, "add", "--all")
        run_git(repo, "commit", "--quiet", "--message", f"version {version}")
