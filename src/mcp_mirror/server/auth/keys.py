"""The JWTs of issuers, and their public keys (JWKS, RFC 7517), read from a file or a URL and cached.

A token with an unknown key makes the gateway read the keys again, because the issuer may have added the key. A minimum
interval bounds how often such tokens can cause a request.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import httpx2
import jwt

from mcp_mirror.errors import MirrorError
from mcp_mirror.payload.content_encodings import read_beginning
from mcp_mirror.security.ssrf_guard import PRIVATE, AddressPolicy, SSRFGuardTransport
from mcp_mirror.server.auth.principals import Principal
from mcp_mirror.settings.access import IssuerPolicy

_logger = logging.getLogger(__name__)

_MAX_AGE: Final = 600.0
"""Seconds after which the keys are read again before they are used."""
_RENEWAL_AGE: Final = 300.0
"""Seconds after which the keys are read again while they are used, so that requests do not wait for a slow issuer."""
_MAX_STALE_AGE: Final = 86_400.0
"""Seconds for which the cached keys are used while the source is not available."""
_MIN_REFRESH_INTERVAL: Final = 10.0
"""Seconds between two reads that tokens of unknown or replaced keys cause."""
_MAX_BYTES: Final = 1 << 18
"""Bytes of a key set."""
_TIMEOUT: Final = 5.0
"""Seconds that a request for the keys may take."""
_MAX_TOKEN_LENGTH: Final = 16_384
"""Characters."""
_TIME_CLAIMS: Final = ("exp", "nbf", "iat")
"""Claims that must be numbers (RFC 7519, section 2). The library also accepts strings of digits."""
_MAX_NAME_LENGTH: Final = 1024
"""Characters of the claim that names a principal."""
_MAX_LOGGED: Final = 100
"""Rejected tokens in a minute that are logged: anybody may send them, as many as the network carries."""
_MINUTE: Final = 60.0


class KeysUnavailableError(MirrorError):
    """An issuer's keys are not available, so its tokens cannot be verified."""


class _ExplainedError(jwt.InvalidTokenError):
    """A token that the configuration does not accept; the message names the rule and has no text of the token."""

    def __init__(self, rule: str, kind: type[jwt.PyJWTError] = jwt.InvalidTokenError) -> None:
        super().__init__(f"{kind.__name__} ({rule})")


class _KeysError(ValueError):
    """A document that is not the keys of an issuer; the message says why."""


class KeySet:
    """The public keys of one issuer, with a cache."""

    def __init__(self, source: str, clock: Callable[[], float], *, allow_private: bool = False) -> None:
        """Create an empty cache; the first lookup reads the keys from `source`, a URL or a file.

        `clock` returns monotonic seconds. `allow_private`: a public name in the URL may resolve to a private address.
        """
        self._allow_private = allow_private
        self._source = source
        self.problem: str | None = None
        """Why the last read failed."""
        self._clock = clock
        self._keys: Sequence[Mapping[str, Any]] = ()
        self._last_success = -_MAX_STALE_AGE
        self._last_attempt = -_MAX_AGE
        self._lock = anyio.Lock()
        self._renewal: asyncio.Task[None] | None = None
        """The last read for which no request waits; the event loop keeps no reference to it."""

    async def find(self, kid: str | None, algorithm: str, *, is_replaced: bool = False) -> jwt.PyJWK | None:
        """Return the key with an id; None if the issuer does not have it.

        Without an id, the only key for the algorithm matches, if there are not several. `is_replaced`: the cached key
        did not verify a token, so only one that is read now matches.

        Raises:
            KeysUnavailableError: The keys could not be read for a day.
        """
        if (age := self._clock() - self._last_attempt) >= _MAX_AGE:
            await self._refresh(_MAX_AGE)
        elif age >= _RENEWAL_AGE and (self._renewal is None or self._renewal.done()):
            self._renewal = asyncio.create_task(self._refresh(_RENEWAL_AGE))
        found = None if is_replaced else self._choose(kid, algorithm)
        if found is None and self._clock() - self._last_attempt >= _MIN_REFRESH_INTERVAL:
            await self._refresh(_MIN_REFRESH_INTERVAL)
            found = self._choose(kid, algorithm)
        if self._clock() - self._last_success >= _MAX_STALE_AGE:
            raise KeysUnavailableError("The keys to verify tokens with are not available now. Try again later.")
        return found

    async def renew(self) -> None:
        """Read the keys now."""
        self.make_due()
        await self._refresh(_MAX_AGE)

    def make_due(self) -> None:
        """Read the keys at the next lookup. If that fails, the cached ones are used for their day."""
        self._last_attempt = self._clock() - _MAX_AGE

    def _choose(self, kid: str | None, algorithm: str) -> jwt.PyJWK | None:
        matching = (key for key in self._keys if kid is None or key.get("kid") == kid)
        loaded = (_load_key(one, algorithm) for one in matching)
        usable = list(islice(filter(None, loaded), 2))  # a key set may have thousands: loading them takes 0.1 s
        return usable[0] if len(usable) == 1 or (usable and kid is not None) else None

    async def _refresh(self, interval: float) -> None:
        async with self._lock:
            if self._clock() - self._last_attempt < interval:  # another request has read them while this one waited
                return
            try:
                self._keys = _parse_key_set(await self._fetch())
                self._last_success, self.problem = self._clock(), None
            except (OSError, ValueError, RecursionError, httpx2.HTTPError) as error:
                self.problem = f"The keys in {self._source} cannot be read: {_explain_failure(error)}."
                _logger.warning("%s", self.problem)
            finally:  # after the read, so that requests that come during it wait for the keys
                self._last_attempt = self._clock()

    async def _fetch(self) -> bytes:
        if self._source.startswith(("https://", "http://")):
            with anyio.fail_after(_TIMEOUT):
                return await _download(
                    self._source, AddressPolicy.from_urls(self._source, admits_private=self._allow_private)
                )
        return await anyio.to_thread.run_sync(_read_file, self._source)


