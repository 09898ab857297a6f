"""Our face on standard input and output: JSON-RPC lines, bytes only.

A line that is no message is answered with a JSON-RPC error, and the connection goes on. When we leave, requests that
are under way are answered, new ones are refused, and the connection ends. While we serve, whatever else writes to
standard output goes to standard error instead.
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
_LINGER: Final = 1.0
"""Seconds after the end of the input that what was asked on it may still be answered."""
_STARTING: Final = 5.0
"""The same for what waits for upstreams to start: a file or a pipe may hold all that is asked."""
_OPENING: Final = frozenset({"initialize", "server/discover", "tools/list"})


@asynccontextmanager
async def stdio_streams(
    pending_payloads: PendingPayloads, spool: Spool, leaving: anyio.Event
) -> AsyncIterator[tuple[MessageStream, MessageSink]]:
    """What the SDK reads and writes on this process's standard streams; `leaving` is set when we are to end."""
    with _claimed_streams() as (descriptor_in, descriptor_out):
        sink = LineSink(descriptor_out)
        async with anyio.create_task_group() as tasks:
            await tasks.start(sink.run)
            session = _Session(pending_payloads, sink, leaving)
            source = LineSource(descriptor_in, spool.collector())
            tasks.start_soon(_end_when_left, session, source)
            yield _StdioReader(session, source), _StdioWriter(session)
            tasks.cancel_scope.cancel()


class _Session:
    """What both directions of the one connection share: the way out, and which requests wait for an answer."""

    def __init__(self, pending_payloads: PendingPayloads, sink: LineSink, leaving: anyio.Event) -> None:
        self.pending_payloads = pending_payloads
        self.sink = sink
        self.leaving = leaving
        self._open_requests: dict[RequestId, str] = {}
        self._answered = anyio.Event()

    def note(self, message: types.JSONRPCMessage) -> None:
        """Keep count of the requests that wait for an answer; a subscription and a cancelled one get none."""
        if isinstance(message, types.JSONRPCRequest) and message.method != _SUBSCRIPTION:
            self._open_requests[message.id] = message.method
        elif isinstance(message, types.JSONRPCNotification) and message.method == _CANCELLED:
            if isinstance(cancelled := (message.params or {}).get("requestId"), RequestId):
                self._open_requests.pop(cancelled, None)
        elif isinstance(message, types.JSONRPCResponse | types.JSONRPCError) and message.id is not None:
            self._open_requests.pop(message.id, None)
        self._answered.set()
        self._answered = anyio.Event()

    @property
    def linger(self) -> float:
        """Seconds that what was asked may still be answered when the input has ended."""
        return _STARTING if _OPENING.intersection(self._open_requests.values()) else _LINGER

    async def all_answered(self) -> None:
        """Wait until no request waits."""
        while self._open_requests:
            await self._answered.wait()


class _StdioReader(MessageStream):
    """What the client says."""

    def __init__(self, session: _Session, source: LineSource) -> None:
        self._session = session
        self._source = source
        self._pacer = Pacer()

    async def receive(self) -> SessionMessage:
        try:
            while True:
                frame = await self._source.receive()
                self._pacer.begin()
                message = await self._open(frame)
                await self._pacer.end()
                if message is not None:
                    self._session.note(message.message)
                    return message
        except (anyio.EndOfStream, OSError):  # the client has gone, or has asked all that it will, or we leave
            with anyio.move_on_after(self._session.linger):
                await self._session.all_answered()
            raise anyio.EndOfStream from None

    async def _open(self, frame: Frame) -> SessionMessage | None:
        token = None
        try:
            stub, token = self._session.pending_payloads.inbound(_bytes_of(frame))
            message = types.jsonrpc_message_adapter.validate_json(bytes(stub), by_name=False)
            if not (self._session.leaving.is_set() and isinstance(message, types.JSONRPCRequest)):
                return SessionMessage(message)
            self._session.pending_payloads.discard(token)
            await self._refuse(types.INTERNAL_ERROR, "The gateway is stopping: it takes no new requests.", message.id)
        except WireError as error:
            await self._refuse(types.PARSE_ERROR, str(error), frame_id(frame))
        except ValueError:
            self._session.pending_payloads.discard(token)
            reason = "The message is not a JSON-RPC request, notification or response."
            await self._refuse(types.INVALID_REQUEST, reason, frame_id(frame))
        return None

    async def _refuse(self, code: int, reason: str, identity: RequestId | None) -> None:
        error = types.JSONRPCError(jsonrpc="2.0", id=identity, error=types.ErrorData(code=code, message=reason))
        await self._session.sink.send((error.model_dump_json(exclude_unset=True).encode(),))


async def _end_when_left(session: _Session, source: LineSource) -> None:
    """What is under way may need the client still, for its answers and cancellations: so we read until it is done."""
    await session.leaving.wait()
    await session.all_answered()
    source.end()


class _StdioWriter(MessageSink):
    """What the client is told."""

    def __init__(self, session: _Session) -> None:
        self._session = session

    async def send(self, item: SessionMessage, /) -> None:
        frame = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        try:
            await self._session.sink.send(self._session.pending_payloads.outbound(frame))
        except OSError:  # the client has gone; its end of the input ends the session
            raise anyio.BrokenResourceError from None
        self._session.note(item.message)


def _bytes_of(frame: Frame) -> Buffer:
    if isinstance(frame, Overlong):
        raise WireError(f"A message of {frame.size:,} bytes is over `limits.max_message_bytes`.")
    if isinstance(frame, SpooledFrame):
        with frame:  # the map stays as long as the arguments do
            return frame.view
    return frame


@contextmanager
def _claimed_streams() -> Iterator[tuple[int, int]]:
    """Private duplicates of standard input and output; the public ones lead away from the wire meanwhile.

    Raises:
        MirrorError: There is no standard output to serve on.
    """
    has_input, has_output, has_errors = (stream is not None for stream in _standard_streams())
    if not has_output:
        raise MirrorError("Standard output is closed: there is nobody to serve. Use --http to serve over HTTP.")
    sys.stdout.flush()
    nowhere = os.open(os.devnull, os.O_RDWR)
    source = os.dup(0 if has_input else nowhere)  # a closed descriptor's number may be another's by now
    sink = os.dup(1)
    if has_input:
        os.dup2(nowhere, 0)
    os.dup2(2 if has_errors else nowhere, 1)
    try:
        yield source, sink
    finally:
        os.dup2(sink, 1)
        os.close(nowhere)


def _standard_streams() -> tuple[TextIO | None, TextIO | None, TextIO | None]:
    """None for one that was closed before we started."""
    return sys.stdin, sys.stdout, sys.stderr
