"""A real gateway between an SDK client and two upstreams: one with faults as tools, and a normal one."""

import asyncio
import contextlib
import json
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from mcp import Client
from mcp_types import TextContent
from tests.end_to_end.conftest import connect_gateway
from tests.faults.proxy import FaultProxy, proxying
from tests.faults.witness import BOUND, Witness, witnessing

ROOT = Path(__file__).parents[2]
HANG = 0.5
"""Seconds that a call may take to a tool that does not answer."""
MESSAGE = 2_000_000
"""Bytes that a message may have."""
_IMPATIENT = ("hang", "freeze", "wrong_id", "wrong_ids", "brief", "never_ending")
_PATIENT = BOUND
_PACE = 0.02
"""Seconds between two calls to the neighbour."""


@dataclass
class HttpUpstream:
    """The scripted upstream over HTTP, which can be started again on its port."""

    environment: dict[str, str]
    port: int = 0
    process: Process | None = None

    async def start(self) -> float:
        """Start it; the time at which it listened."""
        command = ("-m", "tests.faults.servers.http", str(self.port))
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, *command, cwd=ROOT, env=self.environment, stdout=PIPE, stderr=DEVNULL
        )
        assert self.process.stdout is not None
        self.port = int(await asyncio.wait_for(self.process.stdout.readline(), BOUND))
        return time.monotonic()

    async def stop(self) -> None:
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await asyncio.wait_for(self.process.communicate(), BOUND)


@dataclass(frozen=True)
class Answer:
    """What a client saw of one call."""

    text: str
    failed: bool
    at: float


@dataclass
class Stage:
    """Everything that one case needs."""

    folder: Path
    client: Client
    gateway: int
    """Its process id."""
    witness: Witness
    proxy: FaultProxy | None = None
    upstream: HttpUpstream | None = None
    _numbers: "count[int]" = field(default_factory=count)

    @property
    def down(self) -> Path:
        """While it is there, the upstream over stdio ends at its start."""
        return self.folder / "down"

    def key(self) -> str:
        """Of one call."""
        return f"key{next(self._numbers)}"

    async def call(self, tool: str, **arguments: Any) -> Answer:
        with_key = arguments if "key" in arguments else {"key": self.key(), **arguments}
        result = await asyncio.wait_for(self.client.call_tool(f"{tool}_mirrored", with_key), 3 * BOUND)
        block = result.content[0]
        assert isinstance(block, TextContent)
        return Answer(block.text, bool(result.is_error), time.monotonic())

    async def begin(self, tool: str, **arguments: Any) -> "asyncio.Task[Answer]":
        """A call that has reached its upstream."""
        key = self.key()
        task = asyncio.create_task(self.call(tool, key=key, **arguments))
        await self.witness.see("called", key=key)
        return task

    async def times(self, calls: int) -> list[float]:
        """Seconds that each of so many calls to the neighbour took; each of them must be answered."""
        return [await self._ping() for _ in range(calls)]

    async def times_until(self, done: asyncio.Event, at_least: int) -> list[float]:
        """Seconds of each call to the neighbour, at a steady pace until an event and in any case so many."""
        taken: list[float] = []
        while not done.is_set() or len(taken) < at_least:
            taken.append(await self._ping())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), _PACE)
        return taken

    async def _ping(self) -> float:
        began = time.monotonic()
        answer = await self.call("ping")
        assert not answer.failed, answer.text
        return answer.at - began

    def repeated(self) -> list[str]:
        """The keys of calls that reached an upstream more than once."""
        reached = Counter(word["key"] for word in self.witness.all("called"))
        return [key for key, times in reached.items() if times > 1]


def lines_upstream(environment: dict[str, str], *args: str, **keys: Any) -> dict[str, Any]:
    """The scripted upstream over stdio, as the gateway's configuration has it."""
    command = ["-m", "tests.faults.servers.lines", "ok", *args]
    return {"command": sys.executable, "args": command, "cwd": str(ROOT), "env": environment, **keys}


def settings_of(bad: dict[str, Any], folder: Path, environment: dict[str, str]) -> Path:
    """The configuration of a gateway before both."""
    tools = folder / "tools.json"
    tools.write_text(json.dumps([{"name": "ping", "inputSchema": {"type": "object"}}]))
    patience = {"timeout": _PATIENT, "overrides": {tool: {"timeout": HANG} for tool in _IMPATIENT}}
    upstreams = {"bad": bad | patience, "near": lines_upstream(environment, "--tools", str(tools))}
    config = folder / "mirror.json"
    sections = {"limits": {"max_message_bytes": MESSAGE}, "store": {"path": str(folder / "store")}}
    config.write_text(json.dumps({"upstreams": upstreams, **sections}))
    return config


@asynccontextmanager
async def staging(
    transport: str,
    folder: Path,
    *,
    client_transport: str = "",
    proxied: bool = False,
    version: str = "2025",
    mode: str = "legacy",
) -> AsyncIterator[Stage]:
    """The gateway with both upstreams ready; by default over the same transport on both sides."""
    async with AsyncExitStack() as stack:
        witness = await stack.enter_async_context(witnessing())
        environment = {"WITNESS": str(witness.port), "ERA": version, "DOWN": str(folder / "down")}
        upstream, proxy = None, None
        bad = lines_upstream(environment)
        if transport == "http":
            upstream = HttpUpstream(environment)
            await upstream.start()
            stack.push_async_callback(upstream.stop)
            if proxied:
                strike = lambda at: witness.record({"what": "struck", "at": at})  # noqa: E731  # one use
                proxy = await stack.enter_async_context(proxying(upstream.port, strike))
            bad = {"url": f"http://127.0.0.1:{proxy.port if proxy else upstream.port}/mcp"}
        config = settings_of(bad, folder, {"WITNESS": environment["WITNESS"]})
        gateway = await stack.enter_async_context(connect_gateway(config, client_transport or transport, mode=mode))
        await gateway.client.list_tools()
        yield Stage(folder, gateway.client, gateway.process.pid, witness, proxy, upstream)
