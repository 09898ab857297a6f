"""Which `Host` and `Origin` headers are served: a web page must not reach the gateway through the user's browser.

A page of an attacker's can give its own name a loopback address (DNS rebinding), or send requests to the gateway with
its own origin. Both headers are parsed whole and compared part by part.
"""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from mcp_mirror.settings.policies import ServerPolicy

_LOOPBACK: Final = ("127.0.0.1:*", "localhost:*", "[::1]:*")
_AUTHORITY: Final = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,255})(?::([0-9]{0,5}|\*))?")
_ORIGIN: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,63})://(.+)")
_PORTS: Final = {"http": 80, "https": 443}
_LARGEST_PORT: Final = 65_535
_ANY: Final = "*"


@dataclass(frozen=True, slots=True)
class _Address:
    """A host and a port, with a scheme where it is an origin."""

    scheme: str
    host: str
    port: int | str | None
    """`*`: any, and none. None: it is not written, and the scheme has no default."""

    def admits(self, other: "_Address") -> bool:
        """Whether a header with the other address is served where this one is configured."""
        same = (self.scheme, self.host) == (other.scheme, other.host)
        return same and self.port in (_ANY, other.port)


class AddressCheck:
    """Refuses requests by their `Host` and `Origin` headers."""

    def __init__(self, policy: ServerPolicy) -> None:
        """Serve loopback addresses, and what the policy names."""
        hosts = (*_LOOPBACK, *policy.allowed_hosts)
        origins = (*(f"http://{host}" for host in _LOOPBACK), *policy.allowed_origins)
        self._hosts = [address for host in hosts if (address := _read_authority(host))]
        self._origins = [address for origin in origins if (address := _read_origin(origin))]

    def refuse(self, request: Request) -> Response | None:
        """The answer to a request that must not be served; None where it may."""
        hosts, origins = request.headers.getlist("host"), request.headers.getlist("origin")
        if len(hosts) != 1 or not _is_among(_read_authority(hosts[0]), self._hosts):
            return PlainTextResponse("The Host header is not one of `server.allowed_hosts`.", 421)
        if origins and (len(origins) > 1 or not _is_among(_read_origin(origins[0]), self._origins)):
            return PlainTextResponse("The Origin header is not one of `server.allowed_origins`.", 403)
        return None


def _is_among(address: _Address | None, served: Iterable[_Address]) -> bool:
    return address is not None and address.port != _ANY and any(one.admits(address) for one in served)


def _read_authority(text: str, scheme: str = "") -> _Address | None:
    """A host with or without a port; None for anything else, such as a user's name or a path beside them."""
    parts = _AUTHORITY.fullmatch(text)
    if parts is None:
        return None
    host = _normal_host(parts[1].lower())
    port = _read_port(parts[2], scheme)
    if host is None or (isinstance(port, int) and port > _LARGEST_PORT):
        return None
    return _Address(scheme, host, port)


def _read_port(text: str | None, scheme: str) -> int | str | None:
    if text == _ANY:
        return _ANY
    return int(text) if text else _PORTS.get(scheme)


def _read_origin(text: str) -> _Address | None:
    """A scheme and an authority; None for anything else, such as `null`."""
    parts = _ORIGIN.fullmatch(text)
    return _read_authority(parts[2], parts[1].lower()) if parts else None


def _normal_host(host: str) -> str | None:
    """A host as it is compared; None for what is no IPv6 address in brackets."""
    if not host.startswith("["):
        return host
    try:
        return f"[{ipaddress.IPv6Address(host[1:-1])}]"
    except ValueError:
        return None
