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
from mcp_mirror.wire import recover_id

_CHUNK: Final = 1 << 18
_CONNECT: Final = 10.0
"""Seconds for connecting to the host."""

_EVENT_END: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")


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
    data = [_field_value(line) for line in lines if line.startswith(b"data")]
    if not data or not any(data):
        return event
    joined = data[0] if len(data) == 1 else b"\n".join(data)
    rewritten = rewrite(joined)
    if rewritten is joined:
        return event
    others = [line for line in lines if line and not line.startswith(b"data")]
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

    def __init__(self, inner: httpx2.AsyncBaseTransport, bypass: Bypass, max_message_bytes: int) -> None:
        self._inner = inner
        self._bypass = bypass
        self._max_bytes = max_message_bytes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request; its response's body comes out with payloads lifted."""
        body = await request.aread() if request.method == "POST" else b""
        request = self._spliced(request, body) if body else request
        try:
            response = await self._inner.handle_async_request(request)
        except httpx2.TransportError as error:
            if (answer := _failure(body, error)) is None:
                raise
            return httpx2.Response(200, headers={"content-type": "application/json"}, content=answer)
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        rewrite = {"application/json": self._json, "text/event-stream": self._events}.get(kind)
        if rewrite is None:
            return response
        lifted = rewrite(_decoded(response, self._max_bytes), body)
        headers = [(k, v) for k, v in response.headers.raw if k.lower() not in (b"content-length", b"content-encoding")]
        return httpx2.Response(
            response.status_code,
            headers=headers,
            stream=_Body(response, lifted),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()

    def _spliced(self, request: httpx2.Request, body: bytes) -> httpx2.Request:
        segments = self._bypass.outbound(body)
        if len(segments) == 1:
            return request
        headers = httpx2.Headers(request.headers)
        headers["content-length"] = str(sum(len(segment) for segment in segments))
        return httpx2.Request(
            request.method, request.url, headers=headers, stream=_Request(segments), extensions=request.extensions
        )

    async def _json(self, chunks: AsyncIterator[bytes], request: bytes) -> AsyncIterator[bytes]:
        try:
            body = b"".join([chunk async for chunk in chunks])
        except httpx2.TransportError as error:
            if (answer := _failure(request, error)) is None:
                raise
            yield answer
        else:
            yield bytes(self._lift(body))

    async def _events(self, chunks: AsyncIterator[bytes], _request: bytes) -> AsyncIterator[bytes]:
        reader = EventReader(self._max_bytes)
        async for chunk in chunks:
            for event in reader.feed(chunk):
                yield rewrite_event(event, self._lift)
        yield reader.rest()

    def _lift(self, frame: Buffer) -> Buffer:
        try:
            return self._bypass.inbound(frame)
        except WireError as error:
            identity = recover_id(frame)
            if not self._bypass.awaits(identity):
                return frame
            answer = types.ErrorData(code=types.PARSE_ERROR, message=str(error))
            return types.JSONRPCError(jsonrpc="2.0", id=identity, error=answer).model_dump_json().encode()


def _failure(request: bytes, error: httpx2.TransportError) -> bytes | None:
    """A JSON-RPC error for the request that could not be carried: only this one fails, the session goes on."""
    identity = recover_id(request)
    if identity is None:
        return None
    reason = str(error) or type(error).__name__
    answer = types.ErrorData(code=types.INTERNAL_ERROR, message=f"the connection failed: {reason}")
    return types.JSONRPCError(jsonrpc="2.0", id=identity, error=answer).model_dump_json().encode()


async def _decoded(response: httpx2.Response, max_bytes: int) -> AsyncIterator[bytes]:
    """The body without its content encoding, bounded by its decoded size."""
    assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101  # an async transport's response
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    inflate = zlib.decompressobj(zlib.MAX_WBITS | 32) if encoding in ("gzip", "deflate", "x-gzip") else None
    event_stream = response.headers.get("content-type", "").startswith("text/event-stream")
    total = 0
    async for chunk in response.stream:
        pending = chunk
        while pending:
            data = inflate.decompress(pending, _CHUNK) if inflate else pending
            pending = inflate.unconsumed_tail if inflate else b""
            total += len(data)
            if total > max_bytes and not event_stream:
                raise httpx2.ReadError(f"the decoded body is over `max_message_bytes` ({max_bytes:,})")
            yield data


@dataclass(frozen=True, slots=True)
class HttpTransport:
    """Connects to a URL and speaks with what is there."""

    endpoint: HttpEndpoint
    timeout: float
    """Seconds without a byte after which a response is given up."""
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
        transport = LiftingTransport(httpx2.AsyncHTTPTransport(), bypass, self.max_message_bytes)
        timeout = httpx2.Timeout(self.timeout, connect=_CONNECT)
        headers = {"accept-encoding": "identity", **self.endpoint.headers}
        return httpx2.AsyncClient(transport=transport, headers=headers, timeout=timeout)
