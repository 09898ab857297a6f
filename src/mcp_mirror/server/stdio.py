"""The stdio transport of the server: lines of JSON-RPC, as bytes.

A line that is not a message gets a JSON-RPC error, and the connection continues. At a shutdown, open requests are
answered, new requests get an error, and the connection ends. A client that has closed the input gets the responses that
come soon, and no errors for its other requests. While the transport is open, other output of the process to standard
output goes to standard error.

A client that has only sent `server/discover` may still send `initialize`: clients wait a few seconds for the result,
and a server may take longer to start. The SDK refuses an `initialize` after other requests. So the first connection of
the SDK ends there, and a second one begins with it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import anyio
import mcp_types as types
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage

from mcp_mirror.callers import LOCAL
from mcp_mirror.core.amounts import format_count
from mcp_mirror.payload.json_rpc import RequestId
from mcp_mirror.payload.pipes import LineSink, LineSource, MessageSink, MessageStream
from mcp_mirror.payload.spool import Frame, Spool, discard_after, frame_id
from mcp_mirror.server.cancel_scopes import STOPPED, STOPPING, CancelScopes, RequestScope, find_cancelled_id
from mcp_mirror.server.client_channel import SdkStream
from mcp_mirror.server.direct_path import DirectPath, DirectRequest, Sender, write_response
from mcp_mirror.server.pending_payloads import PendingPayloads
from mcp_mirror.server.sdk_messages import refuse_response
from mcp_mirror.server.standard_streams import claim_standard_streams
from mcp_mirror.system.slices import Pacer
from mcp_mirror.types import Segments

_logger = logging.getLogger(__name__)

_SUBSCRIPTION: Final = "subscriptions/listen"
_GRACE: Final = 1.0
"""Seconds after the end of the input in which open requests can be answered."""
_STARTUP_GRACE: Final = 5.0
"""The same for requests that wait for upstreams to start, because the input may be a file or a pipe."""
_SHUTDOWN_GRACE: Final = 0.5
"""The same at a shutdown, when all calls are answered."""
_LAST_WRITE: Final = 1.0
"""Seconds that the error for a request may take which the end of the connection cancels. A line that is being written
stays unfinished if the client does not read for so long."""
_CONNECTION_CLOSED: Final = types.ErrorData(code=types.CONNECTION_CLOSED, message="Connection closed")
"""The error with which the SDK answers requests that the end of the connection cancels."""
_GIVEN_UP: Final = types.ErrorData(
    code=types.INVALID_REQUEST, message="The client sent `initialize`, so the gateway does not answer this request."
)
"""The error for a `server/discover` that was open when the client sent `initialize`."""
_INITIALIZE: Final = "initialize"
_DISCOVER: Final = "server/discover"
_STARTUP_METHODS: Final = frozenset({_INITIALIZE, _DISCOVER, "tools/list"})


@asynccontextmanager
async def open_stdio_streams(
    pending_payloads: PendingPayloads, spool: Spool, shutdown: anyio.Event, direct_path: DirectPath
) -> AsyncIterator[tuple["StdioReader", MessageSink]]:
    """Open the transport on the standard streams of the process for the duration of the context.

    After `shutdown`, the connection ends with the open requests.

    Yields:
        The stream that the SDK reads messages from, and the one that it writes to.

    Raises:
        MirrorError: Standard output is closed.
    """
    with claim_standard_streams() as (input_descriptor, output_descriptor):
        sink = LineSink(output_descriptor)
        async with anyio.create_task_group() as tasks:
            await tasks.start(sink.run)
            connection = _Connection(pending_payloads, sink, shutdown, spool.policy.traffic.requests_per_principal)
            direct_requests = _DirectRequests(direct_path, connection)
            source = LineSource(input_descriptor, spool.collector(), direct_requests.start)
            tasks.start_soon(_end_at_shutdown, connection, source, tasks.cancel_scope)
            tasks.start_soon(direct_requests.follow_cancellation)
            try:
                yield StdioReader(connection, source, direct_path, direct_requests), _StdioWriter(connection)
            finally:
                await direct_requests.end()
            await sink.finish(_LAST_WRITE)
            tasks.cancel_scope.cancel()


class _Connection:
    """The state that reader and writer share: the output, the open requests, and the handshakes."""

    def __init__(
        self, pending_payloads: PendingPayloads, sink: LineSink, shutdown: anyio.Event, max_requests: int
    ) -> None:
        self.pending_payloads = pending_payloads
        self.sink = sink
        self.shutdown = shutdown
        self.max_requests = max_requests
        self.second_handshake: _SecondHandshake = _SecondHandshake()
        self._open_requests: dict[RequestId, str] = {}
        """The method of each request without a response, by its id as the SDK compares ids."""
        self._is_answered = asyncio.Event()
        """Set when a request is answered."""
        self.is_abandoned = False
        """The client has closed the input, so it awaits no errors. Clients with version 1 of the Python SDK end with an
        exception if a message comes after they have closed their session."""

    def record_received(self, message: types.JSONRPCMessage) -> None:
        """Update the open requests after a message of the client. Subscriptions and cancelled requests get no response.

        The gateway's requests to the client may have the same ids.
        """
        if isinstance(message, types.JSONRPCRequest) and message.method != _SUBSCRIPTION:
            self._open_requests[coerce_request_id(message.id)] = message.method
        elif (cancelled := find_cancelled_id(message)) is not None:
            self.remove_request(cancelled)

    def find_method(self, request_id: RequestId) -> str | None:
        """Return the method of an open request."""
        return self._open_requests.get(coerce_request_id(request_id))

    def add_direct_request(self, request_id: RequestId, method: str) -> bool:
        """Record a request; return False if the limit is reached or a request with this id has no response yet."""
        known_id = coerce_request_id(request_id)
        if known_id in self._open_requests or self.is_full:
            return False
        self._open_requests[known_id] = method
        return True

    def remove_request(self, request_id: RequestId) -> None:
        """Record that a request was answered, or needs no response."""
        self._open_requests.pop(coerce_request_id(request_id), None)
        self._is_answered.set()

    @property
    def is_full(self) -> bool:
        """Whether as many requests are open as the limit allows. Requests are open until the client reads."""
        return len(self._open_requests) >= self.max_requests

    @property
    def grace(self) -> float:
        """Seconds after the end of the input in which open requests can be answered."""
        if self.shutdown.is_set():
            return _SHUTDOWN_GRACE
        return _STARTUP_GRACE if _STARTUP_METHODS.intersection(self._open_requests.values()) else _GRACE

    async def end(self) -> None:
        """Wait at the end of the input while open requests can be answered."""
        with anyio.move_on_after(self.grace):
            await self.wait_until_answered()
        if self._open_requests and not self.shutdown.is_set():
            self.is_abandoned = True
            open_requests = format_count(len(self._open_requests), "open request")
            _logger.warning("The client closed its input. The gateway cancels %s.", open_requests)

    async def wait_until_answered(self, *, awaits_start: bool = True) -> None:
        """Wait until all requests are answered; with `awaits_start`, also those that wait for upstreams to start."""
        ignored = frozenset[str]() if awaits_start else _STARTUP_METHODS
        while not ignored.issuperset(self._open_requests.values()):
            self._is_answered.clear()
            await self._is_answered.wait()


class _SecondHandshake:
    """The `initialize` of a client that has only sent `server/discover` before; see the module."""

    def __init__(self) -> None:
        self._has_only_discovered: bool | None = None
        """Whether all requests of the client were `server/discover` of 2026-07-28; None before the first."""
        self._initialize: SessionMessage | None = None
        """Waits until the SDK reads it."""
        self.discover_error: types.ErrorData | None = None
        """The reason for which a `server/discover` failed. Clients then send `initialize`, and report its error."""

    @property
    def is_pending(self) -> bool:
        """Whether the first connection of the SDK ends, because the second one begins with the `initialize`."""
        return self._initialize is not None

    def keep(self, message: SessionMessage) -> bool:
        """Keep a message for the second connection if it is such an `initialize`; return whether it is."""
        request = message.message
        if not isinstance(request, types.JSONRPCRequest):
            return False
        if self._has_only_discovered and request.method == _INITIALIZE:
            self._initialize = message
        self._has_only_discovered = _is_discover(request) and self._has_only_discovered is not False
        return self.is_pending

    def take(self) -> SessionMessage | None:
        """Return the `initialize` once; None for a client that has not sent one after a `server/discover`."""
        taken, self._initialize = self._initialize, None
        return taken

    def note_error(self, method: str | None, error: types.ErrorData) -> None:
        """Note an error of the gateway for a request, before the client reads it."""
        if method == _DISCOVER and error.code == types.INTERNAL_ERROR:
            self.discover_error = error


def _is_discover(request: types.JSONRPCRequest) -> bool:
    """Whether a request is a `server/discover` of 2026-07-28; after another one, the SDK still takes `initialize`."""
    meta = (request.params or {}).get("_meta")
    return request.method == _DISCOVER and isinstance(meta, Mapping) and types.PROTOCOL_VERSION_META_KEY in meta


class _DirectRequests:
    """The requests of the connection that do not enter the SDK.

    Each runs in a plain task, because starting one in a task group costs as much as a stage of the pipeline.
    """

    def __init__(self, direct_path: DirectPath, connection: _Connection) -> None:
        self._direct_path = direct_path
        self._connection = connection
        self._tasks: dict[asyncio.Task[Any], RequestScope] = {}
        """The running requests."""
        self.scopes: CancelScopes = CancelScopes()
        self._has_ended = False

    def start(self, frame: Frame) -> bool:
        """Start a request; return False if the SDK must handle the message."""
        if self._connection.shutdown.is_set() or self._has_ended or not isinstance(frame, bytes):
            return False
        opened = self._direct_path.open_request(frame)
        if opened is None or (sender := self._direct_path.find_sender(opened)) is None:
            return False
        if not self._connection.add_direct_request(opened.id, opened.method):
            return False
        scope = self.scopes.open(opened.id)
        self._tasks[asyncio.get_running_loop().create_task(self._run(opened, sender, scope))] = scope
        return True

    async def end(self) -> None:
        """Cancel the running requests, with an error as their response, and wait until all have ended."""
        self._interrupt()
        with anyio.CancelScope(shield=True):
            if self._tasks:
                await asyncio.wait(tuple(self._tasks))

    async def follow_cancellation(self) -> None:
        """Cancel the running requests as soon as the gateway is cancelled.

        The same cancellation closes the connections to upstreams. A request that is cancelled later would fail first,
        with an error that blames its upstream.
        """
        try:
            await anyio.sleep_forever()
        finally:
            self._interrupt()

    def _interrupt(self) -> None:
        self._has_ended = True
        for scope in self._tasks.values():
            if not scope.cancel_called:
                scope.is_interrupted = True
                scope.cancel()

    async def _run(self, opened: DirectRequest, sender: Sender, scope: RequestScope) -> None:
        """Answer a request; the client gets no response to one that it cancelled."""
        stream = SdkStream(sender.server_session, None)
        outcome: Segments | types.ErrorData | None = None
        try:
            with scope:
                outcome = await self._direct_path.answer(opened, sender, stream)
                stream.is_closed = True
                if not scope.cancel_called:
                    await self._send(opened.id, outcome)
            stream.is_closed = True
            if outcome is None and scope.is_interrupted and not self._connection.is_abandoned:
                with anyio.move_on_after(_LAST_WRITE):
                    await self._send(opened.id, STOPPED)
            self._connection.remove_request(opened.id)
        finally:  # a callback of the task would take one more pass of the event loop
            self.scopes.close(opened.id, scope)
            if (task := asyncio.current_task()) is not None:
                del self._tasks[task]

    async def _send(self, request_id: RequestId, outcome: Segments | types.ErrorData) -> None:
        with suppress(OSError):  # the client has closed its end; the end of the input ends the session
            await self._connection.sink.send(write_response(request_id, outcome))


class StdioReader(MessageStream):
    """The messages of the client."""

    def __init__(
        self, connection: _Connection, source: LineSource, direct_path: DirectPath, direct_requests: _DirectRequests
    ) -> None:
        self._connection = connection
        self._source = source
        self._direct_path = direct_path
        self._direct_requests = direct_requests
        self._pacer = Pacer()

    @property
    def has_second_handshake(self) -> bool:
        """Whether the next message is the `initialize` of a second connection of the SDK."""
        return self._connection.second_handshake.is_pending

    async def receive(self) -> SessionMessage:
        """Return the next message. The stream ends once before the `initialize` of a second connection."""
        handshake = self._connection.second_handshake
        message = handshake.take() or await self._receive_new()
        if handshake.keep(message):
            raise anyio.EndOfStream
        return message

    async def _receive_new(self) -> SessionMessage:
        try:
            while True:
                frame = await self._source.receive()
                self._pacer.begin()
                message = None if self._direct_requests.start(frame) else await self._parse(frame)
                await self._pacer.end()
                if message is not None:
                    self._connection.record_received(message.message)
                    self._direct_requests.scopes.apply(message.message)
                    return message
        except (anyio.EndOfStream, OSError):  # the client closed its end, or the gateway shuts down
            await self._connection.end()
            raise anyio.EndOfStream from None

    async def _parse(self, frame: Frame) -> SessionMessage | None:
        """Return the message of a frame; answer an invalid or refused one with an error and return None.

        An invalid response becomes an error, which answers the request to the client.
        """
        pending_payloads = self._connection.pending_payloads
        with discard_after(frame):
            try:
                lifted = await pending_payloads.lift_params(frame, LOCAL, self._direct_path.find_session())
                message = lifted.message
                error = self._find_refusal(message) if isinstance(message, types.JSONRPCRequest) else None
                if error is None:
                    return SessionMessage(message)
                pending_payloads.discard(lifted.token)
            except MCPError as failure:
                error = failure.error
                if refused := refuse_response(frame, error):
                    return SessionMessage(refused)
            await self._connection.sink.send(write_response(frame_id(frame), error))
            return None

    def _find_refusal(self, request: types.JSONRPCRequest) -> types.ErrorData | None:
        """Return the error for a request that the SDK does not get; None for other requests.

        The handshake of a client whose `server/discover` failed would fail for the same reason.
        """
        if self._connection.shutdown.is_set():
            return types.ErrorData(code=types.INTERNAL_ERROR, message=STOPPING)
        if self._connection.is_full:
            reason = f"`limits.requests_per_principal` ({self._connection.max_requests:,}) requests are open. Read the "
            return types.ErrorData(code=types.INTERNAL_ERROR, message=f"{reason}responses before the next request.")
        return self._connection.second_handshake.discover_error if request.method == _INITIALIZE else None


async def _end_at_shutdown(connection: _Connection, source: LineSource, scope: anyio.CancelScope) -> None:
    """End the input once all calls are answered; until then they may need responses and cancellations."""
    await connection.shutdown.wait()
    await connection.wait_until_answered(awaits_start=False)
    source.end()
    with anyio.move_on_after(2 * _SHUTDOWN_GRACE) as waiting:
        await connection.wait_until_answered()
    if waiting.cancelled_caught:  # the SDK reads no end of the input while a handshake waits for upstreams
        scope.cancel()


class _StdioWriter(MessageSink):
    """The messages to the client."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection

    async def send(self, item: SessionMessage) -> None:
        connection, message = self._connection, item.message
        if isinstance(message, types.JSONRPCError) and message.error == _CONNECTION_CLOSED:
            if connection.is_abandoned:
                return
            error = _GIVEN_UP if connection.second_handshake.is_pending else STOPPED
            message = message.model_copy(update={"error": error})
        frame = message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        if isinstance(message, types.JSONRPCError) and message.id is not None:
            connection.second_handshake.note_error(connection.find_method(message.id), message.error)
        try:
            await connection.sink.send(connection.pending_payloads.splice_result(frame))
        except OSError:  # the client has closed its end; the end of the input ends the session
            raise anyio.BrokenResourceError from None
        if isinstance(message, types.JSONRPCResponse | types.JSONRPCError) and message.id is not None:
            connection.remove_request(message.id)
