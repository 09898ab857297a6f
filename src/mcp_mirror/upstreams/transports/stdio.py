"""The transport to a child process: JSON-RPC lines over its standard input and output.

It handles bytes, in linear time. A line that is not a message fails at most the call that it should have answered.
"""

import logging
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path, PurePath
from typing import IO, Final

import anyio
import anyio.to_thread
import mcp_types as types
import msgspec
from anyio.abc import ByteReceiveStream, Process
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage

from mcp_mirror.errors import UpstreamError, WireError
from mcp_mirror.payload.floods import RepeatedLog
from mcp_mirror.payload.json_rpc import find_begun_response, find_response
from mcp_mirror.payload.pipes import LineSink, LineSource, MessageStream
from mcp_mirror.payload.spool import Frame, Spool, frame_id, is_json_rpc, skip_text
from mcp_mirror.settings.upstreams import StdioEndpoint
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.system.early_program import take_early
from mcp_mirror.system.resources import explain_shortage, open_wide_pipes, restore_handle_limit
from mcp_mirror.types import Segments
from mcp_mirror.upstreams.transports.network_errors import classify_unread_frame, mark
from mcp_mirror.upstreams.transports.payloads import NOT_JSON_RPC, PayloadBypass
from mcp_mirror.upstreams.transports.requests import PendingRequest, RequestSink
from mcp_mirror.upstreams.transports.server_output import ServerOutput, write_to_stderr

_STEPS: Final = ((None, 1.5), ("SIGTERM", 1.0), ("SIGKILL", 1.0))
"""How a child is stopped after its input is closed: the signals, and the seconds that it gets to exit."""
_STUCK_STEPS: Final = (("SIGTERM", 0.2), ("SIGKILL", 1.0))
"""The same for a child that neither reads nor ends its message: it does not see that its input is closed."""
_STARTING_STEPS: Final = ((None, 0.5), ("SIGTERM", 2.0), ("SIGKILL", 1.0))
"""The same for a child that has sent no message yet: an npx that is killed while it installs breaks its own cache.

Clients on the SDK kill a gateway 4 s after they close its input.
"""
_LAST_OUTPUT: Final = 0.2
"""Seconds to wait for the last output of a child that has exited; a process of another group may keep the pipe."""
_STDERR_SLICE: Final = 1 << 16
"""Bytes of standard error after which other tasks run."""
_STDERR_RATE: Final = 32 << 20
"""Bytes of standard error read per second; a child that writes more waits."""

_NODE_PROGRAMS: Final = frozenset({"node", "npx", "npm", "pnpm", "yarn", "bun", "bunx", "deno", "tsx", "ts-node"})
_SCRIPT_START: Final = 4096
"""Bytes of a script that are searched for the program that runs it."""
_NODE_SCRIPT: Final = re.compile(
    rb"\A#!(?:[^\n]*[/ ])?(?:node|bun|deno|tsx|ts-node)(?:\s|\Z)"  # as the package has it, and npm links it
    rb"|^\s*exec [^\n]*[/ ]node[\s\"]"  # as pnpm writes it
    rb"|[\\\"]node\.exe\b",  # as they write it on Windows
    re.MULTILINE,
)

_CANCELLED: Final = "notifications/cancelled"
_CANCEL_TIMEOUT: Final = 0.2
"""Seconds for sending a cancellation: a child that does not read does not receive it either."""
_PIPE_GONE: Final = (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)
_logger = logging.getLogger(__name__)


