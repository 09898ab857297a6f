"""An upstream as a child process: JSON-RPC lines over its standard input and output.

Bytes only, linear in their number; a line that is no message costs at most the call that it should have answered.
"""

import logging
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

import anyio
import mcp_types as types
from anyio.abc import Process
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage

from mcp_mirror.errors import UpstreamError, WireError
from mcp_mirror.policies import StdioEndpoint
from mcp_mirror.upstreams.base import Bypass
from mcp_mirror.upstreams.redaction import Redactor
from mcp_mirror.wire import LineReader, Overlong, line_of, recover_id

_READ: Final = 1 << 20
_STEPS: Final = ((None, 1.5), ("SIGTERM", 1.0), ("SIGKILL", 1.0))
"""How a child is stopped once its input is closed: each signal, and the seconds that it gets to leave."""
_LAST_WORDS: Final = 2000
"""Bytes of a child's standard error that are kept for the report when it dies."""
_LINE: Final = 300
"""Characters of them that are shown."""

_PIPE_GONE: Final = (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)
_STREAM_GONE: Final = (anyio.BrokenResourceError, anyio.ClosedResourceError)

Incoming = SessionMessage | Exception

log = logging.getLogger(__name__)


class LastWords:
    """The end of a child's standard error, without the secrets that we gave it."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._kept = _LAST_WORDS + 4 * redactor.longest
        self._tail = b""

    def add(self, data: bytes) -> None:
        """Keep the newest bytes."""
        self._tail = (self._tail + data)[-self._kept :]

    def __str__(self) -> str:
        text = self._redactor.clean(self._tail.decode("utf-8", "replace"))
        if len(self._tail) == self._kept:
            text = text[self._redactor.longest :]  # where the end of a secret may stand
        line = next(reversed(text.strip().splitlines()), "")[:_LINE]
        return "".join(character if character.isprintable() else " " for character in line)


@dataclass(frozen=True, slots=True)
class StdioTransport:
    """Starts the child and speaks with it."""

    name: str
    endpoint: StdioEndpoint
    max_message_bytes: int
    last_words: LastWords

    @asynccontextmanager
    async def open(
        self, bypass: Bypass
    ) -> AsyncIterator[tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]]:
        """Start the child and yield what the SDK reads and writes.

        Raises:
            UpstreamError: There is no such command or it cannot be started.
        """
        process = await self._start()
        to_session, from_upstream = anyio.create_memory_object_stream[Incoming](0)
        to_upstream, from_session = anyio.create_memory_object_stream[SessionMessage](0)
        async with anyio.create_task_group() as tasks:
            try:
                tasks.start_soon(self._keep_last_words, process)
                tasks.start_soon(self._read, process, bypass, to_session)
                tasks.start_soon(self._write, process, bypass, from_session, to_session)
                yield from_upstream, to_upstream
            finally:
                with anyio.CancelScope(shield=True):
                    for stream in (from_upstream, to_upstream):
                        stream.close()
                    await _stop(process)
                tasks.cancel_scope.cancel()

    async def _start(self) -> Process:
        environment = get_default_environment() | dict(self.endpoint.env)
        command = shutil.which(self.endpoint.command, path=environment.get("PATH"))
        if command is None:
            raise UpstreamError(
                f"Upstream {self.name!r}: there is no command {self.endpoint.command!r}. Install it, or give its "
                "full path as `command`."
            )
        argv = [command, *self.endpoint.args]
        try:
            return await anyio.open_process(argv, env=environment, cwd=self.endpoint.cwd, start_new_session=True)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it has an argument that no process can take"
            raise UpstreamError(
                f"Upstream {self.name!r}: {self.endpoint.command!r} cannot start: {reason}. Check `command`, `args` "
                "and `cwd`."
            ) from None

    async def _keep_last_words(self, process: Process) -> None:
        assert process.stderr is not None  # noqa: S101  # opened with pipes
        with suppress(anyio.EndOfStream, *_PIPE_GONE):
            while True:
                data = await process.stderr.receive()
                self.last_words.add(data)

    async def _read(self, process: Process, bypass: Bypass, session: MemoryObjectSendStream[Incoming]) -> None:
        assert process.stdout is not None  # noqa: S101  # opened with pipes
        lines = LineReader(self.max_message_bytes)
        async with session:
            with suppress(anyio.EndOfStream, *_PIPE_GONE):
                while True:
                    for line in lines.feed(await process.stdout.receive(_READ)):
                        if (message := self._open(line, bypass)) is not None:
                            await session.send(message)
        bypass.ended.set()

    def _open(self, line: bytes | Overlong, bypass: Bypass) -> SessionMessage | None:
        try:
            if isinstance(line, Overlong):
                raise WireError(f"A message of {line.size:,} bytes is over `max_message_bytes`.")  # noqa: TRY301
            return SessionMessage(
                types.jsonrpc_message_adapter.validate_json(bytes(bypass.inbound(line)), by_name=False)
            )
        except (WireError, ValueError) as error:
            reason = str(error) if isinstance(error, WireError) else "The message is not of JSON-RPC's form."
            identity = recover_id(line.head if isinstance(line, Overlong) else line)
            if identity is None or not bypass.awaits(identity):
                log.warning("upstream %s wrote a line that is no message: %s", self.name, reason)
                return None
            answer = types.ErrorData(code=types.PARSE_ERROR, message=reason)
            return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=identity, error=answer))

    async def _write(
        self,
        process: Process,
        bypass: Bypass,
        messages: MemoryObjectReceiveStream[SessionMessage],
        session: MemoryObjectSendStream[Incoming],
    ) -> None:
        assert process.stdin is not None  # noqa: S101  # opened with pipes
        try:
            async with messages:
                async for message in messages:
                    frame = message.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
                    for piece in line_of(bypass.outbound(frame)):
                        await process.stdin.send(piece)
        except _PIPE_GONE:
            await session.aclose()  # a call under way must fail now, not at its timeout


async def _stop(process: Process) -> None:
    """Close its input, wait, tell it, wait, kill it and its children: the order that MCP's lifecycle asks for."""
    assert process.stdin is not None  # noqa: S101  # opened with pipes
    with suppress(*_PIPE_GONE):
        await process.stdin.aclose()
    for name, grace in _STEPS:
        if name:
            _signal(process, name)
        with anyio.move_on_after(grace):
            await process.wait()
        if process.returncode is not None:
            break
    _signal(process, "SIGKILL")  # what it left behind in its group
    with suppress(*_PIPE_GONE):
        await process.aclose()


def _signal(process: Process, name: str) -> None:
    with suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, getattr(signal, name))
