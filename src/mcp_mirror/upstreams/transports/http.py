"""The transport to a URL: Streamable HTTP, or the older HTTP+SSE."""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

import anyio
import httpx2
import mcp_types as types
import msgspec
from anyio.abc import TaskGroup, TaskStatus
from mcp.shared.message import ClientMessageMetadata, ServerMessageMetadata, SessionMessage
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcp_mirror.errors import UpstreamError
from mcp_mirror.payload.content_encodings import MAX_ERROR_BYTES, BodyError, read_beginning, replace_body
from mcp_mirror.payload.json_rpc import RequestId, recover_id
from mcp_mirror.payload.spool import Spool
from mcp_mirror.security.ssrf_guard import AddressPolicy, SSRFGuardTransport
from mcp_mirror.settings.upstreams import HttpEndpoint
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.types import Segments
from mcp_mirror.upstreams.oauth.tokens import Authorizer
from mcp_mirror.upstreams.transports.cookies import AcceptCookies
from mcp_mirror.upstreams.transports.http_bodies import BodyReader, StreamPosition
from mcp_mirror.upstreams.transports.http_requests import (
    END_TIMEOUT,
    EVENTS,
    JSON,
    SESSION_HEADER,
    VERSION_HEADER,
    HttpRequests,
    close,
    discard,
)
from mcp_mirror.upstreams.transports.network_errors import (
    SESSION_AFFINITY,
    AuthorizationError,
    FailureKind,
    build_failure,
    build_http_failure,
    explain_failed_connection,
    explain_large_message,
    explain_response,
    format_address,
    read_media_type,
)
from mcp_mirror.upstreams.transports.payloads import PayloadBypass
from mcp_mirror.upstreams.transports.requests import PendingRequest, RequestSink

_TOO_LARGE: Final = 413
_UNREACHED_STATUS: Final = 503
"""The status that a request without a response counts as."""
_LATER: Final = {401: 60.0, **dict.fromkeys((409, 429, 502, _UNREACHED_STATUS, 504), 4.0)}
"""Statuses for an event stream that may be opened later, and the most seconds between two attempts: the server has not
noticed the end of the last one (409), or it, or a proxy in front of it, is busy or starts again. A valid token (401)
may take an authorization server, or a person, longer."""
_UNKNOWN_SESSION: Final = {
    400: lazy_pattern(rb"session|server not initialized", re.IGNORECASE),
    401: lazy_pattern(rb"session not found", re.IGNORECASE),
    404: lazy_pattern(rb"session", re.IGNORECASE),
}
"""By status, what the bodies say with which servers answer in a session that they do not know: the Rust SDK before
version 0.17 uses 401, and servers of the TypeScript SDK that serve one session do not name it after their restart."""
_DELETE_TIMEOUT: Final = 2.0
"""Seconds for the request that ends a session."""
_MAX_FAILURES: Final = 2
"""Attempts in a row to open or resume a stream that the server refuses."""
_OPENING: Final = 1.0
"""Seconds that the first request waits for the event stream: a server that does not begin it is used without."""
_OPEN_INTERVAL: Final = 1.0
"""Seconds between two attempts to reach a server for an event stream, at first."""
_UNREACHED: Final = (httpx2.ConnectError, httpx2.ConnectTimeout)
_INITIALIZE: Final = "initialize"
_INITIALIZED: Final = "notifications/initialized"
_CANCELLED: Final = "notifications/cancelled"
_SUBSCRIBE: Final = "subscriptions/listen"
_NO_STORE: Final = {"cache-control": "no-store"}


