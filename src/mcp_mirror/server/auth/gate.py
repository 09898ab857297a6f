"""The gate before our face on HTTP: who shows no good token gets a challenge, and not a byte of the body is read.

Tokens are taken from the Authorization header alone: of whoever shows them (Bearer, RFC 6750), and those that are bound
to a key of whoever proves to have it (DPoP, RFC 9449). Where clients can get one is said in metadata (RFC 9728), which
everybody may read.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import anyio
from mcp.server.auth.handlers.metadata import ProtectedResourceMetadataHandler
from mcp.server.auth.routes import build_resource_metadata_url, cors_middleware
from mcp.shared.auth import ProtectedResourceMetadata
from pydantic import AnyHttpUrl, ConfigDict, TypeAdapter
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Match, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_mirror.errors import MirrorError
from mcp_mirror.observability.audit import NO_AUDIT, Audit, AuditRecord
from mcp_mirror.server.auth.jwts import Issuers
from mcp_mirror.server.auth.keys import KeysUnavailableError
from mcp_mirror.server.auth.principals import Principal, scope_of
from mcp_mirror.server.auth.proofs import ALGORITHMS, Proofs
from mcp_mirror.server.auth.tokens import find_principal
from mcp_mirror.server.graceful_shutdown import ListeningStream, only_listens
from mcp_mirror.settings.access import AuthPolicy, is_loopback
from mcp_mirror.settings.policies import ServerPolicy

_logger = logging.getLogger(__name__)

_URL: Final = TypeAdapter(AnyHttpUrl, config=ConfigDict(url_preserve_empty_path=True))
"""An issuer is compared letter by letter."""
_IN_QUERY: Final = frozenset({"access_token", "token", "authorization", "api_key", "apikey", "bearer"})
"""Names under which clients put tokens into URLs, where logs and histories keep them."""
_SCHEMES: Final = {"bearer": "Bearer", "dpop": "DPoP"}


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why somebody is not let in."""

    status: int
    error: str | None
    """OAuth's code; None where no token came."""
    description: str
    outcome: str
    """What the audit log says of it."""


_MISPLACED: Final = _Refusal(
    400, "invalid_request", "Send one token, in the Authorization header alone.", "misplaced token"
)
_NONE: Final = _Refusal(401, None, "A token is required, in the Authorization header.", "no good token")
_BAD: Final = _Refusal(
    401, "invalid_token", "The token is unknown, has expired, or is not for this server.", "no good token"
)
_BOUND: Final = _Refusal(
    401, "invalid_token", "The token is bound to a key. Send it as DPoP, with a proof of that key.", "no good token"
)
_UNBOUND: Final = _Refusal(401, "invalid_token", "The token is bound to no key. Send it as Bearer.", "no good token")
_UNPROVED: Final = _Refusal(
    401,
    "invalid_dpop_proof",
    "Send one new proof with each request: of the token's key, for this method, URL, token and time.",
    "no good proof",
)
_NARROW: Final = _Refusal(
    403, "insufficient_scope", "The token does not have the scope that is required.", "insufficient scope"
)


