"""A small authorization server, and an MCP server that requires its tokens and reports the requests that it got."""

import asyncio
import base64
import hashlib
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from waiting import until

CLIENT = ("the-client", "s3cr3t-c4nary-of-the-client")
EVENTS = "text/event-stream"
TOOLS = [
    {"name": name, "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
    for name in ("hear", "slow", "quote")
]


@dataclass
class Authority:
    """What it has given out, what it was asked, and what it shall do."""

    url: str = ""
    good: set[str] = field(default_factory=set)
    """Access tokens that the MCP server takes."""
    refresh: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    """Refresh tokens that were exchanged; a second use ends all tokens (RFC 9700, section 4.14.2)."""
    refreshes: int = 0
    """Refreshes that wait for another one, for `joins_within` seconds."""
    joins_within: float = 0.5
    is_joined: asyncio.Event = field(default_factory=asyncio.Event)
    codes: dict[str, str] = field(default_factory=dict)
    """Challenges by code."""
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """The requests to the token endpoint: the grant and all parameters of each."""
    expires_in: int = 3600
    granted: dict[str, Any] = field(default_factory=dict)
    """Changes to what the token endpoint grants."""
    registrations: int = 0
    """Clients that were registered."""
    registered: dict[str, Any] = field(default_factory=dict)
    """Changes to the clients that are registered."""
    status: int = 200
    """Of the token endpoint's answers."""
    denied: str = "access_denied"
    """The error for the browser if `status` is not 200."""
    redirect: dict[str, str] = field(default_factory=dict)
    """Further parameters of the redirect with the code."""
    error_status: int = 400
    """Of the token endpoint's answers to bad requests."""
    page_status: int = 0
    """Of the page that a proxy sends in place of the token endpoint's answers; 0: no proxy."""
    metadata_status: int = 200
    metadata: dict[str, Any] = field(default_factory=dict)
    """Changes to the metadata that the server sends."""
    issuer: str = ""
    other_issuers: list[str] = field(default_factory=list)
    """Authorization servers that the metadata of the MCP server names before this one."""
    is_for_this_server: bool = True
    """Whether the MCP server takes new access tokens."""
    is_open: bool = False
    """Whether the MCP server takes requests without a token."""
    named: str = ""
    """The resource in the metadata of the MCP server; default: the right one."""
    resource_metadata: str = ""
    """The address of these metadata in the MCP server's challenge; default: the right one."""
    realm: str = ""
    """The realm in that challenge."""
    rights: str = ""
    """A scope that calls require."""
    entitled: set[str] = field(default_factory=set)
    """Access tokens with this scope."""
    scopes: str = ""
    """That were asked for last."""
    page_query: dict[str, str] = field(default_factory=dict)
    """Of the page that the browser opened last."""
    has_streams: bool = False
    """Whether the MCP server has sessions with event streams."""
    streams: int = 0
    """Event streams that were opened."""
    refused_streams: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Ends the event streams that are open."""
    slow: int = 0
    """Calls that are under way now; their answers come when there are as many as they say."""
    enough: asyncio.Event = field(default_factory=asyncio.Event)

    def routes(self) -> list[Route]:
        return [
            Route("/.well-known/oauth-protected-resource/mcp", self.resource),
            Route("/.well-known/oauth-authorization-server", self.server),
            Route("/register", self.register, methods=["POST"]),
            Route("/authorize", self.authorize),
            Route("/token", self.token, methods=["POST"]),
            Route("/mcp", self.mcp, methods=["POST", "GET", "DELETE"]),
        ]

    async def resource(self, _: Request) -> Response:
        servers = [*self.other_issuers, self.issuer or self.url]
        return JSONResponse(
            {"resource": self.named or f"{self.url}/mcp", "authorization_servers": servers, "scopes_supported": ["a"]}
        )

    async def server(self, _: Request) -> Response:
        if self.metadata_status != 200:
            return Response(status_code=self.metadata_status)
        return JSONResponse({
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "registration_endpoint": f"{self.url}/register",
            "code_challenge_methods_supported": ["S256"],
            **self.metadata,
        })  # fmt: skip

    async def register(self, request: Request) -> Response:
        self.registrations += 1
        client = {"client_id": "registered", "token_endpoint_auth_method": "none", **self.registered}
        return JSONResponse(await request.json() | client)

    async def authorize(self, request: Request) -> Response:
        self.page_query = query = dict(request.query_params)
        self.scopes = query.get("scope", "")
        if self.status != 200:
            parameters = {"error": self.denied, "state": query["state"]}
        else:
            code = secrets.token_urlsafe(8)
            self.codes[code] = query["code_challenge"]
            parameters = {"code": code, "state": query["state"], **self.redirect}
        return RedirectResponse(f"{query['redirect_uri']}?{urlencode(parameters)}")

    async def token(self, request: Request) -> Response:
        form = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
        grant = form["grant_type"]
        self.asked.append((grant, {**form, "authorization": request.headers.get("authorization", "")}))
        if self.page_status:
            return Response("<html>Maintenance</html>", self.page_status, media_type="text/html")
        if grant == "refresh_token" and self.refreshes:
            await self._wait_for_another()
        if self.status != 200 or not self._is_allowed(grant, form, request):
            return JSONResponse({"error": "invalid_grant", "error_description": json.dumps(form)}, self.error_status)
        access, refresh = f"acc3ss-{secrets.token_urlsafe(24)}", f"r3fresh-{secrets.token_urlsafe(24)}"
        if self.is_for_this_server:
            self.good.add(access)
        self.refresh.add(refresh)
        if self.rights in self.scopes.split():
            self.entitled.add(access)
        granted = {"access_token": access, "token_type": "bearer", "expires_in": self.expires_in}
        if grant != "client_credentials":
            granted["refresh_token"] = refresh
        return JSONResponse(granted | self.granted)

    async def _wait_for_another(self) -> None:
        self.refreshes -= 1
        if not self.refreshes:
            self.is_joined.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.is_joined.wait(), self.joins_within)

    def _is_allowed(self, grant: str, form: dict[str, str], request: Request) -> bool:
        if grant == "client_credentials":
            basic = base64.b64encode(":".join(CLIENT).encode()).decode()
            return request.headers.get("authorization") == f"Basic {basic}"
        if grant == "refresh_token":
            known = form["refresh_token"] in self.refresh
            if form["refresh_token"] in self.used:
                self.refresh.clear()
                self.good.clear()
            self.refresh.discard(form["refresh_token"])
            self.used.add(form["refresh_token"])
            return known
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).decode()
        return self.codes.pop(form["code"], None) == challenge.rstrip("=")

    async def mcp(self, request: Request) -> Response:
        shown = request.headers.get("authorization", "").removeprefix("Bearer ")
        if shown not in self.good and not self.is_open:
            return self._refuse(request)
        if request.method != "POST":
            is_stream = request.method == "GET" and self.has_streams
            return StreamingResponse(self._stream(), media_type=EVENTS) if is_stream else Response(status_code=405)
        message = json.loads(await request.body())
        if "id" not in message:
            return Response(status_code=202)
        if self.rights and message["method"] == "tools/call" and shown not in self.entitled:
            challenge = f'Bearer error="insufficient_scope", scope="{self.rights}"'
            return Response(status_code=403, headers={"www-authenticate": challenge})
        result = await self._answer(message, request, shown)
        if result is None:
            error = {"code": -32601, "message": f"No such method. You sent {shown}."}
            return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "error": error})
        headers = {"mcp-session-id": "its"} if self.has_streams else {}
        return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": result}, headers=headers)

    def _refuse(self, request: Request) -> Response:
        self.refused_streams += request.method == "GET"
        metadata = self.resource_metadata or f"{self.url}/.well-known/oauth-protected-resource/mcp"
        challenge = f'Bearer realm="{self.realm}", resource_metadata="{metadata}"'
        response = Response(status_code=401)
        response.raw_headers.append((b"www-authenticate", challenge.encode()))
        return response

    async def _stream(self) -> AsyncIterator[bytes]:
        self.streams += 1
        yield b":\n\n"
        await self.ended.wait()

    async def _answer(self, message: dict[str, Any], request: Request, shown: str) -> dict[str, Any] | None:
        if message["method"] == "initialize":
            info = {"name": "guarded", "version": "1"}
            return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
        if message["method"] == "tools/list":
            return {"tools": TOOLS}
        if message["method"] != "tools/call" or message["params"]["name"] == "quote":
            return None
        if message["params"]["name"] == "slow":
            self.slow += 1
            if self.slow == message["params"]["arguments"]["enough"]:
                self.enough.set()
            await self.enough.wait()
        echo = json.dumps({"headers": dict(request.headers), "params": message["params"], "shown": shown[:2]})
        return {"content": [{"type": "text", "text": echo if message["params"]["name"] == "hear" else "slow"}]}


@asynccontextmanager
async def governing(authority: Authority) -> AsyncIterator[str]:
    """Serves it; gives its URL."""
    app = Starlette(routes=authority.routes())
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
    serving = asyncio.create_task(server.serve())
    try:
        await until(lambda: server.started)
        authority.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        yield authority.url
    finally:
        server.should_exit = True
        await serving
