"""An upstream behind a URL: Streamable HTTP, or the older HTTP+SSE.

The SDK's clients speak the protocol. Between them and the network stands an `httpx2` transport that splices
arguments into request bodies and lifts results out of JSON bodies and server-sent events of any size.
"""

import re
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx2
import mcp_types as types
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from mcp_mirror.errors import WireError
from mcp_mirror.models import Buffer, Segments
from mcp_mirror.policies import HttpEndpoint
from mcp_mirror.upstreams.base import Bypass
from mcp_mirror.wire import RequestId, open_message, recover_id

_CHUNK: Final = 1 << 18
_NOT_FOUND: Final = 404
_FORGOTTEN: Final = frozenset({400, _NOT_FOUND})
"""How servers answer within a session that they do not know."""
_SESSION: Final = "mcp-session-id"
_OF_BODY: Final = frozenset({b"content-length", b"content-encoding", b"transfer-encoding"})
_ENCODINGS: Final = frozenset({"", "identity", "gzip", "x-gzip", "deflate"})
_CONNECT: Final = 10.0
"""Seconds for connecting to the host."""

_EVENT_END: Final = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_DATA: Final = re.compile(rb"data(?::|\Z)")
_GOODBYE: Final = 2.0
"""Seconds for telling a server that a session is over."""
_REFUSAL: Final = 1 << 16
"""Bytes of a refusal that are read."""


class EventReader:
    """Cuts a byte stream into server-sent events. Feeding it whole or byte by byte gives the same."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._pieces: list[bytes] = []
        self._size = 0
        self._tail = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The events that end in `data`, each with the blank line that ends it.

        Raises:
            WireError: An event is larger than the bound.
        """
        data = self._tail + data
        start = 0
        while match := _EVENT_END.search(data, start):
            yield b"".join((*self._pieces, data[start : match.end()]))
            self._pieces, self._size, start = [], 0, match.end()
        keep = max(start, len(data) - 3)  # a blank line may be split between two reads
        self._pieces.append(data[start:keep])
        self._size += keep - start
        self._tail = data[keep:]
        if self._size > self._max_bytes:
            raise WireError(f"A server-sent event is over `max_message_bytes` ({self._max_bytes:,}).")

    def rest(self) -> bytes:
        """What came after the last event."""
        return b"".join((*self._pieces, self._tail))


def rewrite_event(event: bytes, rewrite: Callable[[Buffer], Buffer]) -> bytes:
    """The event with its data replaced by what `rewrite` makes of it; as it is where that changes nothing."""
    lines = _LINE_END.split(event)
    data = [_field_value(line) for line in lines if _DATA.match(line)]
    if not data or not any(data):
        return event
    joined = data[0] if len(data) == 1 else b"\n".join(data)
    rewritten = rewrite(joined)
    if rewritten is joined:
        return event
    others = [line for line in lines if line and not _DATA.match(line)]
    return b"\n".join((*others, b"data: " + bytes(rewritten).replace(b"\n", b""), b"", b""))


def _field_value(line: bytes) -> bytes:
    return line.partition(b":")[2].removeprefix(b" ")


class _Body(httpx2.AsyncByteStream):
    """A response body that is rewritten on its way to the SDK."""

    def __init__(self, source: httpx2.Response, chunks: AsyncIterator[bytes]) -> None:
        self._source = source
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._chunks:
            yield chunk

    async def aclose(self) -> None:
        await self._source.aclose()


