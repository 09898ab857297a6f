"""A program that `doctor` starts, and its streams for the SDK.

The SDK's own transport waits seconds for a program that does not end, also after Ctrl-C, and does not name its process.
"""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

_MAX_LINE: Final = 64 << 20
"""Bytes of one message."""
_GRACE: Final = 2.0
"""Seconds that a program gets to end after its input is closed, and again after SIGTERM."""
_GONE: Final = (
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    anyio.DelimiterNotFound,
    anyio.EndOfStream,
    anyio.IncompleteRead,
    OSError,
)

Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


@asynccontextmanager
async def start_program(
    words: Sequence[str], env: Mapping[str, str], folder: Path, errors: IO[Any], running: set[int]
) -> AsyncIterator[Streams]:
    """Start a program, and end it with the context.

    Args:
        words: The program and its arguments.
        env: Its environment.
        folder: Its working directory.
        errors: The file for its standard error.
        running: Contains the number of the process while it runs.

    Raises:
        OSError: The program cannot be started.
        ValueError: A word or a variable contains NUL.
    """
    process = await anyio.open_process(
        words, stdin=subprocess.PIPE, stderr=errors, env=env, cwd=folder, start_new_session=True
    )
    running.add(process.pid)
    to_client, incoming = anyio.create_memory_object_stream[SessionMessage | Exception]()
    outgoing, from_client = anyio.create_memory_object_stream[SessionMessage]()
    with to_client, incoming, outgoing, from_client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_read, process, to_client)
            tasks.start_soon(_write, process, from_client)
            try:
                yield incoming, outgoing
            finally:
                with anyio.CancelScope(shield=True):
                    await _end(process)
                running.discard(process.pid)
                tasks.cancel_scope.cancel()


def end_programs(running: set[int]) -> None:
    """Ask programs to end, without a wait: they end servers that still start after a few seconds."""
    for number in running:
        for name in ("SIGTERM", "SIGINT"):  # the second signal ends the wait for open requests
            _signal(number, name)


async def _read(process: Process, to_client: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
    assert process.stdout is not None  # noqa: S101  # opened with a pipe
    lines = BufferedByteReceiveStream(process.stdout)
    with to_client, suppress(*_GONE):
        while True:
            line = await lines.receive_until(b"\n", _MAX_LINE)
            try:
                message = SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
            except ValueError as error:
                await to_client.send(error)
            else:
                await to_client.send(message)


async def _write(process: Process, from_client: MemoryObjectReceiveStream[SessionMessage]) -> None:
    assert process.stdin is not None  # noqa: S101  # opened with a pipe
    with suppress(*_GONE):
        async for item in from_client:
            text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
            await process.stdin.send(text.encode() + b"\n")


async def _end(process: Process) -> None:
    assert process.stdin is not None  # noqa: S101  # opened with a pipe
    with suppress(*_GONE):
        await process.stdin.aclose()
    for name in ("SIGTERM", "SIGKILL", ""):
        with anyio.move_on_after(_GRACE):
            await process.wait()
        if process.returncode is not None:
            break
        _signal(process.pid, name)
    with suppress(*_GONE):
        await process.aclose()


def _signal(number: int, name: str) -> None:
    with suppress(OSError):
        if sys.platform == "win32":
            os.kill(number, signal.SIGTERM)
        elif name:
            os.killpg(number, getattr(signal, name))
