"""Principals: the verified senders of requests.

The namespace of a principal is the pair of issuer and name. Principals of two issuers, and the local user, therefore
never share a namespace.

Static bearer tokens: `mcp-mirror token` creates them, and the configuration contains their hashes. A token has 256
random bits, so its plain SHA-256 hash reveals nothing about it. Slow hashes are for passwords.
"""

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.authentication import AuthCredentials

from mcp_mirror.callers import LOCAL
from mcp_mirror.settings.access import TOKEN_PREFIX, TokenPolicy

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

    @property
    def namespace(self) -> str:
        """The namespace of the principal's memory."""
        return json.dumps([self.issuer, self.name])


def build_scope_entries(namespace: str, scopes: Iterable[str] = ()) -> Mapping[str, Any]:
    """Return the ASGI scope entries of a principal; the SDK binds a session to them. They do not contain the token."""
    token = AccessToken(token="", client_id=namespace, scopes=sorted(scopes))
    return {"user": AuthenticatedUser(token), "auth": AuthCredentials(token.scopes)}


def read_scopes(scope: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the OAuth scopes of a request's token; None if the gateway requires no token."""
    user = scope.get("user")
    return frozenset(user.access_token.scopes) if isinstance(user, AuthenticatedUser) else None


def read_namespace(scope: Mapping[str, Any]) -> str:
    """Return the namespace of a request; the local user's if the gateway requires no token."""
    user = scope.get("user")
    return user.access_token.client_id if isinstance(user, AuthenticatedUser) else LOCAL


def mint_token() -> tuple[str, str]:
    """Return a new token, and its hash for the configuration as `sha256:<hex>`."""
    token = TOKEN_PREFIX + secrets.token_urlsafe(32)
    return token, f"sha256:{_hash_token(token)}"


def find_principal(token: str, policies: Iterable[TokenPolicy], required: Iterable[str]) -> Principal | None:
    """Return the principal of a token, in a time that does not depend on the token; None if it is not configured.

    `required` are the scopes of a token without configured scopes.
    """
    digest, found = _hash_token(token), None
    for policy in policies:
        if hmac.compare_digest(digest, policy.digest):
            found = policy
    if found is None:
        return None
    return Principal(_STATIC_ISSUER, found.name, frozenset(required if found.scopes is None else found.scopes))


def _hash_token(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