class _Request(httpx2.AsyncByteStream):
    """A request body in segments, sent in pieces; it can be sent again."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for segment in self._segments:
            for at in range(0, len(segment), _CHUNK):
                yield bytes(segment[at : at + _CHUNK])


class LiftingTransport(httpx2.AsyncBaseTransport):
    """Sends through `inner`, payloads past the SDK."""

    def __init__(
        self, inner: httpx2.AsyncBaseTransport, bypass: Bypass, max_message_bytes: int, *, ends_with_stream: bool
    ) -> None:
        self._inner = inner
        self._bypass = bypass
        self._max_bytes = max_message_bytes
        self._ends_with_stream = ends_with_stream

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request; its response's body comes out with payloads lifted.

        A request that cannot be carried gets a JSON-RPC error for an answer: only it fails, the session goes on.
        """
        body = await request.aread() if request.method == "POST" else b""
        identity = _identity(body)
        request = self._spliced(request, body) if body else request
        request.extensions = {**request.extensions, "timeout": self._patience(request, identity)}
        try:
            response = await self._inner.handle_async_request(request)
        except httpx2.TransportError as error:
            if request.method != "POST":
                raise
            return _failure(identity, error)
        if response.status_code in _FORGOTTEN and _SESSION in request.headers and identity is not None:
            return await self._refused(response, identity)
        return self._rewritten(response, identity)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()

    def _patience(self, request: httpx2.Request, identity: RequestId | None) -> dict[str, Any]:
        """How long to wait for bytes: what answers a request or streams events may be silent as long as it likes."""
        timeout = dict(request.extensions.get("timeout", {}))
        if request.method == "DELETE":
            return dict.fromkeys(("connect", "read", "write", "pool"), _GOODBYE)
        return timeout | {"read": None} if request.method == "GET" or identity is not None else timeout

    def _spliced(self, request: httpx2.Request, body: bytes) -> httpx2.Request:
        segments = self._bypass.outbound(body)
        if len(segments) == 1:
            return request
        headers = httpx2.Headers(request.headers)
        headers["content-length"] = str(sum(len(segment) for segment in segments))
        return httpx2.Request(
            request.method, request.url, headers=headers, stream=_Request(segments), extensions=request.extensions
        )

    async def _refused(self, response: httpx2.Response, identity: RequestId) -> httpx2.Response:
        """The answer to a request within a session that the server may have forgotten, as after its restart."""
        try:
            body = b"".join([chunk async for chunk in _decoded(response, _REFUSAL)])
        except httpx2.TransportError as error:
            return _failure(identity, error)
        finally:
            await response.aclose()
        if response.status_code == _NOT_FOUND or b"session" in body.lower():
            self._bypass.forgotten(identity)
        headers = [(k, v) for k, v in response.headers.raw if k.lower() not in _OF_BODY]
        return httpx2.Response(response.status_code, headers=headers, content=body, extensions=response.extensions)

    def _rewritten(self, response: httpx2.Response, identity: RequestId | None) -> httpx2.Response:
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        rewrite = {"application/json": self._json, "text/event-stream": self._events}.get(kind)
        if rewrite is None:
            return response
        lifted = rewrite(response, identity)
        headers = [(k, v) for k, v in response.headers.raw if k.lower() not in _OF_BODY]
        stream = _Body(response, lifted)
        return httpx2.Response(response.status_code, headers=headers, stream=stream, extensions=response.extensions)

    async def _json(self, response: httpx2.Response, identity: RequestId | None) -> AsyncIterator[bytes]:
        try:
            body = b"".join([chunk async for chunk in _decoded(response, self._max_bytes)])
        except httpx2.TransportError as error:
            yield _error(identity, f"the connection failed: {str(error) or type(error).__name__}")
        else:
            yield bytes(self._lift(body))

    async def _events(self, response: httpx2.Response, identity: RequestId | None) -> AsyncIterator[bytes]:
        reader = EventReader(self._max_bytes)
        try:
            async for chunk in _decoded(response, self._max_bytes, whole=False):
                for event in reader.feed(chunk):
                    yield rewrite_event(event, self._lift)
            yield reader.rest()
        except WireError as error:
            if identity is None:
                raise
            yield b"data: " + _error(identity, str(error)) + b"\n\n"
        finally:
            if self._ends_with_stream:
                self._bypass.ended.set()

    def _lift(self, frame: Buffer) -> Buffer:
        try:
            return self._bypass.inbound(frame)
        except WireError as error:
            identity = recover_id(frame)
            return _error(identity, str(error)) if self._bypass.awaits(identity) else frame


def _identity(body: bytes) -> RequestId | None:
    """The id of a request; None for a notification, an answer, or no body."""
    try:
        message = open_message(body)
    except WireError:
        return None
    return message.id if isinstance(message.id, int | str) and isinstance(message.method, str) else None


