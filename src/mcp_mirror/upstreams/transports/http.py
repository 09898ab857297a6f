"""The transport to a URL: Streamable HTTP, or the older HTTP+SSE.

The SDK's clients speak the protocol. Between them and the network is an `httpx2` transport that writes the bodies of
the gateway's own requests, and takes their responses out of JSON bodies and server-sent events of any size.
"""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import anyio
import httpx2
import mcp_types as types
from anyio.abc import TaskGroup
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import ClientMessageMetadata, SessionMessage

from mcp_mirror.errors import WireError
from mcp_mirror.payload.content_encodings import decode_body, read_beginning
from mcp_mirror.payload.floods import RepeatedLog
from mcp_mirror.payload.framing import EventReader
from mcp_mirror.payload.json_rpc import RequestId, chunks_of, open_message, recover_id
from mcp_mirror.payload.pipes import MessageStream
from mcp_mirror.payload.spool import Frame, Spool, frame_id
from mcp_mirror.security.ssrf_guard import AddressPolicy, SSRFGuardTransport
from mcp_mirror.settings.policies import HttpEndpoint
from mcp_mirror.types import Buffer, Segments
from mcp_mirror.upstreams.oauth import AuthorizationError, Authorizer, AuthorizingTransport
from mcp_mirror.upstreams.transports.network_errors import explain_failed_connection, explain_response, mark
from mcp_mirror.upstreams.transports.payloads import NOT_JSON_RPC, PayloadBypass, PendingRequest, RequestSink
from mcp_mirror.upstreams.transports.server_output import ServerOutput

_logger = logging.getLogger(__name__)

_EVENT_SLICE: Final = 1 << 13
"""Bytes that are split into events before other tasks run."""
_NOT_FOUND: Final = 404
_TOO_LARGE: Final = 413
_UNKNOWN_SESSION: Final = frozenset({400, _NOT_FOUND})
"""Statuses with which servers answer in a session that they do not know."""
_SESSION: Final = "mcp-session-id"
_SESSION_HEADERS: Final = (_SESSION, "mcp-protocol-version")
_BODY_HEADERS: Final = frozenset({b"content-length", b"content-encoding", b"transfer-encoding"})
_CONNECT_TIMEOUT: Final = 10.0
"""Seconds for connecting to the host."""

_ENDED: Final = "The request has ended."
"""The error with which a request ends for the SDK's transport. Its caller has its outcome already."""
_DELETE_TIMEOUT: Final = 2.0
"""Seconds for the request that ends a session."""
_MAX_REFUSAL: Final = 1 << 16
"""Bytes of an error response that are read."""


def encode_event(fields: tuple[bytes, ...], data: Buffer | None) -> bytes:
    """Return a server-sent event; its data may have several lines."""
    lines = () if data is None else (b"data: " + bytes(data).replace(b"\n", b"\ndata: "),)
    return b"\n".join((*fields, *lines, b"", b""))


class _Body(httpx2.AsyncByteStream):
    """A response body that is rewritten for the SDK."""

    def __init__(self, source: httpx2.Response, chunks: AsyncIterator[bytes]) -> None:
        self._source = source
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._chunks:
            yield chunk

    async def aclose(self) -> None:
        await self._source.aclose()


