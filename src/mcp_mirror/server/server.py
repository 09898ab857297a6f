"""The MCP server that clients see: who connects, what we say of ourselves, and the two transports, in both eras."""

import re
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import anyio
from mcp.server import CacheHint, NotificationOptions, Server
from mcp.server.context import CallNext, HandlerResult
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from mcp_mirror.callers import Caller, NullChannel
from mcp_mirror.memory.tools.table import RETRIEVE
from mcp_mirror.payload.json_rpc import MARK
from mcp_mirror.payload.spool import Spool
from mcp_mirror.security.pins import Pins
from mcp_mirror.security.sanitize import sanitize_lines
from mcp_mirror.server.auth.gate import Gate
from mcp_mirror.server.client_channel import Context, meta_of, read_caller
from mcp_mirror.server.handlers import Handlers
from mcp_mirror.server.hosts import AddressCheck
from mcp_mirror.server.http import PayloadMiddleware, session_closer
from mcp_mirror.server.stdio import stdio_streams
from mcp_mirror.settings.access import AuthPolicy
from mcp_mirror.settings.policies import ServerPolicy
from mcp_mirror.upstreams.upstream import ClientIdentity, Upstream

_INSTRUCTIONS: Final = 3900
"""Characters of instructions; a client cuts at 4,096."""
_UPSTREAM_INSTRUCTIONS: Final = 600
_GREETING_WAIT: Final = 3.0
"""Seconds that a handshake waits for upstreams, so that the instructions can speak of them."""
_LISTS: Final = ("tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read")
_NOT_RELAYED: Final = frozenset({"io.modelcontextprotocol/tasks"})
"""Extensions of upstreams that do not work through us."""

_OWN_INSTRUCTIONS: Final = (
    "Tools {which} answer with a memory path in place of a large result, and read memory paths themselves. Get a "
    "result with its tool first; then hand it on by calling the next tool with the path, or path/key, as its argument."
)
_OWN_TOOLS: Final[Mapping[str, str]] = {
    "memory_read": "memory_read and memory_grep are only for questions about what a value says.",
    RETRIEVE: f"{RETRIEVE} only shows the user all of it.",
    "memory_edit": "memory_edit makes a changed copy, which has a path of its own.",
}
"""What is said of a tool of ours where it is served."""


