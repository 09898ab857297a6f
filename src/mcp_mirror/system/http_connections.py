"""HTTP/1.1 connections that stay open between requests, as a transport for `httpx2`.

The transport of `httpx2` also serves HTTP/2 and connection limits, and costs more CPU than all other work of a small
request. This one takes an idle connection or opens another one, and sends the head and the body of a small
request in one packet.
"""

import asyncio
import os
import select
import socket
import ssl
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Final

import anyio
import httpx2

from mcp_mirror.settings.declarations import DEFAULT_PORTS
from mcp_mirror.system.forward_proxies import ForwardProxy, find_forward_proxy
from mcp_mirror.system.http_responses import PARTS_AT_ONCE, ResponseReader
from mcp_mirror.system.patterns import lazy_pattern

_HEAD: Final = lazy_pattern(
    rb"[A-Z]+ [!-~]+ HTTP/1\.1\r\n(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+: [^\x00-\x08\x0a-\x1f\x7f]*\r\n)+\r\n"
)
"""The head of a request."""
_FRAMING: Final = frozenset({"content-length", "transfer-encoding"})
_LENGTH: Final = lazy_pattern(r"content-length: [0-9]+|transfer-encoding: chunked")
"""What says the length of a request's body."""
_MAX_MERGED: Final = 1 << 16
"""Bytes of a request that are written in one piece."""
_MAX_BUFFERED: Final = 1 << 20
"""Received bytes above which a connection stops to read until they are taken."""
_KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPALIVE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 9}
"""Seconds until the first probe of a silent connection (the second name is that of macOS), seconds between the next
ones, and the number of probes without an answer that end it: after two minutes. A server that is only slow answers."""
SLOW_HANDSHAKE: Final = "it accepted the connection, but not TLS in time"
NO_AUTHORITIES: Final = "the gateway cannot read a certificate from the file in `SSL_CERT_FILE`"
_NO_TIMEOUTS: Final[Mapping[str, float | None]] = {}

Origin = tuple[str, str, int]
"""Scheme, host and port of a URL."""


