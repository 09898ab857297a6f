"""The MCP server that clients see: lists, calls, instructions, and news of changes, in both protocol eras."""

import json
from collections.abc import Callable
from typing import Any, Final

import anyio
import mcp_types as types
import msgspec
from mcp.server import CacheHint, NotificationOptions, Server
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.types import ASGIApp

from mcp_mirror.errors import ToolError
from mcp_mirror.faces.http import PayloadLayer
from mcp_mirror.faces.postbox import Postbox
from mcp_mirror.faces.stdio import stdio_streams
from mcp_mirror.gateway import Gateway, Reply, ToolCall, error_reply
from mcp_mirror.policies import ServerPolicy
from mcp_mirror.spool import Spool
from mcp_mirror.tools import OWN_TOOLS, RETRIEVE
from mcp_mirror.upstreams.supervisor import Upstream
from mcp_mirror.wire import MARK

LOCAL: Final = "local"
"""The namespace of the one user of an unauthenticated gateway."""

STATUS_URI: Final = "mcp-mirror://upstreams"

_INSTRUCTIONS: Final = 3900
"""Characters of instructions; a client cuts at 4,096."""
_UPSTREAM_INSTRUCTIONS: Final = 600
_GREETING_WAIT: Final = 3.0
"""Seconds that a handshake waits for upstreams, so that the instructions can speak of them."""
_TELLING: Final = 5.0
"""Seconds that telling one connection of a change may take."""
_SERVER_INFO: Final = types.SERVER_INFO_META_KEY
_HOSTS: Final = ["127.0.0.1:*", "localhost:*", "[::1]:*"]
_ORIGINS: Final = [f"http://{host}" for host in _HOSTS]
_SESSION_IDLE: Final = 1800.0
"""Seconds after which the SDK ends an HTTP session that nobody uses."""

_OWN_INSTRUCTIONS: Final = (
    "Tools whose name ends with {suffix} keep large results in memory and answer with a memory path. "
    "Give such a path, or path/key, as an argument of any of them where the value is wanted: the tool gets the "
    f"value itself. Do not copy stored data. Call {RETRIEVE} only for a value that you must show to the user."
)

Context = ServerRequestContext[Any, Any]


