"""HTTP connections stay open between requests while they can be used."""

import asyncio
import socket
import ssl
import struct
import sys
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import anyio
import httpx2
import pytest
from clocks import PassTime
from waiting import until

from mcp_mirror.system.http_connections import HttpConnections, Receiver, open_connection
from mcp_mirror.upstreams.transports.network_errors import explain_failed_connection

BOUND = 20
JSON = b"HTTP/1.1 200 OK\r\nX-Case: 1\r\ncontent-length: 2\r\n\r\nhi"
STREAM = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n"
END = b"0\r\n\r\n"


@dataclass
class Site:
    """A server that sends prepared responses, and the connections to it."""

    url: str
    kept: HttpConnections
    responses: list[bytes]
    requests: list[bytes] = field(default_factory=list)
    """What arrived before each response: one item for each read."""
    connections: int = 0
    closed: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    """Set to let the server end a response that ends with `...`."""
    receivers: list[Receiver] = field(default_factory=list)
    """The client's sides of the connections."""

    async def request(self, method: str = "POST", path: str = "", **keys: Any) -> httpx2.Response:
        request = httpx2.Request(method, self.url + path, **keys)
        response = await self.kept.handle_async_request(request)
        response.request = request
        return response

    async def read(self, **keys: Any) -> bytes:
        """Read a response to its end."""
        return await (await self.request(**keys)).aread()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a change of this object."""
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.changed.set()
        with suppress(ConnectionError, asyncio.CancelledError):
            while self.responses and (request := await reader.read(1 << 20)):
                while b"content-length: 100000\r\n" in request and len(request) < 100_000:
                    request += await reader.read(1 << 20)
                self.requests.append(request)
                self.changed.set()
                response = self.responses.pop(0)
                writer.write(response.removesuffix(b"..."))
                if response.endswith(b"..."):
                    await self.go_on.wait()
                    writer.write(END)
                if not response or b"close" in response:
                    break
                await writer.drain()
            else:
                await reader.read()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        self.closed += 1
        self.changed.set()


async def no_proxy(*_: object) -> Receiver:
    raise AssertionError


@asynccontextmanager
async def serving(
    *responses: bytes, most: int = 20, seconds: float = 5.0, context: ssl.SSLContext | None = None
) -> AsyncIterator[Site]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await site.serve(reader, writer)

    async def open_recorded(address: str, port: int) -> Receiver:
        site.receivers.append(await open_connection(address, port))
        return site.receivers[-1]

    with anyio.fail_after(BOUND):
        async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
            connections = HttpConnections(open_recorded, most, seconds, no_proxy)
            site = Site(
                f"{'https' if context else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}/",
                connections,
                list(responses),
            )
            yield site
            site.go_on.set()
            await connections.aclose()
            await site.until(lambda: site.closed == site.connections)


async def test_a_connection_is_used_again_after_a_whole_response() -> None:
    async with serving(JSON, STREAM + END, JSON) as site:
        assert [await site.read(content=b"body") for _ in range(3)] == [b"hi"] * 3
        assert site.connections == 1


async def test_head_and_body_of_a_small_request_leave_together() -> None:
    async with serving(JSON) as site:
        response = await site.request(path="a?b=%20c", content=b"body", headers={"x-Own": "é".encode()})
        [request] = site.requests
        assert request.startswith(b"POST /a?b=%20c HTTP/1.1\r\n")
        assert request.endswith(b"\r\n\r\nbody")
        assert b"x-Own: \xc3\xa9\r\n" in request
        assert (response.status_code, response.reason_phrase, response.headers["x-case"]) == (200, "OK", "1")
        assert response.http_version == "HTTP/1.1"


async def test_a_large_request_arrives_whole() -> None:
    async def body() -> AsyncIterator[bytes]:
        for letter in b"abcde":
            yield bytes([letter]) * 20_000

    async with serving(JSON) as site:
        assert await site.read(content=body(), headers={"content-length": "100000"}) == b"hi"
        sent = site.requests[0].partition(b"\r\n\r\n")[2]
        assert sent == b"".join(bytes([letter]) * 20_000 for letter in b"abcde")


async def test_a_large_response_arrives_whole() -> None:
    size = 1 << 23
    async with serving(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + b"x" * size, JSON) as site:
        response = await site.request()
        await anyio.wait_all_tasks_blocked()  # the connection stops to read
        assert await response.aread() == b"x" * size
        assert await site.read() == b"hi"
        assert site.connections == 1


async def test_a_response_that_was_not_read_closes_its_connection() -> None:
    async with serving(STREAM + b"...", JSON) as site:
        response = await site.request()
        await response.aclose()
        await response.aclose()
        site.go_on.set()
        await site.until(lambda: site.closed == 1)
        assert await site.read() == b"hi"
        assert site.connections == 2


async def test_a_stream_that_ends_late_keeps_its_connection() -> None:
    async with serving(STREAM + b"...", JSON) as site:
        response = await site.request()
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        chunks = aiter(response.stream)
        assert await anext(chunks) == b"hi"
        site.go_on.set()
        assert [chunk async for chunk in chunks] == []
        await response.aclose()
        assert await site.read() == b"hi"
        assert site.connections == 1


@pytest.mark.parametrize(
    "response",
    [
        pytest.param(JSON.replace(b"OK\r\n", b"OK\r\nconnection: close\r\n"), id="close"),
        pytest.param(b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi", id="HTTP/1.0"),
        pytest.param(JSON + b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nbad", id="a second response"),
        pytest.param(JSON + b"junk", id="more bytes"),
    ],
)
async def test_a_connection_that_cannot_be_used_again_is_closed(response: bytes) -> None:
    async with serving(response, JSON) as site:
        assert await site.read() == b"hi"
        assert await site.read() == b"hi"
        assert site.connections == 2


async def test_bytes_that_arrive_after_a_response_are_not_the_next_response() -> None:
    async with serving(JSON + b"...", JSON) as site:
        assert await site.read() == b"hi"
        site.go_on.set()
        await until(lambda: not site.receivers[0].is_idle)
        assert await site.read() == b"hi"
        assert site.connections == 2


async def test_a_connection_that_the_server_closed_while_idle_is_not_used_again() -> None:
    closing = JSON.replace(b"X-Case: 1", b"X-Case: close")
    async with serving(closing, JSON) as site:
        assert await site.read() == b"hi"
        await until(lambda: not site.receivers[0].is_idle)
        assert await site.read() == b"hi"
        assert site.connections == 2


async def test_a_connection_closed_at_this_moment_is_not_used_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as threads, anyio.fail_after(BOUND):
        server.settimeout(BOUND)

        def answer_and_close() -> None:
            client, _ = server.accept()
            with client:
                client.recv(1 << 16)
                client.sendall(JSON)

        connections = HttpConnections(open_connection, 20, 5.0, no_proxy)
        for _ in range(3):
            serving_one = threads.submit(answer_and_close)
            request = httpx2.Request("POST", f"http://127.0.0.1:{server.getsockname()[1]}/", content=b"body")
            assert await (await connections.handle_async_request(request)).aread() == b"hi"
            serving_one.result()  # while it waits, the event loop does not notice the end
        await connections.aclose()


async def test_an_idle_connection_expires() -> None:
    async with serving(JSON, JSON, seconds=0) as site:
        await site.read()
        await site.read()
        assert site.connections == 2
        await site.until(lambda: site.closed == 1)


@pytest.mark.skipif(sys.platform != "linux", reason="the clock that counts sleep has another name")
async def test_an_idle_connection_expires_while_the_machine_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    read_clock = time.clock_gettime
    async with serving(JSON, JSON, seconds=60) as site:
        await site.read()
        monkeypatch.setattr(
            time, "clock_gettime", lambda clock: read_clock(clock) + 90 * (clock == time.CLOCK_BOOTTIME)
        )
        await site.read()
        assert site.connections == 2


async def test_concurrent_requests_have_their_own_connections_and_few_stay_idle() -> None:
    async with serving(*[JSON] * 4, most=1) as site:
        first, second = await site.request(), await site.request()
        assert [await first.aread(), await second.aread()] == [b"hi"] * 2
        await site.until(lambda: site.closed == 1)
        assert site.connections == 2
        await site.read()
        assert site.connections == 2


async def test_connections_are_used_for_their_own_host_only() -> None:
    async with serving(JSON) as site, serving(JSON) as other:
        await site.read()
        response = await site.kept.handle_async_request(httpx2.Request("POST", other.url))
        await response.aread()
        assert (site.connections, other.connections) == (1, 1)
        await site.kept.aclose()


async def test_closing_ends_the_responses_that_are_being_read() -> None:
    async with serving(STREAM + b"...") as site:
        response = await site.request()
        await site.kept.aclose()
        with pytest.raises(httpx2.TransportError):
            await response.aread()
        await response.aclose()
        site.go_on.set()


async def test_informational_responses_are_skipped() -> None:
    async with serving(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + JSON) as site:
        assert await site.read() == b"hi"


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n" * 60_000,
        (b"HTTP/1.1 103 Early Hints\r\n" + b"a:b\r\n" * 900 + b"\r\n") * 200,
    ],
    ids=["many", "many lines"],
)
async def test_informational_responses_without_an_end_are_an_error(response: bytes) -> None:
    async with serving(response + JSON) as site:
        with pytest.raises(httpx2.RemoteProtocolError, match="informational responses"):
            await site.request()


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000 + JSON,
        (b"HTTP/1.1 103 Early Hints\r\n" + b"a:b\r\n" * 400 + b"\r\n") * 250 + JSON,
        STREAM + b"1\r\nx\r\n" * 20_000 + END,
    ],
    ids=["informational responses", "large ones", "chunks"],
)
async def test_other_tasks_run_while_a_response_of_many_parts_is_read(response: bytes) -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with serving(response) as site, anyio.create_task_group() as tasks:
        answer = await site.request() if response.endswith(END) else None
        tasks.start_soon(count_turns)
        assert (await answer.aread() if answer else await site.read()).startswith(b"hi")
        tasks.cancel_scope.cancel()
    assert turns > 200


async def test_an_early_response_is_read_although_the_request_cannot_be_sent() -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield b"x" * 100_000
        await site.until(lambda: site.closed == 1)
        await anyio.wait_all_tasks_blocked()
        yield b"x" * 100_000

    refusal = b"HTTP/1.1 413 Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
    async with serving(refusal) as site:
        with suppress(httpx2.ReadError):  # if the system reports the reset first
            response = await site.request(content=body(), headers={"content-length": "500000"})
            assert response.status_code == 413


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (b"", httpx2.RemoteProtocolError),
        (b"not HTTP at all\r\n\r\n", httpx2.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\nx: " + b"x" * 200_000, httpx2.RemoteProtocolError),
    ],
)
async def test_a_response_that_is_not_http_is_an_error(response: bytes, error: type[Exception]) -> None:
    async with serving(response, JSON) as site:
        with pytest.raises(error):
            await site.request()
        assert await site.read() == b"hi"


BROKEN_OFF = "it ended before the response was complete. See the server's log"
TOO_LONG = "it sent over 100 KiB or 1,000 lines of headers. Check which headers or cookies"
BROKEN = {
    "empty": (b"", BROKEN_OFF),
    "half of a head": (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-le", BROKEN_OFF),
    "half of a body": (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhi", BROKEN_OFF),
    "half of a chunk": (
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhi",
        BROKEN_OFF,
    ),
    "head": (b"HTTP/1.1 200 OK\r\nset-cookie: " + b"x" * 200_000, TOO_LONG),
    "whole head": (b"HTTP/1.1 200 OK\r\nset-cookie: " + b"x" * 110_000 + b"\r\ncontent-length: 2\r\n\r\nhi", TOO_LONG),
    "lines": (b"HTTP/1.1 200 OK\r\n" + b"a:b\r\n" * 1_000 + b"content-length: 2\r\n\r\nhi", TOO_LONG),
    "lines of a second head": (
        b"HTTP/1.1 103 OK\r\n\r\nHTTP/1.1 200 OK\n" + b"a:b\n" * 1_000 + b"content-length: 2\n\nhi",
        TOO_LONG,
    ),
    "line before a chunk": (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2;" + b"x" * 200_000,
        TOO_LONG,
    ),
    "trailer": (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nx: " + b"x" * 200_000,
        TOO_LONG,
    ),
}


@pytest.mark.parametrize("case", BROKEN)
async def test_a_response_that_breaks_off_or_has_too_many_headers_is_an_error(case: str) -> None:
    response, cause = BROKEN[case]
    async with serving(response) as site:
        with pytest.raises(httpx2.RemoteProtocolError) as failure:
            await site.read()
        assert cause in explain_failed_connection(failure.value, httpx2.URL(site.url))


async def test_the_lines_of_a_body_are_not_those_of_its_head() -> None:
    head, body = b"HTTP/1.1 200 OK\r\n" + b"a:b\r\n" * 900, b"data: x\n\n" * 4_000
    async with serving(head + b"content-length: %d\r\n\r\n" % len(body) + body, JSON) as site:
        assert await site.read() == body
        assert await site.read() == b"hi"
        assert site.connections == 1


async def test_a_head_may_come_byte_by_byte() -> None:
    receiver = Receiver()
    transport = MagicMock(asyncio.Transport)
    transport.is_closing.return_value = False
    receiver.connection_made(transport)

    async def connect(_address: str, _port: int) -> Receiver:
        return receiver

    connections = HttpConnections(connect, 1, 5.0, no_proxy)
    for number in range(len(JSON)):
        receiver.data_received(JSON[number : number + 1])
    response = await connections.handle_async_request(httpx2.Request("GET", "http://example.com/"))
    assert await response.aread() == b"hi"


@pytest.mark.parametrize(
    ("response", "body", "is_used_again"),
    [
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + b"x" * 100_000, b"x" * 100_000, False),
        (b"HTTP/1.0 200\r\nX-Case: close\r\n\r\nhi", b"hi", False),
        (b"HTTP/1.1 204 No Content\n\n", b"", True),
        (b"HTTP/1.1 200 OK\ncontent-length:2 \n\nhi", b"hi", True),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2 \r\nhi\r\n1;a=b\r\n!\r\n0\r\nx: y\r\n\r\n",
            b"hi!",
            True,
        ),
    ],
    ids=["until the end", "HTTP/1.0", "no body", "line feeds", "chunks"],
)
async def test_the_end_of_a_body_is_found(response: bytes, body: bytes, *, is_used_again: bool) -> None:
    async with serving(response, JSON) as site:
        assert await site.read() == body
        assert await site.read() == b"hi"
        assert site.connections == 2 - is_used_again


@pytest.mark.parametrize(
    "keys",
    [
        {"headers": {"x": "a\nb"}},
        {"headers": {"x": "a\r\ny: b"}},
        {"headers": {"x y": "b"}},
        {"headers": {"x": "\x00"}},
        {"method": "A B"},
        {"headers": {"transfer-encoding": "gzip"}},
        {"content": b"hi", "headers": {"content-length": "3"}},
    ],
)
async def test_a_request_that_http_cannot_express_is_not_sent(keys: dict[str, Any]) -> None:
    async with serving(JSON) as site:
        with pytest.raises(httpx2.LocalProtocolError):
            await site.request(**keys)
        assert site.requests == []


async def test_timeouts_and_errors_have_their_types() -> None:
    async with serving(STREAM + b"...", JSON) as site:
        with pytest.raises(httpx2.ReadTimeout):
            await site.read(extensions={"timeout": {"read": 0.01, "write": 5.0, "connect": 5.0}})
        site.go_on.set()
        with pytest.raises(httpx2.UnsupportedProtocol):
            await site.kept.handle_async_request(httpx2.Request("GET", "ftp://127.0.0.1/"))
    with pytest.raises(httpx2.ConnectError) as failure:
        await site.kept.handle_async_request(httpx2.Request("GET", site.url))
    assert isinstance(failure.value.__cause__, ConnectionRefusedError)


async def test_a_request_that_the_server_does_not_read_ends_with_its_timeout() -> None:
    async def body() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 100_000

    async with serving(b"...") as site:
        with pytest.raises(httpx2.WriteTimeout):
            await site.request(content=body(), extensions={"timeout": {"write": 0.05}})


async def test_a_cancelled_request_closes_its_connection() -> None:
    async with serving(STREAM + b"...", JSON) as site:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(site.read)
            await site.until(lambda: len(site.requests) == 1)
            tasks.cancel_scope.cancel()
        site.go_on.set()
        await site.until(lambda: site.closed == 1)
        assert await site.read() == b"hi"
        assert site.connections == 2


async def explain_failure(connections: HttpConnections, url: str, kind: type[Exception]) -> str:
    """Send a request that must fail, and return the explanation."""
    request = httpx2.Request("GET", url)
    with anyio.fail_after(BOUND), pytest.raises(kind) as failure:
        await connections.handle_async_request(request)
    assert isinstance(failure.value, httpx2.TransportError)
    return explain_failed_connection(failure.value, request.url)


async def test_a_server_without_tls_fails_the_handshake() -> None:
    async with serving(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n") as site:
        await explain_failure(site.kept, site.url.replace("http:", "https:"), httpx2.ConnectError)


async def test_a_server_that_does_not_answer_the_handshake_is_named(pass_time: PassTime) -> None:
    async def connect() -> None:
        with pytest.raises(httpx2.ConnectTimeout) as failure:
            await site.kept.handle_async_request(request)
        assert "it accepted the connection, but not TLS in time. Check host and port in `url`" in (
            explain_failed_connection(failure.value, request.url)
        )

    async with serving(b"...") as site, anyio.create_task_group() as tasks:
        request = httpx2.Request("GET", site.url.replace("http:", "https:"), extensions={"timeout": {"connect": 9.0}})
        tasks.start_soon(connect)
        await site.until(lambda: len(site.requests) == 1)
        await pass_time(10)


async def test_a_server_that_closes_the_connection_before_tls_is_named() -> None:
    async def connect(address: str, port: int) -> Receiver:
        receiver = await open_connection(address, port)
        assert await receiver.receive(BOUND) == b""  # the server has closed the connection
        return receiver

    async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0) as server:
        connections = HttpConnections(connect, 20, 5.0, no_proxy)
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        explained = await explain_failure(connections, url, httpx2.TransportError)
    assert "it ended the connection, or sent something that is not HTTP. Check scheme and port in `url`" in explained


async def test_a_server_that_refuses_tls_is_not_taken_for_one_without_tls() -> None:
    alert = b"\x15\x03\x03\x00\x02\x02\x28"  # handshake_failure
    async with serving(alert) as site:
        explained = await explain_failure(site.kept, site.url.replace("http:", "https:"), httpx2.ConnectError)
    assert "TLS failed (SSLV3_ALERT_HANDSHAKE_FAILURE). See the server's log; the gateway uses TLS 1.2" in explained


@pytest.mark.parametrize("content", [None, "", "no certificate"])
async def test_a_wrong_file_of_authorities_is_named(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "authorities.pem"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    async with serving() as site:
        explained = await explain_failure(site.kept, site.url.replace("http:", "https:"), httpx2.TransportError)
    assert "cannot read a certificate from the file in `SSL_CERT_FILE`. Set it to a PEM file" in explained


async def test_the_system_ends_connections_whose_server_is_gone() -> None:
    async with serving(JSON) as site:
        await site.read()
        connection = site.receivers[0].transport.get_extra_info("socket")
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        interval = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
        assert interval * connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) <= 90
        idle = [getattr(socket, name) for name in ("TCP_KEEPIDLE", "TCP_KEEPALIVE") if hasattr(socket, name)]
        assert all(connection.getsockopt(socket.IPPROTO_TCP, one) <= 30 for one in idle)


@pytest.mark.parametrize(
    ("host", "cause"),
    [
        ("127.0.0.1", "If an authority of your organization signed it, set `SSL_CERT_FILE` to a PEM file with"),
        ("localhost", "certificate is not valid for 'localhost'). Use a certificate that this machine trusts"),
    ],
)
async def test_a_certificate_that_is_not_accepted_is_named(
    host: str, cause: str, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    if host == "localhost":  # the certificate has other names
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with serving(context=context) as site:
        explained = await explain_failure(site.kept, site.url.replace("127.0.0.1", host), httpx2.ConnectError)
    assert "its certificate is not valid" in explained
    assert cause in explained


async def test_connections_share_the_authorities_until_they_reject_one(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    create = MagicMock(wraps=httpx2.create_ssl_context)
    monkeypatch.setattr(httpx2, "create_ssl_context", create)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    for has_failed in (False, True):
        for _ in range(2):
            async with serving(JSON, context=context) as site:
                assert await site.read() == b"hi"
        assert create.call_count == 1 + has_failed
        async with serving(context=context) as site:  # the certificate does not have this name
            await explain_failure(site.kept, site.url.replace("127.0.0.1", "localhost"), httpx2.ConnectError)


async def test_a_server_that_resets_the_connection_is_named() -> None:
    def reset(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async with await asyncio.start_server(reset, "127.0.0.1", 0) as server:
        connections = HttpConnections(open_connection, 20, 5.0, no_proxy)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        explained = await explain_failure(connections, url, httpx2.TransportError)
    assert "if it never responds, check scheme and port in `url`." in explained


async def test_a_tls_connection_is_used_again(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    size = 1 << 22
    large = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + b"x" * size
    async with serving(JSON, large, JSON, context=context) as site:
        with pytest.raises(httpx2.ConnectError) as failure:
            await site.read()
        assert isinstance(failure.value.__cause__, ssl.SSLCertVerificationError)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with serving(JSON, large, JSON, context=context) as site:
        assert await site.read(content=b"body") == b"hi"
        assert await site.read() == b"x" * size
        assert await site.read() == b"hi"
        assert site.connections == 1
