"""Clients without a token that hold connections open: others are served, and what they hold is closed in time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import resource
import socket
import stat
import time
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx2
import pytest
from gateway_processes import COMMAND, start_executable
from http_sessions import META, session_of
from tests.auth.conftest import HASHES, TOKENS
from tests.end_to_end.conftest import BOUND, serve_gateway
from tests.hostile.bystander import HEADERS, HttpClient
from tests.hostile.conftest import MIB, pinging
from tests.hostile.raw_connections import HeldConnection, Holder, holding
from tests.hostile.sessions import resident_bytes
from tests.load import slowness
from waiting import until

from mcp_mirror.server.http.server import listen

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Configured, Serve
    from tests.hostile.conftest import Budget

HALF = b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:80\r\nx-half: "
WHOLE = b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:80\r\ncontent-type: application/json\r\n"
END = WHOLE + b"connection: close\r\ncontent-length: 0\r\n\r\n"
"""A last request, without a token: the gateway closes the connection after its answer."""
PROMPT = 5.0
"""Seconds in which an ordinary request is answered during a flood, on a busy machine. Most take milliseconds."""


def write_config(configured: Configured, **limits: Any) -> Path:
    return configured({}, auth={"tokens": HASHES}, limits=limits)


async def drip(connection: HeldConnection, pause: float) -> bytes:
    """Send a byte now and then, until the other end closes the connection; gives its answer."""
    assert connection.transport is not None
    async with asyncio.timeout(BOUND):
        while not connection.over.is_set():
            connection.transport.write(b"a")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(connection.over.wait(), pause)
    return connection.received


def client_of(name: str) -> httpx2.AsyncClient:
    headers = {"authorization": f"Bearer {TOKENS[name]}", "accept": "application/json, text/event-stream"}
    return httpx2.AsyncClient(headers=headers, timeout=BOUND)


async def call(http: httpx2.AsyncClient, url: str) -> float:
    """Seconds that a request of a principal takes."""
    began = time.monotonic()
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "0"}}
    answer = await http.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello})
    assert answer.status_code == 200, (answer.status_code, answer.text)
    await http.delete(url, headers={"mcp-session-id": answer.headers["mcp-session-id"]})
    return time.monotonic() - began


async def call_on_new_connection(url: str) -> float:
    """The same, on a connection of its own."""
    async with client_of("alice") as http:
        return await call(http, url)


async def get_on_new_connection(url: str) -> httpx2.Response:
    async with client_of("bob") as http:
        return await http.get(url)


@pytest.mark.slow
@pytest.mark.parametrize("limits", [{}, {"pending_connections_per_address": 10_000}], ids=["default", "at capacity"])
async def test_half_sent_headers_are_closed_and_do_not_block_others(
    configured: Configured, serve: Serve, limits: dict[str, Any]
) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 10_000:
        pytest.skip("too few file handles for the whole flood")
    config = write_config(configured, header_timeout=6, **limits)
    async with serve(config) as served, holding(served.url) as holder, client_of("bob") as client:
        await call(client, served.url)
        flood = asyncio.create_task(holder.hold_many(4200, HALF))
        times = []
        while not flood.done():
            times += [await call_on_new_connection(served.url), await call(client, served.url)]
        times += [await call_on_new_connection(served.url) for _ in range(5)]
        assert max(times) < PROMPT * slowness(), times
        assert 0 < holder.count_open() <= (4096 if limits else 256)
        await until(lambda: not holder.count_open())
        assert await call_on_new_connection(served.url) < PROMPT * slowness()


@pytest.mark.slow
async def test_idle_sockets_do_not_take_all_handles_of_the_process(configured: Configured, tmp_path: Path) -> None:
    limited = tmp_path / "limited"
    limited.write_text(f'#!/bin/sh\nulimit -n 1024\nexec {COMMAND} "$@"\n')
    limited.chmod(stat.S_IRWXU)
    start = partial(start_executable, command=str(limited))
    config = write_config(configured, pending_connections_per_address=10_000)
    async with serve_gateway(config, start=start) as served, holding(served.url) as holder:
        flood = asyncio.create_task(holder.hold_many(1100))
        times = []
        while not flood.done():
            times.append(await call_on_new_connection(served.url))
        times += [await call_on_new_connection(served.url) for _ in range(5)]
        assert max(times) < PROMPT * slowness(), times
        output = b"".join(served.stderr).decode()
        assert "`limits.max_connections` (4,096)" in output
        assert "1,024 open files" in output
        assert "Too many open files" not in output


async def test_connections_in_use_at_the_bound_are_answered_with_503(configured: Configured, serve: Serve) -> None:
    config = write_config(configured, max_connections=3)
    async with serve(config) as served, holding(served.url) as holder:
        bearer = f"authorization: Bearer {TOKENS['alice']}\r\ncontent-length: 100\r\n\r\n{{".encode()
        for _ in range(3):
            await holder.hold(WHOLE + bearer)
        async with asyncio.timeout(BOUND):
            while (answer := await get_on_new_connection(served.url)).status_code != 503:
                assert answer.status_code < 500  # the gateway accepts connections one by one
        assert "`limits.max_connections` (3)" in answer.json()["error"]["message"]
        assert answer.headers["retry-after"]


SLOW: list[tuple[str, bytes, bytes]] = [
    ("a connection without a byte", b"", b""),
    ("a header that never ends", HALF, b"408"),
    ("empty lines", b"\r\n\r\n", b""),
    ("a request after another one", WHOLE + b"content-length: 0\r\n\r\n" + HALF, b"401"),
    ("a body that was refused", WHOLE + b"content-length: 1000000\r\n\r\n", b"401"),
    ("chunks that were refused", WHOLE + b"transfer-encoding: chunked\r\n\r\n1000000\r\n", b"401"),
]


async def seconds_open(holder: Holder, head: bytes) -> tuple[float, bytes]:
    """The lifetime of a connection that sends a byte now and then, or nothing, and its answer."""
    connection, began = await holder.hold(head), time.monotonic()
    if head:
        await drip(connection, 0.2)
    await asyncio.wait_for(connection.over.wait(), BOUND)
    return time.monotonic() - began, connection.received


async def test_a_byte_now_and_then_does_not_keep_a_connection_open(configured: Configured, serve: Serve) -> None:
    async with serve(write_config(configured, header_timeout=1)) as served, holding(served.url) as holder:
        found = await asyncio.gather(*(seconds_open(holder, head) for _, head, _ in SLOW))
        for (name, _, status), (seconds, answer) in zip(SLOW, found, strict=True):
            assert seconds < 10, name
            assert status in answer[:20], name


@pytest.mark.slow
async def test_a_body_that_comes_byte_by_byte_is_refused_in_time(configured: Configured, serve: Serve) -> None:
    async with serve(write_config(configured, body_timeout=1)) as served, holding(served.url) as holder:
        bearer = f"authorization: Bearer {TOKENS['alice']}\r\ncontent-length: 1000000\r\n\r\n".encode()
        answer = await drip(await holder.hold(WHOLE + bearer), 0.2)
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"`limits.body_timeout`" in answer


@pytest.mark.parametrize("framing", [b"transfer-encoding: chunked", b"content-length: 9223372036854775807"])
async def test_a_body_without_an_end_is_refused(configured: Configured, serve: Serve, framing: bytes) -> None:
    config = write_config(configured, max_message_bytes=2 * MIB, header_timeout=1)
    bearer = f"authorization: Bearer {TOKENS['alice']}\r\n".encode()
    part = b"x" * (MIB >> 4)
    chunk = b"%x\r\n%b\r\n" % (len(part), part) if framing.endswith(b"chunked") else part
    async with serve(config) as served, holding(served.url) as holder:
        connection = await holder.hold(WHOLE + bearer + framing + b"\r\n\r\n")
        async with asyncio.timeout(BOUND):
            while not connection.over.is_set():
                assert connection.transport is not None
                connection.transport.write(chunk)
                await asyncio.sleep(0)  # the connection may have ended
                await connection.writable.wait()
        assert connection.received.startswith(b"HTTP/1.1 413")
        assert b"`limits.max_message_bytes`" in connection.received


@pytest.mark.slow
async def test_many_bodies_at_once_take_little_memory_and_others_do_not_wait(
    configured: Configured, serve: Serve, budget: Budget
) -> None:
    bearer = f"authorization: Bearer {TOKENS['alice']}\r\ncontent-length: {MIB}\r\n\r\n".encode()
    body = b"x" * (MIB - 1)
    async with serve(write_config(configured), "-v") as served, client_of("bob") as client:
        await call(client, served.url)
        before = resident_bytes(served.process.pid)
        async with (
            budget(served, "unfinished bodies", "400 of 1 MiB", token=TOKENS["bob"]) as row,
            holding(served.url) as holder,
            pinging(partial(call, client, served.url), row),
        ):
            held = [await holder.hold(WHOLE + bearer + body) for _ in range(400)]
            await until(lambda: all(one.transport and not one.transport.get_write_buffer_size() for one in held))
            assert holder.count_open() == 400
            row.outcome = "in files"
        await until(lambda: resident_bytes(served.process.pid) < before + 100 * MIB)


def test_few_connections_are_accepted_in_each_pass_of_the_event_loop() -> None:
    with listen("127.0.0.1", 0) as listening, contextlib.ExitStack() as stack:
        listening.settimeout(0)
        for _ in range(40):
            stack.enter_context(socket.create_connection(listening.getsockname(), BOUND))
        passes = [0]
        while sum(passes) < 40:
            try:
                stack.enter_context(listening.accept()[0])
                passes[-1] += 1
            except BlockingIOError:
                passes.append(0)
        assert passes == [16, 16, 8]


async def test_pipelined_requests_are_answered_in_order(configured: Configured, serve: Serve) -> None:
    ping = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "nothing"})
    bearer = f"authorization: Bearer {TOKENS['alice']}\r\naccept: application/json, text/event-stream\r\n"
    each = [ping.replace("0,", f"{number},") for number in range(500)]
    sent = [WHOLE + f"{bearer}content-length: {len(body)}\r\n\r\n{body}".encode() for body in each]
    async with serve(write_config(configured)) as served, holding(served.url) as holder:
        connection = await holder.hold(b"".join(sent) + END)
        assert await call_on_new_connection(served.url) < PROMPT * slowness()
        await asyncio.wait_for(connection.over.wait(), BOUND)
        answers = connection.received.split(b"HTTP/1.1 ")[1:]
        assert len(answers) == 501
        assert [answer[:3] for answer in answers[-2:]] == [answers[0][:3], b"401"]


async def test_notifications_are_answered_when_they_are_taken(configured: Configured, serve: Serve) -> None:
    """Otherwise a client that sends them one after the other fills the memory with those that wait."""
    config = write_config(configured, requests_per_principal=40, calls_per_minute="none")
    body = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}'
    bearer = {"authorization": f"Bearer {TOKENS['alice']}"}
    async with serve(config) as served, holding(served.url) as holder:
        session = await session_of(served.url, bearer)
        lines = "".join(f"{name}: {value}\r\n" for name, value in {**bearer, **HEADERS, **session}.items()).encode()
        lines += b"content-length: %d\r\n\r\n" % len(body)
        each = b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:80\r\n" + lines + body
        connections = [await holder.hold(each * 100 + END) for _ in range(20)]
        for connection in connections:
            await asyncio.wait_for(connection.over.wait(), BOUND)
            statuses = Counter(answer[:3] for answer in connection.received.split(b"HTTP/1.1 ")[1:])
            assert statuses == {b"202": 100, b"401": 1}


async def test_a_principal_is_served_while_others_hold_what_they_may(configured: Configured, serve: Serve) -> None:
    config = write_config(configured, max_connections=20, pending_connections_per_address=5)
    async with serve(config) as served, AsyncExitStack() as stack:
        holder = await stack.enter_async_context(holding(served.url))
        client = await stack.enter_async_context(client_of("bob"))
        await call(client, served.url)
        for head in (b"", HALF):
            await holder.hold_many(30, head)
            assert await call(client, served.url) < PROMPT * slowness()
            assert await call_on_new_connection(served.url) < PROMPT * slowness()
        await until(lambda: holder.count_open() <= 5)


async def test_the_bound_of_headers_is_exact(configured: Configured, serve: Serve) -> None:
    most = 64 << 10
    end = b"content-length: 0\r\n\r\n"

    def padded(size: int, filler: bytes = b"a") -> bytes:
        start = WHOLE + b"x-padding:"
        return start + filler * (size - len(start) - len(end) - 2) + b"\r\n" + end

    table: dict[str, tuple[bytes, list[bytes]]] = {
        "as large as it may be": (padded(most), [b"401"]),
        "a byte larger": (padded(most + 1), [b"431"]),
        "much larger": (padded(70_000), [b"431"]),
        "spaces": (padded(most + 1, b" "), [b"431"]),
        "after another request": (padded(200) + padded(most + 1), [b"401", b"431"]),
        "two as large as they may be": (padded(most) + padded(most), [b"401", b"401"]),
    }
    async with serve(write_config(configured)) as served, holding(served.url) as holder:
        for name, (sent, wanted) in table.items():
            connection = await holder.hold(sent)
            await until(lambda: connection.received.count(b"HTTP/1.1 ") >= len(wanted))  # noqa: B023  # called at once
            assert [answer[:3] for answer in connection.received.split(b"HTTP/1.1 ")[1:]] == wanted, name
        assert b"`limits.max_header_bytes` (65,536)" in holder.open[1].received


def open_silent_reader(url: str, body: bytes) -> socket.socket:
    """Send a 2026-07-28 request that reads a resource, and receive only the first byte of the response."""
    address = urlsplit(url)
    head = "".join(f"{name}: {value}\r\n" for name, value in {**HEADERS, "mcp-method": "resources/read"}.items())
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.settimeout(BOUND)
    reader.connect((address.hostname, address.port))
    name = json.loads(body)["params"]["uri"]
    reader.sendall(
        f"POST {address.path} HTTP/1.1\r\nhost: {address.netloc}\r\n{head}mcp-name: {name}\r\n"
        f"content-length: {len(body)}\r\n\r\n".encode()
        + body
    )
    assert reader.recv(1)
    return reader


@pytest.mark.slow
async def test_responses_that_nobody_reads_take_little_memory(
    configured: Configured, serve: Serve, budget: Budget
) -> None:
    config = configured({}, memory_tools={"set": "all"}, store={"kind": "disk"})
    value = b'{"value":[' + b'"x",' * 2_300_000 + b"1]}"
    async with serve(config, "-v") as served:

        def put() -> str:
            with HttpClient(served.url) as client:
                return client.call("memory_put", value).decode()

        found = re.search(r"memory_put-[0-9a-f-]{36}", await asyncio.to_thread(put))
        assert found
        params = {"uri": f"memory://{found[0]}", "_meta": META}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": params}).encode()
        async with budget(served, "unread responses", "40 of 14 MB", stall=0.5, memory=300 << 20) as row:
            with contextlib.ExitStack() as stack:
                for _ in range(40):
                    stack.enter_context(await asyncio.to_thread(open_silent_reader, served.url, body))
            row.outcome = "in files"
