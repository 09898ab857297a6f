"""The transport to a child process: JSON-RPC lines over its standard input and output.

It handles bytes, in linear time. A line that is not a message fails at most the call that it should have answered.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import anyio
import mcp_types as types
import msgspec
from mcp.shared.message import SessionMessage

from mcp_mirror.errors import WireError
from mcp_mirror.payload.json_rpc import find_begun_response, find_response
from mcp_mirror.payload.pipes import LineSink, LineSource, MessageStream
from mcp_mirror.payload.spool import Frame, Spool, frame_id, is_json_rpc, skip_text
from mcp_mirror.settings.upstreams import StdioEndpoint
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.system.limited_logs import RepeatedLog
from mcp_mirror.types import Segments
from mcp_mirror.upstreams.transports.child_process import PIPE_GONE, Child, keep_errors, launch
from mcp_mirror.upstreams.transports.network_errors import build_failure, classify_unread_frame
from mcp_mirror.upstreams.transports.payloads import NOT_JSON_RPC, PayloadBypass
from mcp_mirror.upstreams.transports.requests import PendingRequest, RequestSink
from mcp_mirror.upstreams.transports.server_output import ServerOutput

_LAST_OUTPUT: Final = 0.2
"""Seconds to wait for the last output of a child that has exited; a process of another group may keep the pipe."""
_CANCELLED: Final = "notifications/cancelled"
_CANCEL_TIMEOUT: Final = 0.2
"""Seconds for sending a cancellation: a child that does not read does not receive it either."""
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
        process, our_output, our_input = await launch(self.endpoint, self.child_watchdog)
        collector, sink = self.spool.collector(), LineSink(our_output, bypass.ended.set)
        source = LineSource(our_input, collector, bypass.take_result)
        bypass.is_blocked = lambda: collector.is_dropping
        child, is_read = Child(process, self.child_watchdog), anyio.Event()
        incoming = _StdioReader(self.name, source, bypass, self.output)
        async with anyio.create_task_group() as tasks:
            try:
                tasks.start_soon(keep_errors, process, self.endpoint, self.output, is_read)
                tasks.start_soon(child.reap)
                tasks.start_soon(_end_with_child, child, incoming, source)
                await tasks.start(sink.run)
                yield incoming, _StdioWriter(sink, bypass)
            finally:
                with anyio.CancelScope(shield=True):
                    sink.close()
                    await child.stop(has_message=incoming.has_message, is_stuck=bypass.is_stuck)
                    self.output.exit_code = child.exit_code
                    with anyio.move_on_after(_LAST_OUTPUT):
                        await is_read.wait()
                        await incoming.read_rest()
                    await child.close()
                tasks.cancel_scope.cancel()
                source.close()


async def _end_with_child(child: Child, incoming: "_StdioReader", source: LineSource) -> None:
    """Stop reading soon after the exit of the child: a process of another group may keep the pipe.

    If the child has sent no message, that process may be the server, such as one that `setsid` starts.
    """
    await child.exited.wait()
    if incoming.has_message:
        await anyio.sleep(_LAST_OUTPUT)
        source.end()


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
                    self._bypass.give_up(flood.reason)
                    raise anyio.EndOfStream  # noqa: TRY301  # one exit for every end
                if message is not None:
                    return message
        except (anyio.EndOfStream, *PIPE_GONE):
            self._log.close()
            self._bypass.end()
            raise anyio.EndOfStream from None

    async def read_rest(self) -> None:
        """Read what a child printed that exited before its first message."""
        with suppress(anyio.EndOfStream, *PIPE_GONE):
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
        identity, error = frame_id(frame), build_failure(classify_unread_frame(frame), reason, types.PARSE_ERROR)
        if self._bypass.fail(identity, error):
            return None
        self._log.warning("upstream %s wrote a line that is not a message: %s", self._name, reason)
        if identity is None or not is_json_rpc(frame) or self._bypass.has_ended(identity):
            self._output.add_stray(frame)
            return None
        return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=identity, error=error))


class _StdioWriter(RequestSink):
    """Writes messages to the child."""

    def __init__(self, sink: LineSink, bypass: PayloadBypass) -> None:
        self._sink = sink
        self._bypass = bypass

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
        except PIPE_GONE:
            raise self._end() from None
        return request.is_sent

    async def _write(self, segments: Segments) -> None:
        try:
            await self._sink.send(segments)
        except PIPE_GONE:
            raise self._end() from None

    def _end(self) -> anyio.BrokenResourceError:
        """End the connection, so that calls in flight fail now and not at their timeouts."""
        self._bypass.ended.set()
        return anyio.BrokenResourceError()
