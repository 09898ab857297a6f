"""Between the SDK's transport over HTTP and the network: bodies of requests, and responses as far as the SDK sees them.

The SDK's transport sends the handshake, notifications, answers to requests of the server, and the first request of each
session. The gateway's later requests are sent in `direct_posts`.
"""

from collections.abc import AsyncGenerator
from contextlib import suppress
from contextvars import ContextVar
from enum import Enum, auto
from typing import Any, Final

import anyio
import httpx2
import mcp_types as types
import msgspec
from anyio.abc import TaskGroup

from mcp_mirror.payload.content_encodings import MAX_ERROR_BYTES, read_beginning, replace_body
from mcp_mirror.payload.json_rpc import RequestId, recover_id
from mcp_mirror.payload.spool import Spool
from mcp_mirror.settings.upstreams import HttpEndpoint
from mcp_mirror.upstreams.transports.direct_posts import END_TIMEOUT, DirectPosts
from mcp_mirror.upstreams.transports.http_bodies import (
    ENDED,
    EVENTS,
    JSON,
    BodyReader,
    Read,
    RequestBody,
    RewrittenBody,
    encode_error,
    encode_event,
    mark_failure,
    read_request_id,
)
from mcp_mirror.upstreams.transports.network_errors import (
    FailureKind,
    explain_failed_connection,
    explain_large_message,
    explain_response,
    is_followed,
    mark,
)
from mcp_mirror.upstreams.transports.payloads import PayloadBypass
from mcp_mirror.upstreams.transports.server_output import ServerOutput

_TOO_LARGE: Final = 413
_REPLACED: Final = {"reason_phrase": b"Replaced by mcp-mirror"}
"""In the log of the HTTP client, the status of a response that the server did not send."""
_LATER: Final = frozenset({409, 429, 502, 503, 504})
"""Statuses for an event stream that may be opened later: the server has not noticed the end of the last one (409), or
it, or a proxy in front of it, is busy or starts again."""
_UNKNOWN_SESSION: Final = frozenset({400, 404})
"""Statuses with which servers answer in a session that they do not know."""
_SESSION: Final = "mcp-session-id"
_SESSION_HEADERS: Final = (_SESSION, "mcp-protocol-version")
DELETE_TIMEOUT: Final = 2.0
"""Seconds for the request that ends a session."""
_OPENED_AT_ONCE: Final = 10
"""How often an event stream is opened again at once. A server may end it each time, and set a delay of zero."""
_OPEN_INTERVAL: Final = 1.0
"""Seconds between the next attempts."""
_LONGEST_OPEN_INTERVAL: Final = 4.0
"""Seconds between two attempts to reach a server for an event stream, at most."""


class _Kind(Enum):
    """The HTTP requests of the SDK's transport."""

    REQUEST = auto()
    """POST of a request: of the SDK, or the gateway's first one in the session."""
    MESSAGE = auto()
    """POST of a notification, or of an answer to a request of the server."""
    STREAM = auto()
    """GET of the event stream of the session."""
    RESUMPTION = auto()
    """GET of the rest of the response to a request."""
    END = auto()
    """DELETE of the session."""


class _Outgoing(msgspec.Struct):
    """An HTTP request of the SDK's transport."""

    request: httpx2.Request
    kind: _Kind
    identity: RequestId | None = None
    """The id of the `REQUEST`, or of the one whose response the `RESUMPTION` continues."""
    body: bytes = b""
    """The body that the SDK made."""


class _EventStream:
    """The stream that a task of the SDK's transport reads: the response to a request, or the session's event stream."""

    def __init__(self, identity: RequestId | None) -> None:
        """Take the id of the request; None for the event stream of the session."""
        self.identity = identity
        self._next = 0.0

    async def pace(self) -> None:
        """Wait as long as the stream has been opened too often."""
        now = anyio.current_time()
        self._next = max(self._next, now - _OPENED_AT_ONCE * _OPEN_INTERVAL) + _OPEN_INTERVAL
        if self._next > now:
            await anyio.sleep(self._next - now)


_stream: ContextVar[_EventStream] = ContextVar("_stream")
"""The stream of this task. The SDK's transport resumes the response to a request in the task that sent it."""


