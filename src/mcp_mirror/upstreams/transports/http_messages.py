"""Sends the requests of the gateway over HTTP past the SDK, and hands their responses to those who wait for them.

The SDK's transport sends the handshake, notifications, answers to requests of the server, and the first request of each
session. Later requests of the gateway repeat the headers of the first one and are sent here, without the SDK and the
HTTP client around this transport. An unusual response (a redirect, an error status, a stream that breaks off) goes to
the SDK's transport, which handles it as the response to a request of its own. No request is sent twice.
"""

import logging
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

import anyio
import httpx2
import mcp_types as types
from anyio.abc import TaskGroup

from mcp_mirror.payload.content_encodings import MAX_ERROR_BYTES, read_beginning, replace_body
from mcp_mirror.payload.json_rpc import RequestId, recover_id
from mcp_mirror.payload.spool import Spool
from mcp_mirror.settings.upstreams import HttpEndpoint
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
from mcp_mirror.upstreams.transports.requests import PendingRequest
from mcp_mirror.upstreams.transports.server_output import ServerOutput

_logger = logging.getLogger(__name__)

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
_OWN_HEADERS: Final = frozenset({"content-length", "cookie", "mcp-method", "mcp-name"})
_OWN_PREFIX: Final = "mcp-param-"
"""Headers that differ between requests of a session; the others are the same."""
DELETE_TIMEOUT: Final = 2.0
"""Seconds for the request that ends a session."""
_END_TIMEOUT: Final = 1.0
"""Seconds after its result in which an event stream may end, so that its connection stays open. The same for a body
that nothing reads."""
_RESUMING: Final = re.compile(rb"(?:id|retry)(?::|\Z)")
"""The lines of an event that apply to the whole stream: where and when to resume it."""
_OPENED_AT_ONCE: Final = 10
"""How often an event stream is opened again at once. A server may end it each time, and set a delay of zero."""
_OPEN_INTERVAL: Final = 1.0
"""Seconds between the next attempts."""
_LONGEST_OPEN_INTERVAL: Final = 4.0
"""Seconds between two attempts to reach a server for an event stream, at most."""

MAX_COOKIES: Final = 50
"""Cookies of one response, and of one connection: as many as RFC 6265, section 6.1, requires of a browser."""
_MAX_COOKIE: Final = 1 << 12
"""Bytes of one cookie with its attributes."""
_SET_COOKIE: Final = b"set-cookie"

