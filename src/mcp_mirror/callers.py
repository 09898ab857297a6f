"""Clients of the gateway and the channel to each of them while the gateway serves a request.

The server creates these objects, the gateway passes them down, and upstreams send messages through them. This module
only defines them; it sends nothing.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, Protocol

import msgspec

from mcp_mirror.errors import RefusedError

LOG_LEVELS: Final[tuple[str, ...]] = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""The severities of RFC 5424 in rising order."""

OWN_UPSTREAM: Final = ""
"""In place of an upstream: the gateway itself, with its own tools and resources."""
OWN_NAME: Final = "mcp-mirror"
"""The name of the gateway as an upstream, for people and in the origin of values."""

LOCAL: Final = "local"
"""The namespace of the local user, for a gateway without authentication."""


def split_namespace(namespace: str) -> tuple[str, str]:
    """Return issuer and name of a namespace's principal, `["issuer", "name"]`; else no issuer and the namespace."""
    try:
        return msgspec.json.decode(namespace, type=tuple[str, str])
    except (msgspec.DecodeError, UnicodeError):
        return "", namespace


def name_principal(namespace: str) -> str:
    """Return the name of a namespace's principal, or the whole namespace if it has none."""
    return split_namespace(namespace)[1]


def name_namespaces(namespaces: Iterable[str]) -> dict[str, str]:
    """Return the name of each namespace: that of its principal, or the whole namespace if several have that name."""
    names = {namespace: name_principal(namespace) for namespace in namespaces}
    counts = Counter(names.values())
    return {namespace: name if counts[name] == 1 else namespace for namespace, name in names.items()}


CAPABILITY_OF: Final[Mapping[str, str]] = MappingProxyType(
    {"elicitation/create": "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots"}
)
"""The requests that a server may send to a client, and the capability that each of them needs."""

_VIEWS: Final = "io.modelcontextprotocol/ui"
"""The extension of clients that show views of MCP Apps."""


class ClientHeaders(dict[str, str]):
    """The headers of a request whose values upstreams get (`client_headers`, `client_env`), by names in lower case."""

    def __repr__(self) -> str:
        """Return the names: the values are secrets."""
        return f"ClientHeaders({', '.join(self)})"


NO_HEADERS: Final = ClientHeaders()


class Caller(msgspec.Struct, frozen=True):
    """One client and the properties of its current request."""

    namespace: str
    """The namespace of its memory."""
    is_stateless: bool = True
    """The client uses protocol version 2026-07-28: requests are independent, and the gateway returns input-required
    results instead of sending requests."""
    session: str | None = None
    """The session of its requests; None for stateless requests."""
    capabilities: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """The client's capabilities as the client declared them."""
    scopes: frozenset[str] | None = None
    """The scopes of the request's token. None: all scopes, because the gateway requires no token."""
    upstream: str | None = None
    """The only upstream that the endpoint of the caller serves, under the upstream's own names; `OWN_UPSTREAM`: the
    gateway's own tools and resources. None: both, with all upstreams."""
    client_headers: ClientHeaders | None = NO_HEADERS
    """The headers of the request whose values upstreams get. None: the caller is the user or program that runs the
    gateway, so the configured values are its own."""

    @property
    def identity(self) -> tuple[str, str | None]:
        """The key by which two callers count as the same."""
        return self.namespace, self.session

    @property
    def principal_key(self) -> str:
        """The owner of upstream connections that callers with the same namespace and capabilities share."""
        return json.dumps([self.namespace, dict(self.capabilities)], sort_keys=True)

    def has_scopes(self, required: Collection[str]) -> bool:
        """Whether the caller has all of these scopes."""
        return self.scopes is None or self.scopes.issuperset(required)

    def can_answer(self, method: str) -> bool:
        """Whether the client's capabilities allow this request."""
        return self.capabilities.get(CAPABILITY_OF.get(method, "")) is not None

    @property
    def shows_views(self) -> bool:
        """Whether the client shows views of MCP Apps (SEP-1865)."""
        extensions = self.capabilities.get("extensions")
        return isinstance(extensions, Mapping) and _VIEWS in extensions

    @property
    def can_answer_any(self) -> bool:
        """Whether the client's capabilities allow any request."""
        return bool(self.capabilities) and any(map(self.can_answer, CAPABILITY_OF))


class ClientChannel(Protocol):
    """A channel to a client: the stream of one of its requests, or its session."""

    @property
    def caller(self) -> Caller:
        """The client at the other end."""

    @property
    def log_level(self) -> str | None:
        """The lowest severity of log messages that the client wants; None if the client has set no level."""

    @property
    def wants_progress(self) -> bool:
        """Whether the client wants progress notifications for this request."""

    @property
    def is_waiting(self) -> bool:
        """Whether the client waits for the result now; it does not between two rounds of an input-required request."""

    @property
    def session_channel(self) -> "ClientChannel | None":
        """The channel of the session, which outlives this request; None for stateless requests."""

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification, or drop it if the client does not want it or cannot receive it."""

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request to the client and return its result; RefusedError if it returned an error or accepts none."""


class NullChannel(msgspec.Struct, frozen=True):
    """A channel to a client that receives no notifications and accepts no requests."""

    caller: Caller
    log_level: str | None = None
    wants_progress: bool = False
    is_waiting: bool = True
    session_channel: ClientChannel | None = None

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Drop the notification."""

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Raise an error; see `ClientChannel.request`."""
        del params
        raise RefusedError(f"The client accepts no {method} request now.", -32600)  # an invalid request