class HttpTransport(msgspec.Struct, frozen=True):
    """Exchanges messages with the server at a URL."""

    endpoint: HttpEndpoint
    timeout: float
    """Seconds without a byte after which anything but a request fails; requests have their own timeout."""
    spool: Spool
    accept_cookies: AcceptCookies
    authorizer: Authorizer | None
    """Provides OAuth tokens; None if the server needs none."""

    @asynccontextmanager
    async def open(self, bypass: PayloadBypass) -> AsyncIterator[Any]:
        """Open the streams for the SDK, once."""
        addresses = AddressPolicy.from_urls(self.endpoint.url, admits_private=self.endpoint.allow_private)
        inner = SSRFGuardTransport(addresses)
        sender, receiver = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        http = HttpRequests(self.endpoint, self.timeout, inner, self.accept_cookies, self.authorizer)
        bodies = BodyReader(bypass, self.spool, sender)
        kind: type[HttpStreams] = LegacySse if self.endpoint.legacy_sse else StreamableHttp
        async with sender, receiver, inner, anyio.create_task_group() as tasks:
            streams = kind(http, bodies, bypass, tasks)
            try:
                await streams.start()
                yield receiver, streams
            finally:
                await streams.end()
                tasks.cancel_scope.cancel()


class HttpStreams(RequestSink):
    """What the SDK and the gateway send to a server; its answers go to `bodies`."""

    def __init__(self, http: HttpRequests, bodies: BodyReader, bypass: PayloadBypass, tasks: TaskGroup) -> None:
        self._http = http
        self._bodies = bodies
        self._bypass = bypass
        self._tasks = tasks
        self._session: dict[str, str] = {}
        """The headers that name the session and its protocol version, as far as they are known."""
        self._address: httpx2.URL | None = None
        """Where messages go; None: to the URL of the server."""
        self._messages, self._queue = anyio.create_memory_object_stream[SessionMessage](0)
        """Messages that get no answer, in the order of sending."""

    async def start(self) -> None:
        """Begin to send and to receive."""
        self._tasks.start_soon(self._write_messages)

    async def end(self) -> None:
        """Stop to send."""
        self._messages.close()

    async def send(self, item: SessionMessage) -> None:
        """Send a message of the SDK."""
        if isinstance(message := item.message, types.JSONRPCRequest):
            self._bodies.expect(message.id, scope := anyio.CancelScope())
            headers = item.metadata.headers if isinstance(item.metadata, ClientMessageMetadata) else None
            self._tasks.start_soon(self._exchange_for_sdk, scope, message, self._encode(item), headers or {})
        elif (method := getattr(message, "method", "")) == _INITIALIZED:
            await self._end_handshake(item)
        elif method == _CANCELLED:  # it does not wait for a server that does not answer
            self._tasks.start_soon(self._post_message, item)
        else:
            await self._messages.send(item)

    async def _end_handshake(self, item: SessionMessage) -> None:
        """Send the notification that the server must know before the first request.

        Raises:
            UpstreamError: The server does not know the session, as behind a load balancer.
        """
        with suppress(httpx2.TransportError), anyio.move_on_after(self._http.timeout):
            response = await self._post(self._encode(item), {})
            has_session = SESSION_HEADER in self._session or self._address is not None
            signs = _UNKNOWN_SESSION.get(response.status_code) if has_session else None
            if signs is None:
                await discard(response)
            elif signs.search(await read_beginning(response, MAX_ERROR_BYTES)):
                raise UpstreamError(
                    f"It did not know the gateway's session at the end of the handshake. {SESSION_AFFINITY}."
                )

    async def _exchange_for_sdk(
        self, scope: anyio.CancelScope, message: types.JSONRPCRequest, body: Segments, headers: Mapping[str, str]
    ) -> None:
        with scope:
            await self._exchange(message.id, message.method, body, headers)

    async def send_request(self, request: PendingRequest) -> None:
        """Send a request of the gateway, and take its response."""
        with anyio.CancelScope() as scope:
            request.stop = partial(self._stop, request.id, scope)
            request.is_sent = True  # or will be: a slow server counts as a slow response
            await self._exchange(request.id, request.method, request.frame, request.headers)

    def _stop(self, identity: RequestId, scope: anyio.CancelScope) -> None:
        """Stop a request that a message of another stream, or the end of the connection, has ended."""
        if self._bodies.taking != identity:
            scope.cancel()

    async def _exchange(self, identity: RequestId, method: str, body: Segments, headers: Mapping[str, str]) -> None:
        """Send a request, and take its response. Each failure fails only the request."""
        try:
            response = await self._post(body, headers)
            self._bypass.unreachable = None
            if method == _INITIALIZE and response.is_success and SESSION_HEADER in response.headers:
                self._session[SESSION_HEADER] = response.headers[SESSION_HEADER]
            await self._take_response(response, identity)
        except httpx2.TransportError as error:
            if method == _SUBSCRIBE and isinstance(error, _UNREACHED):  # the caller subscribes again
                self._bypass.unreachable = explain_failed_connection(error, self._http.url)
            await self._bodies.fail(identity, build_http_failure(error, self._http.url))

    async def _take_response(self, response: httpx2.Response, identity: RequestId) -> None:
        """Take the response to a request."""

    async def _write_messages(self) -> None:
        with self._queue:
            async for item in self._queue:
                await self._post_message(item)

    async def _post_message(self, item: SessionMessage) -> None:
        """Send a message that gets no answer in which a failure could be."""
        # A server may send parts of the head of a response for ever.
        with suppress(httpx2.TransportError), anyio.move_on_after(self._http.timeout):
            response = await self._post(self._encode(item), {})
            is_answer = isinstance(item.message, types.JSONRPCResponse | types.JSONRPCError)
            if is_answer and response.is_client_error:
                await self._fail_call(item, response)
            await discard(response)

    async def _fail_call(self, answer: SessionMessage, refusal: httpx2.Response) -> None:
        """Fail the call during which the server made a request, and refused the answer to it."""
        error = None
        if refusal.status_code in _UNKNOWN_SESSION and SESSION_HEADER in refusal.request.headers:
            await self._read_refusal(refusal, None)
        if not self._bypass.is_unknown_session:
            if not getattr(answer.message, "result", None):  # to a ping, or an error: the call may not need it
                return
            error = build_failure(FailureKind.ANSWERED, _explain_refusal(refusal))
        if isinstance(answer.metadata, ServerMessageMetadata):
            self._bypass.fail_call(str(answer.metadata.related_request_id), error)

    async def _post(self, body: Segments, headers: Mapping[str, str]) -> httpx2.Response:
        return await self._http.send("POST", {**self._session, **headers}, body, self._address)

    def _encode(self, item: SessionMessage) -> Segments:
        return self._bypass.outbound(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode())

    async def _refuse(self, response: httpx2.Response, identity: RequestId) -> None:
        """Fail a request whose response does not contain a message."""
        await close(response)
        code = types.INTERNAL_ERROR if response.is_error else types.INVALID_REQUEST
        if response.status_code == httpx2.codes.NOT_FOUND:
            code = types.METHOD_NOT_FOUND
        kind = FailureKind.REFUSED if self._bypass.find(identity) is None else FailureKind.ANSWERED
        await self._bodies.fail(identity, build_failure(kind, _explain_refusal(response), code))

    async def _read_refusal(self, response: httpx2.Response, identity: RequestId | None) -> httpx2.Response:
        """Return the error response in a session that the server may not know, as after its restart.

        `identity` is the id of the request that it answers; None: a request for the event stream.
        """
        body = await read_beginning(response, MAX_ERROR_BYTES)
        response.extensions["network_stream"].abort()  # as `close` does
        # A response to this very request, which the server may have executed:
        is_answer = identity is not None and recover_id(body) == identity
        names_session = _UNKNOWN_SESSION[response.status_code].search(body) is not None
        is_unknown = names_session and not is_answer
        if response.status_code == httpx2.codes.NOT_FOUND:
            is_unknown = names_session or not is_answer
        if is_unknown:
            self._bypass.report_unknown_session(identity)
        return replace_body(response, content=body, request=response.request)


