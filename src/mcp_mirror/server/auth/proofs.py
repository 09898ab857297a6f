"""Proofs of possession (DPoP, RFC 9449): a token that is bound to a key is good with what that key has just signed.

Section 4.3's checks, each request's own: the method, the URL, the token, the time, and that it comes once.
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

_logger = logging.getLogger(__name__)

ALGORITHMS: Final[tuple[str, ...]] = get_args(Algorithm)
"""Signatures that a proof may have: those that a public key checks."""
_WINDOW: Final = 90.0
"""Seconds by which a proof may be older or newer than our clock says."""
_REMEMBERED: Final = 10_000
"""Proofs of one principal's of which it is known that they came; there are no more of them in twice that window."""
_LONGEST: Final = 8192
"""Characters."""
_LONGEST_MODULUS: Final = 684
"""Characters of 4,096 bits in base64."""
_LONGEST_EXPONENT: Final = 8
_MEMBERS: Final[Mapping[str, tuple[str, ...]]] = {
    "EC": ("crv", "kty", "x", "y"),
    "OKP": ("crv", "kty", "x"),
    "RSA": ("e", "kty", "n"),
}
"""What of a public key its thumbprint is made of (RFC 7638, section 3.2; RFC 8037, section 2)."""
_PORTS: Final = {"http": 80, "https": 443}


class Proofs:
    """Checks the proofs that come with requests."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Know none yet; the clock tells seconds since the epoch."""
        self._clock = clock
        self._seen: dict[str, OrderedDict[bytes, float]] = {}
        """By principal, when each proof came, by its digest; the oldest first."""
        self._swept = 0.0

    def holds(self, request: Request, token: str, principal: Principal, resource: str | None) -> bool:
        """Whether a request has one good proof that its sender has the key which a token is bound to.

        Args:
            request: It has come now.
            token: As it came.
            principal: Whose it is, and the key.
            resource: The URL under which clients know us; None: that which they ask.
        """
        given = request.headers.getlist("dpop")
        try:
            if len(given) != 1 or len(given[0]) > _LONGEST:
                raise jwt.InvalidTokenError
            claims = _verified(given[0], principal.key or "")
            _check_use(claims, request, token, resource)
            if not abs(self._clock() - float(claims["iat"])) <= _WINDOW:
                raise jwt.ExpiredSignatureError
            if not isinstance(claims["jti"], str) or not claims["jti"]:
                raise jwt.MissingRequiredClaimError("jti")
        except (jwt.PyJWTError, ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
            _logger.info("A proof of possession is refused: %s", type(error).__name__)
            return False
        return self._is_new(principal, claims["jti"])

    def _is_new(self, principal: Principal, name: str) -> bool:
        """Whether no request has come with this proof; remembered for as long as it would be taken."""
        now = self._clock()
        self._forget(now)
        seen = self._seen.setdefault(principal.namespace, OrderedDict())
        while seen and now - next(iter(seen.values())) > 2 * _WINDOW:
            seen.popitem(last=False)
        key = hashlib.sha256(f"{principal.key} {name}".encode("utf-8", "surrogatepass")).digest()
        if key in seen or len(seen) >= _REMEMBERED:
            _logger.info("A proof of possession is refused: it %s", "came before" if key in seen else "is one too many")
            return False
        seen[key] = now
        return True

    def _forget(self, now: float) -> None:
        """Now and then, let go of principals who send none any more."""
        if now - self._swept > _WINDOW:
            self._swept = now
            self._seen = {
                who: seen
                for who, seen in self._seen.items()
                if seen and now - seen[next(reversed(seen))] <= 2 * _WINDOW
            }


def _check_use(claims: Mapping[str, Any], request: Request, token: str, resource: str | None) -> None:
    """Raises a `PyJWTError` for a proof of another request or token.

    A proxy may take requests to us at another path, and `resource` may be less than the endpoint: either URL will do.
    """
    asked = request.url
    origin = urlsplit(resource or f"{asked.scheme}://{request.headers['host']}")
    urls = {_normal(f"{origin.scheme}://{origin.netloc}{asked.path}"), _normal(resource or str(asked))}
    if claims["htm"] != request.method or _normal(str(claims["htu"])) not in urls:
        raise jwt.InvalidAudienceError
    if not hmac.compare_digest(str(claims["ath"]).encode(), _digest(token.encode())):
        raise jwt.InvalidTokenError


def _verified(proof: str, thumbprint: str) -> Mapping[str, Any]:
    """What a proof says that the key of this thumbprint has signed."""
    header = jwt.get_unverified_header(proof)
    jwk, algorithm = header["jwk"], header["alg"]
    if header["typ"] != "dpop+jwt" or algorithm not in ALGORITHMS or not isinstance(jwk, dict) or "d" in jwk:
        raise jwt.InvalidAlgorithmError
    if len(str(jwk.get("n"))) > _LONGEST_MODULUS or len(str(jwk.get("e"))) > _LONGEST_EXPONENT:
        raise jwt.InvalidKeyError  # to check its signatures would take long
    if not hmac.compare_digest(thumbprint_of(jwk).encode(), thumbprint.encode()):
        raise jwt.InvalidKeyError
    options: Any = {"verify_iat": False, "verify_aud": False, "enforce_minimum_key_length": True}
    return jwt.decode(proof, jwt.PyJWK(jwk, algorithm), algorithms=[algorithm], options=options)


def thumbprint_of(jwk: Mapping[str, Any]) -> str:
    """A public key's name (RFC 7638). Raises `KeyError` for what is none."""
    members = {name: str(jwk[name]) for name in _MEMBERS[jwk["kty"]]}
    return _digest(json.dumps(members, separators=(",", ":"), sort_keys=True).encode()).decode()


def _digest(text: bytes) -> bytes:
    return base64.urlsafe_b64encode(hashlib.sha256(text).digest()).rstrip(b"=")


def _normal(url: str) -> tuple[str, str | None, int | None, str]:
    """A URL without query and fragment, as those of two that mean the same are the same."""
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    return scheme, parts.hostname, parts.port or _PORTS.get(scheme), parts.path or "/"
