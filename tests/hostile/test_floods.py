"""The gateway slows a flooding upstream, then disconnects it; other clients are served and the log stays short."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest
from samples import sample
from tests.hostile.bystander import HttpClient, Waits, bystander
from tests.hostile.conftest import FULL
from tests.hostile.servers.many import FLOODS
from tests.load import slowness
from waiting import until

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Configured, OpenLines, Serve
    from tests.hostile.conftest import Budget

MANY = {"command": sys.executable, "args": ["-S", str(Path(__file__).parent / "servers" / "many.py")]}
HONEST = "hear_mirrored"
SECONDS = 6 if FULL else 2
LOG = 64 << 10
"""Bytes of log that a flood may cause, at most."""


@pytest.mark.parametrize("kind", sample([*FLOODS, "stderr"], lambda kind: kind == "logs"))
async def test_a_flood_does_not_delay_other_clients(
    configured: Configured, serve: Serve, raw: Any, budget: Budget, kind: str
) -> None:
    config = configured({"honest": raw(), "many": {**MANY, "timeout": 20}})
    async with serve(config, "-v") as served, budget(served, f"flood: {kind}", f"{SECONDS} s") as row:
        logged = sum(map(len, served.stderr))

        def run() -> tuple[str, Waits]:
            with HttpClient(served.url) as client, bystander(served.url, "honest_hear_mirrored") as waits:
                text = client.text("flood_mirrored", {"kind": kind, "seconds": SECONDS})
            return text, waits

        answer, waits = await anyio.to_thread.run_sync(run)
        assert not waits.failures
        row.waited = waits.longest
        row.outcome = "ended" if "closed the connection" in answer else "slowed"
        assert waits.p99 < 1.0 * slowness()
        ours = [line for line in served.stderr if b" call tool=" not in line]  # one line for each call at -v
        assert sum(map(len, ours)) - logged < LOG
        if kind == "garbage" and row.outcome == "ended":  # on a busy machine a flood may be too slow for that
            await until(lambda: b"unsolicited messages" in b"".join(served.stderr))


@pytest.mark.slow
@pytest.mark.alone
async def test_a_flooding_server_is_reported_and_reconnected(configured: Configured, serve: Serve) -> None:
    async with serve(configured({"many": {**MANY, "timeout": 20}})) as served:

        def run() -> tuple[str, str]:
            with HttpClient(served.url) as client:
                text = client.text("flood_mirrored", {"kind": "garbage", "seconds": 30})
                return text, client.text("hear_mirrored")

        answer, after = await anyio.to_thread.run_sync(run)
    assert "so the gateway closed the connection" in answer
    assert after == "2 characters"


CLIENT_FLOODS = {
    "garbage": b"this is not JSON",
    "empty lines": b"",
    "notifications": b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":99}}',
    "requests": b'{"jsonrpc":"2.0","id":"p","method":"ping"}',
    "batches": b'[{"jsonrpc":"2.0","method":"a"},{"jsonrpc":"2.0","id":1,"method":"ping"}]',
}


@pytest.mark.parametrize("kind", sample(CLIENT_FLOODS, "garbage".__eq__))
async def test_a_flooding_client_on_stdio_does_not_stall_the_gateway(
    configured: Configured, open_lines: OpenLines, raw: Any, budget: Budget, kind: str
) -> None:
    lines = 1_000_000 if kind == "empty lines" else 10_000
    async with open_lines(configured({"honest": raw()}), "-v") as client:
        await client.greet()
        assert client.process.stdin is not None
        async with budget(client, f"flood of a stdio client: {kind}", f"{lines:,} lines") as row:
            client.process.stdin.write((CLIENT_FLOODS[kind] + b"\n") * lines)
            assert "Result ends." in await client.text("hear_mirrored")
            row.outcome = "answered"
        assert sum(map(len, client.stderr)) < LOG
