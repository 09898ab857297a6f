"""A real gateway with real upstreams, and clients: the SDK's and two scripted ones."""

import asyncio
import contextlib
import json
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytest
import pytest_asyncio
from contexts import kept
from flow_user import open_desk
from gateway_processes import (
    GatewayProcess,
    Start,
    client_transport,
    forked_python,
    forked_upstream,
    start_command,
)
from mcp import Client

sys.set_int_max_str_digits(0)  # only in these tests, which read back any integer

SERVERS = Path(__file__).parent / "servers"
BOUND = 60.0
"""Seconds that anything may take."""
SHOWS_VIEWS = {"extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]}}}
"""The capabilities of a client that shows views of MCP Apps."""


SHARED = {"client", "mirror", "shared_client", "shared_desk", "shared_lines"}
"""Fixtures that the tests of a module share. Such tests only add values."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests that share a fixture in one process and in the event loop of their module."""
    here = str(Path(__file__).parent)
    for item in items:  # all tests, not only those of this folder
        if str(item.path).startswith(here) and SHARED.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.asyncio(loop_scope="module"), append=False)
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


class Configured(Protocol):
    def __call__(self, upstreams: dict[str, Any], **sections: Any) -> Path: ...


@pytest.fixture
def configured(tmp_path: Path) -> Configured:
    """Writes a configuration file: with `memory_tools: all`, unless a test chooses others."""

    return partial(_write_config, tmp_path)


def _write_config(folder: Path, upstreams: dict[str, Any], **sections: Any) -> Path:
    path = folder / "mirror.yaml"
    store = {"path": str(folder / "store"), **sections.pop("store", {})}
    chosen = {key: value for key, value in store.items() if value is not None}
    sections["mirror"] = {"inline_budget": 300, **sections.get("mirror", {})}
    sections["memory_tools"] = {"set": "all", **sections.get("memory_tools", {})}
    written = path.with_suffix(".new")
    written.write_text(json.dumps({"upstreams": upstreams, "store": chosen, **sections}))
    written.chmod(0o600)
    written.replace(path)  # a gateway that watches the file reads no part of it
    return path


@pytest.fixture
def chemist() -> dict[str, Any]:
    """An upstream on the SDK, over stdio."""
    return forked_upstream(str(SERVERS / "chemist.py"), "stdio")


def scripted_upstream(behaviour: str = "ok", *args: str, **keys: Any) -> dict[str, Any]:
    """The configuration of `servers/raw.py`: its behaviour and options, and keys of an upstream."""
    return {"command": sys.executable, "args": ["-S", str(SERVERS / "raw.py"), behaviour, *args], **keys}


@pytest.fixture
def raw() -> Callable[..., dict[str, Any]]:
    """A scripted upstream over stdio: see `scripted_upstream`."""

    return scripted_upstream


@dataclass
class Served:
    """A running `mcp-mirror serve --http`."""

    process: GatewayProcess
    url: str
    stderr: list[bytes] = field(default_factory=list)


async def _drain(stream: asyncio.StreamReader | None, into: list[bytes]) -> None:
    assert stream is not None
    while data := await stream.read(1 << 16):
        into.append(data)


async def stop(process: GatewayProcess) -> int:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    return await asyncio.wait_for(process.wait(), BOUND)


@asynccontextmanager
async def serve_gateway(config: Path, *more: str, start: Start = start_command) -> AsyncIterator[Served]:
    """Start a gateway on HTTP, and wait until it serves."""
    process = await start("serve", "--config", str(config), "--http", "127.0.0.1:0", *more, stderr=PIPE)
    assert process.stderr is not None
    before: list[bytes] = []
    while b" serves " not in (line := await asyncio.wait_for(process.stderr.readline(), BOUND)):
        before.append(line)
        assert line, b"".join(before).decode()
    served = Served(process, line.split()[-1].decode(), [*before, line])
    reading = asyncio.create_task(_drain(process.stderr, served.stderr))
    try:
        yield served
    finally:
        await stop(process)
        await asyncio.wait_for(reading, BOUND)


Serve = Callable[..., AbstractAsyncContextManager[Served]]


@pytest.fixture
def serve(start: Start) -> Serve:
    """Starts the gateway on HTTP."""
    return partial(serve_gateway, start=start)