class MirrorServer:
    """Speaks MCP for a gateway, over any number of connections."""

    def __init__(self, handlers: Handlers, policy: ServerPolicy, auth: AuthPolicy, spool: Spool, version: str) -> None:
        """Make a server that serves nobody yet."""
        self._auth = auth
        self._gate: Gate | None = None
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
        security = RequestStateSecurity(
            keys=keys or [secrets.token_bytes(32)],
            ttl=policy.answer_timeout,
            bind_principal=handlers.sessions.namespace_of,
        )
        # The SDK's own spans cost a small call more than its work.
        self._server.middleware[:] = [self._observe, RequestStateBoundary(security, default_audience=policy.name)]

    async def serve_stdio(self, leaving: anyio.Event) -> None:
        """Serve the one client on standard streams until it leaves, or we do; upstreams start when it has come."""
        self._waits_for_client = True
        async with stdio_streams(self.handlers.pending_payloads, self._spool, leaving) as (read, write):
            await self._server.run(read, write, self._server.create_initialization_options(_ANNOUNCE))

    def http_app(self, host: str) -> ASGIApp:
        """An ASGI application that serves Streamable HTTP clients: those who are let in, or all on loopback."""
        policy = self._policy
        app = self._server.streamable_http_app(
            streamable_http_path=policy.path,
            host=host,
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),  # see `AddressCheck`
            max_request_body_size=self._spool.policy.max_envelope_bytes + 1,
            session_idle_timeout=policy.session_idle,
        )
        self.handlers.sessions.close = session_closer(app, policy.path)
        audit = self.handlers.gateway.audit
        layer = PayloadMiddleware(
            app, self.handlers.pending_payloads, self._spool, AddressCheck(policy), self.handlers.sessions, audit
        )
        self._gate = Gate(layer, self._auth, time.monotonic, audit) if self._auth.is_required else None
        return _open_to_pages(self._gate or layer, policy.allowed_origins)

    def admit(self, auth: AuthPolicy) -> bool:
        """Let others in from now on; False where that takes a new start, for there would be a gate or none."""
        if self._gate is not None and auth.is_required:
            self._gate.obey(auth)
        return (self._gate is not None) == auth.is_required

    async def _observe(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        self._receive(ctx)
        if ctx.method in ("initialize", "server/discover"):
            return await self._greet(ctx, call_next)
        try:
            return self._uncached(await call_next(ctx))
        except BaseException:
            self.handlers.pending_payloads.discard(str(meta_of(ctx).get(MARK)))
            raise

    def _uncached(self, result: HandlerResult) -> HandlerResult:
        """Where not all principals may see the same, no cache of several gives one what another may see."""
        if isinstance(result, dict) and "cacheScope" in result and self.handlers.gateway.upstreams.are_scoped:
            return {**result, "cacheScope": "private"}
        return result

    def _receive(self, ctx: Context) -> None:
        """Know the sender; the one client of standard input is who upstreams are started for."""
        modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        sessions = self.handlers.sessions
        session = None if modern else sessions.heard_from(ctx)
        if self._waits_for_client and ctx.request_id is not None:
            self._waits_for_client = False
            channel = session or NullChannel(read_caller(ctx, sessions.namespace_of(ctx), None))
            modes = ("auto", "legacy") if modern else ("legacy", "auto")
            self.handlers.gateway.upstreams.start(ClientIdentity(channel, modes))  # type: ignore[arg-type]  # literals

    async def _greet(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        gateway = self.handlers.gateway
        caller = self.handlers.sessions.caller_of(ctx)
        await gateway.upstreams.settle_listings(min(_GREETING_WAIT, gateway.state.config.mirror.startup_wait), caller)
        result = await call_next(ctx)
        assert isinstance(result, dict)  # noqa: S101  # the SDK hands on what it has serialised
        greeting = {**result, "capabilities": self._capabilities(caller)}
        return {**greeting, "instructions": said} if (said := self.instructions(caller)) else greeting

    def _capabilities(self, caller: Caller) -> Mapping[str, Any]:
        """What we, and the upstreams that a caller may see, can do together."""
        relay, transparent = self.handlers.relay, self.handlers.gateway.state.config.is_transparent
        offered: dict[str, Any] = {"tools": {"listChanged": True}}
        if not transparent or relay.may_offer("resources", caller):
            subscribe = relay.may_offer("resources", caller, "subscribe")
            offered["resources"] = {"listChanged": True, "subscribe": subscribe}
        if relay.may_offer("prompts", caller):
            offered["prompts"] = {"listChanged": True}
        for name in ("completions", "logging"):
            offered |= {name: {}} if relay.may_offer(name, caller) else {}
        for name in ("experimental", "extensions"):
            joined = self._joined(name, caller)
            offered |= {name: joined} if joined else {}
        return offered

    def _joined(self, capability: str, caller: Caller) -> Mapping[str, Any]:
        joined: dict[str, Any] = {}
        for upstream in self.handlers.gateway.upstreams.visible_to(caller):
            said = upstream.listing.capabilities.get(capability) if upstream.listing else None
            joined = {**(said or {}), **joined}
        return {key: value for key, value in joined.items() if key not in _NOT_RELAYED}

    def instructions(self, caller: Caller) -> str:
        """Ours, and what each upstream that a caller may see says of itself, bounded."""
        gateway = self.handlers.gateway
        which = (
            f"whose name ends with {gateway.state.config.mirror.suffix}"
            if gateway.state.config.mirror.suffix
            else "here"
        )
        tools = [said for name, said in _OWN_TOOLS.items() if name in gateway.state.own_tools]
        own = "" if gateway.state.config.is_transparent else " ".join((_OWN_INSTRUCTIONS.format(which=which), *tools))
        told = (_introduce(one, gateway.state.pins) for one in gateway.upstreams.visible_to(caller))
        parts = [self._policy.instructions or "", own, *told]
        return _cut("\n\n".join(part for part in parts if part), _INSTRUCTIONS)


def _open_to_pages(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Let browsers show answers to the pages of these origins (CORS)."""
    if not origins:
        return app
    patterns = (re.escape(one.removesuffix(":*")) + (r":\d+" if one.endswith(":*") else "") for one in origins)
    return CORSMiddleware(
        app,
        allow_origin_regex="|".join(patterns),
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("*",),
        expose_headers=("mcp-session-id", "www-authenticate"),
    )


_ANNOUNCE: Final = NotificationOptions(tools_changed=True, resources_changed=True, prompts_changed=True)


def _introduce(upstream: Upstream, pins: Pins) -> str:
    name, state = upstream.policy.name, upstream.status.state
    if state != "ready":
        return f"Server {name} is {state}; its tools cannot be called now."
    said = (upstream.listing.instructions or "").strip() if upstream.listing else ""
    finding = pins.check_instructions(upstream.policy, upstream.listing.instructions if upstream.listing else None)
    if (finding and finding.is_blocked) or not upstream.policy.preview:
        return ""
    return (
        f"Server {name}: {_cut(sanitize_lines(said, 4 * _UPSTREAM_INSTRUCTIONS), _UPSTREAM_INSTRUCTIONS)}"
        if said
        else ""
    )


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 4]} ..."
