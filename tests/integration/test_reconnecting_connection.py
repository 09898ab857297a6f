"""Reconnecting, with backoff and a circuit breaker, to real processes."""

import asyncio
import gc
import json
import sys
import textwrap
import time
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import mcp_types as types
import pytest
from samples import sample
from tests.load import slowness
from waiting import until

from mcp_mirror.core.schemas.tool_inspection import InspectedTool, inspect_tool
from mcp_mirror.errors import RefusedError, UpstreamError
from mcp_mirror.payload.spool import Spool
from mcp_mirror.security.rate_limits import UpstreamLimiter
from mcp_mirror.security.redaction import Redactor
from mcp_mirror.settings.policies import WirePolicy
from mcp_mirror.settings.upstreams import StdioEndpoint, UpstreamPolicy
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.system.event_loop import new_event_loop
from mcp_mirror.types import Buffer
from mcp_mirror.upstreams.client_backlog import ClientBacklog
from mcp_mirror.upstreams.connection import ReconnectingConnection
from mcp_mirror.upstreams.connection_settings import ConnectionServices, ConnectionSettings
from mcp_mirror.upstreams.notifications import ConnectionOwner
from mcp_mirror.upstreams.reconnect import Backoff, CircuitBreaker, add_jitter
from mcp_mirror.upstreams.session import Mode, UpstreamSession
from mcp_mirror.upstreams.transports.payloads import PayloadBypass
from mcp_mirror.upstreams.transports.server_output import ServerOutput
from mcp_mirror.upstreams.transports.stdio import StdioTransport
from mcp_mirror.upstreams.upstream_request import UpstreamRequest
from mcp_mirror.workers.frames import FrameScanner

BOUND = 60
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals of this kind")
REAL_TIME = pytest.mark.skipif(sys.platform != "linux", reason="needs a real-time signal")
PROGRAM = """
    import json, os, sys, time
    from pathlib import Path

    folder, *table = map(Path, sys.argv[1:])
    does = dict(pair.split("=") for pair in map(str, table))
    with (folder / "starts").open("a") as file:
        file.write(f"{time.monotonic()}\\n")
    if (folder / "broken").exists():
        sys.exit("broken")
    for line in sys.stdin:
        message = json.loads(line)
        method = message["method"]
        with (folder / "asked").open("a") as file:
            file.write(f"{method}\\n")
        if "id" not in message:
            continue
        info = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "s", "version": "0"}}
        later = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", "capabilities": {}}
        answer = {
            "answer": {"result": info},
            "discover": {"result": {**later, "supportedVersions": ["2026-07-28"]}},
            "refuse": {"error": {"code": -32601, "message": "What?"}},
            "resemble": {"error": {"code": -32000, "message": "SSE stream ended without a response"}},
        }.get(does.get(method, "refuse"))
        if answer is None:
            how = does.get(method, "die")
            if how.startswith("signal"):
                os.kill(os.getpid(), int(how.removeprefix("signal")))
            sys.exit(3 if how == "exit" else "crashed")
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)
"""
"""Handles each method as its arguments say: answers, refuses, exits, or ends itself with a signal."""


@dataclass
class Program:
    """A server process, and what it recorded."""

    folder: Path

    @property
    def methods(self) -> list[str]:
        """The methods of all requests, over all its starts."""
        path = self.folder / "asked"
        return path.read_text().split() if path.exists() else []

    @property
    def starts(self) -> list[float]:
        path = self.folder / "starts"
        return [float(line) for line in path.read_text().split()] if path.exists() else []

    def break_start(self) -> None:
        """Let the process exit at its start from now on."""
        (self.folder / "broken").touch()

    def repair(self) -> None:
        (self.folder / "broken").unlink()


Connect = Callable[..., AbstractAsyncContextManager[tuple[ReconnectingConnection, Program]]]


async def inspected(policy: UpstreamPolicy, items: Sequence[Buffer]) -> tuple[InspectedTool, ...]:
    return tuple(inspect_tool(json.loads(bytes(item)), policy.bounds) for item in items)


