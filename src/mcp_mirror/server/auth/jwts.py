"""Verification of signed tokens (JWT, RFC 7519; as access tokens, RFC 9068)."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import jwt

from mcp_mirror.server.auth.keys import Keys
from mcp_mirror.server.auth.principals import Principal
from mcp_mirror.settings.access import IssuerPolicy

_logger = logging.getLogger(__name__)

_MAX_TOKEN_LENGTH: Final = 16_384
"""Characters."""
_TIME_CLAIMS: Final = ("exp", "nbf", "iat")
"""Claims that must be numbers (RFC 7519, section 2). The library also accepts strings of digits."""
_MAX_NAME_LENGTH: Final = 1024
"""Characters of the claim that names a principal."""


class Issuers:
    """The configured issuers, whose tokens the gateway accepts."""

    def __init__(self, policies: Iterable[IssuerPolicy], clock: Callable[[], float]) -> None:
        self._issuers = {one.issuer: (one, Keys(one.jwks, clock, allow_private=one.allow_private)) for one in policies}

    async def find_principal(self, token: str) -> Principal | None:
        """Return the principal of a token; None if the token is not valid.

        The log gets the kind of the error only, because other details could contain parts of the token.

        Raises:
            KeysUnavailableError: The issuer's keys are not available, so the token cannot be verified.
        """
        try:
            return await self._verify(token)
        except (jwt.PyJWTError, ValueError, RecursionError, OverflowError) as error:
            _logger.info("Rejected a token: %s", type(error).__name__)
            return None

    async def _verify(self, token: str) -> Principal:
        if len(token) > _MAX_TOKEN_LENGTH:
            raise jwt.DecodeError
        unverified = jwt.decode_complete(token, options={"verify_signature": False})
        issuer, header = unverified["payload"].get("iss"), unverified["header"]
        if not isinstance(issuer, str) or issuer not in self._issuers:
            raise jwt.InvalidIssuerError
        policy, keys = self._issuers[issuer]
        if header.get("alg") not in policy.algorithms:
            raise jwt.InvalidAlgorithmError
        if (key := await keys.find(header.get("kid"), header["alg"])) is None:
            raise jwt.InvalidKeyError
        claims = jwt.decode(
            token,
            key,
            algorithms=list(policy.algorithms),
            issuer=policy.issuer,
            audience=list(policy.audience),
            leeway=policy.leeway,
            options={"require": ["iss", "aud", "exp", policy.principal], "enforce_minimum_key_length": True},
        )
        return _read_principal(claims, policy)


def _read_principal(claims: Mapping[str, Any], policy: IssuerPolicy) -> Principal:
    if not all(isinstance(claims.get(claim, 0), int | float) for claim in _TIME_CLAIMS):
        raise jwt.InvalidTokenError
    if not all(_texts(claims.get(name)) & set(accepted) for name, accepted in policy.required_claims.items()):
        raise jwt.InvalidTokenError
    name = claims[policy.principal]
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME_LENGTH:
        raise jwt.InvalidTokenError
    expires = float(claims["exp"]) + policy.leeway
    return Principal(policy.issuer, name, _read_scopes(claims, policy), expires, _read_thumbprint(claims, policy))


def _read_thumbprint(claims: Mapping[str, Any], policy: IssuerPolicy) -> str | None:
    """Return the thumbprint of the key that a token is bound to; None for a bearer token."""
    confirmation = claims.get("cnf")
    thumbprint = confirmation.get("jkt") if isinstance(confirmation, Mapping) else None
    if (thumbprint is None and policy.require_dpop) or not isinstance(thumbprint, str | None):
        raise jwt.InvalidTokenError
    return thumbprint


def _read_scopes(claims: Mapping[str, Any], policy: IssuerPolicy) -> frozenset[str]:
    """Read the configured claim, `scope` (RFC 8693: a string with spaces), or `scp` of some servers (or a list)."""
    found = claims.get("scope", claims.get("scp")) if policy.scopes_claim is None else claims.get(policy.scopes_claim)
    return _texts(found.split() if isinstance(found, str) else found if isinstance(found, list) else None)


def _texts(claim: Any) -> frozenset[str]:
    """The texts in a claim: itself, or those of its list. A boolean is `true` or `false`."""
    items = claim if isinstance(claim, list) else [claim]
    return frozenset(
        str(item).lower() if isinstance(item, bool) else item for item in items if isinstance(item, str | bool)
    )
