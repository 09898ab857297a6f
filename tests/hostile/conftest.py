"""Hostile input against a real gateway: a budget of time and memory for each kind of input.

    async def test_a_flood(configured, open_lines, raw, budget):
        async with open_lines(configured({"raw": raw()})) as client:
            await client.greet()
            async with budget(client, "flood of notifications", "3,000 notifications") as row:
                ...
                row.outcome = "calls are answered"

`budget` fails the test when the gateway's event loop stalls for more than `stall` seconds (0.1) within the block, when
its memory grows by more than `memory` bytes (200 MiB), or when another client waits longer than `wait` seconds (5.0),
times the slowness of a busy machine.
It reads the stalls from the status resource, with the bearer token `token` if the gateway requires one. A gateway that
runs with `-v` names the functions of a stall, and the failure shows them: `open_lines(config, "-v")`,
`serve(config, "-v")`.
Within the block `async with pinging(call, row):` repeats a call of another client and records the slowest.
`make hostile` runs all of these tests at full size and prints the rows as a table. Tests with the mark `full_size` run
only there.
"""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Final

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from tests.end_to_end.conftest import (
    BOUND,
    Configured,
    Lines,
    Listening,
    Served,
    chemist,
    configured,
    connect,
    listening,
    open_lines,
    raw,
    run,
    serve,
    shared_lines,
)
from tests.load import slowness

__all__ = [
    "Configured",
    "Lines",
    "Listening",
    "chemist",
    "configured",
    "connect",
    "listening",
    "open_lines",
    "raw",
    "run",
    "serve",
    "shared_lines",
]

ROOT = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "operations" / "security.md"
BEGIN: Final = "<!-- budgets: written by `make hostile` -->"
END: Final = "<!-- end of budgets -->"
STATUS: Final = "mcp-mirror://upstreams"
FULL: Final = "HOSTILE_FULL" in os.environ
full_size = pytest.mark.skipif(not FULL, reason="takes long; runs in `make hostile`")
MIB: Final = 1 << 20
_PAUSE: Final = 0.02
"""Seconds between two calls of another client."""
_TITLES: Final = ("Input", "Size", "Others waited", "Memory", "Outcome")


@dataclass
class Row:
    """A row of the table."""

    kind: str
    size: str
    stall: float = 0.0
    """Seconds of the longest stall."""
    waited: float | None = None
    """Seconds of the slowest call of another client; None if none was made."""
    memory: int = 0
    """Bytes by which the peak of the gateway and its workers was over what they had before."""
    outcome: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        waited = "-" if self.waited is None else f"{1000 * self.waited:,.0f} ms"
        return self.kind, self.size, waited, f"{self.memory / MIB:,.0f} MiB", self.outcome


Budget = Callable[..., AbstractAsyncContextManager[Row]]
Gateway = Lines | Served


@pytest.fixture
def budget(record_property: Callable[[str, object], None]) -> Budget:
    """Measures what a block costs the gateway, records it, and fails the test where it is over the budget."""
    return budget_with(lambda row: record_property("row", asdict(row)))


def budget_with(record: Callable[[Row], None]) -> Budget:
    """A budget that hands each row on."""

    @asynccontextmanager
    async def measure(
        gateway: Gateway,
        kind: str,
        size: str,
        *,
        stall: float = 0.1,
        memory: int = 200 * MIB,
        wait: float = 5.0,
        token: str = "",
    ) -> AsyncIterator[Row]:
        row = Row(kind, size)
        before = await read_event_loop(gateway, token)
        memory_before = _reset_peak(gateway.process.pid)
        try:
            yield row
            row.memory = _peak(gateway.process.pid) - memory_before
            row.stall = longest_stall(before, await read_event_loop(gateway, token))
            _check(row, gateway, stall, memory, wait)
        except BaseException:
            row.outcome = "FAILED"
            raise
        finally:
            record(row)

    return measure