async def _download(url: str, addresses: AddressPolicy) -> bytes:
    """Download a key set, or the beginning of a larger document, without following redirects to other servers."""
    async with (
        httpx2.AsyncClient(transport=SSRFGuardTransport(addresses), timeout=_TIMEOUT, follow_redirects=False) as client,
        client.stream("GET", url, headers={"accept": "application/json", "accept-encoding": "identity"}) as response,
    ):
        if response.status_code != httpx2.codes.OK:
            raise _KeysError(f"HTTP status {response.status_code}")
        return await read_beginning(response, _MAX_BYTES + 1)


def _explain_failure(error: Exception) -> str:
    """Describe why keys could not be read, without text of another server."""
    if isinstance(error, _KeysError):
        return str(error)
    if isinstance(error, TimeoutError | httpx2.TimeoutException):
        return f"no answer within {_TIMEOUT:g} s"
    if str(error) == PRIVATE:
        return f"{PRIVATE}; if this is intended, set `allow_private: true` for this issuer"
    if isinstance(error, httpx2.HTTPError):
        reason = f": {error}" if isinstance(error, httpx2.ConnectError) else ""  # of this machine
        return f"the request failed ({type(error).__name__}{reason})"
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return "the document is not JSON"


def _read_file(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(_MAX_BYTES + 1)


def _parse_key_set(text: bytes) -> Sequence[Mapping[str, Any]]:
    """Return the keys of a JWKS document; raise `ValueError` for other documents."""
    if len(text) > _MAX_BYTES:
        raise _KeysError(f"they are larger than {_MAX_BYTES:,} bytes")
    document = json.loads(text)
    keys = document.get("keys") if isinstance(document, dict) else None
    if keys is None and isinstance(document, dict) and "jwks_uri" in document:
        raise _KeysError("the document is metadata of the issuer: `jwks` is the address in its `jwks_uri`")
    if not isinstance(keys, list):
        raise _KeysError("the document has no list 'keys'")
    return [key for key in keys if isinstance(key, dict)]


def _load_key(key: Mapping[str, Any], algorithm: str) -> jwt.PyJWK | None:
    """Return the public key if it verifies signatures of this algorithm; None for other keys.

    Private parts are left out: to compute the primes of an RSA key from its other parts takes up to seconds.
    """
    if key.get("use", "sig") != "sig" or key.get("alg", algorithm) != algorithm or key.get("kty") == "oct":
        return None
    try:
        return jwt.PyJWK({name: value for name, value in key.items() if name != "d"}, algorithm)
    except (jwt.PyJWTError, ValueError, TypeError):
        return None


class Issuers:
    """The configured issuers, whose tokens the gateway accepts."""

    def __init__(
        self, policies: Iterable[IssuerPolicy], clock: Callable[[], float], previous: "Issuers | None" = None
    ) -> None:
        """Read no keys yet; those of `previous`, before a reload, are used while an issuer is not available."""
        self._clock = clock
        self._issuers: dict[str, tuple[IssuerPolicy, KeySet]] = {}
        self._minute = clock()
        """The start of the minute in which rejected tokens are counted."""
        self._rejected = 0
        for one in policies:
            kept = previous.keep_keys(one) if previous else None
            self._issuers[one.issuer] = one, kept or KeySet(one.jwks, clock, allow_private=one.allow_private)

    def keep_keys(self, policy: IssuerPolicy) -> KeySet | None:
        """Return the keys of an issuer, to be read again at their next use; None if they came from another place."""
        before, keys = self._issuers.get(policy.issuer, (None, None))
        if keys is None or before is None or (before.jwks, before.allow_private) != (policy.jwks, policy.allow_private):
            return None
        keys.make_due()
        return keys

    async def find_problems(self) -> list[str]:
        """Read the keys of all issuers now; return a sentence for each issuer whose keys cannot be read."""
        for _, keys in self._issuers.values():
            await keys.renew()
        return [
            f"auth.issuers: no token of {policy.issuer} can be verified. {keys.problem} Correct 'jwks', or try again."
            for policy, keys in self._issuers.values()
            if keys.problem
        ]

    async def find_principal(self, token: str) -> Principal | None:
        """Return the principal of a token; None if the token is not valid. For other errors see `KeySet.find`.

        The log gets the kind of the error and names of the configuration. Other details could contain parts of the
        token.
        """
        try:
            return await self._verify(token)
        except (jwt.PyJWTError, ValueError, RecursionError, OverflowError) as error:
            if self._clock() - self._minute >= _MINUTE:
                self._minute, self._rejected = self._clock(), 0
            self._rejected += 1
            if self._rejected <= _MAX_LOGGED:
                claim = f" ({error.claim})" if isinstance(error, jwt.MissingRequiredClaimError) else ""
                named = str(error) if isinstance(error, _ExplainedError) else f"{type(error).__name__}{claim}"
                _logger.info("Rejected a token: %s", named)
            return None

    async def _verify(self, token: str) -> Principal:
        if len(token) > _MAX_TOKEN_LENGTH:
            raise jwt.DecodeError
        unverified = jwt.decode_complete(token, options={"verify_signature": False})
        issuer, header = unverified["payload"].get("iss"), unverified["header"]
        if not isinstance(issuer, str) or issuer not in self._issuers:
            is_alike = isinstance(issuer, str) and {issuer.removesuffix("/"), f"{issuer}/"} & self._issuers.keys()
            if is_alike:
                raise _ExplainedError("`issuer` differs by the slash at its end", jwt.InvalidIssuerError)
            raise jwt.InvalidIssuerError
        policy, keys = self._issuers[issuer]
        if header.get("alg") not in policy.algorithms:
            raise jwt.InvalidAlgorithmError
        if (key := await keys.find(header.get("kid"), header["alg"])) is None:
            raise jwt.InvalidKeyError
        try:
            claims = _verify_claims(token, key, policy)
        except jwt.InvalidSignatureError:  # an issuer may replace its key without a new id
            if (key := await keys.find(header.get("kid"), header["alg"], is_replaced=True)) is None:
                raise
            claims = _verify_claims(token, key, policy)
        return _read_principal(claims, policy)


def _verify_claims(token: str, key: jwt.PyJWK, policy: IssuerPolicy) -> Mapping[str, Any]:
    return jwt.decode(
        token,
        key,
        algorithms=list(policy.algorithms),
        issuer=policy.issuer,
        audience=list(policy.audience),
        leeway=policy.leeway,
        options={"require": ["iss", "aud", "exp", policy.principal], "enforce_minimum_key_length": True},
    )


def _read_principal(claims: Mapping[str, Any], policy: IssuerPolicy) -> Principal:
    for claim in _TIME_CLAIMS:
        if not isinstance(claims.get(claim, 0), int | float):
            raise _ExplainedError(f"{claim} is not a number")
    for claim, accepted in policy.required_claims.items():
        if not _texts(claims.get(claim)) & set(accepted):
            raise _ExplainedError(f"required_claims.{claim}")
    name = claims[policy.principal]
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME_LENGTH:
        raise _ExplainedError(f"{policy.principal} is not a text of 1 to {_MAX_NAME_LENGTH} characters")
    expires = float(claims["exp"]) + policy.leeway
    confirmation = claims.get("cnf")
    thumbprint = confirmation.get("jkt") if isinstance(confirmation, Mapping) else None
    if (thumbprint is None and policy.require_dpop) or not isinstance(thumbprint, str | None):
        raise _ExplainedError("require_dpop" if thumbprint is None else "cnf.jkt is not a text")
    return Principal(policy.issuer, name, _read_scopes(claims, policy), expires, thumbprint)


def _read_scopes(claims: Mapping[str, Any], policy: IssuerPolicy) -> frozenset[str]:
    """Read the configured claim, `scope` (RFC 8693: a string with spaces), or `scp` of some servers (or a list)."""
    found = claims.get("scope", claims.get("scp")) if policy.scopes_claim is None else claims.get(policy.scopes_claim)
    if isinstance(found, str):
        return frozenset(found.split())
    return _texts(found) if isinstance(found, list) else frozenset()


def _texts(claim: Any) -> frozenset[str]:
    """The texts in a claim: itself, or those of its list. A boolean is `true` or `false`."""
    items = claim if isinstance(claim, list) else [claim]
    return frozenset(
        str(item).lower() if isinstance(item, bool) else item for item in items if isinstance(item, str | bool)
    )
