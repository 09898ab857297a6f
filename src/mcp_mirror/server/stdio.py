"""The stdio transport of the server: lines of JSON-RPC, as bytes.

A line that is not a message gets a JSON-RPC error, and the connection continues. At a shutdown, open requests are
answered, new requests get an error, and the connection ends. While the transport is open, other output of the process
to standard output goes to standard error.
"""

import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, TextIO

import anyio
import mcp_types as types
from mcp.shared.message import SessionMessage

from mcp_mirror.errors import MirrorError, WireError
from mcp_mirror.payload.floods import Pacer
from mcp_mirror.payload.framing import Overlong
from mcp_mirror.payload.json_rpc import RequestId
from mcp_mirror.payload.pipes import LineSink, LineSource, MessageSink, MessageStream
from mcp_mirror.payload.spool import Frame, Spool, SpooledFrame, frame_id
from mcp_mirror.server.pending_payloads import PendingPayloads
from mcp_mirror.types import Buffer

_SUBSCRIPTION: Final = "subscriptions/listen"
_CANCELLED: Final = "notifications/cancelled"
_GRACE: Final = 1.0
"""Seconds after the end of the input in which open requests can be answered."""
_STARTUP_GRACE: Final = 5.0
"""The same for requests that wait for upstreams to start, because the input may be a file or a pipe."""
_STARTUP_METHODS: Final = frozenset({"initialize", "server/discover", "tools/list"})


@asynccontextmanager
async def open_stdio_streams(
    pending_payloads: PendingPayloads, spool: Spool, shutdown: anyio.Event
) -> AsyncIterator[tuple[MessageStream, MessageSink]]:
    """Open the transport on the standard streams of the process for the duration of the context.

    Args:
        pending_payloads: Keeps the payloads that bypass the SDK.
        spool: Stores large messages.
        shutdown: Set to end the connection after the open requests.

    Yields:
        The stream that the SDK reads messages from, and the one that it writes to.

    Raises:
        MirrorError: Standard output is closed.
    """
    with _claim_streams() as (input_descriptor, output_descriptor):
        sink = LineSink(output_descriptor)
        async with anyio.create_task_group() as tasks:
            await tasks.start(sink.run)
            connection = _Connection(pending_payloads, sink, shutdown)
            source = LineSource(input_descriptor, spool.collector())
            tasks.start_soon(_end_at_shutdown, connection, source)
            yield _StdioReader(connection, source), _StdioWriter(connection)
            tasks.cancel_scope.cancel()


class _Connection:
    """The state that reader and writer share: the output and the open requests."""

    def __init__(self, pending_payloads: PendingPayloads, sink: LineSink, shutdown: anyio.Event) -> None:
        self.pending_payloads = pending_payloads
        self.sink = sink
        self.shutdown = shutdown
        self._open_requests: dict[RequestId, str] = {}
        """The method of each request without a response, by its id."""
        self._is_changed = anyio.Event()

    def record(self, message: types.JSONRPCMessage) -> None:
        """Update the open requests after a message. Subscriptions and cancelled requests get no response."""
        if isinstance(message, types.JSONRPCRequest) and message.method != _SUBSCRIPTION:
            self._open_requests[message.id] = message.method
        elif isinstance(message, types.JSONRPCNotification) and message.method == _CANCELLED:
            if isinstance(cancelled := (message.params or {}).get("requestId"), RequestId):
                self._open_requests.pop(cancelled, None)
        elif isinstance(message, types.JSONRPCResponse | types.JSONRPCError) and message.id is not None:
            self._open_requests.pop(message.id, None)
        self._is_changed.set()
        self._is_changed = anyio.Event()

    @property
    def grace(self) -> float:
        """Seconds after the end of the input in which open requests can be answered."""
        return _STARTUP_GRACE if _STARTUP_METHODS.intersection(self._open_requests.values()) else _GRACE

    async def wait_until_answered(self) -> None:
        """Wait until all requests are answered."""
        while self._open_requests:
            await self._is_changed.wait()