class _Request(httpx2.AsyncByteStream):
    """A request body in segments; it can be sent again."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in chunks_of(self._segments):
            yield chunk


Rewrite = Callable[[httpx2.Response, RequestId | None], AsyncIterator[bytes]]


class LiftingTransport(httpx2.AsyncBaseTransport):
    """Sends through `inner`. Requests of the gateway get their bodies here, and their responses stop here."""

    def __init__(
        self,
        inner: httpx2.AsyncBaseTransport,
        bypass: PayloadBypass,
        spool: Spool,
        output: ServerOutput,
        *,
        ends_with_stream: bool,
    ) -> None:
        self._inner = inner
        self._output = output
        self._bypass = bypass
        self._spool = spool
        self._ends_with_stream = ends_with_stream
        self._log = RepeatedLog(_logger)
        self._waiting: dict[RequestId, anyio.CancelScope] = {}
        self._reading: dict[RequestId, httpx2.Response] = {}
        """Responses whose bodies are being read, by the ids of their requests."""
        self.session: dict[str, str] = {}
        """The headers that name the MCP session, while there is one."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request; return its response as far as it is for the SDK.

        A failed request gets a JSON-RPC error as its response, so that the session continues.
        """
        body = await request.aread() if request.method == "POST" else b""
        identity = _read_request_id(body)
        if identity is not None and self._bypass.has_ended(identity):
            return _answer(identity, _ENDED)
        request = self._replace_body(request, body, self._bypass.find(identity)) if body else request
        request.extensions = {**request.extensions, "timeout": self._build_timeouts(request, identity)}
        named = {name: request.headers[name] for name in _SESSION_HEADERS if name in request.headers}
        self.session = named if _SESSION in named and request.method != "DELETE" else {}
        try:
            response = await self._send_until_response(request, identity)
        except httpx2.TransportError as error:
            if request.method != "POST":
                raise
            return _build_failure_response(identity, error, request.url)
        response.request = request
        if response.status_code == _TOO_LARGE and identity is not None:
            await response.aclose()
            return _answer(identity, _explain_too_large(request))
        if response.status_code in _UNKNOWN_SESSION and _SESSION in request.headers and identity is not None:
            return await self._handle_refusal(response, identity)
        return self._rewrite_response(response, identity)

    async def _send_until_response(self, request: httpx2.Request, identity: RequestId | None) -> httpx2.Response:
        """Send a request until the beginning of its response.

        Raises:
            httpx2.TransportError: The request failed, or was dropped.
        """
        if identity is None:
            return await self._inner.handle_async_request(request)
        with anyio.CancelScope() as scope:
            self._waiting[identity] = scope
            try:
                return await self._inner.handle_async_request(request)
            finally:
                self._waiting.pop(identity, None)
        raise httpx2.ReadError("the request was dropped")

    def drop_request(self, identity: RequestId, tasks: TaskGroup) -> None:
        """Cancel a request that has ended: neither wait for its response nor read on."""
        if scope := self._waiting.get(identity):
            scope.cancel()
        if response := self._reading.pop(identity, None):
            tasks.start_soon(response.aclose)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()

    def _build_timeouts(self, request: httpx2.Request, identity: RequestId | None) -> dict[str, Any]:
        """Return the timeouts of a request: a response or an event stream may pause for any time."""
        timeout = dict(request.extensions.get("timeout", {}))
        if request.method == "DELETE":
            return dict.fromkeys(("connect", "read", "write", "pool"), _DELETE_TIMEOUT)
        return timeout | {"read": None} if request.method == "GET" or identity is not None else timeout

    def _replace_body(self, request: httpx2.Request, body: bytes, own: PendingRequest | None) -> httpx2.Request:
        """Return the request with the body to send; the SDK made `body`."""
        segments = self._bypass.outbound(body) if own is None else own.frame
        if own is not None:
            own.is_sent = True  # or will be: a slow server counts as a slow response
        elif segments == (body,):
            return request
        headers = httpx2.Headers(request.headers)
        headers["content-length"] = str(sum(len(segment) for segment in segments))
        return httpx2.Request(
            request.method, request.url, headers=headers, stream=_Request(segments), extensions=request.extensions
        )

    async def _handle_refusal(self, response: httpx2.Response, identity: RequestId) -> httpx2.Response:
        """Return the error response in a session that the server may not know, as after its restart."""
        try:
            body = await read_beginning(response, _MAX_REFUSAL)
        except httpx2.TransportError as error:
            return _build_failure_response(identity, error, response.request.url)
        finally:
            await response.aclose()
        answered = recover_id(body) == identity  # a response to this request, which the server may have executed
        if response.status_code == _NOT_FOUND or (b"session" in body.lower() and not answered):
            self._bypass.report_unknown_session(identity)
        headers = [(k, v) for k, v in response.headers.raw if k.lower() not in _BODY_HEADERS]
        return httpx2.Response(response.status_code, headers=headers, content=body, extensions=response.extensions)

    def _rewrite_response(self, response: httpx2.Response, identity: RequestId | None) -> httpx2.Response:
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        rewrite = {"application/json": self._rewrite_json, "text/event-stream": self._rewrite_events}.get(kind)
        if identity is not None or self._ends_with_stream:
            self._output.refusal = explain_response(response) if rewrite is None or response.is_error else None
        if rewrite is None:
            return response
        lifted = self._read(response, identity, rewrite)
        headers = [(k, v) for k, v in response.headers.raw if k.lower() not in _BODY_HEADERS]
        stream = _Body(response, lifted)
        return httpx2.Response(response.status_code, headers=headers, stream=stream, extensions=response.extensions)

    async def _read(
        self, response: httpx2.Response, identity: RequestId | None, rewrite: Rewrite
    ) -> AsyncIterator[bytes]:
        if identity is not None:
            self._reading[identity] = response
        try:
            async for chunk in rewrite(response, identity):
                yield chunk
        finally:
            if identity is not None:
                self._reading.pop(identity, None)

    async def _rewrite_json(self, response: httpx2.Response, identity: RequestId | None) -> AsyncIterator[bytes]:
        collector = self._spool.collector()
        try:
            async for chunk in decode_body(response, self._spool.policy):
                collector.add(chunk)
            yield self._rewrite_body(collector.take(), identity)
        except httpx2.TransportError as error:
            yield _encode_error(identity, mark(explain_failed_connection(error, response.request.url)))
        finally:
            collector.close()

    async def _rewrite_events(self, response: httpx2.Response, identity: RequestId | None) -> AsyncIterator[bytes]:
        collector = self._spool.collector()
        reader: EventReader[Frame] = EventReader(collector)
        try:
            async for chunk in decode_body(response, self._spool.policy):
                for at in range(0, len(chunk), _EVENT_SLICE):
                    async for event in self._rewrite_paced(reader, chunk[at : at + _EVENT_SLICE], identity):
                        yield event
        finally:
            self._log.close()
            collector.close()
            if self._ends_with_stream:
                self._bypass.ended.set()

    async def _rewrite_paced(
        self, reader: EventReader[Frame], piece: bytes, identity: RequestId | None
    ) -> AsyncIterator[bytes]:
        """Yield what the SDK sees of the events that end in a piece. It sees an error once a request has ended.

        Raises:
            httpx2.ReadError: The server sends too many messages that the gateway did not request.
        """
        flood = self._bypass.flood
        flood.pacer.begin()
        events = reader.feed(piece)
        await flood.pacer.end()
        for event in events:
            flood.pacer.begin()
            data = event.data if isinstance(event.data, bytes) else None
            if event.data is not None and _is_message(event.fields):
                data = self._rewrite_event(event.data, identity)
            await flood.pacer.end()
            if flood.reason:
                self._bypass.give_up()
                raise httpx2.ReadError(flood.reason)
            if data is not None or event.data is None:
                yield encode_event(event.fields, data)
            if self._bypass.has_ended(identity):
                yield encode_event((), _encode_error(identity, _ENDED))

    def _rewrite_body(self, frame: Frame, identity: RequestId | None) -> bytes:
        """Return what the SDK sees of a body with one message, the response."""
        reason = "It answered with a message that is not a response."
        try:
            if (message := self._take_frame(frame, identity)) is not None:
                return message
        except WireError as error:
            reason = str(error)
        self._bypass.fail(identity, types.INTERNAL_ERROR, reason)
        return _encode_error(identity, reason)

    def _rewrite_event(self, frame: Frame, identity: RequestId | None) -> bytes | None:
        """Return what the SDK sees of an event; an event that is not a message is logged and dropped."""
        try:
            return self._take_frame(frame, identity)
        except WireError as error:
            self._log.warning("an upstream sent an event that is not a message: %s", error)
            return None

    def _take_frame(self, frame: Frame, identity: RequestId | None) -> bytes | None:
        """Return a message if it is for the SDK.

        Raises:
            WireError: The frame is not a message, and does not answer a request in flight.
        """
        if not len(frame):  # a priming event
            return b""
        try:
            message = self._bypass.inbound(frame, identity)
            if message is not None:
                types.jsonrpc_message_adapter.validate_json(bytes(message), by_name=False)
        except (WireError, ValueError) as error:
            return self._fail(frame, identity, str(error) if isinstance(error, WireError) else NOT_JSON_RPC)
        self._output.refusal = None
        return None if message is None else bytes(message)

    def _fail(self, frame: Frame, identity: RequestId | None, reason: str) -> bytes | None:
        """Fail the request that a broken frame answers; return the error if it is a request of the SDK.

        Raises:
            WireError: The frame answers no request.
        """
        recovered = frame_id(frame)
        if isinstance(frame, bytes):
            if not self._bypass.fail(recovered, types.INTERNAL_ERROR, reason):
                raise WireError(reason)
            return None
        answered = identity if recovered is None else recovered
        return None if self._bypass.fail(answered, types.INTERNAL_ERROR, reason) else _encode_error(answered, reason)


AcceptCookies = Callable[[str | None], bool]
"""Whether to keep the cookies of a response, by the protocol version that the request names (None: none)."""


class CookieFilter(httpx2.AsyncBaseTransport):
    """Sends through `inner`, and removes cookies that the connection must not keep."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, accept_cookies: AcceptCookies) -> None:
        self._inner = inner
        self._accept_cookies = accept_cookies

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request."""
        response = await self._inner.handle_async_request(request)
        if "set-cookie" in response.headers and not self._accept_cookies(request.headers.get("mcp-protocol-version")):
            del response.headers["set-cookie"]
        return response

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()


class _HttpReader(MessageStream):
    """Reads messages of the SDK's transport; its errors for requests of the gateway go to the bypass."""

    def __init__(self, inner: Any, bypass: PayloadBypass) -> None:
        self._inner = inner
        self._bypass = bypass

    async def receive(self) -> SessionMessage | Exception:
        try:
            while True:
                item: SessionMessage | Exception = await self._inner.receive()
                if isinstance(item, Exception) or not self._bypass.resolve(item.message):
                    return item
        except anyio.EndOfStream:
            self._bypass.end()
            raise

    async def aclose(self) -> None:
        await self._inner.aclose()


