"""Small calls, measured with a client and an upstream without an SDK."""

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from measures import quantile, show
from process_tree import offspring
from raw_client import NEW, OLD, HttpClient, RawClient, StdioClient
from rich.console import Console
from setups import HERE, config_of, gateway_argv

RAW_SERVER: Final = str(HERE / "raw_server.py")
SDK_SERVER: Final = str(HERE / "sdk_server.py")
RELAY: Final = str(HERE / "relay.py")
_CALLS: Final = 400
_LONGEST_RUN: Final = 2.0
"""Seconds after which a run of calls ends, even if some of the calls are left."""
_PORT: Final = re.compile(rb"(?:serves http://127\.0\.0\.1:|\A)(\d+)(?:/mcp)?\n")
_START: Final = 60.0
_ORDINARY: Final = (300, 1_000, 3_000, 10_000, 50_000)
"""Characters of results as everyday servers return them."""
_FIRST_LINES: Final = count()
_TICKS: Final = os.sysconf("SC_CLK_TCK")

Transport = Literal["stdio", "HTTP", "SDK server"]


class Route(NamedTuple):
    """A kind of client, a kind of upstream, and the protocol version of both."""

    client: Transport
    upstream: Transport
    version: str


_SMALL: Final = (
    Route("stdio", "stdio", OLD),
    Route("stdio", "stdio", NEW),
    Route("HTTP", "stdio", OLD),
    Route("HTTP", "stdio", NEW),
    Route("stdio", "HTTP", OLD),
    Route("stdio", "HTTP", NEW),
    Route("stdio", "SDK server", OLD),
)


