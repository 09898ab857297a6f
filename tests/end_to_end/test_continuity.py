"""Twenty clients call while workers reload, are killed or stop: each call gets an answer, or its client the cause."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from http_sessions import HEADERS, META
from samples import sample
from tests.end_to_end.conftest import BOUND, Served
from waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway_processes import Start
    from tests.end_to_end.conftest import Configured, Serve

pytestmark = [pytest.mark.posix, pytest.mark.skipif(sys.platform != "linux", reason="workers need Linux")]
CLIENTS = 20
MODERN = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "hear_mirrored"}
CALL = {"name": "hear_mirrored", "arguments": {"text": "x"}, "_meta": META}
BODY = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": CALL}
NO_GATEWAY = httpx2.ConnectError.__name__


class Clients:
    """Clients that call one after the other, over connections of their own, until no gateway accepts connections."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._answered = [0] * CLIENTS
        self.outcomes = Counter[str]()
        """Results, messages of errors, and exceptions for calls without an answer."""

    async def run(self, number: int, *, is_kept_alive: bool) -> None:
        limits = httpx2.Limits(max_keepalive_connections=1 if is_kept_alive else 0)
        async with httpx2.AsyncClient(timeout=BOUND, limits=limits) as http:
            outcome = ""
            while outcome != NO_GATEWAY:
                outcome = await self._call(http)
                self.outcomes[outcome] += 1
                self._answered[number] += outcome == "result"

    async def _call(self, http: httpx2.AsyncClient) -> str:
        try:
            answer = (await http.post(self._url, json=BODY, headers=HEADERS | MODERN)).json()
        except httpx2.TransportError as error:
            return type(error).__name__
        return "result" if "result" in answer else str(answer["error"]["message"])

    async def progress(self) -> None:
        """Wait until each client has got further results."""
        before = self._answered.copy()
        await until(lambda: all(now > then + 2 for then, now in zip(before, self._answered, strict=True)))


@asynccontextmanager
async def calling(url: str, *, is_kept_alive: bool = True) -> AsyncIterator[Clients]:
    clients = Clients(url)
    tasks = [asyncio.create_task(clients.run(number, is_kept_alive=is_kept_alive)) for number in range(CLIENTS)]
    try:
        await clients.progress()
        yield clients
        await asyncio.wait_for(asyncio.gather(*tasks), BOUND)
    finally:
        for task in tasks:
            task.cancel()


def workers_of(served: Served) -> list[int]:
    children = Path(f"/proc/{served.process.pid}/task/{served.process.pid}/children").read_text()
    return [int(child) for child in children.split()]


@pytest.fixture
def shared(configured: Configured, raw: Any) -> Path:
    return configured({"raw": raw()}, store={"kind": "disk"})


@pytest.mark.parametrize(
    ("is_kept_alive", "workers"), sample([(True, 1), (True, 2), (False, 1), (False, 2)], lambda case: case == (True, 2))
)
async def test_calls_during_reloads_and_a_shutdown_are_answered(
    workers: int, serve: Serve, shared: Path, *, is_kept_alive: bool
) -> None:
    async with serve(shared, "--workers", str(workers)) as served:
        async with calling(served.url, is_kept_alive=is_kept_alive) as clients:
            for number in (1, 2):
                served.process.send_signal(signal.SIGHUP)
                await until(lambda: b"".join(served.stderr).count(b"was reloaded.") == number * workers)  # noqa: B023
                await clients.progress()
            assert set(clients.outcomes) == {"result"}
            served.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(served.process.wait(), BOUND) == 0
    stopping = [outcome for outcome in clients.outcomes if outcome.startswith("The gateway is stopping")]
    assert set(clients.outcomes) == {"result", *stopping, NO_GATEWAY}, clients.outcomes


async def test_a_killed_worker_loses_only_the_calls_that_it_had(serve: Serve, shared: Path) -> None:
    async with serve(shared, "--workers", "2") as served:
        async with calling(served.url) as clients:
            os.kill(workers_of(served)[0], signal.SIGKILL)
            await until(lambda: b"the gateway starts it again" in b"".join(served.stderr))
            await clients.progress()
            lost = {name: count for name, count in clients.outcomes.items() if name != "result"}
            assert set(lost) <= {"ReadError", "RemoteProtocolError"}, lost
            assert sum(lost.values()) <= CLIENTS
            served.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(served.process.wait(), BOUND) == 0


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
async def test_a_gateway_whose_log_has_no_reader_reloads_and_replaces_workers(
    workers: int, start: Start, shared: Path
) -> None:
    reading, writing = os.pipe()
    options = ("--config", str(shared), "--http", "127.0.0.1:0", "--workers", str(workers))
    process = await start("serve", *options, stderr=writing)
    os.close(writing)
    try:
        line = await asyncio.wait_for(asyncio.to_thread(os.read, reading, 1000), BOUND)
        os.close(reading)
        served = Served(process, line.split()[-1].decode())
        async with calling(served.url) as clients:
            process.send_signal(signal.SIGHUP)
            await clients.progress()
            for victim in workers_of(served)[1:workers]:
                os.kill(victim, signal.SIGKILL)
                await until(lambda: victim not in workers_of(served) and len(workers_of(served)) >= workers)  # noqa: B023
            await clients.progress()
            process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), BOUND) == 0
    finally:
        with suppress(ProcessLookupError):
            process.kill()
