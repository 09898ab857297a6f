"""The head of an HTTP request, with its headers read once."""

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.types import Scope

from mcp_mirror.server.auth.principals import read_namespace
from mcp_mirror.server.endpoints import read_upstream
from mcp_mirror.server.sessions import build_session_key


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """The head of an HTTP request."""

    scope: Scope
    """The ASGI scope."""
    headers: Mapping[str, str]
    """The headers by their names in lower case; the last one of repeated headers."""
    namespace: str
    """The namespace of the principal."""
    session_key: str
    """The key of the session; empty for a request without one."""
    upstream: str | None = None
    """The upstream that the endpoint serves; see `Caller.upstream`."""


def read_request(scope: Scope) -> HttpRequest:
    """Return the head of the request with this ASGI scope."""
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    namespace = read_namespace(scope)
    session_key = build_session_key(namespace, headers.get("mcp-session-id", ""))
    return HttpRequest(scope, headers, namespace, session_key, read_upstream(scope))