AcceptCookies = Callable[[str | None], bool]
"""Whether to keep the cookies of a response, by the protocol version that the request names (None: none)."""


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
    """Sends through `inner`. Requests of the gateway get their bodies here, and their responses stop here."""

    def __init__(
        self,
        endpoint: HttpEndpoint,
        inner: httpx2.AsyncBaseTransport,
        accept_cookies: AcceptCookies,
        bypass: PayloadBypass,
        spool: Spool,
        output: ServerOutput,
    ) -> None:
        self._url = httpx2.URL(endpoint.url)
        self._inner = inner
        self._accept_cookies = accept_cookies
        self._output = output
        self._bypass = bypass
        self._bodies = BodyReader(endpoint, bypass, spool, output)
        self._waiting: dict[RequestId, anyio.CancelScope] = {}
        self._reading: dict[RequestId, httpx2.Response] = {}
        """Responses whose bodies are being read, by the ids of their requests."""
        self._headers: list[tuple[str, str]] | None = None
        """The headers that all requests of the session have in common; None before the first one succeeded."""
        self._extensions: Mapping[str, Any] = {}
        """The extensions of these requests."""
        self._received: dict[RequestId, httpx2.Response] = {}
        """Responses for the SDK's transport to requests that it did not send."""
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
        body = await request.aread() if request.method == "POST" else b""
        identity = await _open_stream() if request.method == "GET" else read_request_id(body)
        if identity is not None and self._bypass.has_ended(identity):
            return _build_end(request, identity)
        if request.method == "POST":
            _stream.set(_EventStream(identity))
        request = self._replace_body(request, body, self._bypass.find(identity)) if body else request
        request.extensions = {**request.extensions, "timeout": self._build_timeouts(request, identity)}
        named = {name: request.headers[name] for name in _SESSION_HEADERS if name in request.headers}
        self.session = named if _SESSION in named and request.method != "DELETE" else {}
        try:
            response = await self._send_until_reached(request, identity)
        except httpx2.TransportError as error:
            if request.method != "POST":
                raise
            return _build_failure_response(identity, error, request.url)
        response.request, self._bypass.unreachable = request, None
        is_own = request.url == self._url and self._bypass.find(identity) is not None
        if is_own and response.status_code == httpx2.codes.OK:
            self._note_common_parts(request)
        if request.method == "POST":
            response = await self._take_refusal(response, identity)
        self._note_stream(response, identity)
        return await self._rewrite_response(response, identity)

    def _note_common_parts(self, request: httpx2.Request) -> None:
        """Note what all requests of the session have in common, by the first one."""
        if self._headers is None:
            headers = request.headers.items()
            self._headers = [
                one for one in headers if one[0] not in _OWN_HEADERS and not one[0].startswith(_OWN_PREFIX)
            ]
            self._extensions = dict(request.extensions)

    def _note_stream(self, response: httpx2.Response, identity: RequestId | None) -> None:
        """Report an unknown session if the event stream of the session cannot be opened again because of that."""
        if identity is not None or response.request.method != "GET":
            return
        if self._has_stream and response.status_code == httpx2.codes.NOT_FOUND and _SESSION in response.request.headers:
            self._bypass.report_unknown_session(None)
        self._has_stream = self._has_stream or response.status_code == httpx2.codes.OK

    async def _take_refusal(self, response: httpx2.Response, identity: RequestId | None) -> httpx2.Response:
        """Fail a request whose response does not contain a message, and return the response for the SDK's transport."""
        request = response.request
        if identity is None:
            if not response.is_error:
                return response
            await _close(response)
            return httpx2.Response(httpx2.codes.ACCEPTED, request=request, extensions=_REPLACED)  # it is dropped
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

    async def _send_until_reached(self, request: httpx2.Request, identity: RequestId | None) -> httpx2.Response:
        """Send a request; for the event stream of the session, try again until the server can open it.

        The SDK's transport would not open the stream again, and the session would get no more notifications.
        """
        delay = _OPEN_INTERVAL
        while True:
            try:
                response = await self._send_until_response(request, identity)
                if request.method == "POST" or response.status_code not in _LATER:
                    return response
                if not self._opens_stream(request, identity):
                    return response
                self._bypass.unreachable = None
                await _close(response)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                if not self._opens_stream(request, identity):
                    raise
                self._bypass.unreachable = explain_failed_connection(error, request.url)
                if request.method == "POST":  # the caller subscribes again
                    raise
            await anyio.sleep(delay)
            delay = min(2 * delay, _LONGEST_OPEN_INTERVAL)

    def _opens_stream(self, request: httpx2.Request, identity: RequestId | None) -> bool:
        """Whether a request opens the event stream of the session again, or subscribes to changes."""
        if request.method == "GET":
            return identity is None and self._has_stream
        # After the handshake, the SDK's transport sends no other requests with an id of the SDK.
        return identity is not None and self._headers is not None and self._bypass.find(identity) is None

    async def _send_until_response(self, request: httpx2.Request, identity: RequestId | None) -> httpx2.Response:
        """Send a request until the beginning of its response, unless `post` has sent it.

        Without an id, the beginning must come in the time that a read may take: a server may send parts of a head, or
        informational responses, for ever.

        Raises:
            httpx2.TransportError: The request failed, or was dropped.
        """
        if identity is None:
            seconds = request.extensions["timeout"].get("read")
            with anyio.move_on_after(seconds):
                return await self._send(request)
            raise httpx2.ReadTimeout(f"it took longer than {seconds:g} s")
        if (received := self._received.pop(identity, None)) is not None:
            return received
        with anyio.CancelScope() as scope:
            self._waiting[identity] = scope
            try:
                return await self._send(request)
            finally:
                self._waiting.pop(identity, None)
        raise httpx2.ReadError("the request was dropped")

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        """Return the response to a request without cookies that the connection must not keep."""
        response = await self._inner.handle_async_request(request)
        if "set-cookie" in response.headers:
            is_kept = self._accept_cookies(request.headers.get("mcp-protocol-version"))
            headers = response.headers.raw  # of any encoding
            cookies = [one for one in headers if one[0].lower() == _SET_COOKIE and len(one[1]) <= _MAX_COOKIE]
            others = [one for one in headers if one[0].lower() != _SET_COOKIE]
            response.headers = httpx2.Headers([*others, *(cookies[:MAX_COOKIES] if is_kept else ())])
        return response

    async def post(self, own: PendingRequest, cookies: httpx2.Cookies, tasks: TaskGroup) -> bool:
        """Send a request of the gateway and take its response; return False if the SDK's transport must do that."""
        if self._headers is None:
            return False
        with anyio.CancelScope() as scope:
            own.stop = partial(self._stop, own.id, scope)
            request = self._build_request(own, self._headers, cookies)
            own.is_sent = True  # or will be: a slow server counts as a slow response
            try:
                response = await self._send(request)
            except httpx2.TransportError as error:
                self._bypass.fail(own.id, types.INTERNAL_ERROR, mark_failure(error, request.url))
                return True
            response.request, self._bypass.unreachable = request, None
            if "set-cookie" in response.headers:
                cookies.extract_cookies(response)
            unusual = await self._take_response(response, own.id, tasks)
            if unusual is not None:
                self._received[own.id] = unusual
            return unusual is None
        return True

    def _stop(self, identity: RequestId, scope: anyio.CancelScope) -> None:
        """Stop a request that a message of another stream, or the end of the connection, has ended."""
        if self._bodies.taking != identity:
            scope.cancel()

    def _build_request(
        self, own: PendingRequest, common: Sequence[tuple[str, str]], cookies: httpx2.Cookies
    ) -> httpx2.Request:
        segments = own.frame
        headers = [one for one in common if one[0] not in own.headers]
        headers += own.headers.items()
        headers.append(("content-length", str(sum(len(segment) for segment in segments))))
        request = httpx2.Request(
            "POST", self._url, headers=headers, stream=RequestBody(segments), extensions=dict(self._extensions)
        )
        if cookies:
            cookies.set_cookie_header(request)
        return request

    async def _take_response(
        self, response: httpx2.Response, identity: RequestId, tasks: TaskGroup
    ) -> httpx2.Response | None:
        """Take the response to a request of the gateway; return a response for the SDK's transport if it is unusual.

        If an event stream ends too early, that response has the last event that the SDK's transport would have seen,
        after the last id and delay of the stream. The SDK's transport resumes the stream, or reports its end.
        """
        read = self._bodies.find_reader(response)
        if response.status_code != httpx2.codes.OK or read is None:
            return response
        last, fields, chunks = b"", dict[bytes, bytes](), read(response, identity)
        is_left_open = False
        try:
            async for chunk in chunks:
                if self._bypass.has_ended(identity) and read == self._bodies.read_events:
                    tasks.start_soon(_read_end, response, chunks)
                    is_left_open = True
                    return None
                last = chunk
                fields |= {line.partition(b":")[0]: line for line in chunk.split(b"\n") if _RESUMING.match(line)}
        except httpx2.TransportError as error:
            _logger.debug("a response broke off: %s", type(error).__name__)
        finally:
            if not is_left_open:
                await chunks.aclose()
                await response.aclose()
        if self._bypass.has_ended(identity):
            return None
        content = encode_event(tuple(fields.values()), None) + last
        return httpx2.Response(httpx2.codes.OK, headers={"content-type": EVENTS}, content=content)

    def drop_request(self, identity: RequestId, tasks: TaskGroup) -> None:
        """Cancel a request that has ended: neither wait for its response nor read on."""
        if scope := self._waiting.get(identity):
            scope.cancel()
        if response := self._reading.pop(identity, None) or self._received.pop(identity, None):
            tasks.start_soon(response.aclose)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()

    def _build_timeouts(self, request: httpx2.Request, identity: RequestId | None) -> dict[str, Any]:
        """Return the timeouts of a request: a response or an event stream may pause for any time."""
        timeout = dict(request.extensions.get("timeout", {}))
        if request.method == "DELETE":
            return dict.fromkeys(("connect", "read", "write", "pool"), DELETE_TIMEOUT)
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
            request.method, request.url, headers=headers, stream=RequestBody(segments), extensions=request.extensions
        )

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

    async def _rewrite_response(self, response: httpx2.Response, identity: RequestId | None) -> httpx2.Response:
        """Return what the SDK's transport sees of a response: no body if it does not read messages from it."""
        read = self._bodies.find_reader(response)
        if identity is not None or self._bodies.ends_with_stream:
            self._output.refusal = explain_response(response) if read is None or response.is_error else None
        is_stream = response.request.method == "GET"
        if read is None or not (is_stream or (identity is not None and not self._bodies.ends_with_stream)):
            await _discard(response)
            return replace_body(response, content=b"", extensions=response.extensions)
        stream = RewrittenBody(response, self._read(response, identity, read))
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


