"""Static bearer tokens: `mcp-mirror token` creates them, and the configuration contains their hashes.

A token has 256 random bits, so its plain SHA-256 hash reveals nothing about it. Slow hashes are for passwords.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable

from mcp_mirror.server.auth.principals import Principal
from mcp_mirror.settings.access import TOKEN_PREFIX, TokenPolicy


def mint_token() -> tuple[str, str]:
    """Return a new token, and its hash for the configuration as `sha256:<hex>`."""
    token = TOKEN_PREFIX + secrets.token_urlsafe(32)
    return token, f"sha256:{_hash_token(token)}"


def find_principal(token: str, policies: Iterable[TokenPolicy], required: Iterable[str]) -> Principal | None:
    """Return the principal of a token, in a time that does not depend on the token.

    Args:
        token: The token of a request.
        policies: The configured tokens.
        required: The scopes of a token without configured scopes.

    Returns:
        The principal; None if the token is not configured.
    """
    digest, found = _hash_token(token), None
    for policy in policies:
        if hmac.compare_digest(digest, policy.digest):
            found = policy
    if found is None:
        return None
    return Principal.from_token(found.name, frozenset(required if found.scopes is None else found.scopes))


def _hash_token(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