class StdioTransport(msgspec.Struct, frozen=True):
    """Starts the child process and exchanges messages with it."""

    name: str
    endpoint: StdioEndpoint
    spool: Spool
    child_watchdog: ChildWatchdog
    output: ServerOutput

    @asynccontextmanager
    async def open(self, bypass: PayloadBypass) -> AsyncIterator[tuple[MessageStream, RequestSink]]:
        """Start the child and yield the streams for the SDK.

        Raises:
            UpstreamError: The command does not exist or cannot be started.
        """
        process, our_output, our_input = await self._launch()
        collector, sink = self.spool.collector(), LineSink(our_output)
        source = LineSource(our_input, collector)
        source.take = bypass.take_result
        bypass.is_blocked = lambda: collector.is_dropping
        child, is_read = _Child(process, self.child_watchdog), anyio.Event()
        incoming = _StdioReader(self.name, source, bypass, self.output)
        async with anyio.create_task_group() as tasks:
            try:
                tasks.start_soon(self._keep_output, process.stderr, is_read)
                tasks.start_soon(child.reap)
                await tasks.start(sink.run)
                yield incoming, _StdioWriter(sink, bypass)
            finally:
                with anyio.CancelScope(shield=True):
                    sink.close()
                    started = _STEPS if incoming.has_message else _STARTING_STEPS
                    await child.stop(_STUCK_STEPS if bypass.is_stuck else started)
                    self.output.exit_code = child.exit_code
                    with anyio.move_on_after(_LAST_OUTPUT):
                        await is_read.wait()
                        await incoming.read_rest()
                    await child.close()
                tasks.cancel_scope.cancel()
                source.close()

    async def _launch(self) -> "tuple[Process | _EarlyProcess, int, int]":
        """Return the running child, and the gateway's ends of its standard input and output."""
        command = (self.endpoint.command, *self.endpoint.args)
        if self.endpoint.is_wrapped and (early := take_early(command)):
            if early.watchdog:
                self.child_watchdog.adopt(early.watchdog, early.process.pid)
            return _EarlyProcess(early.process), early.input, early.output
        try:
            with open_wide_pipes() as (theirs, ours):
                return await self._start(*theirs), *ours
        except OSError as error:
            raise self._shortage_error(explain_shortage(error) or str(error.strerror)) from None

    async def _start(self, stdin: int, stdout: int) -> Process:
        environment = _build_environment(self.endpoint)
        argv = [find_command(self.endpoint), *self.endpoint.args]
        try:
            async with self.child_watchdog.start_lock:
                with anyio.CancelScope(shield=True):  # a cancelled start would leave its pipe open
                    process = await anyio.open_process(
                        argv, stdin=stdin, stdout=stdout, env=environment, cwd=self.endpoint.cwd, start_new_session=True
                    )
        except (OSError, ValueError) as error:
            if shortage := explain_shortage(error):
                raise self._shortage_error(shortage) from None
            reason = getattr(error, "strerror", None) or "it has an invalid argument"
            command = self.endpoint.command
            raise UpstreamError(
                f"Its command {command!r} cannot start: {reason}. Check `command`, `args` and `cwd`."
            ) from None
        restore_handle_limit(process.pid)
        return process

    def _shortage_error(self, shortage: str) -> UpstreamError:
        return UpstreamError(f"Its command {self.endpoint.command!r} cannot start now: {shortage}.")

    async def _keep_output(self, stderr: ByteReceiveStream | None, is_read: anyio.Event) -> None:
        assert stderr is not None  # noqa: S101  # opened with a pipe
        unpaced = 0
        try:
            async with stderr:
                while True:
                    data = await stderr.receive()
                    self.output.add(data)
                    if self.endpoint.is_wrapped:
                        await write_to_stderr(data)
                    unpaced += len(data)
                    if unpaced >= _STDERR_SLICE:
                        await anyio.sleep(unpaced / _STDERR_RATE)
                        unpaced = 0
        except (anyio.EndOfStream, *_PIPE_GONE):
            pass
        finally:
            is_read.set()  # also at a shutdown, which cancels this task: nothing reads the rest


