"""Takes the messages out of the bodies of HTTP responses: one JSON-RPC message, or a stream of events with one each.

Responses go to the requests of the gateway and of the SDK that wait for them, and other messages to the bypass. Large
messages go to spool files.
"""

import logging
from collections.abc import AsyncGenerator
from contextlib import closing, suppress
from typing import Final

import anyio
import httpx2
import mcp_types as types
from anyio.streams.memory import MemoryObjectSendStream
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.message import SessionMessage

from mcp_mirror.errors import WireError
from mcp_mirror.payload.content_encodings import decode_body
from mcp_mirror.payload.framing import EventReader, ServerSentEvent
from mcp_mirror.payload.json_rpc import RequestId
from mcp_mirror.payload.spool import Frame, Spool, SpooledFrame, frame_id, is_json_rpc
from mcp_mirror.system.fair_turns import wait_for_turn
from mcp_mirror.system.limited_logs import RepeatedLog
from mcp_mirror.upstreams.transports.network_errors import (
    FailureKind,
    build_failure,
    classify_unread_frame,
    explain_response,
)
from mcp_mirror.upstreams.transports.payloads import NOT_JSON_RPC, PayloadBypass

_logger = logging.getLogger(__name__)

_EVENT_SLICE: Final = 1 << 13
"""Bytes that are split into events before other tasks run."""
_DELAY: Final = 1.0
"""Seconds before a stream is opened again, if the server names no delay."""
_OPENED_AT_ONCE: Final = 10
"""How often an event stream is opened again at once. A server may end it each time, and set a delay of zero."""
_OPEN_INTERVAL: Final = 1.0
"""Seconds between the next attempts."""


class StreamPosition:
    """Where and when to resume an event stream."""

    def __init__(self) -> None:
        self.last_id = b""
        """The id of the last event that had one."""
        self._delay = _DELAY
        self._next = 0.0
        """The time of the next attempt, if there were too many."""

    def note(self, fields: tuple[bytes, ...]) -> None:
        """Note the id and the delay of an event, which apply to the whole stream."""
        for field in fields:
            name, _, value = field.partition(b":")
            if name == b"id" and b"\0" not in value:
                self.last_id = value.removeprefix(b" ") or self.last_id
            elif name == b"retry":
                self._delay = int(value) / 1000

    async def wait(self) -> None:
        """Wait until the stream may be opened again."""
        await anyio.sleep(self._delay)
        now = anyio.current_time()
        self._next = max(self._next, now - _OPENED_AT_ONCE * _OPEN_INTERVAL) + _OPEN_INTERVAL
        await anyio.sleep(max(self._next - now, 0))


