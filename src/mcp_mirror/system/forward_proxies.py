"""Forward proxies of the environment: `HTTPS_PROXY`, `HTTP_PROXY` and `ALL_PROXY`, except for hosts in `NO_PROXY`."""

import ipaddress
import os
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import httpx2
import msgspec

from mcp_mirror.settings.access import is_loopback
from mcp_mirror.settings.declarations import DEFAULT_PORTS

_UNSUPPORTED: Final = frozenset(("https", "socks4", "socks4a", "socks5", "socks5h", "socks"))
_EVERY_HOST: Final = "*"


class ForwardProxyError(httpx2.ConnectError):
    """The proxy of the environment does not connect to the server."""

    def __init__(self, message: str, advice: str) -> None:
        """Take the cause, and what to try, both without a capital and a full stop at the end."""
        super().__init__(message)
        self.advice: str = advice


class ForwardProxy(msgspec.Struct, frozen=True):
    """An HTTP proxy."""

    variable: str
    """The environment variable that names the proxy."""
    host: str
    port: int
    authorization: bytes
    """The value of `Proxy-Authorization`; empty if the variable has no user."""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers for the proxy."""
        return [(b"Proxy-Authorization", self.authorization)] if self.authorization else []

    def explain_refusal(self, status: int) -> ForwardProxyError:
        """Return the error for a status with which the proxy refused a tunnel."""
        refused = f"the proxy in `{self.variable}` refused with HTTP status {status}"
        advice = "Ask the operator of the proxy to allow this host and port"
        if status == httpx2.codes.PROXY_AUTHENTICATION_REQUIRED:
            advice = f"Put user and password into `{self.variable}`: http://USER:PASSWORD@HOST"
        return ForwardProxyError(refused, advice)

    def explain_silence(self) -> ForwardProxyError:
        """Return the error for a proxy that accepts no connection, or does not answer in time."""
        return ForwardProxyError(
            f"the proxy in `{self.variable}` does not answer",
            f"Correct `{self.variable}`, or add the host of `url` to `NO_PROXY`",
        )


def find_forward_proxy(url: httpx2.URL) -> ForwardProxy | None:
    """Return the proxy for a URL; None for a loopback address, a host in `NO_PROXY`, and without a proxy.

    Raises:
        ForwardProxyError: The variable does not name an HTTP proxy.
    """
    variable = next(_find_variables(url.scheme), "")
    value = os.environ.get(variable, "").strip()
    if not value or is_loopback(url.host) or _is_excepted(url):
        return None
    try:
        proxy = httpx2.URL(value if "://" in value else f"http://{value}")
    except httpx2.InvalidURL:
        proxy = httpx2.URL()
    if proxy.scheme != "http" or not proxy.host:
        cause = "is not the address of an HTTP proxy"
        if proxy.host and proxy.scheme in _UNSUPPORTED:
            cause = f"names a proxy with {proxy.scheme}://, and only proxies with http:// are supported"
        advice = f"Set `{variable}` to http://HOST:PORT, or add the host of `url` to `NO_PROXY`"
        raise ForwardProxyError(f"`{variable}` {cause}", advice)
    authorization = b""
    if proxy.username:
        authorization = b"Basic " + b64encode(f"{proxy.username}:{proxy.password}".encode())
    return ForwardProxy(variable, proxy.host, proxy.port or DEFAULT_PORTS["http"], authorization)


def _find_variables(scheme: str) -> Iterator[str]:
    """Return the names of the variables that are set, the one that counts first."""
    names = (f"{scheme}_proxy", f"{scheme}_proxy".upper(), "all_proxy", "ALL_PROXY")
    return (name for name in names if name in os.environ)


def _is_excepted(url: httpx2.URL) -> bool:
    """Whether `NO_PROXY` has the host of a URL, a domain above it, or a network that contains its address."""
    names = os.environ.get("no_proxy", os.environ.get("NO_PROXY", "")).lower().split(",")
    host, port = url.host.lower().rstrip("."), url.port or DEFAULT_PORTS.get(url.scheme, 0)
    return any(_matches(name.strip(), host, port) for name in names)


def _matches(name: str, host: str, port: int) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host) in ipaddress.ip_network(name, strict=False)
    domain = name.removesuffix(f":{port}").lstrip("*").strip(".")
    return name == _EVERY_HOST or (domain != "" and (host == domain or host.endswith(f".{domain}")))