class _StdioReader(MessageStream):
    """Reads the child's messages."""

    def __init__(self, name: str, source: LineSource, bypass: PayloadBypass, output: ServerOutput) -> None:
        self._name = name
        self._output = output
        self.has_message = False
        self._source = source
        self._bypass = bypass
        self._log = RepeatedLog(_logger)

    async def receive(self) -> SessionMessage:
        flood = self._bypass.flood
        try:
            while True:
                frame = await self._source.receive()
                flood.pacer.begin()
                message = self._open(frame)
                await flood.pacer.end()
                if flood.reason:
                    self._bypass.give_up()
                    raise anyio.EndOfStream  # noqa: TRY301  # one exit for every end
                if message is not None:
                    return message
        except (anyio.EndOfStream, *_PIPE_GONE):
            self._log.close()
            self._bypass.end()
            raise anyio.EndOfStream from None

    async def read_rest(self) -> None:
        """Read what a child printed that exited before its first message."""
        with suppress(anyio.EndOfStream, *_PIPE_GONE):
            while not self.has_message and self._output.stray is None:
                self._open(await self._source.receive())

    def _open(self, frame: Frame) -> SessionMessage | None:
        """Return the message of a frame if it is for the SDK.

        MCP forbids other output, but programs write texts without a newline, and the next response is in the same line.
        """
        frame = self._skip_text(frame)
        try:
            if (message := self._bypass.inbound(frame)) is None:
                return None
            self.has_message = True
            return SessionMessage(types.jsonrpc_message_adapter.validate_json(bytes(message), by_name=False))
        except (WireError, ValueError) as error:
            if isinstance(frame, bytes) and (start := find_response(frame)) is not None:
                self._note_text(frame[:start])
                return self._open(frame[start:])
            return self._fail(frame, str(error) if isinstance(error, WireError) else NOT_JSON_RPC)

    def _skip_text(self, frame: Frame) -> Frame:
        """Return a large response without the other text before it; any other frame unchanged."""
        if isinstance(frame, bytes) or (start := find_begun_response(frame.head)) is None:
            return frame
        self._note_text(frame.head[:start])
        try:
            return skip_text(frame, start)
        except OSError:
            return frame

    def _note_text(self, text: bytes) -> None:
        self._log.warning("upstream %s wrote other text before a message, in the same line", self._name)
        self._output.add_stray(text)

    def _fail(self, frame: Frame, reason: str) -> SessionMessage | None:
        """Fail the request that a broken line answers; return the error if it may be a request of the SDK."""
        identity, explained = frame_id(frame), mark(classify_unread_frame(frame), reason)
        if self._bypass.fail(identity, types.PARSE_ERROR, explained):
            return None
        self._log.warning("upstream %s wrote a line that is not a message: %s", self._name, reason)
        if identity is None or not is_json_rpc(frame) or self._bypass.has_ended(identity):
            self._output.add_stray(frame)
            return None
        error = types.ErrorData(code=types.PARSE_ERROR, message=explained)
        return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=identity, error=error))


class _StdioWriter(RequestSink):
    """Writes messages to the child."""

    def __init__(self, sink: LineSink, bypass: PayloadBypass) -> None:
        self._sink = sink
        self._bypass = bypass
        sink.on_failure = bypass.ended.set

    async def send(self, item: SessionMessage) -> None:
        message = item.message
        frame = message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        is_cancellation = isinstance(message, types.JSONRPCNotification) and message.method == _CANCELLED
        with anyio.move_on_after(_CANCEL_TIMEOUT if is_cancellation else None):
            await self._write(self._bypass.outbound(frame))

    async def send_request(self, request: PendingRequest) -> None:
        await self._write(request.frame)
        request.is_sent = True

    def send_at_once(self, request: PendingRequest) -> bool:
        try:
            request.is_sent = self._sink.send_at_once(request.frame, may_wait=len(self._bypass) > 1)
        except _PIPE_GONE:
            raise self._end() from None
        return request.is_sent

    async def _write(self, segments: Segments) -> None:
        try:
            await self._sink.send(segments)
        except _PIPE_GONE:
            raise self._end() from None

    def _end(self) -> anyio.BrokenResourceError:
        """End the connection, so that calls in flight fail now and not at their timeouts."""
        self._bypass.ended.set()
        return anyio.BrokenResourceError()


class _EarlyProcess:
    """A child process that started before the event loop, with the members of `Process` that the transport uses."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None  # noqa: S101  # opened with a pipe
        self._process = process
        self.pid: Final = process.pid
        self.stderr: ByteReceiveStream | None = _PipeReader(process.stderr)

    async def wait(self) -> int:
        try:
            descriptor: int = getattr(os, "pidfd_open")(self.pid)  # noqa: B009  # only Linux has it
        except (AttributeError, OSError):  # the kernel has no pidfd_open (before 5.3)
            return await anyio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)
        try:
            await anyio.wait_readable(descriptor)
        finally:
            os.close(descriptor)
        return self._process.wait()

    def kill(self) -> None:
        self._process.kill()

    async def aclose(self) -> None:
        """Nothing to release: the task that reads standard error closes it."""


class _PipeReader(ByteReceiveStream):
    """The reading end of a pipe. Only the task that reads may close it: the event loop watches the descriptor."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe

    async def receive(self, max_bytes: int = _STDERR_SLICE) -> bytes:
        await anyio.wait_readable(self._pipe)
        data = os.read(self._pipe.fileno(), max_bytes)
        if not data:
            raise anyio.EndOfStream
        return data

    async def aclose(self) -> None:
        self._pipe.close()


