"""Two real gateways behind a real HAProxy, over one real Redis server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import shutil
import signal
import subprocess
import sys
from collections import Counter, deque
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from redis_process import COMMAND as REDIS
from redis_process import RedisProcess, free_port
from waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

BOUND = 60.0
TESTS = Path(__file__).parents[1]
GATEWAY = str(Path(sys.executable).parent / "mcp-mirror")
REPLICAS = ("one", "two")
HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")
MISSING = [name for name, found in (("redis-server", REDIS), ("haproxy", HAPROXY)) if found is None]

PROXY = TESTS.parent / "docker" / "haproxy.cfg"
"""The one that is shipped."""


def python(script: str, *args: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": [str(TESTS / script), *args]}


@dataclass
class Cluster:
    """What runs."""

    folder: Path
    redis: RedisProcess
    ports: dict[str, int]
    port: int
    upstreams: dict[str, Any]
    gateways: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    state_key: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)

    @property
    def url(self) -> str:
        """Through the proxy."""
        return f"http://127.0.0.1:{self.port}/mcp"

    def url_of(self, replica: str) -> str:
        """Past the proxy."""
        return f"http://127.0.0.1:{self.ports[replica]}/mcp"

    def proxied(self) -> dict[str, str]:
        """What the proxy's configuration takes from its environment."""
        one, two = (f"127.0.0.1:{self.ports[name]}" for name in REPLICAS)
        return {"MIRROR_BIND": f"127.0.0.1:{self.port}", "MIRROR_ONE": one, "MIRROR_TWO": two}

    def configure(self) -> Path:
        path = self.folder / "mirror.yaml"
        sections = {
            "upstreams": self.upstreams,
            "mirror": {"startup_wait": 60},
            "store": {"kind": "redis", "url": self.redis.url},
            "server": {"state_keys": [self.state_key], "drain": 1},
        }
        path.write_text(json.dumps(sections))
        return path

    def launch(self, replica: str) -> None:
        """Start a gateway."""
        port = f"127.0.0.1:{self.ports[replica]}"
        with (self.folder / f"{replica}.log").open("ab") as log:
            command = [GATEWAY, "serve", "--config", str(self.configure()), "--http", port]
            self.gateways[replica] = subprocess.Popen(command, stderr=log)

    def kill(self, replica: str) -> None:
        process = self.gateways.pop(replica)
        process.send_signal(signal.SIGKILL)
        process.wait(BOUND)

    def shut_down(self, replica: str) -> None:
        """Let a gateway finish its calls, as an orchestrator does."""
        process = self.gateways.pop(replica)
        process.terminate()
        assert process.wait(BOUND) == 0, (self.folder / f"{replica}.log").read_text()

    def stop(self) -> None:
        for replica in tuple(self.gateways):
            self.kill(replica)

    async def in_rotation(self, *replicas: str) -> None:
        """Wait until the proxy sends requests to just these."""
        seen: deque[str | None] = deque(maxlen=4)

        async def see() -> set[str | None]:
            async with httpx2.AsyncClient() as http:
                seen.append((await http.get(self.url)).headers.get("x-served-by"))
            return set(seen) if len(seen) == seen.maxlen else set()

        await until(see, lambda found: found == set(replicas), within=2 * BOUND)

    @asynccontextmanager
    async def client(self, url: str | None = None, **keys: Any) -> AsyncIterator[tuple[Client, Trail]]:
        """A real client, and which replica has answered each of its requests."""
        trail = Trail()
        hooks = {"response": [trail.note]}
        async with (
            asyncio.timeout(6 * BOUND),
            httpx2.AsyncClient(timeout=httpx2.Timeout(BOUND, read=60), event_hooks=hooks) as http,
            Client(streamable_http_client(url or self.url, http_client=http), **keys) as client,
        ):
            yield client, trail


@dataclass
class Trail:
    """Who answered what, in order."""

    steps: list[tuple[str, str]] = field(default_factory=list)

    async def note(self, response: httpx2.Response) -> None:
        if response.request.method == "POST" and "x-served-by" in response.headers:
            method = json.loads(response.request.content).get("method", "")
            self.steps.append((method, response.headers["x-served-by"]))

    def of(self, method: str = "tools/call") -> list[str]:
        return [replica for asked, replica in self.steps if asked == method]

    def counted(self) -> str:
        return ", ".join(f"{replica} {times}" for replica, times in sorted(Counter(self.of()).items()))


@contextlib.contextmanager
def running(command: list[str], **keys: Any) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, **keys)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait(BOUND)
        if process.stdout:
            process.stdout.close()


@asynccontextmanager
async def start_cluster(folder: Path) -> AsyncIterator[Cluster]:
    """Start everything, and stop it at the end."""
    everything = TESTS / "conformance" / "everything.py"
    async with AsyncExitStack() as stack:
        urls = []
        for more in ([], ["0", "--era", "2025-11-25"]):
            command = [sys.executable, str(everything), "http", *more]
            upstream = stack.enter_context(running(command, stdout=subprocess.PIPE))
            assert upstream.stdout is not None
            urls.append(f"http://127.0.0.1:{int(upstream.stdout.readline())}/mcp")
        upstreams = {
            "chemist": python("end_to_end/servers/chemist.py", "stdio"),
            "new": {"url": urls[0], "tools": {"allow": ["test_input_required_result_request_state"]}},
            "old": {"url": urls[1], "tools": {"allow": ["test_streaming_elicitation"]}},
        }
        redis = stack.enter_context(RedisProcess(folder, "--appendonly", "yes", "--appendfsync", "always"))
        cluster = Cluster(folder, redis, {name: free_port() for name in REPLICAS}, free_port(), upstreams)
        stack.callback(cluster.stop)
        for name in REPLICAS:
            cluster.launch(name)
        log = stack.enter_context((folder / "haproxy.log").open("wb"))
        stack.enter_context(
            running([str(HAPROXY), "-db", "-f", str(PROXY)], env=cluster.proxied(), stderr=log, stdout=log)
        )
        await until(partial(_is_answering, cluster), within=2 * BOUND)
        await cluster.in_rotation(*REPLICAS)
        yield cluster


async def _is_answering(cluster: Cluster) -> bool:
    with contextlib.suppress(httpx2.TransportError):
        async with httpx2.AsyncClient() as http:
            return "x-served-by" in (await http.get(cluster.url)).headers
    return False