@pytest.fixture
def connect(tmp_path: Path) -> Connect:
    """Open a reconnecting connection to a new process."""
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM))

    @asynccontextmanager
    async def connected(
        modes: tuple[Mode, ...] = ("auto",), *, broken: bool = False, **does: str
    ) -> AsyncIterator[Any]:
        program = Program(tmp_path)
        if broken:
            program.break_start()
        table = [f"{method.replace('_', '/')}={what}" for method, what in does.items()]
        endpoint = StdioEndpoint(sys.executable, ("-S", "-E", str(script), str(tmp_path), *table))
        policy = UpstreamPolicy("up", endpoint)
        info = types.Implementation(name="us", version="0")
        with Spool(WirePolicy()) as spool, ChildWatchdog() as child_watchdog, anyio.fail_after(BOUND):
            scanner = FrameScanner(child_watchdog, spool)
            redactor, limiter = Redactor(StdioEndpoint("x")), UpstreamLimiter(policy.name, policy.bounds)
            services = ConnectionServices(spool, child_watchdog, info, inspected, scanner.open_list)
            settings = ConnectionSettings(policy, services, redactor, limiter, ClientBacklog(1 << 20))
            connection = ReconnectingConnection(settings, ConnectionOwner(lambda _: None, lambda *_: None), modes)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(connection.run)
                yield connection, program
                tasks.cancel_scope.cancel()

    return connected


@pytest.mark.parametrize(
    ("modes", "does", "asked", "state"),
    [
        (("auto", "legacy"), {"server_discover": "die", "initialize": "answer"}, ["D", "I"], "ready"),
        (("auto", "legacy"), {"server_discover": "die", "initialize": "die"}, ["D", "I"], "down"),
        (("auto", "legacy"), {"server_discover": "refuse", "initialize": "answer"}, ["D", "I"], "ready"),
        (("legacy", "auto"), {"initialize": "answer"}, ["I"], "ready"),
        (("legacy", "auto"), {"initialize": "refuse", "server_discover": "die"}, ["I", "D"], "down"),
        (("legacy", "auto"), {"initialize": "die", "server_discover": "die"}, ["I", "D"], "down"),
        (("auto", "legacy"), {"server_discover": "refuse", "initialize": "refuse"}, ["D", "I"], "down"),
        (("legacy",), {"initialize": "refuse"}, ["I"], "down"),
        (("legacy",), {"initialize": "die"}, ["I"], "down"),
        (("auto",), {"server_discover": "die"}, ["D"], "down"),
    ],
)
async def test_handshake_modes_are_tried_in_order(
    connect: Connect, modes: tuple[Mode, ...], does: dict[str, str], asked: list[str], state: str
) -> None:
    names = {"D": "server/discover", "I": "initialize"}
    async with connect(modes, **does) as (connection, program):
        await connection.settled.wait()
        assert connection.status.state == state
        handshakes = [method for method in program.methods if method in names.values()]
        assert handshakes == [names[letter] for letter in asked]


async def test_reconnecting_starts_with_the_mode_that_worked(connect: Connect) -> None:
    does = {"server_discover": "die", "initialize": "answer", "tools_call": "die"}
    async with connect(("auto", "legacy"), **does) as (connection, program):
        await connection.settled.wait()
        with pytest.raises(UpstreamError, match="closed the connection during 'x'"):
            await connection.request(UpstreamRequest("tools/call", {}, {"name": "x"}), None)
        session = await connection.get_session()
        assert session is connection.current_session
        assert [method for method in program.methods if method != "notifications/initialized"] == [
            "server/discover", "initialize", "tools/call", "initialize"
        ]  # fmt: skip


async def test_an_error_of_a_server_in_words_of_the_gateway_is_a_refusal(connect: Connect) -> None:
    async with connect(("legacy",), initialize="answer", tools_call="resemble") as (connection, _):
        await connection.settled.wait()
        with pytest.raises(RefusedError, match="refused 'x': SSE stream ended without a response"):
            await connection.request(UpstreamRequest("tools/call", {}, {"name": "x"}), None)


async def test_no_handshake_fails_once_a_server_is_back(connect: Connect) -> None:
    async with connect(("auto", "legacy"), server_discover="discover", tools_call="die") as (connection, program):
        await connection.settled.wait()
        for failures in (1, 2):
            program.break_start()
            with pytest.raises(UpstreamError, match="closed the connection during 'x'"):
                await connection.request(UpstreamRequest("tools/call", {}, {"name": "x"}), None)
            for _ in range(failures):
                await fail(connection)
            program.repair()
            await reach(connection)
        assert "initialize" in program.methods


