"""Principals: who a request is from, by what was verified and nothing else.

A principal's namespace is the pair of who vouches for it and what they call it, so that two issuers never meet, and
neither meets the local user.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.authentication import AuthCredentials

from mcp_mirror.callers import LOCAL

_BY_TOKEN = "token"  # noqa: S105  # stands where others have an issuer, which is a URL


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a token has shown somebody to be."""

    issuer: str
    name: str = field(repr=False)
    scopes: frozenset[str] = frozenset()
    expires: float | None = None
    """Seconds since the epoch after which the token is good no more."""
    key: str | None = None
    """Thumbprint of the key that the token is bound to (RFC 9449, section 6.1). None: whoever shows it is let in."""

    @classmethod
    def of_token(cls, name: str, scopes: frozenset[str]) -> "Principal":
        """Who a configured token is for."""
        return cls(_BY_TOKEN, name, scopes)

    @property
    def namespace(self) -> str:
        """Whose memory it is."""
        return json.dumps([self.issuer, self.name])


def scope_of(principal: Principal) -> Mapping[str, Any]:
    """What an ASGI scope says of who was let in; the SDK ties a session to it. The token itself is nowhere."""
    token = AccessToken(token="", client_id=principal.namespace, scopes=sorted(principal.scopes))
    return {"user": AuthenticatedUser(token), "auth": AuthCredentials(token.scopes)}


def owner_scope(namespace: str) -> Mapping[str, Any]:
    """What an ASGI scope says of a principal: the SDK takes our own request as that of the sessions' owner."""
    token = AccessToken(token="", client_id=namespace, scopes=[])
    return {"user": AuthenticatedUser(token), "auth": AuthCredentials()}


def scopes_in(scope: Mapping[str, Any]) -> frozenset[str] | None:
    """What the token of a request is good for; None where nobody had to show one."""
    user = scope.get("user")
    return frozenset(user.access_token.scopes) if isinstance(user, AuthenticatedUser) else None


def namespace_in(scope: Mapping[str, Any]) -> str:
    """Whose request an ASGI scope is; the local user's where nobody had to be let in."""
    user = scope.get("user")
    return user.access_token.client_id if isinstance(user, AuthenticatedUser) else LOCAL