class LiftingTransport(httpx2.AsyncBaseTransport):
    """Sends the requests of the SDK's transport through `inner`.

    Those of the gateway get their bodies here, and their responses stop here.
    """

    def __init__(
        self,
        endpoint: HttpEndpoint,
        inner: httpx2.AsyncBaseTransport,
        bypass: PayloadBypass,
        spool: Spool,
        output: ServerOutput,
    ) -> None:
        self._url = httpx2.URL(endpoint.url)
        self._inner = inner
        self._output = output
        self._bypass = bypass
        self._bodies = BodyReader(endpoint, bypass, spool, output)
        self.direct_posts: DirectPosts = DirectPosts(self._url, inner, bypass, self._bodies)
        self._waiting: dict[RequestId, anyio.CancelScope] = {}
        """Requests that wait for the beginning of their responses, by their ids."""
        self._reading: dict[RequestId, httpx2.Response] = {}
        """Responses whose bodies are being read, by the ids of their requests."""
        self._has_stream = False
        """The server has opened the event stream of the session."""
        self.session: dict[str, str] = {}
        """The headers that name the MCP session, while there is one."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request; return its response as far as it is for the SDK.

        A failed request gets a JSON-RPC error as its response, so that the session continues.
        """
        if request.method == "DELETE" and not self.session:
            return httpx2.Response(httpx2.codes.NO_CONTENT)  # the SDK ends a session that has been ended
        outgoing = await _classify(request)
        if outgoing.identity is not None and self._bypass.has_ended(outgoing.identity):
            return _build_end(outgoing)
        self._prepare(outgoing)
        try:
            response = await self._send_until_reached(outgoing)
        except httpx2.TransportError as error:
            if outgoing.kind not in (_Kind.REQUEST, _Kind.MESSAGE):
                raise
            return _build_failure_response(outgoing.identity, error, request.url)
        response.request, self._bypass.unreachable = outgoing.request, None
        self._note_progress(outgoing, response)
        if outgoing.kind is _Kind.MESSAGE:
            response = await _accept_refusal(response)
        elif outgoing.identity is not None and outgoing.kind is _Kind.REQUEST:
            response = await self._take_refusal(response, outgoing.identity)
        return await self._rewrite_response(response, outgoing)

    def _prepare(self, outgoing: _Outgoing) -> None:
        """Set the body and the timeouts of a request, and note the session that it names."""
        if outgoing.kind in (_Kind.REQUEST, _Kind.MESSAGE):
            outgoing.request = self._replace_body(outgoing)
        request = outgoing.request
        request.extensions = {**request.extensions, "timeout": _build_timeouts(outgoing)}
        session = {name: request.headers[name] for name in _SESSION_HEADERS if name in request.headers}
        self.session = session if _SESSION in session and outgoing.kind is not _Kind.END else {}

    def _replace_body(self, outgoing: _Outgoing) -> httpx2.Request:
        """Return the request with the body to send: that of the gateway's request, or the SDK's."""
        request, own = outgoing.request, self._bypass.find(outgoing.identity)
        segments = self._bypass.outbound(outgoing.body) if own is None else own.frame
        if own is not None:
            own.is_sent = True  # or will be: a slow server counts as a slow response
        elif segments == (outgoing.body,):
            return request
        headers = httpx2.Headers(request.headers)
        headers["content-length"] = str(sum(len(segment) for segment in segments))
        return httpx2.Request(
            request.method, request.url, headers=headers, stream=RequestBody(segments), extensions=request.extensions
        )

    async def _send_until_reached(self, outgoing: _Outgoing) -> httpx2.Response:
        """Send a request; to open the event stream of the session again, try until the server can open it.

        The SDK's transport would not try again, and the session would get no more notifications.
        """
        opens_again = outgoing.kind is _Kind.STREAM and self._has_stream
        delay = _OPEN_INTERVAL
        while True:
            try:
                response = await self._send_until_response(outgoing)
                if not opens_again or response.status_code not in _LATER:
                    return response
                self._bypass.unreachable = None
                await _close(response)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                if opens_again or self._subscribes(outgoing):
                    self._bypass.unreachable = explain_failed_connection(error, outgoing.request.url)
                if not opens_again:  # the caller subscribes again
                    raise
            await anyio.sleep(delay)
            delay = min(2 * delay, _LONGEST_OPEN_INTERVAL)

    def _subscribes(self, outgoing: _Outgoing) -> bool:
        """Whether a request subscribes to changes: the only requests of the SDK itself after the handshake."""
        is_request = outgoing.kind is _Kind.REQUEST and self.direct_posts.has_begun
        return is_request and self._bypass.find(outgoing.identity) is None

    async def _send_until_response(self, outgoing: _Outgoing) -> httpx2.Response:
        """Send a request until the beginning of its response, unless `DirectPosts` has sent it.

        Without an id, the beginning must come in the time that a read may take: a server may send parts of a head, or
        informational responses, for ever.

        Raises:
            httpx2.TransportError: The request failed, or was dropped.
        """
        request, identity = outgoing.request, outgoing.identity
        if identity is None:
            seconds = request.extensions["timeout"].get("read")
            with anyio.move_on_after(seconds):
                return await self._inner.handle_async_request(request)
            raise httpx2.ReadTimeout(f"it took longer than {seconds:g} s")
        if (received := self.direct_posts.take_unusual(identity)) is not None:
            return received
        with anyio.CancelScope() as scope:
            self._waiting[identity] = scope
            try:
                return await self._inner.handle_async_request(request)
            finally:
                self._waiting.pop(identity, None)
        raise httpx2.ReadError("the request was dropped")

    def _note_progress(self, outgoing: _Outgoing, response: httpx2.Response) -> None:
        """Note the first request of the gateway that succeeds, and whether the session and its event stream exist."""
        is_ok = response.status_code == httpx2.codes.OK
        if outgoing.kind is _Kind.STREAM:
            is_missing = response.status_code == httpx2.codes.NOT_FOUND
            if self._has_stream and is_missing and _SESSION in outgoing.request.headers:
                self._bypass.report_unknown_session(None)
            self._has_stream = self._has_stream or is_ok
        elif is_ok and outgoing.request.url == self._url and self._bypass.find(outgoing.identity) is not None:
            self.direct_posts.note_first(outgoing.request)

    async def _take_refusal(self, response: httpx2.Response, identity: RequestId) -> httpx2.Response:
        """Fail a request whose response does not contain a message, and return the response for the SDK's transport."""
        request = response.request
        if response.status_code == _TOO_LARGE:
            size = int(request.headers.get("content-length", 0))
            reason = mark(FailureKind.ANSWERED, explain_large_message(request.url, size))
            is_own = self._bypass.fail(identity, types.INTERNAL_ERROR, reason)
            return await _replace(response, identity, ENDED if is_own else reason)
        if response.status_code in _UNKNOWN_SESSION and _SESSION in request.headers:
            response = await self._read_refusal(response, identity)
            response.request = request
        if not self._may_have_message(response):
            reason = mark(FailureKind.ANSWERED, explain_response(response))
            if self._bypass.fail(identity, types.INTERNAL_ERROR, reason):
                return await _replace(response, identity, ENDED)
        return response

    async def _read_refusal(self, response: httpx2.Response, identity: RequestId) -> httpx2.Response:
        """Return the error response in a session that the server may not know, as after its restart."""
        try:
            body = await read_beginning(response, MAX_ERROR_BYTES)
        except httpx2.TransportError as error:
            return _build_failure_response(identity, error, response.request.url)
        answered = recover_id(body) == identity  # a response to this request, which the server may have executed
        names_session = b"session" in body.lower()
        is_unknown = names_session and not answered
        if response.status_code == httpx2.codes.NOT_FOUND:
            is_unknown = names_session or not answered
        if is_unknown:
            self._bypass.report_unknown_session(identity)
        return replace_body(response, content=body, extensions=response.extensions)

    def _may_have_message(self, response: httpx2.Response) -> bool:
        """Whether a response to a request may contain a message, or is a redirect for the SDK's transport."""
        if self._bodies.ends_with_stream:  # its message is in the event stream of the connection
            return response.is_success or is_followed(response)
        read = self._bodies.find_reader(response)
        if response.status_code == httpx2.codes.ACCEPTED or (response.is_error and read != self._bodies.read_json):
            return False
        return read is not None or is_followed(response)

    async def _rewrite_response(self, response: httpx2.Response, outgoing: _Outgoing) -> httpx2.Response:
        """Return what the SDK's transport sees of a response: no body if it does not read messages from it."""
        read, is_in_stream = self._bodies.find_reader(response), self._bodies.ends_with_stream
        if outgoing.identity is not None or is_in_stream:
            self._output.refusal = explain_response(response) if read is None or response.is_error else None
        has_messages = outgoing.kind in (_Kind.STREAM, _Kind.RESUMPTION)
        has_messages = has_messages or (outgoing.kind is _Kind.REQUEST and not is_in_stream)
        if read is None or not has_messages:
            await _discard(response)
            return replace_body(response, content=b"", extensions=response.extensions)
        stream = RewrittenBody(response, self._read(response, outgoing.identity, read))
        return replace_body(response, stream=stream, extensions=response.extensions)

    async def _read(self, response: httpx2.Response, identity: RequestId | None, read: Read) -> AsyncGenerator[bytes]:
        if identity is not None:
            self._reading[identity] = response
        try:
            async for chunk in read(response, identity):
                yield chunk
        except httpx2.TransportError:  # the SDK's transport opens a stream that broke off once, one that ended always
            if identity is not None or self._bodies.ends_with_stream:
                raise
        finally:
            if identity is not None:
                self._reading.pop(identity, None)

    def drop_request(self, identity: RequestId, tasks: TaskGroup) -> None:
        """Cancel a request that has ended: neither wait for its response nor read on."""
        if scope := self._waiting.get(identity):
            scope.cancel()
        if response := self._reading.pop(identity, None) or self.direct_posts.take_unusual(identity):
            tasks.start_soon(response.aclose)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()