class BodyReader:
    """Reads the bodies of one connection."""

    def __init__(
        self,
        bypass: PayloadBypass,
        spool: Spool,
        for_sdk: MemoryObjectSendStream[SessionMessage | Exception],
    ) -> None:
        """Give messages to a bypass, and those for the SDK to its stream."""
        self._bypass = bypass
        self._spool = spool
        self._for_sdk = for_sdk
        self._requests_of_sdk: dict[RequestId, anyio.CancelScope] = {}
        """Those without a response."""
        self._log = RepeatedLog(_logger)
        self._sender = f"upstream {id(self)}"
        self.taking: RequestId | None = None
        """The request whose response is being read at this moment."""

    def expect(self, identity: RequestId, scope: anyio.CancelScope) -> None:
        """Take the response to a request of the SDK from now on; `scope` sends it."""
        self._requests_of_sdk[identity] = scope

    def cancel(self, identity: RequestId) -> None:
        """Stop a request of the SDK, if there is one with this id."""
        if scope := self._requests_of_sdk.pop(identity, None):
            scope.cancel()

    def has_ended(self, identity: RequestId) -> bool:
        """Whether a request, of the SDK or of the gateway, waits no longer for its response."""
        return identity not in self._requests_of_sdk and self._bypass.find(identity) is None

    async def fail(self, identity: RequestId | None, error: types.ErrorData) -> bool:
        """Fail the request with this id; return whether there is one."""
        if self._bypass.fail(identity, error):
            return True
        if identity is None or identity not in self._requests_of_sdk:
            return False
        await self._deliver(types.JSONRPCError(jsonrpc="2.0", id=identity, error=error), identity)
        return True

    def end(self) -> None:
        """Fail all requests: the connection has ended."""
        self._bypass.end()
        self._for_sdk.close()

    async def read_json(self, response: httpx2.Response, identity: RequestId) -> None:
        """Take the response to a request out of a body with one message.

        Raises:
            httpx2.TransportError: The body cannot be read.
        """
        with closing(self._spool.collector()) as collector:
            async for chunk in decode_body(response, self._spool.policy):
                if collector.size:
                    await wait_for_turn(self._sender)
                collector.add(chunk)
            frame = collector.take()
        kind = FailureKind.INVALID
        fault = "It answered with a message that is not a response." if len(frame) else "Its response is empty."
        try:
            await self._take_frame(frame, identity)
        except WireError as error:
            fault = str(error)
            if response.is_error:
                kind, fault = FailureKind.ANSWERED, explain_response(response)
        await self.fail(identity, build_failure(kind, fault))

    async def read_events(
        self, response: httpx2.Response, identity: RequestId | None, position: StreamPosition
    ) -> AsyncGenerator[bytes | None]:
        """Take the messages out of an event stream, the response to a request or that of the session.

        Yields after each event, so that the caller need not read on: the address for messages, of the older transport.

        Raises:
            httpx2.TransportError: The stream broke off, or the server sends too many messages that the gateway did not
                request.
        """
        flood = self._bypass.flood
        with closing(self._log), closing(self._spool.collector()) as collector:
            reader: EventReader[Frame] = EventReader(collector)
            async for chunk in decode_body(response, self._spool.policy):
                for at in range(0, len(chunk), _EVENT_SLICE):
                    flood.pacer.begin()
                    events = reader.feed(chunk[at : at + _EVENT_SLICE])
                    await flood.pacer.end()
                    for event in events:
                        flood.pacer.begin()
                        position.note(event.fields)
                        address = await self._take_event(event, identity)
                        await flood.pacer.end()
                        if flood.reason:
                            self._bypass.give_up(flood.reason)
                            raise httpx2.ReadError(flood.reason)
                        yield address

    async def _take_event(self, event: ServerSentEvent[Frame], identity: RequestId | None) -> bytes | None:
        """Take the message of an event, or return its address; one that is not a message is logged and dropped."""
        kind = next((field.partition(b":")[2].strip() for field in event.fields if field.startswith(b"event")), b"")
        if event.data is None or (kind == b"endpoint" and isinstance(event.data, bytes)):
            return event.data
        if kind not in (b"", b"message"):
            if isinstance(event.data, SpooledFrame):
                event.data.discard()
        else:
            try:
                await self._take_frame(event.data, identity)
            except WireError as error:
                self._log.warning("an upstream sent an event that is not a message: %s", error)
        return None

    async def _take_frame(self, frame: Frame, identity: RequestId | None) -> None:
        """Take a message on the stream of a request.

        Raises:
            WireError: The frame is not a message, and does not answer a request in flight.
        """
        if not len(frame):  # a priming event
            return
        self.taking = identity
        try:
            raw = self._bypass.inbound(frame, identity)
            message = None
            if raw is not None:
                message = types.jsonrpc_message_adapter.validate_json(bytes(raw), by_name=False)
        except (WireError, ValueError) as error:
            await self._fail_frame(frame, identity, str(error) if isinstance(error, WireError) else NOT_JSON_RPC)
            return
        finally:
            self.taking = None
        if message is not None:
            await self._deliver(message, identity)

    async def _fail_frame(self, frame: Frame, identity: RequestId | None, reason: str) -> None:
        """Fail the request that a broken frame answers; a WireError if no request waits for it."""
        answered, error = frame_id(frame), build_failure(classify_unread_frame(frame), reason)
        if isinstance(frame, bytes):
            is_noise = answered in self._requests_of_sdk and not is_json_rpc(frame)
            if is_noise or not await self.fail(answered, error):
                raise WireError(reason)
        else:
            await self.fail(identity if answered is None else answered, error)

    async def _deliver(self, message: types.JSONRPCMessage, identity: RequestId | None) -> None:
        """Give a message to the SDK. A response that it does not expect is dropped: the SDK would log its id."""
        self._bypass.flood.pacer.skip()
        if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
            if identity in self._requests_of_sdk:
                message.id = identity
            answered = coerce_request_id(message.id or 0)
            if answered not in self._requests_of_sdk:
                return
            del self._requests_of_sdk[answered]
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._for_sdk.send(SessionMessage(message))
