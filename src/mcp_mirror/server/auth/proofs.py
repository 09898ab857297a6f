"""Proofs of possession (DPoP, RFC 9449): a bound token needs a new proof with each request, signed with its key.

The checks of section 4.3 cover the method, the URL, the token and the time, and that each proof is used once.
"""

import base64
import hashlib
import hmac
import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final, get_args
from urllib.parse import urlsplit

import jwt
from starlette.requests import Request

from mcp_mirror.server.auth.principals import Principal
from mcp_mirror.settings.access import Algorithm
from mcp_mirror.settings.declarations import DEFAULT_PORTS

_logger = logging.getLogger(__name__)

ALGORITHMS: Final[tuple[str, ...]] = get_args(Algorithm)
"""The accepted signature algorithms: those with a public key."""
_WINDOW: Final = 90.0
"""Seconds by which the time of a proof may differ from the gateway's clock."""
_MAX_REMEMBERED: Final = 10_000
"""Remembered proofs of one principal, which is also the number of proofs that it may send in two windows."""
_MAX_LENGTH: Final = 8192
"""Characters of a proof."""
_MAX_MODULUS_LENGTH: Final = 684
"""Characters of 4,096 bits in base64."""
_MAX_EXPONENT_LENGTH: Final = 8
_THUMBPRINT_MEMBERS: Final[Mapping[str, tuple[str, ...]]] = {
    "EC": ("crv", "kty", "x", "y"),
    "OKP": ("crv", "kty", "x"),
    "RSA": ("e", "kty", "n"),
}
"""The members of a public key that its thumbprint covers (RFC 7638, section 3.2; RFC 8037, section 2)."""


class ProofVerifier:
    """Verifies the proofs of requests, and remembers them to reject a second use."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Create a verifier; `clock` returns seconds since the epoch."""
        self._clock = clock
        self._seen: dict[str, OrderedDict[bytes, float]] = {}
        """The arrival times of each principal's proofs by their digests, the oldest first."""
        self._last_sweep = 0.0

    def verify(self, request: Request, token: str, principal: Principal, resource: str | None) -> bool:
        """Return whether a request has exactly one valid proof, signed with the key of its token.

        The principal has the thumbprint of that key. `resource` is the public URL of the gateway; None: the URL of the
        request.
        """
        proofs = request.headers.getlist("dpop")
        try:
            if len(proofs) != 1 or len(proofs[0]) > _MAX_LENGTH:
                raise jwt.InvalidTokenError
            claims = _verify_signature(proofs[0], principal.key or "")
            _check_request(claims, request, token, resource)
            if not abs(self._clock() - float(claims["iat"])) <= _WINDOW:
                raise jwt.ExpiredSignatureError
            if not isinstance(claims["jti"], str) or not claims["jti"]:
                raise jwt.MissingRequiredClaimError("jti")
        except (jwt.PyJWTError, ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
            _logger.info("Rejected a proof of possession: %s", type(error).__name__)
            return False
        return self._remember(principal, claims["jti"])

    def _remember(self, principal: Principal, jti: str) -> bool:
        """Remember a proof while its time is valid; return False if it was used before or the memory is full."""
        now = self._clock()
        if now - self._last_sweep > _WINDOW:  # forget principals without recent proofs
            self._last_sweep = now
            newest = ((namespace, next(reversed(seen.values()), 0.0)) for namespace, seen in self._seen.items())
            self._seen = {namespace: self._seen[namespace] for namespace, at in newest if now - at <= 2 * _WINDOW}
        seen = self._seen.setdefault(principal.namespace, OrderedDict())
        while seen and now - next(iter(seen.values())) > 2 * _WINDOW:
            seen.popitem(last=False)
        key = hashlib.sha256(f"{principal.key} {jti}".encode("utf-8", "surrogatepass")).digest()
        if key in seen or len(seen) >= _MAX_REMEMBERED:
            reason = "it was used before" if key in seen else f"over {_MAX_REMEMBERED:,} in {2 * _WINDOW:g} s"
            _logger.info("Rejected a proof of possession: %s", reason)
            return False
        seen[key] = now
        return True


def _check_request(claims: Mapping[str, Any], request: Request, token: str, resource: str | None) -> None:
    """Raise a `PyJWTError` for a proof of another request or token.

    A proxy may rewrite the path, and `resource` may be a prefix of the endpoint, so both URLs are valid.
    """
    requested = request.url
    origin = urlsplit(resource or f"{requested.scheme}://{request.headers['host']}")
    urls = {
        _normalize_url(f"{origin.scheme}://{origin.netloc}{requested.path}"),
        _normalize_url(resource or str(requested)),
    }
    if claims["htm"] != request.method or _normalize_url(str(claims["htu"])) not in urls:
        raise jwt.InvalidAudienceError
    if not hmac.compare_digest(str(claims["ath"]).encode(), _hash_text(token.encode())):
        raise jwt.InvalidTokenError


def _verify_signature(proof: str, thumbprint: str) -> Mapping[str, Any]:
    """Return the claims of a proof that was signed with the key of this thumbprint."""
    header = jwt.get_unverified_header(proof)
    jwk, algorithm = header["jwk"], header["alg"]
    if header["typ"] != "dpop+jwt" or algorithm not in ALGORITHMS or not isinstance(jwk, dict) or "d" in jwk:
        raise jwt.InvalidAlgorithmError
    if len(str(jwk.get("n"))) > _MAX_MODULUS_LENGTH or len(str(jwk.get("e"))) > _MAX_EXPONENT_LENGTH:
        raise jwt.InvalidKeyError  # signatures of such keys take long to verify
    if not hmac.compare_digest(compute_thumbprint(jwk).encode(), thumbprint.encode()):
        raise jwt.InvalidKeyError
    options: Any = {"verify_iat": False, "verify_aud": False, "enforce_minimum_key_length": True}
    return jwt.decode(proof, jwt.PyJWK(jwk, algorithm), algorithms=[algorithm], options=options)


def compute_thumbprint(jwk: Mapping[str, Any]) -> str:
    """Return the thumbprint of a public key (RFC 7638) in base64url.

    Raises:
        KeyError: The key's type is unknown, or a member is missing.
    """
    members = {name: str(jwk[name]) for name in _THUMBPRINT_MEMBERS[jwk["kty"]]}
    return _hash_text(json.dumps(members, separators=(",", ":"), sort_keys=True).encode()).decode()


def _hash_text(text: bytes) -> bytes:
    return base64.urlsafe_b64encode(hashlib.sha256(text).digest()).rstrip(b"=")


def _normalize_url(url: str) -> tuple[str, str | None, int | None, str]:
    """Return scheme, host, port and path of a URL; equivalent URLs have the same."""
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    return scheme, parts.hostname, parts.port or DEFAULT_PORTS.get(scheme), parts.path or "/"
