"""The SSRF guard: connections only to public addresses and to private addresses that the configuration names.

The guard checks the address of each connection. A host name is resolved once, and the connection uses the checked
address, so DNS rebinding has no effect. The check also applies to hosts of redirects and of server metadata. If the
environment names a proxy, only the proxy resolves names, and the guard checks the host itself.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import anyio
import httpx2
import msgspec

from mcp_mirror.settings.access import is_local_host, is_loopback, is_public
from mcp_mirror.system.forward_proxies import ForwardProxy, ForwardProxyError
from mcp_mirror.system.http_connections import HttpConnections, Origin, Receiver, open_connection
from mcp_mirror.system.http_responses import ResponseReader
from mcp_mirror.system.name_lookups import look_up

PRIVATE: Final = "its name resolves to a private address that the configuration does not name"
SLOW_LOOKUP: Final = "the lookup of its host name takes too long"
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_HEAD_START: Final = 0.25
"""Seconds after which the next address of a host is tried in parallel."""
_LOOKUP_TIMEOUT: Final = 8.0
"""Seconds for the lookup of a host name: less than for connecting, so that the error is about the lookup."""
_PROXY_TIMEOUT: Final = 9.0
"""The same for a connection over a proxy."""
_PROXY_FAILURES: Final = (TimeoutError, httpx2.TransportError)
_KEPT: Final = 20
"""Idle connections that are kept open."""
_KEPT_SECONDS: Final = 1.5
"""How long they are kept open: shorter than the 2 s of gunicorn and the 5 s of other servers (uvicorn, Node.js), as a
request on a connection that closes at that moment fails."""


class AddressPolicy(msgspec.Struct, frozen=True):
    """The hosts that may have private addresses."""

    named: frozenset[str] = frozenset()
    """Hosts that the configuration names."""
    admits_private: bool = False
    """All hosts may have private addresses."""

    @classmethod
    def from_urls(cls, *urls: str | None, admits_private: bool = False) -> "AddressPolicy":
        """The policy for the hosts of these configured URLs."""
        hosts = [httpx2.URL(url).host.lower() for url in urls if url]
        named = frozenset(host for host in hosts if is_local_host(host))
        return cls(named | (_LOOPBACK if any(map(is_loopback, named)) else frozenset()), admits_private)

    def admits(self, host: str, address: str) -> bool:
        """Whether a connection to a host may use an address."""
        return self.admits_private or host.lower() in self.named or is_public(address)

    def admits_host(self, host: str) -> bool:
        """Whether a proxy may connect to a host whose addresses only the proxy knows."""
        if self.admits_private or host.lower() in self.named:
            return True
        with suppress(ValueError):
            return is_public(str(ipaddress.ip_address(host)))
        return not is_local_host(host)


async def _connect_guarded(policy: AddressPolicy, host: str, port: int) -> Receiver:
    """Connect to the first admitted address of a host that accepts."""
    addresses = [one for one in await _find_addresses(host) if policy.admits(host, one)]
    if not addresses:
        raise httpx2.ConnectError(PRIVATE)
    return await _connect_first(addresses, port)


async def _connect_proxy(policy: AddressPolicy, proxy: ForwardProxy, origin: Origin) -> Receiver:
    """Connect to a proxy; for HTTPS, return a tunnel to the origin."""
    scheme, host, port = origin
    if not policy.admits_host(host):
        raise httpx2.ConnectError(PRIVATE)
    receiver = None
    try:
        with anyio.fail_after(_PROXY_TIMEOUT):
            receiver = await _connect_first(await _find_addresses(proxy.host), proxy.port)
            if scheme == "https":
                await _open_tunnel(receiver, proxy, host, port)
    except BaseException as error:
        if receiver is not None:
            receiver.transport.abort()
        if isinstance(error, ForwardProxyError) or not isinstance(error, _PROXY_FAILURES):
            raise
        raise proxy.explain_silence() from error
    return receiver


async def _open_tunnel(receiver: Receiver, proxy: ForwardProxy, host: str, port: int) -> None:
    """Ask a proxy for a tunnel to a host.

    Raises:
        ForwardProxyError: The proxy refuses.
        httpx2.TransportError: It does not answer with HTTP, or the connection broke.
    """
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    headers = [(b"Host", authority.encode("ascii")), *proxy.headers]
    lines = [f"CONNECT {authority} HTTP/1.1".encode("ascii"), *(b"%b: %b" % header for header in headers)]
    await receiver.write(b"\r\n".join((*lines, b"\r\n")), None)
    response, received = ResponseReader(), memoryview(b"")
    while not response.status:
        received = response.feed(received or memoryview(await receiver.receive(None)))
    if not httpx2.codes.is_success(response.status):
        raise proxy.explain_refusal(response.status)


async def _find_addresses(host: str) -> Sequence[str]:
    """Return the addresses of a host, each once."""
    with suppress(ValueError):
        return (str(ipaddress.ip_address(host)),)
    try:
        with anyio.fail_after(_LOOKUP_TIMEOUT):
            found = await asyncio.wrap_future(look_up(host.encode(), None, kind=socket.SOCK_STREAM))
    except TimeoutError:
        raise httpx2.ConnectError(SLOW_LOOKUP) from None
    except OSError as error:
        raise httpx2.ConnectError(error.strerror or "the host has no address") from error
    return tuple(dict.fromkeys(str(one[4][0]) for one in found))


async def _connect_first(addresses: Iterable[str], port: int) -> Receiver:
    """Try addresses one soon after another (RFC 8305) and return the first connection."""
    made: list[Receiver] = []
    failures: list[httpx2.ConnectError] = []

    async def attempt(address: str, over: anyio.Event) -> None:
        try:
            made.append(await open_connection(address, port))
            tasks.cancel_scope.cancel()
        except httpx2.ConnectError as error:
            failures.append(error)
        finally:
            over.set()

    try:
        async with anyio.create_task_group() as tasks:
            for address in addresses:
                over = anyio.Event()
                tasks.start_soon(attempt, address, over)
                with anyio.move_on_after(_HEAD_START):
                    await over.wait()
        if not made:
            raise failures[0]
        return made.pop(0)
    finally:
        failures.clear()  # their tracebacks refer to this list
        for spare in made:
            spare.transport.abort()


class SSRFGuardTransport(HttpConnections):
    """An HTTP transport with the SSRF guard, which uses the proxies of the environment."""

    def __init__(self, policy: AddressPolicy) -> None:
        super().__init__(partial(_connect_guarded, policy), _KEPT, _KEPT_SECONDS, partial(_connect_proxy, policy))