def _check(row: Row, gateway: Gateway, stall: float, memory: int, wait: float) -> None:
    """Raise AssertionError where a row is over its budget; of a stall it names the functions, with `-v`."""
    log = [line for line in b"".join(gateway.stderr).decode(errors="replace").splitlines() if "stalled" in line]
    assert row.stall <= stall * slowness(), (
        f"the event loop stalled for {1000 * row.stall:.0f} ms, over {1000 * stall:.0f} ms: {log}"
    )
    assert row.memory <= memory, f"memory grew by {row.memory / MIB:.0f} MiB, over {memory / MIB:.0f} MiB"
    assert row.waited is None or row.waited <= wait * slowness(), (
        f"another client waited {row.waited:.1f} s, over {wait} s"
    )


@asynccontextmanager
async def pinging(call: Callable[[], Awaitable[object]], row: Row) -> AsyncIterator[None]:
    """Repeat a call of another client within the block; the slowest is the row's."""
    is_over = asyncio.Event()

    async def ping() -> None:
        while not is_over.is_set():
            began = monotonic()
            await call()
            row.waited = max(row.waited or 0.0, monotonic() - began)
            await asyncio.sleep(_PAUSE)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(ping())
        try:
            yield
        finally:
            is_over.set()


async def read_event_loop(gateway: Gateway, token: str = "") -> Mapping[str, Any]:
    """What a gateway's status resource says of its event loop."""
    if isinstance(gateway, Lines):
        answer = json.loads(await gateway.request("resources/read", json.dumps({"uri": STATUS})))
        text = answer["result"]["contents"][0]["text"]
    else:
        async with connect_http(gateway.url, token) as client:
            text = (await client.read_resource(STATUS)).contents[0].text  # type: ignore[union-attr]
    event_loop: Mapping[str, Any] = json.loads(text)["event_loop"]
    return event_loop


@asynccontextmanager
async def connect_http(url: str, token: str = "") -> AsyncIterator[Client]:
    """A client of the SDK's, with a bearer token where one is given."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=BOUND) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        yield client


def longest_stall(before: Mapping[str, Any], after: Mapping[str, Any]) -> float:
    """Seconds of the longest stall between two readings of the same gateway."""
    if after["longest_stall_ms"] > before["longest_stall_ms"]:
        return float(after["longest_stall_ms"]) / 1000
    recent = [stall["ms"] for stall in after["recent_stalls"] if stall["at_s"] > before["uptime_s"]]
    return max(recent, default=0.0) / 1000


def _workers(pid: int) -> Iterator[int]:
    """The gateway's own worker processes, not the upstreams that it started."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            if b"mcp_mirror" in Path(f"/proc/{child}/cmdline").read_bytes():
                yield int(child)


def _status(pid: int, key: str) -> int:
    found = re.search(rf"{key}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) << 10 if found else 0


def _reset_peak(pid: int) -> int:
    """Let the peak of a gateway and its workers begin at what they have now, in bytes; 0 where that is unknown."""
    total = 0
    if Path(f"/proc/{pid}").exists():
        for one in (pid, *_workers(pid)):
            Path(f"/proc/{one}/clear_refs").write_text("5")
            total += _status(one, "VmRSS")
    return total


def _peak(pid: int) -> int:
    if not Path(f"/proc/{pid}").exists():
        return 0
    return sum(_status(one, "VmHWM") for one in (pid, *_workers(pid)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the rows as a table; with HOSTILE_WRITE_DOCS also write it into the security page, if no test failed."""
    reports = [one for outcome in ("passed", "failed") for one in terminalreporter.getreports(outcome)]
    rows = [
        Row(**value)
        for one in reports
        for key, value in one.user_properties
        if key == "row" and one.nodeid.startswith("tests/hostile")
    ]
    if not rows:
        return
    terminalreporter.section("time and memory by kind of hostile input")
    terminalreporter.write_line(table := "\n".join(table_of(rows)))
    if "HOSTILE_WRITE_DOCS" in os.environ and not terminalreporter.getreports("failed"):
        before, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}")


def table_of(rows: Iterable[Row]) -> Iterator[str]:
    """The lines of a Markdown table, aligned."""
    lines = [_TITLES, *(row.cells for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_TITLES))]
    lines.insert(1, tuple("-" * width for width in widths))
    for line in lines:
        yield "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