async def reach(connection: ReconnectingConnection) -> None:
    """Get a session after an outage, from attempts that began in it or after it."""
    while connection.status.state != "ready":
        with suppress(UpstreamError):
            await connection.get_session()
        assert "refused" not in connection.status.detail


async def test_a_failed_start_is_reported_with_the_servers_error_output(connect: Connect) -> None:
    async with connect(("legacy",), initialize="die") as (connection, _):
        with pytest.raises(UpstreamError, match=r"'up' is down: It ended .* error output: crashed\. Try again"):
            await connection.get_session()
        assert connection.current_session is None
        assert isinstance(connection.failure, UpstreamError)


async def test_the_output_of_a_server_that_was_ready_is_not_reported(connect: Connect) -> None:
    """It may quote values of the calls of any principal."""
    async with connect(("legacy",), initialize="answer", tools_call="die") as (connection, _):
        await connection.settled.wait()
        with pytest.raises(UpstreamError, match="closed the connection during 'x'"):
            await connection.request(UpstreamRequest("tools/call", {}, {"name": "x"}), None)
        while connection.status.state == "ready":
            await connection.wait_for_change()
        assert connection.status.detail == "It ended with exit code 1."


async def test_a_refused_handshake_is_reported_with_the_servers_error(connect: Connect) -> None:
    async with connect(("legacy",), initialize="refuse") as (connection, _):
        await connection.settled.wait()
        assert isinstance(connection.failure, RefusedError)
        assert connection.failure.code == types.METHOD_NOT_FOUND
        assert "What?" in connection.status.detail


async def fail(connection: ReconnectingConnection) -> bool:
    """Get a session of a broken server; return whether the error came before any other task could run."""
    others: list[int] = []
    asyncio.get_running_loop().call_soon(others.append, 1)
    with pytest.raises(UpstreamError, match="'up' is down"):
        await connection.get_session()
    return not others


async def test_the_circuit_breaker_opens_after_five_failures_in_a_row(connect: Connect) -> None:
    async with connect(broken=True, initialize="answer") as (connection, program):
        for failures in range(1, 6):
            await fail(connection)
            assert len(program.starts) >= failures
        before, began = len(program.starts), time.monotonic()
        at_once: list[bool] = []
        while (elapsed := time.monotonic() - began) < 3.5:
            at_once += await asyncio.gather(*(fail(connection) for _ in range(20)))
            await anyio.sleep(0.01)
        assert 1 <= len(program.starts) - before <= elapsed + 1
        assert at_once.count(False) <= elapsed + 1
        starts = len(program.starts)
        program.repair()

        async def get_session() -> Any:
            with suppress(UpstreamError):
                return await connection.get_session()

        session = await until(get_session)
        assert len(program.starts) - starts <= 2  # the second if an attempt was in progress
        assert session is connection.current_session
        assert connection.failure is None
        assert connection.status.state == "ready"


@pytest.mark.parametrize(
    ("how", "ended"),
    [
        ("exit", "It ended with exit code 3"),
        pytest.param("signal9", "It was ended by signal 9 (SIGKILL)", marks=POSIX),
        pytest.param("signal40", "It was ended by signal 40", marks=REAL_TIME),
    ],
)
async def test_the_exit_status_of_a_server_is_reported(
    connect: Connect, caplog: pytest.LogCaptureFixture, how: str, ended: str
) -> None:
    async with connect(("legacy",), initialize=how) as (connection, _):
        await connection.settled.wait()
        assert connection.status.detail.startswith(f"{ended} before it answered. ")
    assert f"{ended} before it answered. " in caplog.text
    async with connect(("legacy",), initialize="answer", tools_call=how) as (connection, _):
        await connection.settled.wait()
        with pytest.raises(UpstreamError, match="closed the connection during 'x'"):
            await connection.request(UpstreamRequest("tools/call", {}, {"name": "x"}), None)
        while connection.status.state == "ready":
            await connection.wait_for_change()
        assert connection.status.detail == f"{ended}."
    assert f"upstream up is down: {ended}." in caplog.text


