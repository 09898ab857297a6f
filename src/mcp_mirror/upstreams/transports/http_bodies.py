"""Reads the bodies of HTTP responses: the gateway takes its own messages, and the SDK gets the others.

A body is one JSON-RPC message, or a stream of events with a message each. Large messages go to spool files.
"""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Final
from urllib.parse import urljoin, urlsplit

import httpx2
import mcp_types as types
import msgspec

from mcp_mirror.errors import WireError
from mcp_mirror.payload.content_encodings import BodyError, decode_body
from mcp_mirror.payload.floods import RepeatedLog
from mcp_mirror.payload.framing import EventReader, ServerSentEvent
from mcp_mirror.payload.json_rpc import RequestId, chunks_of, open_message
from mcp_mirror.payload.spool import Frame, Spool, SpooledFrame, frame_id, is_json_rpc
from mcp_mirror.settings.upstreams import HttpEndpoint
from mcp_mirror.types import Buffer, Segments
from mcp_mirror.upstreams.transports.network_errors import (
    AuthorizationError,
    FailureKind,
    classify_unread_frame,
    explain_failed_connection,
    explain_response,
    format_address,
    mark,
    read_media_type,
)
from mcp_mirror.upstreams.transports.payloads import NOT_JSON_RPC, PayloadBypass
from mcp_mirror.upstreams.transports.server_output import ServerOutput

_logger = logging.getLogger(__name__)

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
_EVENT_SLICE: Final = 1 << 13
"""Bytes that are split into events before other tasks run."""
ENDED: Final = "The request has ended."
"""The error with which a request ends for the SDK's transport. Its caller has its outcome already."""

Read = Callable[[httpx2.Response, RequestId | None], AsyncGenerator[bytes]]
"""Reads a body: takes the response and the id of its request, and yields what the SDK sees."""


class RewrittenBody(httpx2.AsyncByteStream):
    """A response body that is rewritten for the SDK."""

    def __init__(self, source: httpx2.Response, chunks: AsyncIterator[bytes]) -> None:
        self._source = source
        self._chunks = chunks

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        async for chunk in self._chunks:
            yield chunk

    async def aclose(self) -> None:
        """Close the response that the body is from."""
        await self._source.aclose()


