"""Requests over the proxies that the environment names."""

import asyncio
import ssl
from asyncio import StreamReader, StreamWriter
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import httpx2
import pytest
from redis_process import free_port

from mcp_mirror.security.ssrf_guard import PRIVATE, AddressPolicy, SSRFGuardTransport
from mcp_mirror.system.forward_proxies import find_forward_proxy
from mcp_mirror.upstreams.oauth.failures import explain_failure
from mcp_mirror.upstreams.transports.network_errors import explain_failed_connection

BOUND = 20
HELLO = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
USER = b"Proxy-Authorization: Basic " + b64encode(b"me:c4n:ary") + b"\r\n"


@dataclass
class Proxy:
    """A proxy that connects to one server, whatever host it is asked for."""

    answer: bytes | None
    """The answer to a request for a tunnel; None: the proxy opens it."""
    server: int
    """The port of the server."""
    requests: list[bytes] = field(default_factory=list)

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Serve one connection."""
        head = await reader.readuntil(b"\r\n\r\n")
        self.requests.append(head)
        if self.answer is not None:
            writer.write(self.answer)
            return
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self.server)
        if head.startswith(b"CONNECT "):
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            to_writer.write(head)
        async with closing(to_writer):
            copying = asyncio.create_task(copy(to_reader, writer))
            await copy(reader, to_writer)
        await copying


async def copy(reader: StreamReader, writer: StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)


@asynccontextmanager
async def closing(writer: StreamWriter) -> AsyncIterator[None]:
    try:
        yield
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


@asynccontextmanager
async def listening(
    serve: Callable[[StreamReader, StreamWriter], Awaitable[None]], context: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """Serve connections on a free port to their ends."""
    tasks = set[asyncio.Task[None]]()

    async def run(reader: StreamReader, writer: StreamWriter) -> None:
        async with closing(writer):
            await serve(reader, writer)

    server = await asyncio.start_server(
        lambda *streams: tasks.add(asyncio.create_task(run(*streams))), "127.0.0.1", 0, ssl=context
    )
    async with server:
        yield server.sockets[0].getsockname()[1]
        await asyncio.gather(*tasks)


@dataclass
class Server:
    """A server that says hello."""

    requests: list[bytes] = field(default_factory=list)

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(HELLO)


@asynccontextmanager
async def proxied(
    monkeypatch: pytest.MonkeyPatch, answer: bytes | None = None, certificate: Path | None = None
) -> AsyncIterator[tuple[Proxy, Server]]:
    """A server behind a proxy that the environment names."""
    context, server = None, Server()
    if certificate:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with anyio.fail_after(BOUND):
        async with listening(server.serve, context) as port:
            proxy = Proxy(answer, port)
            async with listening(proxy.serve) as proxy_port:
                for variable in ("HTTPS_PROXY", "HTTP_PROXY"):
                    monkeypatch.setenv(variable, f"http://me:c4n%3Aary@127.0.0.1:{proxy_port}")
                yield proxy, server


async def read(url: str, times: int = 1) -> None:
    """Send requests to a server that says hello."""
    async with httpx2.AsyncClient(transport=SSRFGuardTransport(AddressPolicy.from_urls(url))) as client:
        for _ in range(times):
            assert (await client.get(url)).text == "hi"


async def fail(url: str) -> str:
    """Send a request that fails, and return the explanation."""
    with pytest.raises(httpx2.ConnectError) as raised:
        await read(url)
    return explain_failed_connection(raised.value, httpx2.URL(url))


async def test_https_goes_through_a_tunnel_of_the_proxy(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with proxied(monkeypatch, certificate=certificate) as (proxy, server):
        await read("https://tools.example.com/mcp", times=2)
        [tunnel] = proxy.requests
    assert tunnel == b"CONNECT tools.example.com:443 HTTP/1.1\r\nHost: tools.example.com:443\r\n" + USER + b"\r\n"
    assert [one.partition(b"\r\n")[0] for one in server.requests] == [b"GET /mcp HTTP/1.1"] * 2
    assert not any(b"proxy-auth" in one.lower() for one in server.requests)


async def test_http_is_forwarded_by_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async with proxied(monkeypatch) as (proxy, server):
        await read("http://tools.example.com:81/mcp?a=%20", times=2)
        assert len(proxy.requests) == 1
        assert [one.partition(b"\r\n")[0] for one in server.requests] == [
            b"GET http://tools.example.com:81/mcp?a=%20 HTTP/1.1"
        ] * 2
        assert all(USER in one and b"tools.example.com:81\r\n" in one for one in server.requests)


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (b"HTTP/1.1 407 no\r\n\r\n", "`HTTPS_PROXY` refused with HTTP status 407. Put user and password into"),
        (b"HTTP/1.1 403 no\r\n\r\n", "`HTTPS_PROXY` refused with HTTP status 403. Ask the operator of the proxy"),
        (b"", "the proxy in `HTTPS_PROXY` does not answer. Correct `HTTPS_PROXY`, or add the host"),
        (b"hello\r\n\r\n", "the proxy in `HTTPS_PROXY` does not answer."),
    ],
    ids=["sign-in", "forbidden", "closed", "not HTTP"],
)
async def test_a_proxy_that_opens_no_tunnel_is_named(
    answer: bytes, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with proxied(monkeypatch, answer):
        explained = await fail("https://tools.example.com/mcp")
    assert explained.startswith("The connection to tools.example.com:443 failed: the proxy in")
    assert cause in explained
    assert "c4n" not in explained


async def test_a_proxy_that_does_not_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", f"127.0.0.1:{free_port()}")
    for scheme in ("http", "https"):
        assert "the proxy in `ALL_PROXY` does not answer" in await fail(f"{scheme}://tools.example.com/mcp")
    with pytest.raises(httpx2.ConnectError) as raised:
        await read("https://login.example.com/token")
    assert explain_failure(raised.value) == (
        "its authorization server could not be reached (the proxy in `ALL_PROXY` does not answer)"
    )


@pytest.mark.parametrize(
    ("proxy", "cause"),
    [
        (
            "socks5h://me:c4n@127.0.0.1:1080",
            "names a proxy with socks5h://, and only proxies with http:// are supported",
        ),
        ("https://127.0.0.1:1", "names a proxy with https://, and only proxies with http:// are supported"),
        ("c4n://127.0.0.1:1", "is not the address of an HTTP proxy"),
        ("http://", "is not the address of an HTTP proxy"),
    ],
)
async def test_a_proxy_that_is_not_http_is_named(proxy: str, cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", proxy)
    explained = await fail("https://tools.example.com/mcp")
    assert f"`https_proxy` {cause}. Set `https_proxy` to http://HOST:PORT" in explained
    assert "c4n" not in explained


@pytest.mark.parametrize("host", ["169.254.169.254", "10.0.0.1", "[::1]", "metadata.internal", "printer"])
async def test_a_proxy_does_not_lead_to_private_hosts(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with proxied(monkeypatch) as (proxy, server):
        transport = SSRFGuardTransport(AddressPolicy.from_urls("https://tools.example.com/mcp"))
        async with httpx2.AsyncClient(transport=transport) as client:
            with pytest.raises(httpx2.ConnectError, match=PRIVATE):
                await client.get(f"http://{host}/")
        assert not proxy.requests
        await read("http://10.0.0.1/mcp")  # the configuration names it
        assert server.requests


@pytest.mark.parametrize(
    ("excepted", "url", "proxy"),
    [
        ("", "https://tools.example.com/mcp", "proxy.example.com"),
        ("*", "https://tools.example.com/mcp", None),
        ("other.example.com, EXAMPLE.com", "https://tools.example.com/mcp", None),
        (".example.com", "https://tools.example.com/mcp", None),
        ("*.example.com", "https://tools.example.com/mcp", None),
        ("ple.com", "https://tools.example.com/mcp", "proxy.example.com"),
        ("tools.example.com:443", "https://tools.example.com/mcp", None),
        ("tools.example.com:80", "https://tools.example.com/mcp", "proxy.example.com"),
        ("10.0.0.0/8", "http://10.1.2.3/mcp", None),
        ("10.0.0.0/8", "http://11.1.2.3/mcp", "proxy.example.com"),
        ("2001:db8::/32", "http://[2001:db8::1]/mcp", None),
        ("", "http://127.0.0.1:8000/mcp", None),
        ("", "http://localhost:8000/mcp", None),
    ],
)
def test_some_hosts_are_reached_directly(
    excepted: str, url: str, proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://proxy.example.com:3128")
    monkeypatch.setenv("NO_PROXY", excepted)
    found = find_forward_proxy(httpx2.URL(url))
    assert (found and found.host) == proxy


def test_the_first_variable_counts_also_if_it_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://proxy.example.com")
    url = httpx2.URL("https://tools.example.com/mcp")
    assert (found := find_forward_proxy(url))
    assert (found.host, found.port, found.headers) == ("proxy.example.com", 80, [])
    monkeypatch.setenv("https_proxy", "")
    assert find_forward_proxy(url) is None
