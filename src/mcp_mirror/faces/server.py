"""The MCP server that clients see: lists, calls, instructions, and news of changes, in both protocol eras."""

import json
from collections.abc import Callable
from typing import Any, Final

import mcp_types as types
import msgspec
from mcp.server import CacheHint, NotificationOptions, Server
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.types import ASGIApp

from mcp_mirror.faces.http import PayloadLayer
from mcp_mirror.faces.postbox import Postbox
from mcp_mirror.faces.stdio import stdio_streams
from mcp_mirror.gateway import Gateway, ToolCall
from mcp_mirror.models import Buffer
from mcp_mirror.policies import ServerPolicy
from mcp_mirror.tools import OWN_TOOLS, RETRIEVE
from mcp_mirror.upstreams.supervisor import Upstream

LOCAL: Final = "local"
"""The namespace of the one user of an unauthenticated gateway."""

STATUS_URI: Final = "mcp-mirror://upstreams"

_INSTRUCTIONS: Final = 3900
"""Characters of instructions; a client cuts at 4,096."""
_UPSTREAM_INSTRUCTIONS: Final = 600
_GREETING_WAIT: Final = 3.0
"""Seconds that a handshake waits for upstreams, so that the instructions can speak of them."""
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
        """Tell every connection that the list of tools has changed."""
        for session, _ in tuple(self._sessions.values()):
            await session.send_tool_list_changed()


class MirrorServer:
    """Speaks MCP for a gateway, over any number of connections."""

    def __init__(self, gateway: Gateway, policy: ServerPolicy, version: str, clock: Callable[[], float]) -> None:
        self._gateway = gateway
        self._policy = policy
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
        self._server.middleware.append(self._observe)

    async def announce_tools(self) -> None:
        """Tell every client that the list of tools has changed."""
        await self._bus.publish(ToolsListChanged())
        await self._audience.announce()

    async def serve_stdio(self) -> None:
        """Serve the one client on standard input and output until it leaves."""
        async with stdio_streams(self._postbox, self._policy.max_message_bytes) as (read, write):
            await self._server.run(read, write, self._server.create_initialization_options(_ANNOUNCE))

    def http_app(self, host: str) -> ASGIApp:
        """An ASGI application that serves Streamable HTTP clients."""
        app = self._server.streamable_http_app(streamable_http_path=self._policy.path, host=host)
        return PayloadLayer(app, self._postbox, self._policy.max_message_bytes)

    async def _observe(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            self._audience.heard_from(ctx)
        if ctx.method not in ("initialize", "server/discover"):
            return await call_next(ctx)
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
        arguments: Buffer = self._postbox.arguments(params.meta, params.arguments)
        reply = await self._gateway.call_tool(ToolCall(LOCAL, params.name, arguments))
        raw = reply.get("_meta", b"{}")
        meta = {} if isinstance(raw, tuple) else json.loads(bytes(raw))
        meta.pop(types.SERVER_INFO_META_KEY, None)  # we are the server
        return self._postbox.stub({"content": [], "_meta": meta}, reply)

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
        text = json.dumps({"upstreams": self.status()}, indent=1)
        content = types.TextResourceContents(uri=STATUS_URI, mime_type="application/json", text=text)
        return types.ReadResourceResult(contents=[content])

    def status(self) -> list[dict[str, Any]]:
        """How each upstream is."""
        return [_status(upstream) for upstream in self._gateway.upstreams]


_ANNOUNCE: Final = NotificationOptions(tools_changed=True)


def _status(upstream: Upstream) -> dict[str, Any]:
    listing = upstream.listing
    said = {} if listing is None else {
        "server": listing.server, "protocol_version": listing.protocol_version, "tools": len(listing.tools)
    }  # fmt: skip
    detail = {"detail": upstream.status.detail} if upstream.status.detail else {}
    return {"name": upstream.policy.name, "state": upstream.status.state} | said | detail


def _introduce(upstream: Upstream) -> str:
    if upstream.listing is None:
        return f"Server {upstream.policy.name} is {upstream.status.state}; its tools are not listed now."
    said = upstream.listing.instructions
    return f"Server {upstream.policy.name}: {_cut(said.strip(), _UPSTREAM_INSTRUCTIONS)}" if said else ""


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 4]} ..."
