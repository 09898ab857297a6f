"""Starts the targets of the conformance suite: the fixture, and gateways in front of it."""

import asyncio
import contextlib
import json
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

_BOUND: Final = 30.0
"""Seconds that a process may take to come up, and to leave."""
_EVERYTHING: Final = str(Path(__file__).parent / "everything.py")

HANDSHAKE_ONLY: Final = ("--era", "2025-11-25")
"""Makes the fixture a server of only this protocol version."""


def fixture_on_stdio(*flags: str) -> dict[str, Any]:
    """The fixture as an upstream that the gateway starts."""
    return {"command": sys.executable, "args": [_EVERYTHING, "stdio", *flags]}


@asynccontextmanager
async def fixture_on_http(*flags: str) -> AsyncIterator[str]:
    """The address of a running fixture."""
    async with _running([sys.executable, _EVERYTHING, "http", "0", *flags], stdout=PIPE) as process:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), _BOUND)
        yield f"http://127.0.0.1:{int(line)}/mcp"


def write_config(folder: Path, upstream: Mapping[str, Any]) -> Path:
    """A configuration with one upstream and the transparent profile: nothing is renamed, nothing is stored."""
    config = folder / "mirror.yaml"
    config.write_text(
        json.dumps({"upstreams": {"suite": upstream}, "mirror": {"suffix": "", "capture": "never"}}), encoding="utf-8"
    )
    return config


def gateway_command(config: Path) -> list[str]:
    """How a gateway is started on stdio."""
    return [str(Path(sys.executable).parent / "mcp-mirror"), "serve", "--config", str(config)]


@asynccontextmanager
async def serve_gateway(config: Path) -> AsyncIterator[str]:
    """The address of a running gateway; what it says goes to our standard error, in one piece at its end."""
    with tempfile.TemporaryFile() as log:
        argv = [*gateway_command(config), "--http", "127.0.0.1:0"]
        async with _running(argv, stderr=PIPE) as process:
            assert process.stderr is not None
            url = await asyncio.wait_for(_find_address(process.stderr), _BOUND)
            reading = asyncio.create_task(_copy(process.stderr, log))
            try:
                yield url
            finally:
                await _stop(process)
                await asyncio.wait_for(reading, _BOUND)
                log.seek(0)
                sys.stderr.write(log.read().decode(errors="replace"))


@asynccontextmanager
async def gateway_before(upstream: Mapping[str, Any]) -> AsyncIterator[str]:
    """The address of a running gateway before one upstream."""
    with tempfile.TemporaryDirectory() as folder:
        async with serve_gateway(write_config(Path(folder), upstream)) as url:
            yield url


async def _find_address(stderr: asyncio.StreamReader) -> str:
    before = b""
    while b" serves " not in (line := await stderr.readline()):
        before += line
        if not line:
            raise RuntimeError(f"The gateway did not start:\n{before.decode(errors='replace')}")
    return line.split()[-1].decode()


async def _copy(stream: asyncio.StreamReader, into: Any) -> None:
    while data := await stream.read(1 << 16):
        into.write(data)


@asynccontextmanager
async def _running(argv: Sequence[str], stdout: int | None = None, stderr: int | None = None) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(*argv, stdout=stdout, stderr=stderr)
    try:
        yield process
    finally:
        await _stop(process)


async def _stop(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), _BOUND)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