class _StdioReader(MessageStream):
    """The messages of the client."""

    def __init__(self, connection: _Connection, source: LineSource) -> None:
        self._connection = connection
        self._source = source
        self._pacer = Pacer()

    async def receive(self) -> SessionMessage:
        try:
            while True:
                frame = await self._source.receive()
                self._pacer.begin()
                message = await self._parse(frame)
                await self._pacer.end()
                if message is not None:
                    self._connection.record(message.message)
                    return message
        except (anyio.EndOfStream, OSError):  # the client closed its end, or the gateway shuts down
            with anyio.move_on_after(self._connection.grace):
                await self._connection.wait_until_answered()
            raise anyio.EndOfStream from None

    async def _parse(self, frame: Frame) -> SessionMessage | None:
        """Return the message of a frame; answer an invalid or refused one with an error and return None."""
        token = None
        try:
            stub, token = self._connection.pending_payloads.inbound(_read_frame(frame))
            message = types.jsonrpc_message_adapter.validate_json(bytes(stub), by_name=False)
            if not (self._connection.shutdown.is_set() and isinstance(message, types.JSONRPCRequest)):
                return SessionMessage(message)
            self._connection.pending_payloads.discard(token)
            reason = "The gateway is stopping: it accepts no new requests."
            await self._send_error(types.INTERNAL_ERROR, reason, message.id)
        except WireError as error:
            await self._send_error(types.PARSE_ERROR, str(error), frame_id(frame))
        except ValueError:
            self._connection.pending_payloads.discard(token)
            reason = "The message is not a JSON-RPC request, notification or response."
            await self._send_error(types.INVALID_REQUEST, reason, frame_id(frame))
        return None

    async def _send_error(self, code: int, message: str, request_id: RequestId | None) -> None:
        error = types.JSONRPCError(jsonrpc="2.0", id=request_id, error=types.ErrorData(code=code, message=message))
        await self._connection.sink.send((error.model_dump_json(exclude_unset=True).encode(),))


async def _end_at_shutdown(connection: _Connection, source: LineSource) -> None:
    """End the input once all requests are answered; until then they may need responses and cancellations."""
    await connection.shutdown.wait()
    await connection.wait_until_answered()
    source.end()


class _StdioWriter(MessageSink):
    """The messages to the client."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection

    async def send(self, item: SessionMessage, /) -> None:
        frame = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        try:
            await self._connection.sink.send(self._connection.pending_payloads.outbound(frame))
        except OSError:  # the client has closed its end; the end of the input ends the session
            raise anyio.BrokenResourceError from None
        self._connection.record(item.message)


def _read_frame(frame: Frame) -> Buffer:
    if isinstance(frame, Overlong):
        raise WireError(f"A message of {frame.size:,} bytes is over `limits.max_message_bytes`.")
    if isinstance(frame, SpooledFrame):
        with frame:  # the file stays mapped while the arguments refer to it
            return frame.view
    return frame


@contextmanager
def _claim_streams() -> Iterator[tuple[int, int]]:
    """Redirect the standard streams so that other code of the process cannot disturb the connection.

    Yields:
        Private descriptors of the original standard input and output.

    Raises:
        MirrorError: Standard output is closed.
    """
    # Python sets a stream to None if its descriptor was closed at the start.
    standard_streams: tuple[TextIO | None, ...] = (sys.stdin, sys.stdout, sys.stderr)
    has_input, has_output, has_errors = (stream is not None for stream in standard_streams)
    if not has_output:
        raise MirrorError("Standard output is closed, so stdio clients cannot connect. Use --http to serve over HTTP.")
    sys.stdout.flush()
    null = os.open(os.devnull, os.O_RDWR)
    source = os.dup(0 if has_input else null)  # another file may have the number of a closed descriptor
    sink = os.dup(1)
    if has_input:
        os.dup2(null, 0)
    os.dup2(2 if has_errors else null, 1)
    try:
        yield source, sink
    finally:
        os.dup2(sink, 1)
        os.close(null)