class _Child:
    """The child process, and the processes that it started in its group."""

    def __init__(self, process: Process | _EarlyProcess, child_watchdog: ChildWatchdog) -> None:
        self._process = process
        self._child_watchdog = child_watchdog
        self._exited = anyio.Event()
        self._is_stopped = False
        self.exit_code: int | None = None
        """See `ServerOutput.exit_code`; None also if `stop` ended the child with a signal."""
        child_watchdog.add(process.pid)

    async def reap(self) -> None:
        """Wait for the exit of the child, and kill the remaining processes of its group, so that its pipes end."""
        with anyio.CancelScope(shield=True):  # until `stop` has returned
            status = await self._process.wait()
            self.exit_code = None if self._is_stopped else status
            self._signal("SIGKILL")
            self._child_watchdog.remove(self._process.pid)  # from here on another process may have the number
            self._exited.set()

    async def stop(self, steps: Sequence[tuple[str | None, float]]) -> None:
        """Wait for the child to exit, then signal and at last kill its group, in the order of MCP's lifecycle."""
        for name, grace in steps:
            if name:
                self._is_stopped = True
                self._signal(name)
            with anyio.move_on_after(grace):
                await self._exited.wait()
            if self._exited.is_set():
                return

    async def close(self) -> None:
        """Close the remaining pipes."""
        with suppress(*_PIPE_GONE):
            await self._process.aclose()

    def _signal(self, name: str) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if sys.platform == "win32":
                self._process.kill()
            else:
                os.killpg(self._process.pid, getattr(signal, name))


def find_command(endpoint: StdioEndpoint) -> str:
    """Return the path of a server's program.

    Raises:
        UpstreamError: The program does not exist.
    """
    command = _search_command(endpoint)
    if command is None:
        raise UpstreamError(f"It cannot start: {_explain_missing(endpoint.command)}")
    return command


def is_run_by_node(endpoint: StdioEndpoint) -> bool:
    """Whether Node or a similar program runs a server: by its command, or by the script that the command names."""
    if PurePath(endpoint.command).stem.lower() in _NODE_PROGRAMS:
        return True
    try:
        with Path(_search_command(endpoint) or "").open("rb") as program:
            start = program.read(_SCRIPT_START)
    except OSError:
        return False
    return start.startswith((b"#!", b"@")) and _NODE_SCRIPT.search(start) is not None


def _search_command(endpoint: StdioEndpoint) -> str | None:
    return shutil.which(endpoint.command, path=_build_environment(endpoint).get("PATH"))


def _build_environment(endpoint: StdioEndpoint) -> dict[str, str]:
    return ({} if endpoint.is_wrapped else get_default_environment()) | dict(endpoint.env)


def _explain_missing(command: str) -> str:
    """Explain why a command cannot be found. Its arguments are not named: they may be secrets."""
    if os.path.dirname(command) and (reason := _explain_path(command)):  # noqa: PTH120
        return reason
    program, *arguments = command.split() or [command]
    if program.startswith(("http://", "https://")):
        return "`command` is a URL. Write it into `url`, or after --url if the server is wrapped."
    if not arguments:
        return f"the command {command!r} does not exist. Install it, or give its full path as `command`."
    if "=" in program:
        return "`command` begins with a variable. Write variables into `env`, and arguments into `args`."
    return (
        f"no command has a name of {1 + len(arguments)} words. Arguments go into `args`: write "
        f"`command: {program}` and the other words as the items of `args`."
    )


def _explain_path(path: str) -> str | None:
    """Explain why the program at a path cannot be started; None if nothing is there."""
    try:
        mode = Path(path).stat().st_mode
    except PermissionError:
        return (
            f"the user that runs mcp-mirror may not enter a folder of the command {path!r}. Install the program where "
            "that user may run it, or change the rights of its folders."
        )
    except (OSError, ValueError):
        return None
    if stat.S_ISDIR(mode):
        return f"the command {path!r} is a folder. Give the path of the program in it."
    return (
        f"the file {path!r} is not executable. Make it executable, or write its interpreter into `command` and "
        "the file into `args`."
    )
