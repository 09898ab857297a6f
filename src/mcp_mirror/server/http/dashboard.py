"""Serves the dashboard beside the MCP endpoint, behind its authentication, and in a process of its own."""

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_mirror.callers import LOCAL
from mcp_mirror.dashboard.api import API_PREFIX, CHANGE_HEADER, DashboardApi, refuse, respond
from mcp_mirror.dashboard.services import VIEWER_KEY, DashboardServices, Viewer
from mcp_mirror.dashboard.static_files import STATIC_PREFIX, serve_static
from mcp_mirror.gateway.gateway import Gateway
from mcp_mirror.server.auth.principals import read_namespace, read_scopes
from mcp_mirror.server.http.hosts import AddressCheck
from mcp_mirror.settings.policies import Config, DashboardPolicy

_LOGIN_PATH: Final = f"{API_PREFIX}login"
"""The path at which the page exchanges the one-time token of a link."""
_NEXT_STEP: Final = "Run `mcp-mirror dashboard` again and open the link that it prints."
_PATHS: Final = ("/", API_PREFIX, STATIC_PREFIX)


def is_served(config: Config) -> bool:
    """Whether the HTTP server serves the page: it is enabled, values can be stored, and its paths are free."""
    endpoint = f"{config.server.path.rstrip('/')}/"
    return config.dashboard.enabled and not config.is_transparent and endpoint not in _PATHS


def build_api(gateway: Gateway, config: Config) -> DashboardApi:
    """Return the API over the store of a running gateway."""
    return DashboardApi(
        DashboardServices(
            store=gateway.services.writer.store,
            scanner=gateway.services.scanner,
            queries=gateway.services.queries,
            config=config,
            limits=gateway.services.writer.policy,
            read_flows=lambda: gateway.state.flows,
            audit=gateway.audit,
            on_change=gateway.services.writer.on_change,
        )
    )


def _route_part(
    app: ASGIApp, part: ASGIApp, is_part: Callable[[str], bool], addresses: AddressCheck, endpoint: str
) -> ASGIApp:
    """Direct requests for a part of the page to it, and all others to the application with the MCP endpoint.

    Behind a TLS proxy the page's own origin need not be one of `server.allowed_origins`. The API rejects other pages.
    """

    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope.get("path", endpoint)
        is_of_endpoint = path == endpoint or path.startswith(f"{endpoint.rstrip('/')}/")
        if is_of_endpoint or not is_part(path):
            await app(scope, receive, send)
        else:
            await (addresses.refuse(scope, by_origin=False) or part)(scope, receive, send)

    return route


def route_api(app: ASGIApp, api: ASGIApp, policy: DashboardPolicy, addresses: AddressCheck, path: str) -> ASGIApp:
    """Add the API, behind the authentication. Without `auth`, the viewer of a request is the local user."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        scopes, wanted = read_scopes(scope), policy.operator_scopes
        is_operator = bool(wanted) and scopes is not None and scopes.issuperset(wanted)
        viewer = Viewer(read_namespace(scope), is_operator, is_operator and policy.operators_read_values)
        await api({**scope, VIEWER_KEY: viewer}, receive, send)

    return _route_part(app, serve, lambda below: below.startswith(API_PREFIX), addresses, path)


def route_static(app: ASGIApp, addresses: AddressCheck, path: str, *, needs_token: bool) -> ASGIApp:
    """Add the files of the page, which contain no data, before the authentication."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        await serve_static(Request(scope), needs_token=needs_token)(scope, receive, send)

    return _route_part(app, serve, lambda below: below == "/" or below.startswith(STATIC_PREFIX), addresses, path)


@dataclass(slots=True)
class LocalDashboard:
    """The dashboard of `mcp-mirror dashboard`: a link with a one-time token opens it, for the user of this machine.

    The page exchanges the token of the link for a token of the session, which it sends with each request. If a link is
    used again, `announce` gets a new one.
    """

    api: ASGIApp
    addresses: AddressCheck
    announce: Callable[[str], None]
    """Called with the one-time token of each link."""
    _unused: str = field(default="", repr=False)
    _used: set[str] = field(default_factory=set, repr=False)
    _sessions: set[str] = field(default_factory=set, repr=False)

    def open_link(self) -> None:
        """Announce a new link."""
        self._unused = secrets.token_urlsafe(32)
        self.announce(self._unused)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        await self._route(scope)(scope, receive, send)

    def _route(self, scope: Scope) -> ASGIApp:
        if refusal := self.addresses.refuse(scope):
            return refusal
        request = Request(scope)
        if not request.url.path.startswith(API_PREFIX):
            return serve_static(request)
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer":
            token = ""
        if request.url.path == _LOGIN_PATH:
            return self._exchange(request, token)
        if not _is_among(token, self._sessions):
            return refuse(401, f"This page has no valid session. {_NEXT_STEP}")
        scope[VIEWER_KEY] = Viewer(LOCAL, is_operator=True, reads_others=True, reads_hidden=True)
        return self.api

    def _exchange(self, request: Request, token: str) -> ASGIApp:
        """Exchange the token of a link for the token of a session."""
        if request.method != "POST" or CHANGE_HEADER not in request.headers:
            return refuse(405, f"Send POST with the header {CHANGE_HEADER}.")
        if self._unused and hmac.compare_digest(token.encode(), self._unused.encode()):
            self._used.add(self._unused)
            self._unused = ""
            session = secrets.token_urlsafe(32)
            self._sessions.add(session)
            return respond({"token": session})
        if _is_among(token, self._used):
            if not self._unused:
                self.open_link()
            return refuse(401, "This link was used before. The terminal of `mcp-mirror dashboard` shows a new one.")
        return refuse(401, f"This link is not valid. {_NEXT_STEP}")


def _is_among(token: str, known: set[str]) -> bool:
    """Whether a token is known, in a time that does not depend on its characters."""
    found = [hmac.compare_digest(token.encode(), one.encode()) for one in known]
    return any(found)
