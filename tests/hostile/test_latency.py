"""How long one small HTTP call takes on a connection that stays open."""

from __future__ import annotations

import http.client
import json
import socket
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio.to_thread
import httpx2
import pytest
from http_sessions import HEADERS as JSON_HEADERS
from http_sessions import META

from mcp_mirror.security.ssrf_guard import AddressPolicy, SSRFGuardTransport

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Configured, Listening, Serve

HEADERS = {**JSON_HEADERS, "mcp-protocol-version": "2026-07-28", "mcp-method": "tools/list"}
CALLS = 200
DELAYED_ACK = 0.040
"""Seconds for which Linux delays an acknowledgement; Nagle's algorithm waits for it between two writes."""


def call_times(url: str) -> list[float]:
    """Seconds that each of a row of small calls takes, one after another on one connection."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.netloc, timeout=20)
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}})
    times = []
    for _ in range(CALLS):
        began = time.perf_counter()
        connection.request("POST", address.path, body, HEADERS)
        answer = connection.getresponse()
        read = answer.read()
        times.append(time.perf_counter() - began)
        assert (answer.status, "tools" in json.loads(read)["result"]) == (200, True), read
    connection.close()
    return times


@pytest.mark.alone
async def test_small_calls_on_one_connection_do_not_wait_for_acknowledgements(
    configured: Configured, serve: Serve, raw: Any
) -> None:
    async with serve(configured({"up": raw()})) as served:
        times = sorted(await anyio.to_thread.run_sync(call_times, served.url))
    assert times[CALLS // 5] < DELAYED_ACK / 2, [f"{1000 * one:.1f} ms" for one in times]


async def test_connections_to_upstreams_send_without_delay(listening: Listening) -> None:
    async with (
        listening("raw_http.py") as port,
        httpx2.AsyncClient(transport=SSRFGuardTransport(AddressPolicy.from_urls(f"http://127.0.0.1:{port}"))) as client,
        client.stream("GET", f"http://localhost:{port}/mcp") as response,
    ):
        connection: socket.socket = response.extensions["network_stream"].get_extra_info("socket")
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
