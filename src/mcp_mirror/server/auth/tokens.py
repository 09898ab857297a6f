"""Static bearer tokens: minted here, configured as hashes.

A token is 256 bits of chance, so its plain SHA-256 tells nothing about it; a slow hash is for what people think up.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable

from mcp_mirror.server.auth.principals import Principal
from mcp_mirror.settings.access import TOKEN_PREFIX, TokenPolicy


def mint_token() -> tuple[str, str]:
    """A new token, and what the configuration says for it."""
    token = TOKEN_PREFIX + secrets.token_urlsafe(32)
    return token, f"sha256:{_digest(token)}"


def find_principal(token: str, policies: Iterable[TokenPolicy], required: Iterable[str]) -> Principal | None:
    """Whose a token is; None if nobody's. The time that it takes does not depend on the token."""
    digest, found = _digest(token), None
    for policy in policies:
        if hmac.compare_digest(digest, policy.digest):
            found = policy
    if found is None:
        return None
    return Principal.of_token(found.name, frozenset(required if found.scopes is None else found.scopes))


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