async def test_the_log_reports_the_end_of_an_outage_once(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    async with connect(broken=True, initialize="answer") as (connection, program):
        await connection.settled.wait()
        assert "upstream up is ready" not in caplog.text
        program.repair()
        await reach(connection)
    *outage, end = [record.getMessage() for record in caplog.records if "upstream up is" in record.getMessage()]
    assert outage
    assert all("upstream up is down: " in line for line in outage)
    assert end == "upstream up is ready"


async def test_a_connection_that_was_never_down_logs_nothing(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(initialize="answer") as (connection, _):
        await reach(connection)
    assert not caplog.records


async def test_exits_soon_after_each_start_open_the_circuit_breaker(connect: Connect) -> None:
    async with connect(initialize="answer", tools_call="die") as (connection, program):
        call = UpstreamRequest("tools/call", {}, {"name": "x"})
        message = ""
        for _ in range(40):
            with pytest.raises(UpstreamError) as raised:
                await connection.request(call, None)
            message = str(raised.value)
            if "is down" in message:
                break
        assert "is down" in message  # at once, and not after another start
        assert len(program.starts) <= 7


async def test_reconnect_delays_grow_without_requests(connect: Connect) -> None:
    async with connect(broken=True) as (_, program):
        await until(lambda: len(program.starts) >= 4)
        first, second, third, fourth = program.starts[:4]
    slack = 0.3 * slowness()  # a program that starts slowly writes down a later time
    assert second - first >= 0.25 + 0.5 * 0.8 - slack
    assert third - second >= 0.25 + 1 * 0.8 - slack
    assert fourth - third >= 0.25 + 2 * 0.8 - slack


@pytest.mark.slow
async def test_a_start_that_fails_late_does_not_reset_the_backoff(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_mirror.upstreams.reconnect.STABLE_AFTER", 0.0)  # each start takes longer
    async with connect(broken=True) as (_, program):
        await until(lambda: len(program.starts) >= 4)
    assert program.starts[3] - program.starts[2] >= 0.25 + 2 * 0.8 - 0.3 * slowness()


def test_backoff_delays_double_up_to_their_limit() -> None:
    backoff = Backoff(0.25, 60)
    assert [backoff.next_delay(0) for _ in range(9)] == [0.5, 1, 2, 4, 8, 16, 32, 60, 60]
    assert {backoff.next_delay(0) for _ in range(10_000)} == {60}


def test_jitter_varies_delays_by_20_percent() -> None:
    pauses = [add_jitter(60) for _ in range(1000)]
    assert 48 <= min(pauses) < 51
    assert 69 < max(pauses) <= 72


def test_backoff_starts_again_after_a_stable_connection() -> None:
    backoff = Backoff(0.25, 60)
    assert [backoff.next_delay(lasted) for lasted in (0, 9, 11, 0)] == [0.5, 1, 0.25, 0.5]


def test_an_open_circuit_breaker_allows_one_attempt_a_second() -> None:
    breaker = CircuitBreaker()
    for _ in range(4):
        breaker.record_end(was_stable=False)
    assert all(breaker.allow_attempt(100) for _ in range(3))
    breaker.record_end(was_stable=False)
    assert [breaker.allow_attempt(now) for now in (100.9, 101, 101.9, 102)] == [False, True, False, True]
    breaker.record_end(was_stable=True)
    assert breaker.allow_attempt(102)


@pytest.mark.parametrize("steps", sample(range(9), lambda steps: steps % 4 == 1))
def test_a_program_whose_start_is_cancelled_leaves_nothing_open(steps: int) -> None:
    async def cancel(scope: anyio.CancelScope) -> None:
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        scope.cancel()

    async def start_and_cancel() -> None:
        endpoint = StdioEndpoint("cat")
        with Spool(WirePolicy()) as spool, ChildWatchdog() as child_watchdog:
            transport = StdioTransport("up", endpoint, spool, child_watchdog, ServerOutput(Redactor(endpoint)))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cancel, tasks.cancel_scope)
                async with transport.open(PayloadBypass()):
                    await anyio.sleep_forever()

    anyio.run(start_and_cancel)
    gc.collect()  # reports pipes and processes that are still open


def test_an_ended_connection_leaves_no_session_in_memory(connect: Connect) -> None:
    async def open_and_end() -> weakref.ref[UpstreamSession]:
        async with connect(initialize="answer", server_discover="refuse") as (connection, _):
            return weakref.ref(await connection.get_session())

    loop = new_event_loop()
    gc.disable()
    try:
        session = loop.run_until_complete(open_and_end())
        assert session() is None
    finally:
        gc.enable()
        loop.close()
