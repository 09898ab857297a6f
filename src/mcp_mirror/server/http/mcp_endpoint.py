"""The MCP endpoint over Streamable HTTP: the innermost ASGI application of the gateway.

A request is admitted, its body is received, and then the direct path answers it or, if it must, the SDK.
"""

from collections import Counter
from typing import Final

import mcp_types as types
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_mirror.callers import Caller
from mcp_mirror.server.auth.principals import read_namespace, read_scopes
from mcp_mirror.server.http.connections import find_connection
from mcp_mirror.server.http.direct import DirectHttp
from mcp_mirror.server.http.hosts import AddressCheck
from mcp_mirror.server.http.rejected_requests import (
    UNKNOWN_SESSION,
    RejectedError,
    build_busy_response,
    build_error_response,
)
from mcp_mirror.server.http.request_bodies import RequestBodies
from mcp_mirror.server.http.sdk import SdkHttp
from mcp_mirror.server.request_context import HttpRequest, keep_client_headers, read_request
from mcp_mirror.server.server import MirrorServer

_NOT_FOUND: Final = 404
_OUTCOMES: Final = {
    400: "malformed message",
    403: "foreign origin",
    404: "unknown endpoint",
    408: "body did not come",
    413: "message too large",
    415: "encoded body",
    421: "foreign host",
    429: "too many",
}
"""The outcome of a rejected request in the audit log, by its status."""


class McpEndpoint:
    """The ASGI application of the MCP endpoint."""

    def __init__(self, sdk_app: ASGIApp, server: MirrorServer, addresses: AddressCheck) -> None:
        """Serve clients of `server`; `sdk_app` is the SDK's application for the same clients."""
        self._sdk_app = sdk_app
        self._addresses = addresses
        self._spool = server.spool
        self._sessions = server.handlers.sessions
        self._rejected_requests = server.rejected_requests
        self._bodies = RequestBodies(server.spool)
        self._path = server.policy.path
        self._gateway = server.handlers.gateway
        self._direct_http = DirectHttp(server.direct_path, self._sessions)
        self._sdk_http = SdkHttp(sdk_app, self._direct_http, server)
        self._open_requests: Counter[str] = Counter()
        """The number of open requests by namespace."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or reject it."""
        if scope["type"] != "http":
            await self._sdk_app(scope, receive, send)
            return
        try:
            await self._serve(self._admit(scope), receive, send)
        except RejectedError as rejected:
            status = rejected.response.status_code
            outcome = rejected.outcome or _OUTCOMES.get(status, "not taken")
            self._rejected_requests.report_response(status, outcome, read_namespace(scope))
            await rejected.response(scope, receive, send)

    def _admit(self, scope: Scope) -> HttpRequest:
        """Return the head of a request that is served.

        Raises:
            RejectedError: The host, the origin, the endpoint or the session is unknown, or too many requests are open.
        """
        # Checked first, so that a web page in the user's browser cannot make the gateway read a body.
        if refusal := self._addresses.refuse(scope):
            raise RejectedError(refusal)
        if names := self._gateway.upstreams.client_header_names:
            keep_client_headers(scope, names)
        request, limit = read_request(scope), self._spool.policy.traffic.requests_per_principal
        if self._open_requests[request.namespace] >= limit:
            raise RejectedError(build_busy_response(429, "requests_per_principal", limit, "requests are open"))
        if not self._has_endpoint(request):
            reason = f"Not Found. The endpoint is {self._path} (`server.path`). Correct the URL or the proxy."
            raise RejectedError(PlainTextResponse(reason, _NOT_FOUND))
        if self._sessions.is_closing(request.session_key):
            response = build_error_response(_NOT_FOUND, types.INVALID_REQUEST, "Session not found")
            raise RejectedError(response, UNKNOWN_SESSION)
        return request

    def _has_endpoint(self, request: HttpRequest) -> bool:
        """Whether the endpoint of a request exists for its sender, and the session was created there."""
        upstream = request.upstream
        if request.scope["path"] != self._path:
            return False
        if upstream:
            sender = Caller(request.namespace, scopes=read_scopes(request.scope), upstream=upstream)
            if not self._gateway.upstreams.visible_to(sender):
                return False
        return self._sessions.is_created_at(request.session_key, upstream)

    async def _serve(self, request: HttpRequest, receive: Receive, send: Send) -> None:
        """Serve an admitted request, and count it while it is open."""
        method = request.scope["method"]
        self._open_requests[request.namespace] += 1
        try:
            with self._sessions.in_use(request.session_key):
                if method == "POST":
                    await self._post(request, receive, send)
                else:
                    await self._sdk_http.serve(request, receive, send)
        finally:
            self._open_requests[request.namespace] -= 1
            if not self._open_requests[request.namespace]:
                del self._open_requests[request.namespace]
        if method == "DELETE":
            self._sessions.end(request.session_key)

    async def _post(self, request: HttpRequest, receive: Receive, send: Send) -> None:
        """Receive a message, and answer it on the direct path or with the SDK."""
        if not request.headers.get("content-type", "").lower().startswith("application/json"):
            raise RejectedError(PlainTextResponse("The body must be application/json.", 400))
        if connection := find_connection(request.scope):
            connection.is_admitted = True
        try:
            body = await self._bodies.receive(request, receive)
        except ClientDisconnect:
            return
        if not isinstance(body, bytes) or not await self._direct_http.answer(body, request, send):
            with self._spool.holding(body):
                await self._sdk_http.answer(body, request, receive, send)
