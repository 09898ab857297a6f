"""The gate before our face on HTTP: who shows no good token gets a challenge, and not a byte of the body is read.

Bearer tokens (RFC 6750) are taken from the Authorization header alone. Where clients can get one is said in metadata
(RFC 9728), which everybody may read.
"""

import logging
import time
from collections.abc import Callable
from typing import Final

import anyio
from mcp.server.auth.routes import build_resource_metadata_url, create_protected_resource_routes
from pydantic import AnyHttpUrl, ConfigDict, TypeAdapter
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Match, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_mirror.access import AuthPolicy, is_loopback
from mcp_mirror.audit import SILENT, Audit, AuditRecord
from mcp_mirror.errors import MirrorError
from mcp_mirror.faces.auth.jwts import Issuers
from mcp_mirror.faces.auth.keys import KeysUnavailableError
from mcp_mirror.faces.auth.principals import Principal, scope_of
from mcp_mirror.faces.auth.tokens import find_principal
from mcp_mirror.faces.farewell import ListeningStream, only_listens
from mcp_mirror.policies import ServerPolicy

_logger = logging.getLogger(__name__)

_URL: Final = TypeAdapter(AnyHttpUrl, config=ConfigDict(url_preserve_empty_path=True))
"""An issuer is compared letter by letter."""
_IN_QUERY: Final = frozenset({"access_token", "token", "authorization", "api_key", "apikey", "bearer"})
"""Names under which clients put tokens into URLs, where logs and histories keep them."""


class Gate:
    """Wraps an ASGI application that only principals may use."""

    def __init__(self, app: ASGIApp, policy: AuthPolicy, clock: Callable[[], float], audit: Audit = SILENT) -> None:
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
        given = request.headers.getlist("authorization")
        if _IN_QUERY.intersection(map(str.lower, request.query_params)) or len(given) > 1:
            return self._refusal(400, "invalid_request", "Send one token, in the Authorization header alone.")
        scheme, _, token = (given or [""])[0].partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            return self._refusal(401, None, "A bearer token is required, in the Authorization header.")
        try:
            principal = await self._verify(token.strip())
        except KeysUnavailableError as error:
            return JSONResponse(_body("temporarily_unavailable", str(error)), 503, {"retry-after": "10"})
        if principal is None:
            return self._refusal(401, "invalid_token", "The token is unknown, has expired, or is not for this server.")
        if missing := [scope for scope in self._policy.scopes if scope not in principal.scopes]:
            _logger.info("A token is refused: it lacks %d scopes", len(missing))
            said = "The token does not have the scope that is required."
            return self._refusal(403, "insufficient_scope", said, principal.namespace)
        return principal

    async def _verify(self, token: str) -> Principal | None:
        found = find_principal(token, self._policy.tokens, self._policy.scopes)
        return found or (await self._issuers.find_principal(token) if self._policy.issuers else None)

    def _refusal(self, status: int, error: str | None, description: str, namespace: str = "") -> JSONResponse:
        """A challenge as RFC 6750, section 3, has it: with an error only where there was a token."""
        self._audit.write(AuditRecord("refusal", namespace, "", _OUTCOMES[status]))
        told = {
            "error": error or "",
            "error_description": description if error else "",
            "scope": " ".join(self._policy.scopes),
            "resource_metadata": self._metadata_url,
        }
        fields = ", ".join(f'{name}="{value}"' for name, value in told.items() if value)
        challenge = {"www-authenticate": f"Bearer {fields}".rstrip()}
        return JSONResponse(_body(error or "invalid_token", description), status, challenge)


_OUTCOMES: Final = {400: "misplaced token", 401: "no good token", 403: "insufficient scope"}
"""What the audit log says of a refusal."""


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


def _metadata_of(policy: AuthPolicy) -> tuple[Router, str]:
    """What serves our metadata, and its URL; nothing where there is nobody to get a token from."""
    if not (policy.resource and policy.issuers):
        return Router(), ""
    resource = _URL.validate_python(policy.resource)
    issuers = [_URL.validate_python(one.issuer) for one in policy.issuers]
    routes = create_protected_resource_routes(resource, issuers, list(policy.scopes) or None, "mcp-mirror")
    return Router(routes), str(build_resource_metadata_url(resource))