class _HttpWriter(RequestSink):
    """Writes messages to the SDK's transport."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def send(self, item: SessionMessage, /) -> None:
        await self._inner.send(item)

    async def send_request(self, request: PendingRequest) -> None:
        stub = types.JSONRPCRequest(jsonrpc="2.0", id=request.id, method=request.method)
        await self._inner.send(SessionMessage(stub, ClientMessageMetadata(headers=dict(request.headers))))

    async def aclose(self) -> None:
        await self._inner.aclose()


def _is_message(fields: tuple[bytes, ...]) -> bool:
    """Whether an event contains a message: the older transport also has an event with an address."""
    kinds = [field.partition(b":")[2].strip() for field in fields if field.partition(b":")[0] == b"event"]
    return kinds[-1:] in ([], [b""], [b"message"])


def _read_request_id(body: bytes) -> RequestId | None:
    """Return the id of a request; None for a notification, a response, or no body."""
    try:
        message = open_message(body)
    except WireError:
        return None
    return message.id if isinstance(message.id, int | str) and isinstance(message.method, str) else None


def _build_failure_response(
    identity: RequestId | None, error: httpx2.TransportError, url: httpx2.URL
) -> httpx2.Response:
    """Return the response to a request that failed; a failed notification is dropped."""
    if identity is None:
        return httpx2.Response(202)
    if isinstance(error, AuthorizationError):
        return _answer(identity, str(error))
    return _answer(identity, mark(explain_failed_connection(error, url)))


def _answer(identity: RequestId, message: str) -> httpx2.Response:
    headers = {"content-type": "application/json"}
    return httpx2.Response(200, headers=headers, content=_encode_error(identity, message))


def _explain_too_large(request: httpx2.Request) -> str:
    size = int(request.headers.get("content-length", 0))
    return (
        f"the message of {size:,} bytes is over what this server takes (HTTP 413). Pass a smaller part of the value, "
        "or raise the server's own limit and `max_request_bytes` with it"
    )


def _encode_error(identity: RequestId | None, message: str) -> bytes:
    answer = types.ErrorData(code=types.INTERNAL_ERROR, message=message)
    return types.JSONRPCError(jsonrpc="2.0", id=identity, error=answer).model_dump_json().encode()


@dataclass(frozen=True, slots=True)
class HttpTransport:
    """Exchanges messages with the server at a URL."""

    endpoint: HttpEndpoint
    timeout: float
    """Seconds without a byte after which anything but a request fails; requests have their own timeout."""
    spool: Spool
    accept_cookies: AcceptCookies
    output: ServerOutput
    authorizer: Authorizer | None = None
    """Provides OAuth tokens; None if the server needs none."""

    def open(self, bypass: PayloadBypass) -> AbstractAsyncContextManager[Any]:
        """Open the streams for the SDK, once."""
        return self._open_legacy(bypass) if self.endpoint.legacy_sse else self._open_streamable(bypass)

    @asynccontextmanager
    async def _open_streamable(self, bypass: PayloadBypass) -> AsyncIterator[Any]:
        url, transport = self.endpoint.url, self._create_lifting_transport(bypass)
        async with (
            self._create_client(transport) as client,
            streamable_http_client(url, http_client=client, max_sse_event_size=None) as (read, write),
            anyio.create_task_group() as tasks,
        ):
            bypass.attach(drop_request=lambda identity: transport.drop_request(identity, tasks))
            try:
                yield _HttpReader(read, bypass), _HttpWriter(write)
                tasks.cancel_scope.cancel()
            except anyio.get_cancelled_exc_class():
                with anyio.move_on_after(_DELETE_TIMEOUT, shield=True), suppress(httpx2.TransportError):
                    if transport.session:  # the SDK's own request to end the session is lost if it is cancelled
                        await client.delete(url, headers=transport.session)
                raise

    @asynccontextmanager
    async def _open_legacy(self, bypass: PayloadBypass) -> AsyncIterator[Any]:
        def client(
            headers: dict[str, str] | None = None,  # noqa: ARG001  # the SDK passes arguments that the gateway did not give
            timeout: httpx2.Timeout | None = None,  # noqa: ARG001
            auth: httpx2.Auth | None = None,  # noqa: ARG001
        ) -> httpx2.AsyncClient:
            return self._create_client(self._create_lifting_transport(bypass))

        async with sse_client(self.endpoint.url, httpx_client_factory=client) as (read, write):
            yield _HttpReader(read, bypass), _HttpWriter(write)

    def _create_lifting_transport(self, bypass: PayloadBypass) -> LiftingTransport:
        addresses = AddressPolicy.from_urls(self.endpoint.url, admits_private=self.endpoint.allow_private)
        inner: httpx2.AsyncBaseTransport = SSRFGuardTransport(addresses)
        if self.authorizer:
            inner = AuthorizingTransport(inner, self.authorizer)
        inner = CookieFilter(inner, self.accept_cookies)
        return LiftingTransport(inner, bypass, self.spool, self.output, ends_with_stream=self.endpoint.legacy_sse)

    def _create_client(self, transport: LiftingTransport) -> httpx2.AsyncClient:
        timeout = httpx2.Timeout(self.timeout, connect=_CONNECT_TIMEOUT)
        headers = {"accept-encoding": "identity", **self.endpoint.headers}
        return httpx2.AsyncClient(transport=transport, headers=headers, timeout=timeout)
