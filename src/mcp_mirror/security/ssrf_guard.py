"""The SSRF guard: connections only to public addresses and to private addresses that the configuration names.

The guard checks the address of each connection. A host name is resolved once, and the connection uses the checked
address, so DNS rebinding has no effect. The check also applies to hosts of redirects and of server metadata.
"""

import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import anyio
import httpcore2
import httpx2

from mcp_mirror.settings.access import is_local_host, is_loopback, is_public

PRIVATE: Final = "its name resolves to a private address that the configuration does not name"
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_HEAD_START: Final = 0.25
"""Seconds after which the next address of a host is tried in parallel."""
_POOLED: Final = 20
"""Idle connections that are kept open."""


@dataclass(frozen=True, slots=True)
class AddressPolicy:
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


class SSRFGuardBackend(httpcore2.AsyncNetworkBackend):
    """Opens only connections that the address policy admits."""

    def __init__(self, policy: AddressPolicy) -> None:
        self._policy = policy
        self._inner = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  # the signature of the base class
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to the first admitted address of a host that accepts.

        Raises:
            httpcore2.ConnectError: No address accepts or is admitted.
        """
        try:
            with anyio.fail_after(timeout):
                return await self._connect(host, port, local_address, socket_options)
        except TimeoutError:
            raise httpcore2.ConnectTimeout(f"connecting took longer than {timeout:g} s") from None

    async def _connect(
        self, host: str, port: int, local_address: str | None, socket_options: Iterable[Any] | None
    ) -> httpcore2.AsyncNetworkStream:
        try:
            found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise httpcore2.ConnectError(error.strerror or "the host has no address") from None
        addresses = [one for one in dict.fromkeys(str(one[4][0]) for one in found) if self._policy.admits(host, one)]
        if not addresses:
            raise httpcore2.ConnectError(PRIVATE)
        return await _connect_first(
            lambda address: self._inner.connect_tcp(address, port, None, local_address, socket_options), addresses
        )

    async def connect_unix_socket(self, *_args: Any, **_keys: Any) -> httpcore2.AsyncNetworkStream:
        """Refuse Unix sockets.

        Raises:
            httpcore2.ConnectError: Always.
        """
        raise httpcore2.ConnectError("URLs of Unix sockets are not supported")

    async def sleep(self, seconds: float) -> None:
        """Wait between two attempts."""
        await anyio.sleep(seconds)


async def _connect_first(
    connect: Callable[[str], Awaitable[httpcore2.AsyncNetworkStream]], addresses: Iterable[str]
) -> httpcore2.AsyncNetworkStream:
    """Try addresses one soon after another (RFC 8305) and return the first connection."""
    made: list[httpcore2.AsyncNetworkStream] = []
    failures: list[httpcore2.ConnectError] = []

    async def attempt(address: str, over: anyio.Event) -> None:
        try:
            made.append(await connect(address))
            tasks.cancel_scope.cancel()
        except httpcore2.ConnectError as error:
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
        with anyio.CancelScope(shield=True):
            for spare in made:
                await spare.aclose()


class SSRFGuardTransport(httpx2.AsyncHTTPTransport):
    """An HTTP transport with the SSRF guard, which ignores proxies of the environment."""

    def __init__(self, policy: AddressPolicy) -> None:
        context: ssl.SSLContext = httpx2.create_ssl_context()
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=context,
            max_connections=None,
            max_keepalive_connections=_POOLED,
            keepalive_expiry=httpx2.Limits().keepalive_expiry,
            network_backend=SSRFGuardBackend(policy),
        )
