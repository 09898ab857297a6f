"""Signed tokens (JWT, RFC 7519; as access tokens, RFC 9068): whose they are, if they are good."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import jwt

from mcp_mirror.server.auth.keys import Keys
from mcp_mirror.server.auth.principals import Principal
from mcp_mirror.settings.access import IssuerPolicy

_logger = logging.getLogger(__name__)

_LONGEST_TOKEN: Final = 16_384
"""Characters."""
_TIMES: Final = ("exp", "nbf", "iat")
"""Claims that must be numbers (RFC 7519, section 2): the library takes text with digits too."""
_LONGEST_NAME: Final = 1024
"""Characters of the claim that names a principal."""


class Issuers:
    """Those whose tokens are taken."""

    def __init__(self, policies: Iterable[IssuerPolicy], clock: Callable[[], float]) -> None:
        self._known = {one.issuer: (one, Keys(one.jwks, clock, allow_private=one.allow_private)) for one in policies}

    async def find_principal(self, token: str) -> Principal | None:
        """Whose a token is; None if it is not good, which is told in the log by its kind alone.

        Raises:
            KeysUnavailableError: That cannot be told now.
        """
        try:
            return await self._verified(token)
        except (jwt.PyJWTError, ValueError, RecursionError, OverflowError) as error:
            _logger.info("A token is refused: %s", type(error).__name__)
            return None

    async def _verified(self, token: str) -> Principal:
        if len(token) > _LONGEST_TOKEN:
            raise jwt.DecodeError
        unverified = jwt.decode_complete(token, options={"verify_signature": False})
        issuer, header = unverified["payload"].get("iss"), unverified["header"]
        if not isinstance(issuer, str) or issuer not in self._known:
            raise jwt.InvalidIssuerError
        policy, keys = self._known[issuer]
        if header.get("alg") not in policy.algorithms:
            raise jwt.InvalidAlgorithmError
        if (key := await keys.find(header.get("kid"), header["alg"])) is None:
            raise jwt.InvalidKeyError
        return _principal_of(jwt.decode(token, key, **_checks(policy)), policy)


def _checks(policy: IssuerPolicy) -> dict[str, Any]:
    return {
        "algorithms": list(policy.algorithms),
        "issuer": policy.issuer,
        "audience": list(policy.audience),
        "leeway": policy.leeway,
        "options": {"require": ["iss", "aud", "exp", policy.principal], "enforce_minimum_key_length": True},
    }


def _principal_of(claims: Mapping[str, Any], policy: IssuerPolicy) -> Principal:
    if not all(isinstance(claims.get(when, 0), int | float) for when in _TIMES):
        raise jwt.InvalidTokenError
    name = claims[policy.principal]
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:
        raise jwt.InvalidTokenError
    return Principal(
        policy.issuer, name, _scopes_of(claims), float(claims["exp"]) + policy.leeway, _key_of(claims, policy)
    )


def _key_of(claims: Mapping[str, Any], policy: IssuerPolicy) -> str | None:
    """Which key a token is bound to; None where it is to none and need not be."""
    bound = claims.get("cnf")
    key = bound.get("jkt") if isinstance(bound, Mapping) else None
    if (key is None and policy.require_dpop) or not isinstance(key, str | None):
        raise jwt.InvalidTokenError
    return key


def _scopes_of(claims: Mapping[str, Any]) -> frozenset[str]:
    """RFC 8693's `scope`, a text with spaces, or `scp`, a text or a list, as some servers have it."""
    said = claims.get("scope", claims.get("scp", ""))
    parts = said.split() if isinstance(said, str) else said
    return frozenset(part for part in parts if isinstance(part, str)) if isinstance(parts, list) else frozenset()
