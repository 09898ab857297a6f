"""Check of the `Host` and `Origin` headers, so that web pages cannot reach the gateway through the user's browser.

The page of an attacker can resolve its own name to a loopback address (DNS rebinding), or send requests to the gateway
from its own origin. The check parses both headers completely and compares their parts.
"""

import ipaddress
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Final

import msgspec
from starlette.responses import PlainTextResponse, Response
from starlette.types import Scope

from mcp_mirror.settings.declarations import DEFAULT_PORTS
from mcp_mirror.settings.policies import ServerPolicy
from mcp_mirror.system.patterns import lazy_pattern

_LOOPBACK: Final = ("127.0.0.1:*", "localhost:*", "[::1]:*")
_AUTHORITY: Final = lazy_pattern(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,255})(?::([0-9]{0,5}|\*))?")
_ORIGIN: Final = lazy_pattern(r"([A-Za-z][A-Za-z0-9+.-]{0,63})://(.+)")
_MAX_PORT: Final = 65_535
_ANY: Final = "*"
_MAX_CACHED: Final = 64
"""Pairs of headers whose result is kept."""


class _Address(msgspec.Struct, frozen=True):
    """A host and a port; an origin also has a scheme."""

    scheme: str
    host: str
    port: int | str | None
    """`*` matches every port and a missing one. None: the address has no port, and its scheme has no default."""

    def matches(self, other: "_Address") -> bool:
        """Return whether this configured address admits the address of a header."""
        is_same_host = (self.scheme, self.host) == (other.scheme, other.host)
        return is_same_host and self.port in (_ANY, other.port)


class AddressCheck:
    """Rejects requests by their `Host` and `Origin` headers."""

    def __init__(self, policy: ServerPolicy, *, allows_addresses: bool = False) -> None:
        """Admit loopback addresses, and the hosts and origins of the policy.

        `allows_addresses`: also admit every IP address as a host, because DNS rebinding needs a name.
        """
        self._allows_addresses = allows_addresses
        hosts = (*_LOOPBACK, *policy.allowed_hosts)
        origins = (*(f"http://{host}" for host in _LOOPBACK), *policy.allowed_origins)
        self._hosts = [address for host in hosts if (address := _read_authority(host))]
        self._origins = [address for origin in origins if (address := _read_origin(origin))]
        self._check = lru_cache(_MAX_CACHED)(self._check_headers)

    def refuse(self, scope: Scope, *, by_origin: bool = True) -> Response | None:
        """Return the response that rejects a request, by its host and its origin; None if the request is admitted."""
        hosts = tuple(value for name, value in scope["headers"] if name == b"host")
        origins = tuple(value for name, value in scope["headers"] if name == b"origin" and by_origin)
        return self._check(hosts, origins)

    def _check_headers(self, raw_hosts: Sequence[bytes], raw_origins: Sequence[bytes]) -> Response | None:
        hosts, origins = ([value.decode("latin-1") for value in values] for values in (raw_hosts, raw_origins))
        if len(hosts) != 1 or not self._admits_host(_read_authority(hosts[0])):
            reason = "The Host header is not one of `server.allowed_hosts`. Add it there, or correct the proxy."
            return PlainTextResponse(reason, 421)
        if origins and (len(origins) > 1 or not _is_among(_read_origin(origins[0]), self._origins)):
            reason = "The Origin header is not one of `server.allowed_origins`. Add it there if its pages are trusted."
            return PlainTextResponse(reason, 403)
        return None

    def _admits_host(self, host: _Address | None) -> bool:
        if self._allows_addresses and host is not None and host.port != _ANY:
            with suppress(ValueError):  # a name
                ipaddress.ip_address(host.host.strip("[]"))
                return True
        return _is_among(host, self._hosts)


def _is_among(address: _Address | None, admitted: Iterable[_Address]) -> bool:
    return address is not None and address.port != _ANY and any(one.matches(address) for one in admitted)


def _read_authority(text: str, scheme: str = "") -> _Address | None:
    """Parse a host with or without a port; return None for other texts, such as those with a user or a path."""
    parts = _AUTHORITY.fullmatch(text)
    if parts is None:
        return None
    host, port = parts[1].lower(), parts[2]
    if host.startswith("["):
        try:
            host = f"[{ipaddress.IPv6Address(host[1:-1])}]"  # the form in which hosts are compared
        except ValueError:
            return None
    if port == _ANY:
        return _Address(scheme, host, _ANY)
    number = int(port) if port else DEFAULT_PORTS.get(scheme)
    return None if number is not None and number > _MAX_PORT else _Address(scheme, host, number)


def _read_origin(text: str) -> _Address | None:
    """Parse a scheme and an authority; return None for other texts, such as `null`."""
    parts = _ORIGIN.fullmatch(text)
    return _read_authority(parts[2], parts[1].lower()) if parts else None
