"""Principals: the verified senders of requests.

The namespace of a principal is the pair of issuer and name. Principals of two issuers, and the local user, therefore
never share a namespace.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.authentication import AuthCredentials

from mcp_mirror.callers import LOCAL

_STATIC_ISSUER = "token"  # in place of an issuer, which is a URL


@dataclass(frozen=True, slots=True)
class Principal:
    """The sender of a request, as its verified token names it."""

    issuer: str
    name: str = field(repr=False)
    scopes: frozenset[str] = frozenset()
    expires: float | None = None
    """When the token expires, in seconds since the epoch; None: never."""
    key: str | None = None
    """Thumbprint of the key that the token is bound to (RFC 9449, section 6.1). None: a bearer token."""

    @classmethod
    def from_token(cls, name: str, scopes: frozenset[str]) -> "Principal":
        """Return the principal of a configured token."""
        return cls(_STATIC_ISSUER, name, scopes)

    @property
    def namespace(self) -> str:
        """The namespace of the principal's memory."""
        return json.dumps([self.issuer, self.name])


def build_scope_entries(principal: Principal) -> Mapping[str, Any]:
    """Return the ASGI scope entries of a principal; the SDK binds a session to them. They do not contain the token."""
    token = AccessToken(token="", client_id=principal.namespace, scopes=sorted(principal.scopes))
    return {"user": AuthenticatedUser(token), "auth": AuthCredentials(token.scopes)}


def build_owner_scope_entries(namespace: str) -> Mapping[str, Any]:
    """Return ASGI scope entries with which the SDK accepts a request of the gateway as one of the session's owner."""
    token = AccessToken(token="", client_id=namespace, scopes=[])
    return {"user": AuthenticatedUser(token), "auth": AuthCredentials()}


def read_scopes(scope: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the OAuth scopes of a request's token; None if the gateway requires no token."""
    user = scope.get("user")
    return frozenset(user.access_token.scopes) if isinstance(user, AuthenticatedUser) else None


def read_namespace(scope: Mapping[str, Any]) -> str:
    """Return the namespace of a request; the local user's if the gateway requires no token."""
    user = scope.get("user")
    return user.access_token.client_id if isinstance(user, AuthenticatedUser) else LOCAL
