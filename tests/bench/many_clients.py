"""Many HTTP clients, clients that vanish, and long lists of tools; with the longest stall of the event loop."""

import asyncio
import itertools
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from measures import quantile, show
from process_tree import offspring
from raw_client import NEW, OLD, AsyncHttpClient, HttpClient, StdioClient
from raw_measures import RAW_SERVER, listening, wait_ready
from rich.console import Console
from setups import Stalls, config_of, gateway_argv

_LOAD: Final = 5.0
"""Seconds for which all clients call."""
_CLIENTS: Final = (1, 50, 500)
_TOOLS: Final = 10_000
_VANISHING: Final = 10
_PROGRAMS: Final = 3
_GONE: Final = 30.0
"""Seconds after which the programs of vanished clients are counted."""
_LIMITS: Final = {"sessions_per_principal": 1000, "pending_connections_per_address": 1000}
"""All clients have the same address and the same principal."""


@contextmanager
def gateway(settings: dict[str, Any]) -> Iterator[tuple[int, int, Stalls]]:
    """Start a gateway on HTTP whose stalls are measured; yield its process id, its port and the stalls."""
    with config_of(settings) as config:
        stalls = Stalls(config.with_name("stalls"))
        with listening(gateway_argv(config, "--http", "127.0.0.1:0", stalls=stalls)) as (process, port):
            yield process, port, stalls


def raw_upstream(version: str = OLD, *arguments: str, **settings: Any) -> dict[str, Any]:
    """Return the settings of an upstream without an SDK, over stdio."""
    return {"command": sys.executable, "args": [RAW_SERVER, "--version", version, *arguments], **settings}


async def clients(console: Console, runs: int, large: bool) -> None:  # noqa: ARG001, FBT001  # a table of one signature
    """Calls per second of 1, 50 and 500 HTTP clients, beside the same clients of an upstream without an SDK."""
    rows = []
    for version, number in itertools.product((OLD, NEW), _CLIENTS):
        with listening([sys.executable, RAW_SERVER, "--http", "--version", version]) as (_, port):
            _, direct = await _load(port, version, number, "echo")
        settings = {"upstreams": {"bench": raw_upstream(version, scope="shared")}, "limits": _LIMITS}
        with gateway(settings) as (_, port, stalls):
            with HttpClient(port, version) as client:
                wait_ready(client)
            stalls.reset()
            ready, ours = await _load(port, version, number, "echo_mirrored")
            rows.append((
                f"{number}, {version}", f"{len(direct) / _LOAD:,.0f}/s", f"{len(ours) / _LOAD:,.0f}/s",
                f"{1e3 * quantile(ours, 0.5):.1f} ms", f"{1e3 * quantile(ours, 0.99):.1f} ms", f"{ready:.2f} s",
                str(stalls),
            ))  # fmt: skip
    header = ("clients", "direct over HTTP", "ours", "p50", "p99", "all clients ready", "longest stall")
    show(
        console, "HTTP clients that call without a pause, to an upstream over stdio; both without an SDK", header, rows
    )


async def _load(port: int, version: str, number: int, tool: str) -> tuple[float, list[float]]:
    """Return the seconds until all clients are connected, and the seconds of each call that they make."""
    began = time.perf_counter()
    connected = [AsyncHttpClient(version) for _ in range(number)]
    async with asyncio.TaskGroup() as tasks:
        for client in connected:
            tasks.create_task(client.open(port))
    ready = time.perf_counter() - began
    seconds: list[float] = []
    end = time.perf_counter() + _LOAD

    async def keep_calling(client: AsyncHttpClient) -> None:
        last = time.perf_counter()
        while last < end:
            await client.request("tools/call", {"name": tool, "arguments": {"text": "x"}})
            now = time.perf_counter()
            if now < end:
                seconds.append(now - last)
            last = now

    async with asyncio.TaskGroup() as tasks:
        for client in connected:
            tasks.create_task(keep_calling(client))
    for client in connected:
        client.transport.close()
    return ready, seconds


async def vanishing(console: Console, runs: int, large: bool) -> None:  # noqa: ARG001, FBT001
    """Programs of upstreams that are left after clients have closed their connections without a DELETE request."""
    upstreams = {f"bench{number}": raw_upstream(OLD) for number in range(_PROGRAMS)}
    with gateway({"upstreams": upstreams, "server": {"session_idle": 10}}) as (process, port, _):
        with HttpClient(port) as client:
            wait_ready(client, "bench0_echo_mirrored")
            before = _programs(process)
            with ExitStack() as stack:
                for _ in range(_VANISHING):
                    vanishing_client = stack.enter_context(HttpClient(port))
                    for name in upstreams:
                        call = {"name": f"{name}_echo_mirrored", "arguments": {"text": "x"}}
                        vanishing_client.request("tools/call", call)
                during = _programs(process)
            gone = time.monotonic()
        while (left := _programs(process)) > before and time.monotonic() - gone < _GONE:  # noqa: ASYNC110
            await asyncio.sleep(0.1)  # a sampling interval
    row = (str(before), str(during), str(left), f"{time.monotonic() - gone:.1f} s")
    header = ("before", "with ten clients", "after they vanished", "seconds later")
    title = f"Programs that the gateway has started; {_PROGRAMS} upstreams of {OLD}, `server.session_idle: 10s`"
    show(console, title, header, [row])


def _programs(process: int) -> int:
    """Return the number of upstreams that run below a process."""
    return sum(RAW_SERVER in command for command in offspring(process).values())


async def changes(console: Console, runs: int, large: bool) -> None:  # noqa: ARG001, FBT001
    """Stalls while an upstream with 10,000 tools changes one of them."""
    upstream = raw_upstream(OLD, "--tools", str(_TOOLS), scope="shared")
    rows = []
    with config_of({"upstreams": {"bench": upstream}}) as config:
        stalls = Stalls(config.with_name("stalls"))
        with StdioClient(gateway_argv(config, stalls=stalls)) as client:
            wait_ready(client)
            rows.append(("start", "", str(stalls)))
            for name in ("tools/list", "list_changed"):
                seconds = []
                stalls.reset()
                for _ in range(runs):
                    client.notifications.clear()
                    began = time.perf_counter()
                    if name == "tools/list":
                        client.request("tools/list", {})
                    else:
                        client.request("tools/call", {"name": "change_mirrored", "arguments": {}})
                        client.wait_for("notifications/tools/list_changed")
                    seconds.append(time.perf_counter() - began)
                rows.append((name, f"{quantile(seconds, 0.5):.2f} s", str(stalls)))
    header = ("during", "seconds", "longest stall")
    show(console, f"An upstream with {_TOOLS:,} tools of {OLD}", header, rows)