class Receiver(asyncio.Protocol):
    """The receiving side of a connection."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._has_ended = False
        self._failure: Exception | None = None
        self._is_paused = False
        self._arrival = asyncio.Event()
        """Set when something has arrived."""
        self._is_writable = asyncio.Event()
        """Set while the transport accepts bytes."""
        self._is_writable.set()

    @property
    def is_idle(self) -> bool:
        """Whether the connection is open, and the other side has sent nothing."""
        return not (self._chunks or self._has_ended or self.transport.is_closing())

    def has_unread(self) -> bool:
        """Whether something has arrived, or the connection has ended, that the event loop has not noticed yet."""
        connection = self.transport.get_extra_info("socket")
        if sys.platform == "win32":
            return bool(select.select([connection], [], [], 0)[0])
        poll = select.poll()  # of a socket with any number
        poll.register(connection, select.POLLIN)
        return bool(poll.poll(0))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  # only datagrams have others
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._chunks.append(data)
        self._size += len(data)
        if self._size > _MAX_BUFFERED and not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()
        self._arrival.set()

    def eof_received(self) -> None:
        """See `asyncio.Protocol`."""
        self._has_ended = True
        self._arrival.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._has_ended, self._failure = True, exc
        self._arrival.set()
        self._is_writable.set()

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._is_writable.clear()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._is_writable.set()

    async def receive(self, timeout: float | None) -> bytes:  # noqa: ASYNC109  # only waits need a scope
        """Wait for the next bytes; return none at the end.

        Raises:
            httpx2.ReadError: The connection broke.
            httpx2.ReadTimeout: Nothing arrived in time.
        """
        if not self._chunks and not self._has_ended:
            self._arrival.clear()
            await _wait(self._arrival, timeout, httpx2.ReadTimeout)
        if not self._chunks:
            if self._failure is not None:
                raise httpx2.ReadError(str(self._failure)) from self._failure
            return b""
        chunk = self._chunks.popleft()
        self._size -= len(chunk)
        if self._is_paused and self._size <= _MAX_BUFFERED:
            self._is_paused = False
            self.transport.resume_reading()
        return chunk

    async def write(self, data: bytes, timeout: float | None) -> None:  # noqa: ASYNC109  # only waits need a scope
        """Write bytes, and wait until the transport accepts more.

        Raises:
            httpx2.WriteError: The connection is closed.
            httpx2.WriteTimeout: The transport did not accept more in time.
        """
        if self.transport.is_closing():
            raise httpx2.WriteError("the connection is closed") from self._failure
        self.transport.write(data)
        if not self._is_writable.is_set():
            await _wait(self._is_writable, timeout, httpx2.WriteTimeout)


async def open_connection(address: str, port: int) -> Receiver:
    """Connect to an address.

    Raises:
        httpx2.ConnectError: The address does not accept.
    """
    try:
        transport, receiver = await asyncio.get_running_loop().create_connection(Receiver, address, port)
    except OSError as error:
        raise httpx2.ConnectError(str(error)) from error
    _probe_silent_connection(transport.get_extra_info("socket"))
    return receiver


def _probe_silent_connection(connection: socket.socket) -> None:
    """End a connection whose other side is gone without a notice, as after a change of networks.

    An event stream, or a call that may take hours, would wait for it forever.
    """
    with suppress(OSError):  # not every system has all options
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _read_clock() -> float:
    """Return seconds, also those in which the machine sleeps: servers close their connections in that time."""
    if sys.platform == "win32":
        return time.monotonic()
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


async def _wait(event: asyncio.Event, timeout: float | None, error: type[httpx2.TimeoutException]) -> None:  # noqa: ASYNC109
    """Wait for an event, and raise an error after `timeout` seconds. A wait without a timeout needs no cancel scope."""
    if timeout is None:
        await event.wait()
        return
    with _limit(timeout, error):
        await event.wait()


@contextmanager
def _limit(seconds: float | None, error: type[httpx2.TimeoutException], message: str = "") -> Iterator[None]:
    """Raise an error after some seconds in the context."""
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError:
        raise error(message or f"it took longer than {seconds:g} s") from None


class _HttpConnection:
    """One connection, for one request at a time."""

    def __init__(self, origin: Origin, receiver: Receiver, proxy: ForwardProxy | None) -> None:
        """Use an open connection to the origin, or to a proxy that reads and forwards the requests."""
        self.origin = origin
        self._receiver = receiver
        self._proxy = proxy
        self._idle_since = 0.0
        self._response = ResponseReader()
        self._received = memoryview(b"")
        """The bytes that are not read yet."""
        self._is_written = self._is_taken = False
        """The whole request is written; all of the body of its response was received."""

    def is_reusable(self, seconds: float) -> bool:
        """Whether the connection is idle, and not longer than some seconds.

        A connection is not idle if the server has closed it, or has sent anything since the last response.
        """
        return _read_clock() < self._idle_since + seconds and self._receiver.is_idle

    def has_unread(self) -> bool:
        """Whether the server has closed the connection, or sent anything, a moment ago."""
        return self._receiver.has_unread()

    def close(self) -> None:
        """Close the connection."""
        self._receiver.transport.abort()

    async def send(self, request: httpx2.Request) -> tuple[ResponseReader, asyncio.Transport]:
        """Send a request, and wait for the head of its response.

        Raises:
            httpx2.TransportError: The connection broke, the server violated the protocol, or was silent for too long.
        """
        timeouts = request.extensions.get("timeout", _NO_TIMEOUTS)
        with suppress(httpx2.WriteError):  # the server may have answered before the end of the request
            await self._write(request, timeouts.get("write"))
        while not self._response.status:
            await self._read(timeouts.get("read"))
        return self._response, self._receiver.transport

    async def _write(self, request: httpx2.Request, timeout: float | None) -> None:  # noqa: ASYNC109
        assert isinstance(request.stream, httpx2.AsyncByteStream)  # noqa: S101  # as for any async transport
        pending, is_chunked = self._build_head(request), "transfer-encoding" in request.headers
        missing = int(request.headers.get("content-length", "0"))
        async for part in request.stream:
            missing -= len(part)
            data = b"%x\r\n%b\r\n" % (len(part), part) if is_chunked and part else part
            if len(pending) + len(data) > _MAX_MERGED:
                await self._receiver.write(pending, timeout)
                pending = data
            else:
                pending += data
        if missing and not is_chunked:
            raise httpx2.LocalProtocolError("the body of the request does not have the length that its head says")
        await self._receiver.write(pending + (b"0\r\n\r\n" if is_chunked else b""), timeout)
        self._is_written = True

    def _build_head(self, request: httpx2.Request) -> bytes:
        target, headers = request.url.raw_path, request.headers.raw
        if self._proxy is not None:
            target, headers = b"http://" + request.url.netloc + target, [*headers, *self._proxy.headers]
        lines = [b"%b %b HTTP/1.1" % (request.method.encode(), target), *(b"%b: %b" % header for header in headers)]
        head = b"\r\n".join((*lines, b"\r\n"))
        framing = [header for header in request.headers.multi_items() if header[0] in _FRAMING]
        is_framed = not framing or (len(framing) == 1 and _LENGTH.fullmatch(": ".join(framing[0])))
        if not is_framed or not _HEAD.fullmatch(head) or head.count(b"\n") != len(lines) + 1:
            raise httpx2.LocalProtocolError("the head of the request is not valid in HTTP/1.1")
        return head

    async def _read(self, timeout: float | None) -> None:  # noqa: ASYNC109
        """Read a part of the response; for errors see `send`."""
        response, before = self._response, self._response.parts
        if not self._received:
            self._received = memoryview(await self._receiver.receive(timeout))
        self._received = response.feed(self._received)
        if response.parts // PARTS_AT_ONCE > before // PARTS_AT_ONCE:
            await asyncio.sleep(0)

    async def receive(self, timeout: float | None) -> bytes:  # noqa: ASYNC109
        """Return the next part of the body of the response, and nothing at its end; for errors see `send`."""
        response = self._response
        while not response.body and not response.is_complete:
            await self._read(timeout)
        body, response.body = b"".join(response.body), []
        self._is_taken = not body
        return body

    def finish(self) -> bool:
        """Prepare the connection for another request; return False if that is impossible."""
        response = self._response
        if not (self._is_written and self._is_taken and response.keeps_alive) or self._received:
            return False
        response.begin()
        self._is_written = self._is_taken = False
        self._idle_since = _read_clock()
        return self._receiver.is_idle


class HttpConnections(httpx2.AsyncBaseTransport):
    """Sends requests over connections that stay open."""

    def __init__(
        self,
        connect: Callable[[str, int], Awaitable[Receiver]],
        most: int,
        seconds: float,
        connect_proxy: Callable[[ForwardProxy, Origin], Awaitable[Receiver]],
    ) -> None:
        """Create a transport that keeps `most` idle connections open, each for `seconds`.

        `connect` connects to a host and port, `connect_proxy` to an origin through a proxy of the environment.
        """
        self._connect = connect
        self._connect_proxy = connect_proxy
        self._most = most
        self._seconds = seconds
        self._idle: list[_HttpConnection] = []
        self._busy: set[_HttpConnection] = set()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request, and return its response, whose body is not read yet.

        Raises:
            httpx2.TransportError: The host cannot be reached, the connection broke, or the server was silent for too
                long.
        """
        connection = self._take_idle(request.url) or await self._open(request)
        self._busy.add(connection)
        try:
            head, transport = await connection.send(request)
        except BaseException:
            self._drop(connection)
            raise
        timeout = request.extensions.get("timeout", _NO_TIMEOUTS).get("read")
        body = _ResponseBody(self, connection, timeout)
        return httpx2.Response(head.status, headers=head.headers, stream=body, extensions={"network_stream": transport})

    async def aclose(self) -> None:
        """Close all connections, also those of responses that are being read."""
        for connection in (*self._idle, *self._busy):
            connection.close()
        self._idle.clear()
        self._busy.clear()
        await asyncio.sleep(0)  # asyncio closes the sockets in the next pass of the loop

    def release(self, connection: _HttpConnection) -> None:
        """Keep a connection for the next request if its response was read to the end, else close it."""
        if connection not in self._busy:
            return
        if not connection.finish():
            self._drop(connection)
            return
        self._busy.discard(connection)
        self._idle.append(connection)
        if len(self._idle) > self._most:
            self._idle.pop(0).close()

    def _drop(self, connection: _HttpConnection) -> None:
        self._busy.discard(connection)
        connection.close()

    def _take_idle(self, url: httpx2.URL) -> _HttpConnection | None:
        """Return the idle connection to the origin of a URL that was used last; close those that cannot be used."""
        for connection in tuple(self._idle):
            if not connection.is_reusable(self._seconds):
                self._idle.remove(connection)
                connection.close()
        origin = _origin_of(url)
        for connection in reversed(self._idle.copy()):
            if connection.origin == origin:
                self._idle.remove(connection)
                if not connection.has_unread():
                    return connection
                connection.close()
        return None

    async def _open(self, request: httpx2.Request) -> _HttpConnection:
        """Open a connection for a request.

        Raises:
            httpx2.ConnectError: The host cannot be reached, or `SSL_CERT_FILE` has no certificate.
            httpx2.ConnectTimeout: The connection, or TLS on it, took too long.
            httpx2.RemoteProtocolError: The server ended the connection before TLS.
            httpx2.UnsupportedProtocol: The URL is not of HTTP.
        """
        origin = _origin_of(request.url)
        scheme, host, port = origin
        if scheme not in DEFAULT_PORTS:
            raise httpx2.UnsupportedProtocol("only URLs with http:// and https:// are supported")
        context = _load_context() if scheme == "https" else None
        timeout = request.extensions.get("timeout", _NO_TIMEOUTS).get("connect")
        proxy = find_forward_proxy(request.url)
        with _limit(timeout, httpx2.ConnectTimeout):
            connecting = self._connect(host, port) if proxy is None else self._connect_proxy(proxy, origin)
            receiver = await connecting
        if context is not None:
            with _limit(timeout, httpx2.ConnectTimeout, SLOW_HANDSHAKE):
                receiver = await self._start_tls(receiver, host, context)
            proxy = None  # it sees encrypted bytes only
        return _HttpConnection(origin, receiver, proxy)

    async def _start_tls(self, plain: Receiver, host: str, context: ssl.SSLContext) -> Receiver:
        """Start TLS on a connection.

        Raises:
            httpx2.ConnectError: The handshake failed.
            httpx2.RemoteProtocolError: The server ended the connection, or sent something before the handshake.
        """
        receiver = Receiver()
        try:
            if not plain.is_idle:  # asyncio would wait for the bytes or the end that the plain connection took
                raise ConnectionResetError  # noqa: TRY301  # the same as an end some moments later
            transport = await asyncio.get_running_loop().start_tls(
                plain.transport, receiver, context, server_hostname=host
            )
        except BaseException as error:
            plain.transport.abort()
            if isinstance(error, ssl.SSLCertVerificationError):
                _create_context.cache_clear()  # the files of the authorities may change before the next attempt
            if isinstance(error, ConnectionError):
                raise httpx2.RemoteProtocolError("the server closed the connection before TLS") from error
            if isinstance(error, OSError):  # also the errors of `ssl`
                raise httpx2.ConnectError(str(error)) from error
            raise
        assert transport is not None  # noqa: S101  # only after the connection was lost, which is an error
        receiver.connection_made(transport)
        return receiver


class _ResponseBody(httpx2.AsyncByteStream):
    """The body of a response. Closing it ends the use of the connection."""

    def __init__(self, connections: HttpConnections, connection: _HttpConnection, timeout: float | None) -> None:
        self._connections = connections
        self._connection = connection
        self._timeout = timeout

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        try:
            while part := await self._connection.receive(self._timeout):
                yield part
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        self._connections.release(self._connection)


def _load_context() -> ssl.SSLContext:
    """Return the context of TLS connections.

    Raises:
        httpx2.ConnectError: `SSL_CERT_FILE` has no certificate.
    """
    try:
        return _create_context(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
    except OSError as error:  # also the errors of `ssl`
        raise httpx2.ConnectError(NO_AUTHORITIES) from error


@lru_cache(1)
def _create_context(*_variables: str | None) -> ssl.SSLContext:
    """Read the authorities that the environment names: tens of milliseconds, and a megabyte of memory."""
    context = httpx2.create_ssl_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _origin_of(url: httpx2.URL) -> Origin:
    return url.scheme, url.raw_host.decode("ascii"), url.port or DEFAULT_PORTS.get(url.scheme, 0)
