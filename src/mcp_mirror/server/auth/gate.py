"""Authentication of HTTP requests: requests without a valid token get a 401 with a `WWW-Authenticate` challenge.

The gate checks only the head and does not read the body of a rejected request. It accepts tokens in the Authorization
header: bearer tokens (RFC 6750), and tokens that are bound to a key with a proof of that key (DPoP, RFC 9449). Public
metadata (RFC 9728) names the issuers of tokens.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import unquote_to_bytes

import anyio
import msgspec
from mcp.server.auth.handlers.metadata import ProtectedResourceMetadataHandler
from mcp.server.auth.routes import build_resource_metadata_url, cors_middleware
from mcp.shared.auth import ProtectedResourceMetadata
from pydantic import AnyHttpUrl, ConfigDict, TypeAdapter
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Match, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_mirror.errors import MirrorError
from mcp_mirror.server.auth.keys import Issuers, KeysUnavailableError
from mcp_mirror.server.auth.principals import Principal, build_scope_entries, find_principal
from mcp_mirror.server.auth.proofs import ALGORITHMS, ProofVerifier
from mcp_mirror.server.http.graceful_shutdown import ListenStream, is_listen_request
from mcp_mirror.server.http.rejected_requests import RejectedRequests
from mcp_mirror.settings.access import AuthPolicy, is_loopback
from mcp_mirror.settings.policies import ServerPolicy

_URL: Final = TypeAdapter(AnyHttpUrl, config=ConfigDict(url_preserve_empty_path=True))
"""Keeps an empty path, because clients compare issuers as strings."""
_TOKEN_PARAMETERS: Final = frozenset({"access_token", "token", "authorization", "api_key", "apikey", "bearer"})
"""Query parameters with which clients send tokens in URLs, which logs and histories keep."""
_SCHEMES: Final[Mapping[str, str]] = {"bearer": "Bearer", "dpop": "DPoP"}


class _Rejection(msgspec.Struct, frozen=True):
    """A reason for which the gate rejects a request."""

    description: str
    error: str | None = "invalid_token"
    """The OAuth error code; None for requests without a token."""
    status: int = 401
    outcome: str = "no good token"
    """The outcome in the audit log."""
    explanation: str = ""
    """A sentence for the log; default: the description."""


_MISPLACED_TOKEN: Final = _Rejection(
    "Send exactly one token, in the Authorization header.", "invalid_request", 400, "misplaced token"
)
_MISSING_TOKEN: Final = _Rejection("A token is required, in the Authorization header.", None)
_INVALID_TOKEN: Final = _Rejection("The token is unknown, has expired, or is not for this server.")
_BOUND_TOKEN: Final = _Rejection("The token is bound to a key. Send it as DPoP, with a proof of that key.")
_BEARER_TOKEN: Final = _Rejection("The token is not bound to a key. Send it as Bearer.")
_INVALID_PROOF: Final = _Rejection(
    "Send a new proof with each request, signed with the token's key, for this method, URL, token and time.",
    "invalid_dpop_proof",
    outcome="no good proof",
)
_INSUFFICIENT_SCOPE: Final = _Rejection(
    "The token does not have the scope that is required.", "insufficient_scope", 403, "insufficient scope"
)


class Gate:
    """An ASGI middleware that admits only requests with a valid token."""

    def __init__(
        self,
        app: ASGIApp,
        read_policy: Callable[[], AuthPolicy],
        clock: Callable[[], float],
        rejected_requests: RejectedRequests,
    ) -> None:
        """Create a gate before an application.

        `read_policy` returns the policy now: a request is checked by that of its arrival. The clock returns monotonic
        seconds.
        """
        self._rejected_requests = rejected_requests
        self._app = app
        self._clock = clock
        self._proofs = ProofVerifier(time.time)
        self._issuers = Issuers((), clock)
        self._streams: dict[anyio.Event, tuple[Principal, Scope]] = {}
        """The open listen streams, by the event that ends each of them."""
        self._read_policy = read_policy
        self._apply_policy(read_policy())

    def _apply_policy(self, policy: AuthPolicy) -> None:
        self._policy = policy
        self._issuers = Issuers(policy.issuers, self._clock, self._issuers)
        self._metadata, self._metadata_url = _build_metadata(policy)
        for ended, (principal, scope) in self._streams.items():
            if not self._admits(principal, scope):
                ended.set()

    def _admits(self, principal: Principal, scope: Scope) -> bool:
        """Whether the policy still gives the token of an open stream the same rights."""
        if principal.expires is None:
            _, token = _read_credentials(Request(scope).headers["authorization"])
            is_known = find_principal(token, self._policy.tokens, self._policy.scopes) == principal
        else:
            is_known = principal.issuer in {one.issuer for one in self._policy.issuers}
        return is_known and principal.scopes.issuperset(self._policy.scopes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or reject it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # the server rejects a WebSocket that the application does not accept
        if (policy := self._read_policy()) is not self._policy:
            self._apply_policy(policy)
        if any(route.matches(scope)[0] is not Match.NONE for route in self._metadata.routes):
            await self._metadata(scope, receive, send)
        else:
            result = await self._authenticate(Request(scope))
            if isinstance(result, JSONResponse):
                await result(scope, receive, send)
            else:
                await self._serve(
                    result, {**scope, **build_scope_entries(result.namespace, result.scopes)}, receive, send
                )

    async def _serve(self, principal: Principal, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve an admitted request. A listen stream ends when its token is not valid any more; calls continue."""
        if not is_listen_request(scope):
            await self._app(scope, receive, send)
            return
        ended = anyio.Event()
        timer = None
        if principal.expires is not None:
            timer = asyncio.get_running_loop().call_later(principal.expires - time.time(), ended.set)
        self._streams[ended] = principal, scope
        try:
            await ListenStream(receive, send, ended).serve(self._app, scope)
        finally:
            del self._streams[ended]
            if timer is not None:
                timer.cancel()

    async def _authenticate(self, request: Request) -> Principal | JSONResponse:
        """Return the principal of a request, or the response that rejects it."""
        headers = request.headers.getlist("authorization")
        scheme, token = _read_credentials((headers or [""])[0])
        if _read_parameter_names(request) & _TOKEN_PARAMETERS or len(headers) > 1:
            return self._reject(_MISPLACED_TOKEN, scheme)
        if scheme is None or not token:
            return self._reject(_MISSING_TOKEN, None)
        try:
            found = find_principal(token, self._policy.tokens, self._policy.scopes)
            principal = found or (await self._issuers.find_principal(token) if self._policy.issuers else None)
        except KeysUnavailableError as error:
            self._rejected_requests.report("keys unavailable", str(error))
            return JSONResponse(_build_error_body("temporarily_unavailable", str(error)), 503, {"retry-after": "10"})
        if principal is None:
            return self._reject(_INVALID_TOKEN, scheme)
        if (refusal := self._check_principal(principal, request, scheme, token)) is None:
            return principal
        return self._reject(refusal, "DPoP" if principal.key else "Bearer", principal.namespace)

    def _check_principal(self, principal: Principal, request: Request, scheme: str, token: str) -> _Rejection | None:
        """Check the scheme, the proof and the scopes of a request with a valid token; return why it is rejected."""
        if (principal.key is not None) != (scheme == "DPoP"):
            return _BOUND_TOKEN if principal.key else _BEARER_TOKEN
        if principal.key is not None and not self._proofs.verify(request, token, principal, self._policy.resource):
            return _INVALID_PROOF
        if missing := [scope for scope in self._policy.scopes if scope not in principal.scopes]:
            explanation = f"The token does not have the scope {' '.join(missing)} of `auth.scopes`."
            return msgspec.structs.replace(_INSUFFICIENT_SCOPE, explanation=explanation)
        return None

    def _reject(self, refusal: _Rejection, scheme: str | None, namespace: str = "") -> JSONResponse:
        """Return a response with a challenge for each scheme (RFC 6750, section 3; RFC 9449, section 7.1)."""
        self._rejected_requests.report(refusal.outcome, refusal.explanation or refusal.description, namespace)
        are_bound = [issuer.require_dpop for issuer in self._policy.issuers]
        accepted = {"Bearer": self._policy.tokens or not all(are_bound), "DPoP": any(are_bound)}
        schemes = [one for one, is_accepted in accepted.items() if is_accepted] if scheme is None else [scheme]
        challenge = {"www-authenticate": ", ".join(self._build_challenge(one, refusal) for one in schemes)}
        body = _build_error_body(refusal.error or "invalid_token", refusal.description)
        return JSONResponse(body, refusal.status, challenge)

    def _build_challenge(self, scheme: str, refusal: _Rejection) -> str:
        parameters = {
            "error": refusal.error or "",  # RFC 6750, section 3.1: not for requests without a token
            "error_description": refusal.description if refusal.error else "",
            "scope": " ".join(self._policy.scopes),
            "resource_metadata": self._metadata_url,
            "algs": " ".join(ALGORITHMS) if scheme == "DPoP" else "",
        }
        fields = ", ".join(f'{name}="{value}"' for name, value in parameters.items() if value)
        return f"{scheme} {fields}".rstrip()