class StreamableHttp(HttpStreams):
    """Streamable HTTP: the response to a request has its answer."""

    async def send(self, item: SessionMessage) -> None:
        """Send a message of the SDK."""
        message = item.message
        method = message.method if isinstance(message, types.JSONRPCRequest | types.JSONRPCNotification) else ""
        headers = item.metadata.headers if isinstance(item.metadata, ClientMessageMetadata) else None
        if method == _INITIALIZE:
            self._session.pop(VERSION_HEADER, None)
        elif headers and VERSION_HEADER in headers:
            self._session[VERSION_HEADER] = headers[VERSION_HEADER]
        if method == _CANCELLED and self._session.get(VERSION_HEADER) in MODERN_PROTOCOL_VERSIONS:
            if params := getattr(message, "params", None):
                self._bodies.cancel(params["requestId"])  # the end of its stream is the cancellation
            return
        await super().send(item)
        if method == _INITIALIZED and SESSION_HEADER in self._session:
            is_answered = anyio.Event()
            self._tasks.start_soon(self._follow_events, is_answered)
            with anyio.move_on_after(_OPENING):
                await is_answered.wait()

    async def _take_response(self, response: httpx2.Response, identity: RequestId) -> None:
        if response.status_code in _UNKNOWN_SESSION and SESSION_HEADER in response.request.headers:
            response = await self._read_refusal(response, identity)
        kind = read_media_type(response)
        has_message = kind == JSON or (kind == EVENTS and not response.is_error)
        if response.status_code == httpx2.codes.ACCEPTED or response.has_redirect_location:
            has_message = False
        if not has_message:
            await self._refuse(response, identity)
        elif kind == EVENTS:
            await self._take_events(response, identity)
        else:
            try:
                await self._bodies.read_json(response, identity)
            finally:
                await close(response)

    async def _take_events(self, response: httpx2.Response, identity: RequestId) -> None:
        """Take the response to a request from an event stream, which is resumed if it ends too early."""
        position, failures = StreamPosition(), 0
        while not await self._read_events(response, identity, position):
            resumed = None
            while resumed is None and position.last_id and failures < _MAX_FAILURES:
                await position.wait()
                opened = await self._open_events(position)
                resumed = opened if opened is not None and _is_event_stream(opened) else None
                failures = 0 if resumed else failures + 1
            if resumed is None:
                reason = "It ended the event stream before the response."
                await self._bodies.fail(identity, build_failure(FailureKind.CUT, reason, types.CONNECTION_CLOSED))
                return
            response = resumed

    async def _read_events(self, response: httpx2.Response, identity: RequestId, position: StreamPosition) -> bool:
        """Read an event stream until the request has ended, and return True; False if the stream ends before."""
        events = self._bodies.read_events(response, identity, position)
        is_left_open = False
        try:
            async for _ in events:
                if self._bodies.has_ended(identity):
                    self._tasks.start_soon(_read_end, response, events)
                    is_left_open = True
                    return True
        except BodyError as error:  # to resume the stream would not help
            await self._bodies.fail(identity, build_http_failure(error, self._http.url))
        except httpx2.TransportError:
            pass
        finally:
            if not is_left_open:
                await _close_events(response, events)
        return self._bodies.has_ended(identity)

    async def _follow_events(self, is_answered: anyio.Event) -> None:
        """Read the event stream of the session, and open it again when it ends, unless the server has none.

        Sets `is_answered` once the server has answered the first request for it. A question that the server asks on the
        stream before is lost (TypeScript SDK), and the call that needs the answer never ends.
        """
        position, failures, delay, has_opened = StreamPosition(), 0, _OPEN_INTERVAL, False
        while failures < _MAX_FAILURES and SESSION_HEADER in self._session:
            response = await self._open_events(position, has_opened=has_opened)
            is_answered.set()
            status = _UNREACHED_STATUS if response is None else response.status_code
            if response is not None and _is_event_stream(response):
                failures, delay, has_opened = 0, _OPEN_INTERVAL, True
                events = self._bodies.read_events(response, None, position)
                try:
                    with suppress(httpx2.TransportError):
                        async for _ in events:
                            pass
                finally:
                    await _close_events(response, events)
            elif has_opened and status in _LATER:
                await anyio.sleep(delay)
                delay = min(2 * delay, _LATER[status])
                continue
            else:
                failures += 1
            await position.wait()

    async def _open_events(self, position: StreamPosition, *, has_opened: bool = False) -> httpx2.Response | None:
        """Open an event stream. Return the response, closed if it is not one; None if the request failed.

        A server that `has_opened` the stream of the session and cannot be reached now is down.
        """
        headers = {**self._session, **_NO_STORE}
        if position.last_id:
            headers["last-event-id"] = position.last_id.decode("utf-8", "replace")
        try:
            response = await self._http.send("GET", headers)
        except AuthorizationError:
            return httpx2.Response(httpx2.codes.UNAUTHORIZED)  # as the server answers without a token
        except httpx2.TransportError as error:
            if has_opened and isinstance(error, _UNREACHED):
                self._bypass.unreachable = explain_failed_connection(error, self._http.url)
            return None
        self._bypass.unreachable = None
        if not _is_event_stream(response):
            with anyio.move_on_after(END_TIMEOUT), suppress(httpx2.TransportError):
                if has_opened and response.status_code in _UNKNOWN_SESSION:
                    await self._read_refusal(response, None)
            await close(response)
        return response

    async def end(self) -> None:
        """End the session at the server."""
        await super().end()
        if SESSION_HEADER in self._session:
            with anyio.move_on_after(_DELETE_TIMEOUT, shield=True), suppress(httpx2.TransportError):
                await close(await self._http.send("DELETE", self._session))


