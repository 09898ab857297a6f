"""A gateway whose standard error nothing reads: the log is lost, and calls are answered."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from gateway_processes import COMMAND, start_command
from redis_process import free_port
from samples import sample
from tests.end_to_end.conftest import BOUND, Lines
from waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.end_to_end.conftest import Configured

pytestmark = [
    pytest.mark.posix,
    pytest.mark.skipif(sys.platform != "linux", reason="pipes and devices are those of Linux"),
]


@pytest.fixture(params=["not read", "gone", "full"])
def unread(request: pytest.FixtureRequest) -> Iterator[int]:
    """A descriptor for standard error: a full pipe that nothing reads, one without a reader, a full disk."""
    source, sink = os.pipe()
    os.write(sink, bytes(fcntl.fcntl(sink, fcntl.F_GETPIPE_SZ)))
    full = os.open("/dev/full", os.O_WRONLY)
    if request.param == "gone":
        os.close(source)
    yield full if request.param == "full" else sink
    for file in (sink, full) if request.param == "gone" else (sink, full, source):
        os.close(file)


@asynccontextmanager
async def killing(process: Any) -> AsyncIterator[None]:
    """Kill the process at the end of the context, if it has not ended."""
    try:
        yield
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_calls_are_answered_while_nothing_reads_the_log(configured: Configured, raw: Any, unread: int) -> None:
    config = configured({"raw": raw()})
    process = await start_command("serve", "-vv", "--config", str(config), stdin=PIPE, stdout=PIPE, stderr=unread)
    client = Lines(process)
    async with asyncio.timeout(BOUND), killing(process):
        await client.greet()
        for _ in range(3):
            assert "heard" in await client.text("hear_mirrored", {"text": "heard"})
        assert process.stdin is not None
        process.stdin.close()
        assert await process.wait() == 0


@pytest.mark.parametrize("workers", sample(["1", "2"], lambda workers: workers == "2"))
async def test_a_signal_ends_a_gateway_whose_log_nothing_reads(
    workers: str, configured: Configured, raw: Any, unread: int
) -> None:
    config = configured({"raw": raw()}, store={"kind": "disk"})
    address = f"127.0.0.1:{free_port()}"
    arguments = ("serve", "-vv", "--config", str(config), "--http", address, "--workers", workers)
    process = await start_command(*arguments, stdin=DEVNULL, stdout=DEVNULL, stderr=unread)
    async with asyncio.timeout(BOUND), killing(process), httpx2.AsyncClient() as client:
        await until(lambda: is_serving(client, address))
        process.terminate()
        assert await process.wait() == 0


async def is_serving(client: httpx2.AsyncClient, address: str) -> bool:
    try:
        return (await client.get(f"http://{address}/healthz")).status_code == 200
    except httpx2.TransportError:
        return False


async def test_a_gateway_without_standard_error_serves(configured: Configured, raw: Any) -> None:
    command = f"exec {COMMAND} serve -v --config {configured({'raw': raw()})} 2>&-"
    process = await asyncio.create_subprocess_shell(command, stdin=PIPE, stdout=PIPE)
    client = Lines(process)
    async with asyncio.timeout(BOUND), killing(process):
        await client.greet()
        assert "heard" in await client.text("hear_mirrored", {"text": "heard"})
        target = Path(f"/proc/{process.pid}/fd/2").readlink()
        assert process.stdin is not None
        process.stdin.close()
        assert await process.wait() == 0
    assert str(target) == os.devnull