async def _classify(request: httpx2.Request) -> _Outgoing:
    """Return a request of the SDK's transport with its kind; that of a stream waits until it may be opened (again)."""
    if request.method == "POST":
        body = await request.aread()
        identity = read_request_id(body)
        _stream.set(_EventStream(identity))
        return _Outgoing(request, _Kind.MESSAGE if identity is None else _Kind.REQUEST, identity, body)
    if request.method == "GET":
        stream = _stream.get(None)
        if stream is None:
            _stream.set(stream := _EventStream(None))
        await stream.pace()
        return _Outgoing(request, _Kind.STREAM if stream.identity is None else _Kind.RESUMPTION, stream.identity)
    return _Outgoing(request, _Kind.END)


def _build_timeouts(outgoing: _Outgoing) -> dict[str, Any]:
    """Return the timeouts of a request: a response or an event stream may pause for any time."""
    timeout = dict(outgoing.request.extensions.get("timeout", {}))
    if outgoing.kind is _Kind.END:
        return dict.fromkeys(("connect", "read", "write", "pool"), DELETE_TIMEOUT)
    return timeout if outgoing.kind is _Kind.MESSAGE else timeout | {"read": None}


async def _accept_refusal(response: httpx2.Response) -> httpx2.Response:
    """Return the response to a message that gets no answer: a success also if the server refuses the message."""
    if not response.is_error:
        return response
    await _close(response)
    return httpx2.Response(httpx2.codes.ACCEPTED, request=response.request, extensions=_REPLACED)