@contextmanager
def listening(argv: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Start a program that serves HTTP and prints its port; yield its process id and the port."""
    with tempfile.NamedTemporaryFile() as output:
        process = subprocess.Popen(argv, stdout=output, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + _START
            while not (found := _PORT.search(text := Path(output.name).read_bytes())):
                assert time.monotonic() < deadline, text
                assert process.poll() is None, text
                time.sleep(0.01)
            yield process.pid, int(found[1])
        finally:
            process.terminate()
            process.wait(_START)


def wait_ready(client: RawClient, tool: str = "echo_mirrored") -> None:
    """Wait until the gateway lists a tool."""
    deadline = time.monotonic() + _START
    while tool not in (tools := [one["name"] for one in client.request("tools/list", {})["tools"]]):
        assert time.monotonic() < deadline, tools
        time.sleep(0.05)


def tree_cpu(process: int) -> float:
    """Return the CPU seconds of a process, its descendants and the children that have ended."""
    total = 0
    for member in (process, *offspring(process)):
        with suppress(FileNotFoundError):
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))
    return total / _TICKS


class Run(NamedTuple):
    """Some hundred calls in a row."""

    seconds: list[float]
    cpu: float
    """CPU seconds of the server and its child processes for one call."""

    @property
    def p50(self) -> float:
        """The median in milliseconds."""
        return 1e3 * statistics.median(self.seconds)


def run_calls(client: RawClient, tool: str, process: int = 0, characters: int = 0) -> Run:
    """Repeat a call.

    Args:
        client: The client.
        tool: The tool, `echo` or its twin; with `characters`, `log` or its twin.
        process: The server, if its CPU time is measured.
        characters: Those of each result, which differ; 0: the small call of `echo`.
    """
    seconds: list[float] = []
    cpu = tree_cpu(process) if process else 0.0
    began = last = time.perf_counter()
    while len(seconds) < _CALLS and last - began < _LONGEST_RUN:
        arguments = {"characters": characters, "first": next(_FIRST_LINES)} if characters else {"text": "x"}
        client.request("tools/call", {"name": tool, "arguments": arguments})
        now = time.perf_counter()
        seconds.append(now - last)
        last = now
    return Run(seconds, (tree_cpu(process) - cpu) / len(seconds) if process else 0.0)


class _Program(NamedTuple):
    """A program between client and upstream."""

    row: str
    """The name of its row."""
    client: RawClient
    pid: int
    tool: str = "echo_mirrored"


async def small(console: Console, runs: int, large: bool) -> None:  # noqa: ARG001, FBT001  # a table of one signature
    """A small call on every path through the gateway, and through a bare relay, beside direct calls."""
    rows = []
    for route in _SMALL:
        with ExitStack() as stack:
            direct, settings = _direct(route, stack)
            name = f"{route.client} to {route.upstream}, {route.version}"
            programs = [_Program(name, *_through_gateway(route, settings, stack))]
            if route == _SMALL[0]:
                relay = StdioClient([sys.executable, RELAY, settings["command"], *settings["args"]], route.version)
                programs.insert(0, _Program(f"a bare relay, {name}", stack.enter_context(relay), relay.pid, "echo"))
            rows += _measure_small(direct, programs, runs)
    header = ("client to upstream", "direct p50", "p50", "p99", "added/direct", "CPU with the upstream")
    show(console, "Small calls; client and upstream without an SDK, except where named", header, rows)


def _measure_small(direct: RawClient, programs: Sequence[_Program], runs: int) -> list[tuple[str, ...]]:
    """Measure direct calls and those through each program, in turns; return a row for each program."""
    for program in programs:
        run_calls(program.client, program.tool)
    turns = [
        (run_calls(direct, "echo"), [run_calls(one.client, one.tool, one.pid) for one in programs]) for _ in range(runs)
    ]
    before = statistics.median(its.p50 for its, _ in turns)
    rows: list[tuple[str, ...]] = []
    for program, column in zip(programs, zip(*(measured for _, measured in turns), strict=True), strict=True):
        after = statistics.median(run.p50 for run in column)
        added = statistics.median(run.p50 / its.p50 - 1 for run, (its, _) in zip(column, turns, strict=True))
        p99 = quantile([second for run in column for second in run.seconds], 0.99)
        cpu = sum(run.cpu for run in column) / runs
        rows.append((
            program.row, f"{before:.3f} ms", f"{after:.2f} ms", f"{1e3 * p99:.2f} ms", f"{added:.2f}",
            f"{1e6 * cpu:,.0f} µs",
        ))  # fmt: skip
    return rows


async def ordinary(console: Console, runs: int, large: bool) -> None:  # noqa: ARG001, FBT001  # a table of one signature
    """Results of ordinary size, of which each is new; the gateway shows the smaller ones and stores the larger ones."""
    rows = []
    with ExitStack() as stack:
        direct, settings = _direct(_SMALL[0], stack)
        ours, gateway = _through_gateway(_SMALL[0], settings, stack)
        for characters in _ORDINARY:
            run_calls(ours, "log_mirrored", characters=characters)
            pairs = [
                (run_calls(direct, "log", 0, characters), run_calls(ours, "log_mirrored", gateway, characters))
                for _ in range(runs)
            ]
            before, after = (statistics.median(run.p50 for run in column) for column in zip(*pairs, strict=True))
            cpu = statistics.median(mine.cpu for _, mine in pairs)
            size = f"{characters / 1e3:g} kB"
            rows.append((size, f"{before:.3f} ms", f"{after:.2f} ms", f"{1e6 * cpu:,.0f} µs"))
    header = ("text", "direct p50", "ours p50", "CPU of gateway and upstream")
    show(console, "Results of ordinary size, stdio to stdio, disk store", header, rows)


def _direct(route: Route, stack: ExitStack) -> tuple[RawClient, dict[str, Any]]:
    """Start the upstream, and return a client that is connected to it and the settings for the gateway."""
    if route.upstream == "HTTP":
        _, port = stack.enter_context(listening([sys.executable, RAW_SERVER, "--http", "--version", route.version]))
        return stack.enter_context(HttpClient(port, route.version)), {"url": f"http://127.0.0.1:{port}/mcp"}
    argv = [SDK_SERVER] if route.upstream == "SDK server" else [RAW_SERVER, "--version", route.version]
    client = stack.enter_context(StdioClient([sys.executable, *argv], route.version))
    return client, {"command": sys.executable, "args": argv}


def _through_gateway(route: Route, upstream: dict[str, Any], stack: ExitStack) -> tuple[RawClient, int]:
    """Start a gateway, and return a client that is connected to it and the process of the gateway."""
    config = stack.enter_context(config_of({"upstreams": {"bench": upstream}}))
    client: StdioClient | HttpClient
    if route.client == "HTTP":
        gateway, port = stack.enter_context(listening(gateway_argv(config, "--http", "127.0.0.1:0")))
        client = stack.enter_context(HttpClient(port, route.version))
    else:
        client = stack.enter_context(StdioClient(gateway_argv(config), route.version))
        gateway = client.pid
    wait_ready(client)
    return client, gateway