def _failure(identity: RequestId | None, error: httpx2.TransportError) -> httpx2.Response:
    """The answer to a request that could not be carried; a notification is lost, which is what they may be."""
    if identity is None:
        return httpx2.Response(202)
    content = _error(identity, f"the connection failed: {str(error) or type(error).__name__}")
    return httpx2.Response(200, headers={"content-type": "application/json"}, content=content)


def _error(identity: RequestId | None, message: str) -> bytes:
    answer = types.ErrorData(code=types.INTERNAL_ERROR, message=message)
    return types.JSONRPCError(jsonrpc="2.0", id=identity, error=answer).model_dump_json().encode()


async def _decoded(response: httpx2.Response, max_bytes: int, *, whole: bool = True) -> AsyncIterator[bytes]:
    """The body without its content encoding; one that is read as a whole is bounded by its decoded size.

    Raises:
        httpx2.ReadError: It is over the bound or not what its encoding says.
    """
    assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101  # an async transport's response
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in _ENCODINGS:
        raise httpx2.ReadError(f"the body's encoding {encoding[:40]!r} is none that we asked for")
    inflate = None if encoding in ("identity", "") else _Inflating()
    total = 0
    async for chunk in response.stream:
        for data in (chunk,) if inflate is None else inflate.feed(chunk):
            total += len(data)
            if whole and total > max_bytes:
                raise httpx2.ReadError(f"the decoded body is over `max_message_bytes` ({max_bytes:,})")
            yield data


class _Inflating:
    """Undoes gzip, in one member or several, and deflate, with its header or, as some servers send it, without."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(zlib.MAX_WBITS | 32)
        self._head = b""
        self._begun = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What the bytes decode to, in pieces of a bounded size."""
        if not self._begun:
            self._head, data = b"", self._head + data
            if len(data) < 2:  # noqa: PLR2004  # bytes of a header
                self._head = data
                return
            self._begin(data)
        while data:
            try:
                piece = self._inner.decompress(data, _CHUNK)
            except zlib.error:
                raise httpx2.ReadError("the body is not what its content-encoding says") from None
            yield piece
            data = self._inner.unconsumed_tail or self._inner.unused_data
            if self._inner.eof and data:
                self._inner = zlib.decompressobj(zlib.MAX_WBITS | 32)

    def _begin(self, data: bytes) -> None:
        self._begun = True
        try:
            zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(data[:2])
        except zlib.error:
            self._inner = zlib.decompressobj(-zlib.MAX_WBITS)


@dataclass(frozen=True, slots=True)
class HttpTransport:
    """Connects to a URL and speaks with what is there."""

    endpoint: HttpEndpoint
    timeout: float
    """Seconds without a byte after which what is no request is given up; requests have their own clock."""
    max_message_bytes: int

    def open(self, bypass: Bypass) -> AbstractAsyncContextManager[Any]:
        """What the SDK reads and writes, single use."""
        return self._legacy(bypass) if self.endpoint.legacy_sse else self._streamable(bypass)

    @asynccontextmanager
    async def _streamable(self, bypass: Bypass) -> AsyncIterator[Any]:
        async with (
            self._client(bypass) as client,
            streamable_http_client(self.endpoint.url, http_client=client, max_sse_event_size=None) as streams,
        ):
            yield streams

    @asynccontextmanager
    async def _legacy(self, bypass: Bypass) -> AsyncIterator[Any]:
        def client(
            headers: dict[str, str] | None = None,  # noqa: ARG001  # the SDK hands on what we did not give it
            timeout: httpx2.Timeout | None = None,  # noqa: ARG001
            auth: httpx2.Auth | None = None,  # noqa: ARG001
        ) -> httpx2.AsyncClient:
            return self._client(bypass)

        async with sse_client(self.endpoint.url, httpx_client_factory=client) as streams:
            yield streams

    def _client(self, bypass: Bypass) -> httpx2.AsyncClient:
        inner = httpx2.AsyncHTTPTransport(limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20))
        transport = LiftingTransport(inner, bypass, self.max_message_bytes, ends_with_stream=self.endpoint.legacy_sse)
        timeout = httpx2.Timeout(self.timeout, connect=_CONNECT)
        headers = {"accept-encoding": "identity", **self.endpoint.headers}
        return httpx2.AsyncClient(transport=transport, headers=headers, timeout=timeout)