async def _discard(response: httpx2.Response) -> None:
    """Close a response. After a success, and if its body is small and ends soon, its connection can be used again."""
    try:
        with anyio.move_on_after(END_TIMEOUT), suppress(httpx2.TransportError):
            if response.is_success:
                await read_beginning(response, MAX_ERROR_BYTES)
    finally:
        await _close(response)


async def _close(response: httpx2.Response) -> None:
    """Close a response and, unless it was read to its end, its connection.

    Some servers close the connection after an error without a notice, and would not read the next request.
    """
    with anyio.CancelScope(shield=True):
        await response.aclose()


async def _replace(response: httpx2.Response, identity: RequestId, message: str) -> httpx2.Response:
    """Close a response, and return a JSON-RPC error in its place."""
    await _close(response)
    answer = _answer(identity, message)
    answer.request = response.request
    return answer


def _build_failure_response(
    identity: RequestId | None, error: httpx2.TransportError, url: httpx2.URL
) -> httpx2.Response:
    """Return the response to a request that failed; a failed notification is dropped."""
    if identity is None:
        return httpx2.Response(httpx2.codes.ACCEPTED, extensions=_REPLACED)
    return _answer(identity, mark_failure(error, url))


def _build_end(outgoing: _Outgoing) -> httpx2.Response:
    """Return the response to a request that has ended, in the form that the SDK's transport expects."""
    if outgoing.kind is _Kind.REQUEST:
        return _answer(outgoing.identity, ENDED)
    end = encode_event((), encode_error(outgoing.identity, ENDED))
    return httpx2.Response(httpx2.codes.OK, headers={"content-type": EVENTS}, content=end, extensions=_REPLACED)


def _answer(identity: RequestId | None, message: str) -> httpx2.Response:
    content = encode_error(identity, message)
    return httpx2.Response(httpx2.codes.OK, headers={"content-type": JSON}, content=content, extensions=_REPLACED)