async def _open_stream() -> RequestId | None:
    """Wait until the stream of this task may be opened (again), and return the id of its request."""
    stream = _stream.get(None)
    if stream is None:
        _stream.set(stream := _EventStream(None))
    await stream.pace()
    return stream.identity


async def _discard(response: httpx2.Response) -> None:
    """Close a response. After a success, and if its body is small and ends soon, its connection can be used again."""
    try:
        with anyio.move_on_after(_END_TIMEOUT), suppress(httpx2.TransportError):
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


async def _read_end(response: httpx2.Response, chunks: AsyncGenerator[bytes]) -> None:
    """Read a response to its end if that comes soon, so that its connection can be used again, and close it."""
    try:
        with anyio.move_on_after(_END_TIMEOUT), suppress(httpx2.TransportError):
            async for _ in chunks:
                pass
    finally:
        with anyio.CancelScope(shield=True):
            await chunks.aclose()
            await response.aclose()


def _build_failure_response(
    identity: RequestId | None, error: httpx2.TransportError, url: httpx2.URL
) -> httpx2.Response:
    """Return the response to a request that failed; a failed notification is dropped."""
    if identity is None:
        return httpx2.Response(httpx2.codes.ACCEPTED, extensions=_REPLACED)
    return _answer(identity, mark_failure(error, url))


def _build_end(request: httpx2.Request, identity: RequestId) -> httpx2.Response:
    """Return the response to a request that has ended, in the form that the SDK's transport expects."""
    if request.method == "POST":
        return _answer(identity, ENDED)
    end = encode_event((), encode_error(identity, ENDED))
    return httpx2.Response(httpx2.codes.OK, headers={"content-type": EVENTS}, content=end, extensions=_REPLACED)


def _answer(identity: RequestId, message: str) -> httpx2.Response:
    content = encode_error(identity, message)
    return httpx2.Response(httpx2.codes.OK, headers={"content-type": JSON}, content=content, extensions=_REPLACED)
