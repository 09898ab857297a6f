"""Graceful shutdown: calls in flight are answered, new requests are rejected, and the drain ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import httpx2
import pytest
from http_sessions import HEADERS, META
from mcp import Client
from mcp.shared.exceptions import MCPError
from samples import sample
from tests.end_to_end.conftest import BOUND
from tests.load import slowness
from waiting import until

if TYPE_CHECKING:
    from gateway_processes import GatewayProcess, Start
    from tests.end_to_end.conftest import Configured, OpenClient, OpenLines, Serve, Served

pytestmark = [pytest.mark.posix, pytest.mark.skipif(sys.platform == "win32", reason="sends signals")]
DRAIN = 60
SOON = 30.0
"""Seconds that the end takes at most once nothing is waited for, on a busy machine too; less than the drain."""
LISTEN = {"notifications": {"toolsListChanged": True}, "_meta": META}
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "0"}}


Parts: TypeAlias = "tuple[GatewayProcess, Callable[[], Any], Callable[[], Any]]"


CANCELLED = (
    "The gateway is stopping and has cancelled this request, which may have had effects. Repeat it when the gateway "
    "serves again."
)


def error_in(answer: str) -> str:
    """The message of the error that answers the call."""
    lines = [line.removeprefix("data: ") for line in answer.splitlines()]
    message = json.loads(next(line for line in lines if line.startswith("{")))
    assert message["id"] == 99, message
    return str(message["error"]["message"])


def request(identity: int, method: str, params: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": identity, "method": method, "params": params})


@dataclass
class Busy:
    """A gateway with a call in flight."""

    process: GatewayProcess
    answer: Callable[[], Any]
    """The text that answers the call."""
    refuses: Callable[[], Any]
    """Returns once a new request is not taken any more."""
    gate: Path
    """The call is answered when this file is there."""

    async def ends(self, code: int) -> float:
        """The seconds until it has ended."""
        began = time.monotonic()
        async with asyncio.timeout(BOUND):
            assert await self.process.wait() == code
        return time.monotonic() - began


@asynccontextmanager
async def busy_stdio(
    config: Path, call: Any, open_lines: OpenLines, _serve: Serve
) -> AsyncIterator[tuple[GatewayProcess, Any, Any]]:
    async with open_lines(config) as client:
        await client.send(request(50, "subscriptions/listen", LISTEN))

        async def refuses() -> None:
            answer: dict[str, Any] = {}
            while "error" not in answer:  # it may have been read just before the signal was
                await client.send(request(100, "tools/list", {"_meta": META}))
                answer = json.loads(await call_hear(100))
            assert "stopping" in answer["error"]["message"]

        async def answer() -> str:
            return (await call_hear(99)).decode()

        async def call_hear(identity: int) -> bytes:
            while json.loads(line := await client.receive()).get("id") != identity:
                pass
            return line

        assert b"acknowledged" in await client.receive()
        await client.send(request(99, "tools/call", call | {"_meta": META}))
        yield client.process, answer, refuses


@asynccontextmanager
async def busy_http(
    config: Path, call: Any, _speak: OpenLines, serve: Serve
) -> AsyncIterator[tuple[GatewayProcess, Any, Any]]:
    async with serve(config) as served, httpx2.AsyncClient(timeout=BOUND) as client, AsyncExitStack() as stack:
        greeting = await client.post(served.url, content=request(1, "initialize", HELLO), headers=HEADERS)
        headers = HEADERS | {"mcp-session-id": greeting.headers["mcp-session-id"]}
        modern = HEADERS | {"mcp-protocol-version": "2026-07-28", "mcp-method": "subscriptions/listen"}
        initialized = '{"jsonrpc":"2.0","method":"notifications/initialized"}'
        await client.post(served.url, content=initialized, headers=headers)
        body = request(50, "subscriptions/listen", LISTEN)
        listening = [client.stream("GET", served.url, headers=headers),
                     client.stream("POST", served.url, content=body, headers=modern)]  # fmt: skip
        idle = [await stack.enter_async_context(stream) for stream in listening]
        assert [stream.status_code for stream in idle] == [200, 200]
        posted = asyncio.create_task(client.post(served.url, content=request(99, "tools/call", call), headers=headers))

        async def refuses() -> None:
            for stream in idle:
                await asyncio.wait_for(stream.aread(), BOUND)  # to an end in good order
            with pytest.raises(httpx2.TransportError):
                await knock(served.url)

        async def answer() -> str:
            return str((await posted).text)

        yield served.process, answer, refuses
        posted.cancel()
        with contextlib.suppress(asyncio.CancelledError, httpx2.HTTPError):
            await posted


async def knock(url: str) -> None:
    """Connect repeatedly, each time with status 503, until the gateway accepts no connection."""
    async with asyncio.timeout(BOUND):
        while True:
            async with httpx2.AsyncClient() as stranger:
                refused = await stranger.post(url, content=request(1, "initialize", HELLO), headers=HEADERS)
                assert refused.status_code == 503
                assert "stopping" in refused.json()["error"]["message"]


FACES = {"stdio": busy_stdio, "http": busy_http}


@pytest.fixture(params=FACES)
def busy(
    request: pytest.FixtureRequest,
    configured: Configured,
    open_lines: OpenLines,
    serve: Serve,
    raw: Any,
    tmp_path: Path,
) -> Any:
    """Starts a gateway and a call that is in flight; a drain may be given."""

    @asynccontextmanager
    async def start(**server: Any) -> AsyncIterator[Busy]:
        started, gate = tmp_path / "started", tmp_path / "gate"
        call = {"name": "hang_mirrored", "arguments": {"started": str(started), "until": str(gate)}}
        config = configured({"raw": raw()}, server={"drain": DRAIN, **server})
        async with FACES[request.param](config, call, open_lines, serve) as (process, answer, refuses):
            await until(started.exists)
            yield Busy(process, answer, refuses, gate)

    return start


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_calls_in_flight_are_answered_and_new_ones_rejected(busy: Any, number: signal.Signals) -> None:
    async with busy() as gateway:
        gateway.process.send_signal(number)
        await gateway.refuses()
        gateway.gate.touch()
        assert "late" in await asyncio.wait_for(gateway.answer(), BOUND)
        assert await gateway.ends(130 if number == signal.SIGINT else 0) < SOON


async def test_a_call_that_does_not_end_is_cancelled_after_the_drain(busy: Any) -> None:
    async with busy(drain=1) as gateway:
        began = time.monotonic()
        gateway.process.send_signal(signal.SIGTERM)
        assert error_in(await asyncio.wait_for(gateway.answer(), BOUND)) == CANCELLED
        assert await gateway.ends(0) < SOON
        assert time.monotonic() - began >= 1


async def test_a_second_signal_ends_the_gateway_immediately(busy: Any) -> None:
    async with busy() as gateway:
        gateway.process.send_signal(signal.SIGTERM)
        await gateway.refuses()
        gateway.process.send_signal(signal.SIGTERM)
        assert error_in(await asyncio.wait_for(gateway.answer(), BOUND)) == CANCELLED
        assert await gateway.ends(0) < SOON


async def test_without_a_drain_the_first_signal_ends_the_gateway(busy: Any) -> None:
    async with busy(drain=0) as gateway:
        gateway.process.send_signal(signal.SIGTERM)
        assert error_in(await asyncio.wait_for(gateway.answer(), BOUND)) == CANCELLED
        assert await gateway.ends(0) < SOON


async def test_no_cancelled_call_of_a_stdio_client_blames_its_upstream(
    configured: Configured, open_lines: OpenLines, raw: Any, tmp_path: Path
) -> None:
    """The end of the gateway also closes its connections to upstreams, which fails the calls in flight."""
    async with open_lines(configured({"raw": raw()}, server={"drain": 0})) as client, asyncio.timeout(BOUND):
        await client.greet()
        for number in range(90, 95):
            gates = {"started": str(tmp_path / f"started-{number}"), "until": str(tmp_path / "until")}
            await client.send(request(number, "tools/call", {"name": "hang_mirrored", "arguments": gates}))
            await until(Path(gates["started"]).exists)
        client.process.send_signal(signal.SIGTERM)
        answers = [json.loads(await client.receive()) for _ in range(90, 95)]
        assert {answer["id"]: answer.get("error", answer).get("message") for answer in answers} == dict.fromkeys(
            range(90, 95), CANCELLED
        )


async def test_a_client_that_closed_its_end_gets_no_response(
    configured: Configured, open_lines: OpenLines, raw: Any, tmp_path: Path
) -> None:
    """Clients with version 1 of the Python SDK end with an exception if a response comes after they have closed."""
    async with open_lines(configured({"raw": raw()})) as client, asyncio.timeout(BOUND):
        await client.greet()
        for number, unknown in enumerate(({"unknown": None}, {})):  # with it, a call takes the SDK's path
            gates = {"started": str(tmp_path / f"started-{number}"), "until": str(tmp_path / "until")}
            call = {"name": "hang_mirrored", "arguments": gates, **unknown}
            await client.send(request(90 + number, "tools/call", call))
            await until(Path(gates["started"]).exists)
        assert client.process.stdin is not None
        assert client.process.stdout is not None
        client.process.stdin.close()
        assert await client.process.stdout.read() == b""
        assert await client.process.wait() == 0
    log = b"".join(client.stderr).decode()
    assert "warning mcp_mirror.server.stdio: The client closed its input. The gateway cancels 2 open requests.\n" in log


async def call_until(served: Served, started: Path, end: Path) -> asyncio.Task[httpx2.Response]:
    """Make a call that ends when a file exists, and return when the upstream has it."""

    async def post() -> httpx2.Response:
        arguments = {"started": str(started), "until": str(end)}
        call = request(1, "tools/call", {"name": "hang_mirrored", "arguments": arguments, "_meta": META})
        modern = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "hang_mirrored"}
        async with httpx2.AsyncClient(timeout=BOUND) as client:
            return await client.post(served.url, content=call, headers=HEADERS | modern)

    task = asyncio.create_task(post())
    await until(started.exists)
    return task


@pytest.mark.parametrize("ends", [True, False])
async def test_the_log_reports_a_shutdown_and_the_requests_that_it_cancels(
    configured: Configured, serve: Serve, raw: Any, tmp_path: Path, *, ends: bool
) -> None:
    config = configured({"raw": raw()}, server={"drain": 60 if ends else 0.5})
    async with serve(config, "-v") as served:
        call = await call_until(served, tmp_path / "started", tmp_path / "end")
        served.process.send_signal(signal.SIGTERM)
        await until(lambda: b"Shutting down within" in b"".join(served.stderr))
        if ends:
            (tmp_path / "end").touch()
            assert "late" in (await call).text
        await asyncio.wait_for(served.process.wait(), BOUND)
        if not ends:
            response = await call
            # Clients with the SDK's version 1 end at another status, and their users do not see the error.
            assert (response.status_code, response.json()["error"]["message"]) == (200, CANCELLED)
    log = b"".join(served.stderr).decode()
    assert re.search(
        r" info mcp_mirror\.\S+: Shutting down within [0-9.]+ s \(`server\.drain`\), with 1 open request\.\n", log
    )
    assert ("warning mcp_mirror.server.http.server: The shutdown cancels 1 open request.\n" in log) is not ends


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_clients_read_why_the_shutdown_cancels_their_calls(
    mode: Any, configured: Configured, serve: Serve, raw: Any, tmp_path: Path
) -> None:
    async with (
        serve(configured({"raw": raw()}, server={"drain": 0.5})) as served,
        Client(served.url, mode=mode) as client,
        asyncio.timeout(BOUND),
    ):
        for number in range(2):  # in 2026-07-28, the first call takes the SDK's path, and the next one the direct path
            gates = {"started": str(tmp_path / f"started-{number}"), "until": str(tmp_path / f"until-{number}")}
            call = asyncio.create_task(client.call_tool("hang_mirrored", gates))
            await until(Path(gates["started"]).exists)
            if number == 0:
                Path(gates["until"]).touch()
                await call
        served.process.send_signal(signal.SIGTERM)
        with pytest.raises(MCPError, match=CANCELLED):
            await call
        assert await served.process.wait() == 0


@pytest.mark.parametrize("cancelled", [99, "99"], ids=["number", "text"])
async def test_the_shutdown_does_not_wait_for_cancelled_calls(
    open_client: OpenClient, raw: Any, tmp_path: Path, cancelled: int | str
) -> None:
    started = tmp_path / "started"
    call = {"name": "hang_mirrored", "arguments": {"started": str(started), "until": str(tmp_path / "never")}}
    async with open_client({"raw": raw()}, server={"drain": DRAIN}) as client:
        await client.send(request(99, "tools/call", call))
        await until(started.exists)
        client.process.send_signal(signal.SIGTERM)
        await client.send('{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":[]}}')
        notification = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": cancelled}}
        await client.send(json.dumps(notification))
        async with asyncio.timeout(SOON):
            assert await client.process.wait() == 0
        assert client.stderr == []


@pytest.mark.executable  # its interpreter waits for threads at its end
async def test_a_client_that_does_not_read_does_not_hold_the_end(
    configured: Configured, start: Start, raw: Any
) -> None:
    config = configured({"raw": raw()}, server={"drain": 0}, mirror={"capture": "never"})
    reading, writing = os.pipe()
    process = await start("serve", "--config", str(config), stdin=PIPE, stdout=writing, stderr=PIPE)
    os.close(writing)
    try:
        assert process.stdin is not None
        call = {"name": "hear_mirrored", "arguments": {"text": "y" * 1_000_000}}
        # The answer to the first call fills the pipe, the others wait.
        messages = [request(0, "initialize", HELLO), *(request(number, "tools/call", call) for number in range(1, 4))]
        process.stdin.write("".join(f"{message}\n" for message in messages).encode())
        received = b""
        async with asyncio.timeout(BOUND):
            while b"yyy" not in received:
                received += await asyncio.to_thread(os.read, reading, 1000)
            process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(process.wait(), SOON)
    finally:
        os.close(reading)
        _, errors = await process.communicate()
    assert process.returncode == 0
    assert errors == b""


HANGING = """
import pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: (folder / "asked").touch())
(folder / "started").touch()
while True:
    time.sleep(60)