class RequestBody(httpx2.AsyncByteStream):
    """A request body in segments; it can be sent again."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        for chunk in chunks_of(self._segments):
            yield chunk


class BodyReader:
    """Reads the bodies of one connection: for the SDK's transport, and for `DirectPosts`.

    `find_reader` chooses how to read a response. The messages of the gateway go to the bypass, the others to the SDK.
    """

    def __init__(self, endpoint: HttpEndpoint, bypass: PayloadBypass, spool: Spool, output: ServerOutput) -> None:
        """Read bodies for a bypass; `output` gets what the server sends instead of messages."""
        self._url = endpoint.url
        self._bypass = bypass
        self._spool = spool
        self._output = output
        self.ends_with_stream: Final = endpoint.legacy_sse
        """All messages come in one event stream, with which the connection ends."""
        self._log = RepeatedLog(_logger)
        self.taking: RequestId | None = None
        """The request whose response is being read at this moment."""

    def find_reader(self, response: httpx2.Response) -> Read | None:
        """Return the function that reads the body of a response; None for a redirect and an unknown content type."""
        if response.has_redirect_location:
            return None
        return {JSON: self.read_json, EVENTS: self.read_events}.get(read_media_type(response))

    async def read_json(self, response: httpx2.Response, identity: RequestId | None) -> AsyncGenerator[bytes]:
        """Yield what the SDK sees of a body with one message."""
        collector = self._spool.collector()
        try:
            async for chunk in decode_body(response, self._spool.policy):
                collector.add(chunk)
            yield self._read_message(collector.take(), response, identity)
        except httpx2.TransportError as error:
            reason = mark_failure(error, response.request.url)
            self._bypass.fail(identity, types.INTERNAL_ERROR, reason)
            yield encode_error(identity, reason)
        finally:
            collector.close()

    async def read_events(self, response: httpx2.Response, identity: RequestId | None) -> AsyncGenerator[bytes]:
        """Yield what the SDK sees of an event stream."""
        collector = self._spool.collector()
        reader: EventReader[Frame] = EventReader(collector)
        try:
            async for chunk in decode_body(response, self._spool.policy):
                for at in range(0, len(chunk), _EVENT_SLICE):
                    async for event in self._read_paced(reader, chunk[at : at + _EVENT_SLICE], identity):
                        yield event
        except BodyError as error:  # to resume the stream would not help
            self._bypass.fail(identity, types.INTERNAL_ERROR, mark_failure(error, response.request.url))
            raise
        finally:
            self._log.close()
            collector.close()
            if self.ends_with_stream:
                self._bypass.ended.set()

    async def _read_paced(
        self, reader: EventReader[Frame], piece: bytes, identity: RequestId | None
    ) -> AsyncGenerator[bytes]:
        """Yield what the SDK sees of the events that end in a piece. It sees an error once a request has ended.

        Raises:
            httpx2.ReadError: The server sends too many messages that the gateway did not request.
            httpx2.SSEError: The server wants messages at another server.
        """
        flood = self._bypass.flood
        flood.pacer.begin()
        events = reader.feed(piece)
        await flood.pacer.end()
        for event in events:
            flood.pacer.begin()
            fields, data = self._take_event(event, identity)
            await flood.pacer.end()
            if flood.reason:
                self._bypass.give_up(flood.reason)
                raise httpx2.ReadError(flood.reason)
            if data is not None or fields:
                yield encode_event(fields, data)
            if self._bypass.has_ended(identity):
                yield encode_event((), encode_error(identity, ENDED))

    def _take_event(
        self, event: ServerSentEvent[Frame], identity: RequestId | None
    ) -> tuple[tuple[bytes, ...], bytes | None]:
        """Return the fields and the data that the SDK sees of an event: of one that is not for it, where to resume."""
        kind = next((field.partition(b":")[2].strip() for field in event.fields if field.startswith(b"event")), b"")
        data = None
        if kind in (b"", b"message") and event.data is not None:
            data = self._read_event(event.data, identity)
        elif kind == b"endpoint" and self.ends_with_stream and isinstance(event.data, bytes):
            self._check_endpoint(event.data)
            data = event.data
        elif isinstance(event.data, SpooledFrame):
            event.data.discard()
        if data is not None:
            return event.fields, data
        return tuple(field for field in event.fields if not field.startswith(b"event")), None

    def _check_endpoint(self, address: bytes) -> None:
        """Check the address for messages of the older transport: the SDK would wait forever for one elsewhere."""
        try:
            origin = urlsplit(urljoin(self._url, address.decode()))[:2]
        except ValueError:
            origin = None
        if origin != urlsplit(self._url)[:2]:
            self._output.refusal = (
                f"{format_address(httpx2.URL(self._url))} wants messages at another address than `url`. Correct the "
                "public address in the server's settings, or `url`."
            )
            raise httpx2.SSEError(self._output.refusal)

    def _read_message(self, frame: Frame, response: httpx2.Response, identity: RequestId | None) -> bytes:
        """Return what the SDK sees of a body with one message, the response."""
        fault = "It answered with a message that is not a response." if len(frame) else "Its response is empty."
        kind = FailureKind.INVALID
        try:
            if message := self._take_frame(frame, identity):
                return message
        except WireError as error:
            fault = str(error)
            if response.is_error:
                kind, fault = FailureKind.ANSWERED, explain_response(response)
        reason = mark(kind, fault)
        self._bypass.fail(identity, types.INTERNAL_ERROR, reason)
        return encode_error(identity, reason)

    def _read_event(self, frame: Frame, identity: RequestId | None) -> bytes | None:
        """Return what the SDK sees of an event; an event that is not a message is logged and dropped."""
        try:
            return self._take_frame(frame, identity)
        except WireError as error:
            self._log.warning("an upstream sent an event that is not a message: %s", error)
            answered = frame_id(frame)
            if answered is None or not is_json_rpc(frame) or self._bypass.has_ended(answered):
                return None
            return encode_error(answered, mark(FailureKind.INVALID, str(error)))

    def _take_frame(self, frame: Frame, identity: RequestId | None) -> bytes | None:
        """Return a message if it is for the SDK.

        Raises:
            WireError: The frame is not a message, and does not answer a request in flight.
        """
        if not len(frame):  # a priming event
            return b""
        self.taking = identity
        try:
            message = self._bypass.inbound(frame, identity)
            if message is not None:
                types.jsonrpc_message_adapter.validate_json(bytes(message), by_name=False)
        except (WireError, ValueError) as error:
            return self._fail(frame, identity, str(error) if isinstance(error, WireError) else NOT_JSON_RPC)
        finally:
            self.taking = None
        self._output.refusal = None
        return None if message is None else bytes(message)

    def _fail(self, frame: Frame, identity: RequestId | None, reason: str) -> bytes | None:
        """Fail the request that a broken frame answers; return the error if it is a request of the SDK."""
        recovered, explained = frame_id(frame), mark(classify_unread_frame(frame), reason)
        if isinstance(frame, bytes):
            if not self._bypass.fail(recovered, types.INTERNAL_ERROR, explained):
                raise WireError(reason)
            return None
        answered = identity if recovered is None else recovered
        is_own = self._bypass.fail(answered, types.INTERNAL_ERROR, explained)
        return None if is_own else encode_error(answered, explained)


def read_request_id(body: bytes) -> RequestId | None:
    """Return the id of a request; None for a notification, a response, or no body."""
    try:
        message = open_message(body)
    except WireError:
        return None
    return message.id if isinstance(message.id, int | str) and isinstance(message.method, str) else None


def encode_event(fields: tuple[bytes, ...], data: Buffer | None) -> bytes:
    """Return a server-sent event; its data may have several lines."""
    lines = () if data is None else (b"data: " + bytes(data).replace(b"\n", b"\ndata: "),)
    return b"\n".join((*fields, *lines, b"", b""))


def mark_failure(error: httpx2.TransportError, url: httpx2.URL) -> str:
    """Return the message of the JSON-RPC error for a request that failed."""
    if isinstance(error, AuthorizationError):
        return mark(error.kind, str(error))
    return mark(FailureKind.LOST, explain_failed_connection(error, url))


def encode_error(identity: RequestId | None, message: str) -> bytes:
    """Return the JSON-RPC error response to a request."""
    error = {"code": types.INTERNAL_ERROR, "message": message}
    return msgspec.json.encode({"jsonrpc": "2.0", "id": identity, "error": error})