@dataclass
class Connected:
    """A gateway and a client that is connected to it."""

    process: GatewayProcess
    client: Client


@asynccontextmanager
async def connect_gateway(
    config: Path, transport: str = "stdio", start: Start = start_command, **keys: Any
) -> AsyncIterator[Connected]:
    """Start a gateway and connect a client of the SDK."""
    if transport == "stdio":
        process = await start("serve", "--config", str(config), stdin=PIPE, stdout=PIPE, stderr=DEVNULL)
        async with asyncio.timeout(3 * BOUND), Client(client_transport(process, BOUND), **keys) as client:
            yield Connected(process, client)
        return
    async with (
        serve_gateway(config, start=start) as served,
        asyncio.timeout(3 * BOUND),
        Client(served.url, **keys) as client,
    ):
        yield Connected(served.process, client)


Connect = Callable[..., AbstractAsyncContextManager[Client]]


@pytest.fixture
def connect(start: Start) -> Connect:
    """A client of the SDK's that is connected to a new gateway."""

    @asynccontextmanager
    async def connect_client(config: Path, transport: str = "stdio", **keys: Any) -> AsyncIterator[Client]:
        async with connect_gateway(config, transport, start, **keys) as connected:
            yield connected.client

    return connect_client


@dataclass
class Lines:
    """A client by hand on a gateway's standard input and output."""

    process: GatewayProcess
    stderr: list[bytes] = field(default_factory=list)
    next_id: int = 0

    async def send(self, line: str | bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write((line if isinstance(line, bytes) else line.encode()) + b"\n")
        await self.process.stdin.drain()

    async def receive(self) -> bytes:
        assert self.process.stdout is not None
        return await asyncio.wait_for(self.process.stdout.readline(), BOUND)

    async def request(self, method: str, params: str = "{}") -> bytes:
        """Ask, and give the raw line that answers."""
        self.next_id += 1
        await self.send(f'{{"jsonrpc":"2.0","id":{self.next_id},"method":"{method}","params":{params}}}')
        while True:
            line = await self.receive()
            assert line, b"".join(self.stderr)
            if json.loads(line).get("id") == self.next_id:
                return line

    async def greet(self, **capabilities: Any) -> dict[str, Any]:
        client = {"name": "hand", "version": "0"}
        params = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": client}
        greeting: dict[str, Any] = json.loads(await self.request("initialize", json.dumps(params)))["result"]
        await self.send('{"jsonrpc":"2.0","method":"notifications/initialized"}')
        return greeting

    async def call(self, tool: str, arguments: str = "{}") -> bytes:
        return await self.request("tools/call", f'{{"name":"{tool}","arguments":{arguments}}}')

    async def text(self, tool: str, arguments: Any = None) -> str:
        """Call a tool, and return the text of the first block of its result."""
        result = json.loads(await self.call(tool, json.dumps(arguments or {})))["result"]
        assert result["content"], f"The result of {tool} has no text: {result}"
        return str(result["content"][0]["text"])


@asynccontextmanager
async def run_command(start: Start, *args: str, **keys: Any) -> AsyncIterator[Lines]:
    """Run a command with a client by hand on its standard streams, until its input ends."""
    process = await start(*args, stdin=PIPE, stdout=PIPE, stderr=PIPE, **keys)
    lines = Lines(process)
    reading = asyncio.create_task(_drain(process.stderr, lines.stderr))
    try:
        yield lines
    finally:
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        await asyncio.wait_for(process.wait(), BOUND)
        await asyncio.wait_for(reading, BOUND)
        await asyncio.wait_for(process.stdout.read() if process.stdout else asyncio.sleep(0), BOUND)


OpenLines = Callable[..., AbstractAsyncContextManager[Lines]]


@pytest.fixture
def open_lines(start: Start) -> OpenLines:
    """A client by hand on a new gateway's standard streams."""

    def open_config(config: Path, *more: str, **keys: Any) -> AbstractAsyncContextManager[Lines]:
        return run_command(start, "serve", "--config", str(config), *more, **keys)

    return open_config


OpenClient = Callable[..., AbstractAsyncContextManager[Lines]]


@pytest.fixture
def open_client(configured: Configured, open_lines: OpenLines) -> OpenClient:
    """A client by hand that is connected to a new gateway with these upstreams and sections of its configuration."""

    @asynccontextmanager
    async def open_connected(upstreams: dict[str, Any], **sections: Any) -> AsyncIterator[Lines]:
        async with open_lines(configured(upstreams, **sections)) as client:
            await client.greet()
            yield client

    return open_connected


@asynccontextmanager
async def _listening(script: str, *args: str) -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(*forked_python(str(SERVERS / script), *args), stdout=PIPE)
    assert process.stdout is not None
    try:
        yield (await asyncio.wait_for(process.stdout.readline(), BOUND)).decode().strip()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await asyncio.wait_for(process.communicate(), BOUND)


Listening = Callable[..., AbstractAsyncContextManager[str]]


@pytest.fixture
def listening() -> Listening:
    """Starts an upstream that serves HTTP; gives its port."""
    return _listening


Run = Callable[..., Any]


@dataclass
class Ended:
    code: int
    out: str
    err: str


async def _run(start: Start, *args: str, stdin: int | None = DEVNULL, **surroundings: Any) -> Ended:
    process = await start(*args, stdin=stdin, stdout=PIPE, stderr=PIPE, **surroundings)
    out, err = await asyncio.wait_for(process.communicate(), BOUND)
    assert process.returncode is not None
    return Ended(process.returncode, out.decode(), err.decode())


@pytest.fixture
def run(start: Start) -> Run:
    """Runs the command line to its end."""
    return partial(_run, start)


@pytest.fixture
def desk(configured: Configured, tmp_path: Path) -> Callable[..., Any]:
    """Opens a gateway with labels and flow rules in this process."""
    return partial(open_desk, configured, tmp_path)


@asynccontextmanager
async def _shared(folders: pytest.TempPathFactory, start: Callable[..., Any]) -> AsyncIterator[Callable[..., Any]]:
    """Starts one gateway for each configuration, and gives it again for the same one."""
    started: dict[str, Any] = {}
    async with AsyncExitStack() as stack:

        async def get(upstreams: Mapping[str, Any], **sections: Any) -> Any:
            key = json.dumps([upstreams, sections], sort_keys=True)
            if key not in started:
                started[key] = await stack.enter_async_context(
                    kept(start(folders.mktemp("shared"), upstreams, sections))
                )
            return started[key]

        yield get


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_desk(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Callable[..., Any]]:
    """Opens a gateway with labels and flow rules once for all tests of a module that give the same configuration."""

    def start(folder: Path, upstreams: dict[str, Any], sections: dict[str, Any]) -> Any:
        return open_desk(partial(_write_config, folder), folder, upstreams, **sections)

    async with _shared(tmp_path_factory, start) as get:
        yield get


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_lines(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Callable[..., Any]]:
    """Opens a gateway with a client by hand once for all tests of a module that give the same configuration.

    With `greets=False`, the client has not sent a handshake: its tests make requests of 2026-07-28.
    """

    @asynccontextmanager
    async def start(folder: Path, upstreams: dict[str, Any], sections: dict[str, Any]) -> AsyncIterator[Lines]:
        greets = sections.pop("greets", True)
        config = _write_config(folder, upstreams, **sections)
        async with run_command(start_command, "serve", "--config", str(config)) as lines:
            if greets:
                await lines.greet()
            yield lines

    async with _shared(tmp_path_factory, start) as get:
        yield get


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Callable[..., Any]]:
    """Opens a gateway with a client of the SDK once for all tests of a module that give the same configuration."""

    @asynccontextmanager
    async def start(folder: Path, upstreams: dict[str, Any], sections: dict[str, Any]) -> AsyncIterator[Client]:
        config = _write_config(folder, upstreams, **sections)
        process = await start_command("serve", "--config", str(config), stdin=PIPE, stdout=PIPE, stderr=DEVNULL)
        async with Client(client_transport(process, BOUND)) as client:
            yield client

    async with _shared(tmp_path_factory, start) as get:
        yield get


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(shared_lines: Callable[..., Any]) -> Lines:
    """A client by hand on a gateway with the scripted upstream, shared by the tests of a module.

    The tool `hear` shows what the upstream received, and no notice.
    """
    lines: Lines = await shared_lines({"raw": scripted_upstream(overrides={"hear": {"capture": "never"}})})
    return lines
