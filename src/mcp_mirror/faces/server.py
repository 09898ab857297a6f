"""The MCP server that clients see: who connects, what we say of ourselves, and the two transports, in both eras."""

from collections.abc import Mapping
from typing import Any, Final

import anyio
from mcp.server import CacheHint, NotificationOptions, Server
from mcp.server.context import CallNext, HandlerResult
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.types import ASGIApp

from mcp_mirror.callers import Silent
from mcp_mirror.faces.exchange import Context, meta_of, read_caller
from mcp_mirror.faces.handlers import LOCAL, Handlers
from mcp_mirror.faces.http import PayloadLayer
from mcp_mirror.faces.stdio import stdio_streams
from mcp_mirror.policies import ServerPolicy
from mcp_mirror.spool import Spool
from mcp_mirror.tools import RETRIEVE
from mcp_mirror.upstreams.upstream import Presented, Upstream
from mcp_mirror.wire import MARK

_INSTRUCTIONS: Final = 3900
"""Characters of instructions; a client cuts at 4,096."""
_UPSTREAM_INSTRUCTIONS: Final = 600
_GREETING_WAIT: Final = 3.0
"""Seconds that a handshake waits for upstreams, so that the instructions can speak of them."""
_HOSTS: Final = ["127.0.0.1:*", "localhost:*", "[::1]:*"]
_ORIGINS: Final = [f"http://{host}" for host in _HOSTS]
_LISTS: Final = ("tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read")
_NOT_RELAYED: Final = frozenset({"io.modelcontextprotocol/tasks"})
"""Extensions of upstreams that do not work through us."""

_OWN_INSTRUCTIONS: Final = (
    "Tools {which} keep large results in memory and answer with a memory path. "
    "Give such a path, or path/key, as an argument of any of them where the value is wanted: the tool gets the "
    "value itself. Do not copy stored data."
)
_OWN_TOOLS: Final[Mapping[str, str]] = {
    RETRIEVE: f"Call {RETRIEVE} only for a value that you must show to the user.",
    "memory_read": "memory_read and its like show parts of a value.",
    "memory_edit": "memory_edit makes a changed copy, which has a path of its own.",
}
"""What is said of a tool of ours where it is served."""


class MirrorServer:
    """Speaks MCP for a gateway, over any number of connections."""

    def __init__(self, handlers: Handlers, policy: ServerPolicy, spool: Spool, version: str) -> None:
        """Make a server that serves nobody yet."""
        self.handlers = handlers
        self._policy = policy
        self._spool = spool
        self._waits_for_client = False
        self._server: Server[Any] = Server(
            policy.name,
            version=version,
            cache_hints={method: CacheHint(ttl_ms=0, scope="private") for method in _LISTS},
            get_tool_input_schema=lambda _name: None,  # what headers must say is checked where arguments are known
        )
        handlers.register(self._server)
        keys = policy.state_keys
        security = RequestStateSecurity(keys=keys, ttl=policy.answer_timeout) if keys else None
        security = security or RequestStateSecurity.ephemeral(ttl=policy.answer_timeout)
        # The SDK's own spans cost a small call more than its work.
        self._server.middleware[:] = [self._observe, RequestStateBoundary(security, default_audience=policy.name)]

    async def serve_stdio(self, leaving: anyio.Event) -> None:
        """Serve the one client on standard streams until it leaves, or we do; upstreams start when it has come."""
        self._waits_for_client = True
        async with stdio_streams(self.handlers.postbox, self._spool, leaving) as (read, write):
            await self._server.run(read, write, self._server.create_initialization_options(_ANNOUNCE))

    def http_app(self, host: str) -> ASGIApp:
        """An ASGI application that serves Streamable HTTP clients on a loopback address."""
        path, security = self._policy.path, TransportSecuritySettings(allowed_hosts=_HOSTS, allowed_origins=_ORIGINS)
        app = self._server.streamable_http_app(streamable_http_path=path, host=host, transport_security=security)
        return PayloadLayer(app, self.handlers.postbox, self._spool, security, self.handlers.sessions)

    async def _observe(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        self._receive(ctx)
        if ctx.method in ("initialize", "server/discover"):
            return await self._greet(ctx, call_next)
        try:
            return await call_next(ctx)
        except BaseException:
            self.handlers.postbox.discard(str(meta_of(ctx).get(MARK)))
            raise

    def _receive(self, ctx: Context) -> None:
        """Know the sender; the one client of standard input is who upstreams are started for."""
        modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        session = None if modern else self.handlers.sessions.heard_from(ctx, LOCAL)
        if self._waits_for_client and ctx.request_id is not None:
            self._waits_for_client = False
            exchange = session or Silent(read_caller(ctx, LOCAL, None))
            modes = ("auto", "legacy") if modern else ("legacy", "auto")
            self.handlers.gateway.upstreams.start(Presented(exchange, modes))  # type: ignore[arg-type]  # literals

    async def _greet(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        gateway = self.handlers.gateway
        await gateway.upstreams.settle(min(_GREETING_WAIT, gateway.mirror.startup_wait))
        result = await call_next(ctx)
        assert isinstance(result, dict)  # noqa: S101  # the SDK hands on what it has serialised
        greeting = {**result, "capabilities": self._capabilities()}
        return {**greeting, "instructions": said} if (said := self.instructions()) else greeting

    def _capabilities(self) -> Mapping[str, Any]:
        """What we and our upstreams can do, together."""
        relay, transparent = self.handlers.relay, self.handlers.gateway.is_transparent
        offered: dict[str, Any] = {"tools": {"listChanged": True}}
        if not transparent or relay.may_offer("resources"):
            offered["resources"] = {"listChanged": True, "subscribe": relay.may_offer("resources", "subscribe")}
        if relay.may_offer("prompts"):
            offered["prompts"] = {"listChanged": True}
        for name in ("completions", "logging"):
            offered |= {name: {}} if relay.may_offer(name) else {}
        for name in ("experimental", "extensions"):
            joined = self._joined(name)
            offered |= {name: joined} if joined else {}
        return offered

    def _joined(self, capability: str) -> Mapping[str, Any]:
        joined: dict[str, Any] = {}
        for upstream in self.handlers.gateway.upstreams:
            said = upstream.listing.capabilities.get(capability) if upstream.listing else None
            joined = {**(said or {}), **joined}
        return {key: value for key, value in joined.items() if key not in _NOT_RELAYED}

    def instructions(self) -> str:
        """Ours, and what each upstream says of itself, bounded."""
        gateway = self.handlers.gateway
        which = f"whose name ends with {gateway.mirror.suffix}" if gateway.mirror.suffix else "here"
        tools = [said for name, said in _OWN_TOOLS.items() if name in gateway.own_tools]
        own = "" if gateway.is_transparent else " ".join((_OWN_INSTRUCTIONS.format(which=which), *tools))
        parts = [self._policy.instructions or "", own, *(_introduce(one) for one in gateway.upstreams)]
        return _cut("\n\n".join(part for part in parts if part), _INSTRUCTIONS)


_ANNOUNCE: Final = NotificationOptions(tools_changed=True, resources_changed=True, prompts_changed=True)


def _introduce(upstream: Upstream) -> str:
    name, state = upstream.policy.name, upstream.status.state
    if state != "ready":
        return f"Server {name} is {state}; its tools cannot be called now."
    said = (upstream.listing.instructions or "").strip() if upstream.listing else ""
    return f"Server {name}: {_cut(said, _UPSTREAM_INSTRUCTIONS)}" if said else ""


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 4]} ..."