def _read_credentials(header: str) -> tuple[str | None, str]:
    """Return the scheme of an Authorization header, None for an unknown one, and the token."""
    name, _, credentials = header.partition(" ")
    return _SCHEMES.get(name.lower()), credentials.strip()


def _read_parameter_names(request: Request) -> set[str]:
    """Return the names of the query's parameters in lower case; anybody may send thousands, and broken escapes."""
    names = {part.partition(b"=")[0] for part in request.scope["query_string"].split(b"&")}
    return {unquote_to_bytes(name).decode("latin-1").lower() for name in names}


def check_address(host: str, auth: AuthPolicy, server: ServerPolicy) -> None:
    """Check that the configuration is safe for an address that other machines can reach.

    Raises:
        MirrorError: The address is not a loopback address, and `auth` or `server.allowed_hosts` is missing.
    """
    if is_loopback(host):
        return
    if not auth.is_required:
        raise MirrorError(
            f"{host!r} is not a loopback address, and without 'auth:' all clients that reach it would be admitted. "
            "Write 'auth:' with tokens or issuers, or serve on 127.0.0.1."
        )
    if not server.allowed_hosts:
        raise MirrorError(
            f"{host!r} is not a loopback address. Name in 'server.allowed_hosts' the hosts under which clients reach "
            "it, such as tools.example.com; the gateway rejects requests for other hosts."
        )


def _build_error_body(error: str, description: str) -> dict[str, str]:
    return {"error": error, "error_description": description}


def _build_metadata(policy: AuthPolicy) -> tuple[Router, str]:
    """Return routes for the protected resource metadata, and its URL; none if the configuration has no issuers."""
    if not (policy.resource and policy.issuers):
        return Router(), ""
    resource = _URL.validate_python(policy.resource)
    url = build_resource_metadata_url(resource)
    is_bound = not policy.tokens and all(one.require_dpop for one in policy.issuers)
    metadata = ProtectedResourceMetadata(
        resource=resource,
        authorization_servers=[_URL.validate_python(one.issuer) for one in policy.issuers],
        scopes_supported=list(policy.scopes) or None,
        resource_name="mcp-mirror",
        dpop_signing_alg_values_supported=list(ALGORITHMS),
        dpop_bound_access_tokens_required=is_bound or None,
    )
    methods = ["GET", "OPTIONS"]
    endpoint = cors_middleware(ProtectedResourceMetadataHandler(metadata).handle, methods)
    return Router([Route(url.path or "/", endpoint, methods=methods)]), str(url)