class Audience:
    """The 2025-era connections that are told of changes; 2026-era ones subscribe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._sessions: dict[str, tuple[ServerSession, float]] = {}

    def heard_from(self, context: Context) -> None:
        """Remember a connection, or that it is still in use."""
        key = context.request.headers.get("mcp-session-id", "") if context.request is not None else "stdio"
        now = self._clock()
        self._sessions = {k: v for k, v in self._sessions.items() if now - v[1] < _SESSION_IDLE or k == "stdio"}
        if context.method == "notifications/initialized" or key in self._sessions:
            known = self._sessions.get(key)
            self._sessions[key] = (known[0] if known else context.session, now)

    async def announce(self) -> None:
        """Tell every connection that the list of tools has changed; one that does not listen holds up no other."""
        async with anyio.create_task_group() as tasks:
            for key in tuple(self._sessions):
                tasks.start_soon(self._tell, key)

    async def _tell(self, key: str) -> None:
        with anyio.move_on_after(_TELLING):
            try:
                await self._sessions[key][0].send_tool_list_changed()
            except (MCPError, KeyError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                self._sessions.pop(key, None)


class MirrorServer:
    """Speaks MCP for a gateway, over any number of connections."""

    def __init__(
        self, gateway: Gateway, policy: ServerPolicy, spool: Spool, version: str, clock: Callable[[], float]
    ) -> None:
        self._gateway = gateway
        self._policy = policy
        self._spool = spool
        self._postbox = Postbox()
        self._bus = InMemorySubscriptionBus()
        self._listen = ListenHandler(self._bus)
        self._audience = Audience(clock)
        self._server: Server[Any] = Server(
            policy.name,
            version=version,
            cache_hints={"tools/list": CacheHint(ttl_ms=0, scope="private")},
            get_tool_input_schema=lambda _name: None,  # twins mirror no argument into a header
            on_list_tools=self._list_tools,  # type: ignore[arg-type]  # a handler may return a raw dict
            on_call_tool=self._call_tool,  # type: ignore[arg-type]  # as above
            on_list_resources=self._list_resources,
            on_read_resource=self._read_resource,
            on_subscriptions_listen=self._listen,
        )
        self._server.middleware[:] = [self._observe]  # the SDK's own spans cost a small call more than its work

    async def announce_tools(self) -> None:
        """Tell every client that the list of tools has changed."""
        await self._bus.publish(ToolsListChanged())
        await self._audience.announce()

    async def serve_stdio(self) -> None:
        """Serve the one client on standard input and output until it leaves."""
        async with stdio_streams(self._postbox, self._spool) as (read, write):
            await self._server.run(read, write, self._server.create_initialization_options(_ANNOUNCE))

    def http_app(self, host: str) -> ASGIApp:
        """An ASGI application that serves Streamable HTTP clients on a loopback address."""
        path, security = self._policy.path, TransportSecuritySettings(allowed_hosts=_HOSTS, allowed_origins=_ORIGINS)
        app = self._server.streamable_http_app(streamable_http_path=path, host=host, transport_security=security)
        return PayloadLayer(app, self._postbox, self._spool, security)

    async def _observe(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            self._audience.heard_from(ctx)
        if ctx.method in ("initialize", "server/discover"):
            return await self._greet(ctx, call_next)
        try:
            return await call_next(ctx)
        except BaseException:
            self._postbox.discard(_token(ctx))
            raise

    async def _greet(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        await self._gateway.upstreams.settle(min(_GREETING_WAIT, self._gateway.mirror.startup_wait))
        result = await call_next(ctx)
        assert isinstance(result, dict)  # noqa: S101  # the SDK hands on what it has serialised
        result["capabilities"].setdefault("tools", {})["listChanged"] = True
        return {**result, "instructions": self.instructions()}

    def instructions(self) -> str:
        """Ours, and what each upstream says of itself, bounded."""
        mirror = self._gateway.mirror
        own = _OWN_INSTRUCTIONS.format(suffix=mirror.suffix) if mirror.suffix else ""
        parts = [self._policy.instructions or "", own, *(_introduce(one) for one in self._gateway.upstreams)]
        return _cut("\n\n".join(part for part in parts if part), _INSTRUCTIONS)

    async def _list_tools(self, _context: Context, _params: object) -> dict[str, Any]:
        await self._gateway.upstreams.settle(self._gateway.mirror.startup_wait)
        twins = [entry.advert for entry in self._gateway.catalog.entries.values()]
        tools = msgspec.json.encode([*twins, *(tool.advert for tool in OWN_TOOLS.values())])
        return self._postbox.stub({"tools": []}, {"tools": tools})

    async def _call_tool(self, _context: Context, params: types.CallToolRequestParams) -> dict[str, Any]:
        try:
            arguments = self._postbox.arguments(params.meta, params.arguments)
        except ToolError as error:
            return self._postbox.stub({"content": []}, error_reply(str(error)), params.meta)
        reply = await self._gateway.call_tool(ToolCall(LOCAL, params.name, arguments))
        return self._postbox.stub({"content": [], "_meta": _meta_of(reply)}, reply, params.meta)

    async def _list_resources(self, _context: Context, _params: object) -> types.ListResourcesResult:
        status = types.Resource(
            uri=STATUS_URI,
            name="upstreams",
            title="Upstream servers",
            description="How each upstream server is: state, protocol version, tools, problems.",
            mime_type="application/json",
        )
        return types.ListResourcesResult(resources=[status])

    async def _read_resource(
        self, _context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        if str(params.uri) != STATUS_URI:
            raise MCPError(types.INVALID_PARAMS, f"There is no resource {str(params.uri)[:200]!r}; see resources/list.")
        text = json.dumps({"upstreams": self.status(), "requests": len(self._postbox)}, indent=1)
        content = types.TextResourceContents(uri=STATUS_URI, mime_type="application/json", text=text)
        return types.ReadResourceResult(contents=[content])

    def status(self) -> list[dict[str, Any]]:
        """How each upstream is."""
        return [_status(upstream) for upstream in self._gateway.upstreams]


_ANNOUNCE: Final = NotificationOptions(tools_changed=True)


def _token(ctx: Context) -> str | None:
    meta = (ctx.params or {}).get("_meta")
    return str(meta.get(MARK)) if isinstance(meta, dict) else None


def _meta_of(reply: Reply) -> dict[str, Any]:
    """What the upstream said beside its result, less who it is: the server is us."""
    raw = reply.get("_meta", b"{}")
    try:
        meta = json.loads(b"".join(raw if isinstance(raw, tuple) else (raw,)))
    except (ValueError, RecursionError):
        return {}
    return {key: value for key, value in meta.items() if key != _SERVER_INFO} if isinstance(meta, dict) else {}


def _status(upstream: Upstream) -> dict[str, Any]:
    listing = upstream.listing
    said = {} if listing is None else {
        "server": listing.server, "protocol_version": listing.protocol_version, "tools": len(listing.tools)
    }  # fmt: skip
    detail = {"detail": upstream.status.detail} if upstream.status.detail else {}
    problems = {"problems": listing.problems} if listing and listing.problems else {}
    state = {"name": upstream.policy.name, "state": upstream.status.state, "under_way": upstream.under_way}
    return state | said | detail | problems


def _introduce(upstream: Upstream) -> str:
    name, state = upstream.policy.name, upstream.status.state
    if state != "ready":
        return f"Server {name} is {state}; its tools cannot be called now."
    said = (upstream.listing.instructions or "").strip() if upstream.listing else ""
    return f"Server {name}: {_cut(said, _UPSTREAM_INSTRUCTIONS)}" if said else ""


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 4]} ..."