class LegacySse(HttpStreams):
    """HTTP+SSE of protocol version 2024-11-05: one event stream has all messages, and the connection ends with it."""

    async def start(self) -> None:
        """Open the event stream, and wait for the address for messages."""
        await super().start()
        await self._tasks.start(self._follow_events)

    async def _follow_events(self, *, task_status: TaskStatus[None]) -> None:
        response = await self._http.send("GET", {**_NO_STORE, "accept": EVENTS})
        if not _is_event_stream(response):
            await close(response)
            raise UpstreamError(explain_response(response))
        events = self._bodies.read_events(response, None, StreamPosition())
        failure = UpstreamError("It ended its event stream before it named an address for messages.")
        is_started = False
        try:
            async for address in events:
                if address is not None:
                    self._set_address(address)
                    if not is_started:
                        is_started = True
                        task_status.started()
        except httpx2.TransportError as error:
            failure = UpstreamError(explain_failed_connection(error, self._http.url))
        except UpstreamError as error:
            failure = error
        finally:
            await _close_events(response, events)
            self._bodies.end()
        if not is_started:
            raise failure

    def _set_address(self, address: bytes) -> None:
        """Set the address for messages; an UpstreamError if it is at another server."""
        url = self._http.url
        with suppress(ValueError, httpx2.InvalidURL):
            target = url.join(address.decode())
            if (target.scheme, target.host, target.port) == (url.scheme, url.host, url.port):
                self._address = target
                return
        raise UpstreamError(
            f"{format_address(url)} wants messages at another address than `url`. Correct the public "
            "address in the server's settings, or `url`."
        )

    async def _take_response(self, response: httpx2.Response, identity: RequestId) -> None:
        if response.is_success:
            await discard(response)
            return
        if response.status_code in _UNKNOWN_SESSION and self._bypass.find(identity):  # not the handshake
            response = await self._read_refusal(response, identity)
        await self._refuse(response, identity)


def _explain_refusal(response: httpx2.Response) -> str:
    if response.status_code == _TOO_LARGE:
        return explain_large_message(response.request.url, int(response.request.headers["content-length"]))
    return explain_response(response)


def _is_event_stream(response: httpx2.Response) -> bool:
    return response.status_code == httpx2.codes.OK and read_media_type(response) == EVENTS


async def _close_events(response: httpx2.Response, events: AsyncGenerator[bytes | None]) -> None:
    with anyio.CancelScope(shield=True):
        await events.aclose()
        await response.aclose()


async def _read_end(response: httpx2.Response, events: AsyncGenerator[bytes | None]) -> None:
    """Read a response to its end if that comes soon, so that its connection can be used again, and close it."""
    try:
        with anyio.move_on_after(END_TIMEOUT), suppress(httpx2.TransportError):
            async for _ in events:
                pass
    finally:
        await _close_events(response, events)
