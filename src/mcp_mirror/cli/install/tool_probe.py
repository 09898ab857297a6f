"""A program that `doctor` starts as its client does, to list the tools that it serves.

The program is `mcp-mirror wrap` or `memory`. The SDK's own transport would wait seconds for a program that does not
end, also after Ctrl-C, and does not name its process.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from mcp_mirror.errors import MirrorError

_MAX_LINE: Final = 64 << 20
"""Bytes of one message."""
_GRACE: Final = 2.0
"""Seconds that a program gets to end after its input is closed, and again after SIGTERM."""
_CLOSED: Final = (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)
_INITIALIZE: Final = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "mcp-mirror doctor", "version": "0"},
}


async def list_tools(
    words: Sequence[str], env: Mapping[str, str], folder: Path, errors: IO[Any], running: set[int]
) -> list[str]:
    """Start a program, return the names of its tools, and end it.

    `errors` is the file for its standard error. `running` contains the number of the process while it runs.

    Raises:
        MirrorError: The program answers with an error, with something else than a list, or not at all.
        OSError: The program cannot be started.
        ValueError: A word or a variable contains NUL.
    """
    process = await anyio.open_process(
        words, stdin=subprocess.PIPE, stderr=errors, env=env, cwd=folder, start_new_session=True
    )
    running.add(process.pid)
    try:
        assert process.stdout is not None  # noqa: S101  # opened with a pipe
        lines = BufferedByteReceiveStream(process.stdout)
        await _request(process, lines, "initialize", _INITIALIZE)
        await _send(process, {"jsonrpc": "2.0", "method": "notifications/initialized"})
        listing = await _request(process, lines, "tools/list", {})
        return [str(tool["name"]) for tool in listing["tools"]]
    except (*_CLOSED, anyio.EndOfStream, anyio.IncompleteRead):
        raise MirrorError("it ended the connection") from None
    except (anyio.DelimiterNotFound, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        raise MirrorError("its answer is not a message of MCP") from None
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)
        running.discard(process.pid)


def end_programs(running: set[int]) -> None:
    """Ask programs to end, without a wait: they end servers that still start after a few seconds."""
    for number in running:
        for name in ("SIGTERM", "SIGINT"):  # the second signal ends the wait for open requests
            _signal(number, name)


async def _request(process: Process, lines: BufferedByteReceiveStream, method: str, params: Mapping[str, Any]) -> Any:
    """Send a request, and return the result of its response; other messages of the program are skipped."""
    await _send(process, {"jsonrpc": "2.0", "id": method, "method": method, "params": params})
    while True:
        message = json.loads(await lines.receive_until(b"\n", _MAX_LINE))
        if message.get("id") == method and "method" not in message:
            if "error" in message:
                raise MirrorError(message["error"]["message"])
            return message["result"]


async def _send(process: Process, message: Mapping[str, Any]) -> None:
    assert process.stdin is not None  # noqa: S101  # opened with a pipe
    await process.stdin.send(json.dumps(message).encode() + b"\n")


async def _end(process: Process) -> None:
    assert process.stdin is not None  # noqa: S101  # opened with a pipe
    with suppress(*_CLOSED):
        await process.stdin.aclose()
    for name in ("SIGTERM", "SIGKILL"):
        if await _has_ended(process):
            break
        _signal(process.pid, name)
    else:
        await _has_ended(process)
    with suppress(*_CLOSED):
        await process.aclose()


async def _has_ended(process: Process) -> bool:
    """Wait for a moment; return whether the program has ended."""
    with anyio.move_on_after(_GRACE):
        await process.wait()
    return process.returncode is not None


def _signal(number: int, name: str) -> None:
    """Send a signal to a program and what it started; on Windows, which has no such signals, end the program."""
    with suppress(OSError):
        if sys.platform == "win32":
            os.kill(number, signal.SIGTERM)
        else:
            os.killpg(number, getattr(signal, name))