"""


@pytest.fixture
def hanging(configured: Configured, tmp_path: Path) -> Path:
    """The configuration of a server that says nothing and ignores the end of its input and SIGTERM."""
    server = {"command": sys.executable, "args": ["-c", HANGING, str(tmp_path)]}
    return configured({"silent": server}, mirror={"startup_wait": 60})


@pytest.mark.parametrize("number", sample([signal.SIGTERM, signal.SIGINT], lambda number: number == signal.SIGTERM))
async def test_a_hanging_server_and_its_clients_do_not_hold_the_end(
    hanging: Path, open_lines: OpenLines, number: signal.Signals, tmp_path: Path
) -> None:
    async with open_lines(hanging) as client:
        await client.send(request(1, "initialize", HELLO))
        await client.send(request(2, "tools/list", {}))
        await until((tmp_path / "started").exists)
        began = time.monotonic()
        client.process.send_signal(number)
        async with asyncio.timeout(BOUND):
            assert await client.process.wait() == (130 if number == signal.SIGINT else 0)
        assert time.monotonic() - began < 5.0 * slowness()


async def test_a_second_signal_does_not_wait_for_a_hanging_server(
    hanging: Path, open_lines: OpenLines, tmp_path: Path
) -> None:
    async with open_lines(hanging) as client:
        await client.greet()
        await until((tmp_path / "started").exists)
        client.process.send_signal(signal.SIGINT)
        await until((tmp_path / "asked").exists)
        began = time.monotonic()
        client.process.send_signal(signal.SIGINT)
        async with asyncio.timeout(BOUND):
            assert await client.process.wait() == 130
        assert time.monotonic() - began < 1.5 * slowness()