class Gate:
    """Wraps an ASGI application that only principals may use."""

    def __init__(self, app: ASGIApp, policy: AuthPolicy, clock: Callable[[], float], audit: Audit = NO_AUDIT) -> None:
        """Let nobody in yet.

        Args:
            app: What they may use.
            policy: Who may.
            clock: Seconds that only grow.
            audit: Told who is refused.
        """
        self._audit = audit
        self._app = app
        self._clock = clock
        self._proofs = Proofs(time.time)
        self.obey(policy)

    def obey(self, policy: AuthPolicy) -> None:
        """Let in whom this policy names, and nobody else, from now on."""
        self._policy = policy
        self._issuers = Issuers(policy.issuers, self._clock)
        self._metadata, self._metadata_url = _metadata_of(policy)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http":
            return  # a WebSocket that is not accepted is refused
        elif any(route.matches(scope)[0] is not Match.NONE for route in self._metadata.routes):
            await self._metadata(scope, receive, send)
        else:
            answer = await self._admit(Request(scope))
            if isinstance(answer, JSONResponse):
                await answer(scope, receive, send)
            else:
                await self._serve(answer, {**scope, **scope_of(answer)}, receive, send)

    async def _serve(self, principal: Principal, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve who was let in. What only listens ends with the token; a call that has begun is answered."""
        if principal.expires is None or not only_listens(Request(scope)):
            await self._app(scope, receive, send)
            return
        over = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_set_after, over, principal.expires - time.time())
            stream = ListeningStream(receive, send, over)
            await self._app(scope, stream.receive, stream.send)
            await stream.end()
            tasks.cancel_scope.cancel()

    async def _admit(self, request: Request) -> Principal | JSONResponse:
        scheme, token = _shown(request)
        if _IN_QUERY.intersection(map(str.lower, request.query_params)) or len(_headers(request)) > 1:
            return self._refuse(_MISPLACED, scheme)
        if scheme is None or not token:
            return self._refuse(_NONE, None)
        try:
            principal = await self._verify(token)
        except KeysUnavailableError as error:
            return JSONResponse(_body("temporarily_unavailable", str(error)), 503, {"retry-after": "10"})
        if principal is None:
            return self._refuse(_BAD, scheme)
        flaw, wanted = self._flaw(principal, request), "DPoP" if principal.key else "Bearer"
        return principal if flaw is None else self._refuse(flaw, wanted, principal.namespace)

    def _flaw(self, principal: Principal, request: Request) -> _Refusal | None:
        """Why the principal of a good token is not let in with this request."""
        scheme, token = _shown(request)
        if (principal.key is not None) != (scheme == "DPoP"):
            return _BOUND if principal.key else _UNBOUND
        if principal.key is not None and not self._proofs.holds(request, token, principal, self._policy.resource):
            return _UNPROVED
        if missing := [scope for scope in self._policy.scopes if scope not in principal.scopes]:
            _logger.info("A token is refused: it lacks %d scopes", len(missing))
            return _NARROW
        return None

    async def _verify(self, token: str) -> Principal | None:
        found = find_principal(token, self._policy.tokens, self._policy.scopes)
        return found or (await self._issuers.find_principal(token) if self._policy.issuers else None)

    def _refuse(self, why: _Refusal, scheme: str | None, namespace: str = "") -> JSONResponse:
        """A challenge as RFC 6750, section 3, and RFC 9449, section 7.1, have it: an error only where a token came."""
        self._audit.write(AuditRecord("refusal", namespace, "", why.outcome))
        _logger.info("A request is refused: %s", why.outcome)
        challenge = {"www-authenticate": ", ".join(self._challenge(one, why) for one in self._schemes(scheme))}
        return JSONResponse(_body(why.error or "invalid_token", why.description), why.status, challenge)

    def _schemes(self, scheme: str | None) -> list[str]:
        """By which schemes a token may come: the one that it takes, or all that are taken."""
        policy = self._policy
        if scheme is not None:
            return [scheme]
        takes_bearers = policy.tokens or not all(one.require_dpop for one in policy.issuers)
        wants_proofs = any(one.require_dpop for one in policy.issuers)
        return [*(["Bearer"] if takes_bearers else []), *(["DPoP"] if wants_proofs else [])]

    def _challenge(self, scheme: str, why: _Refusal) -> str:
        told = {
            "error": why.error or "",
            "error_description": why.description if why.error else "",
            "scope": " ".join(self._policy.scopes),
            "resource_metadata": self._metadata_url,
            "algs": " ".join(ALGORITHMS) if scheme == "DPoP" else "",
        }
        fields = ", ".join(f'{name}="{value}"' for name, value in told.items() if value)
        return f"{scheme} {fields}".rstrip()


def check_address(host: str, auth: AuthPolicy, server: ServerPolicy) -> None:
    """What is needed before others than this machine's users may reach the gateway at an address.

    Raises:
        MirrorError: It is not there.
    """
    if is_loopback(host):
        return
    if not auth.is_required:
        raise MirrorError(
            f"{host!r} is not a loopback address, and whoever reaches it would be let in. Write 'auth:' with tokens or "
            "issuers, or serve on 127.0.0.1."
        )
    if not server.allowed_hosts:
        raise MirrorError(
            f"{host!r} is not a loopback address. Name in 'server.allowed_hosts' the hosts under which clients reach "
            "it, such as tools.example.com; other names are refused."
        )


async def _set_after(event: anyio.Event, seconds: float) -> None:
    await anyio.sleep(seconds)
    event.set()


def _body(error: str, description: str) -> dict[str, str]:
    return {"error": error, "error_description": description}


def _headers(request: Request) -> list[str]:
    return request.headers.getlist("authorization")


def _shown(request: Request) -> tuple[str | None, str]:
    """By which scheme a token came, if it is one of ours, and the token."""
    written, _, token = (_headers(request) or [""])[0].partition(" ")
    return _SCHEMES.get(written.lower()), token.strip()


def _metadata_of(policy: AuthPolicy) -> tuple[Router, str]:
    """What serves our metadata, and its URL; nothing where there is nobody to get a token from."""
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
    served = cors_middleware(ProtectedResourceMetadataHandler(metadata).handle, methods)
    return Router([Route(url.path or "/", served, methods=methods)]), str(url)
