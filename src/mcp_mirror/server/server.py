"""The MCP server: handshake, capabilities and instructions, over stdio and HTTP, for both protocol versions."""

import math
import secrets
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import anyio
import mcp_types as types
from mcp.server import CacheHint, NotificationOptions, Server
from mcp.server.context import CallNext, HandlerResult
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcp_mirror.callers import Caller, NullChannel
from mcp_mirror.gateway.tool_search import CALL, FIND
from mcp_mirror.memory.code.run import RUN
from mcp_mirror.memory.tools.table import QUERY, accepts_sql
from mcp_mirror.memory.tools.tool import MemoryTool
from mcp_mirror.payload.floods import finish, take_sliced
from mcp_mirror.payload.json_rpc import MARK
from mcp_mirror.payload.spool import Spool
from mcp_mirror.security.pins import Pins
from mcp_mirror.security.redaction import encode_secret
from mcp_mirror.security.sanitize import sanitize_lines
from mcp_mirror.server.direct_path import DirectPath
from mcp_mirror.server.handlers import Handlers
from mcp_mirror.server.request_context import UNSUPPORTED_EXTENSIONS, Context, read_caller, read_meta
from mcp_mirror.server.stdio import open_stdio_streams
from mcp_mirror.settings.access import AuthPolicy
from mcp_mirror.settings.policies import ServerPolicy
from mcp_mirror.upstreams.registry import Upstream, explain_missing
from mcp_mirror.upstreams.upstream import ClientIdentity

if TYPE_CHECKING:
    from mcp_mirror.server.auth.gate import Gate

_MAX_INSTRUCTIONS: Final = 3900
"""Characters of the instructions; some clients cut them at 4,096."""
_MAX_UPSTREAM_INSTRUCTIONS: Final = 600
"""Characters of the instructions of one upstream."""
_HANDSHAKE_WAIT: Final = 3.0
"""Seconds that a handshake waits for upstreams, so that the instructions contain theirs."""
_CACHEABLE_METHODS: Final = (
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
)

_OWN_INSTRUCTIONS: Final = (
    "Begin with the tool that gets the data. Tools {which} answer with a memory path in place of a large result: give "
    "the next tool the path, or path/key, as its argument."
)
_MEMORY_INSTRUCTIONS: Final = (
    "Results of tools of other servers can be memory paths: give the next tool the path. The tools here work on the "
    "values."
)
_SEARCH_INSTRUCTIONS: Final = (
    f"Most tools are not listed: find one with {FIND}, then call it by the name found with {CALL}."
)
_ABOUT_READ: Final = "memory_read and memory_grep are only for questions about what a value says."
_ABOUT_WHOLE_VALUES: Final = "Questions that need whole values (a sum, a count, the largest, a join) are for {tool}."
_OWN_TOOLS: Final[Mapping[str, str]] = {
    "memory_edit": "memory_edit makes a changed copy, which has a path of its own.",
}
"""The instructions for own tools, used if the gateway serves the tool."""


class MirrorServer:
    """The MCP server of a gateway, for any number of connections."""

    def __init__(self, handlers: Handlers, policy: ServerPolicy, auth: AuthPolicy, spool: Spool, version: str) -> None:
        self.auth: Final = auth
        self.gate: Gate | None = None
        """Checks the tokens of HTTP requests; None without `auth`, and before the server serves HTTP."""
        self.handlers: Final = handlers
        self.policy: Final = policy
        self.spool: Final = spool
        self._waits_for_client = False
        self.sdk_server: Final[Server[Any]] = Server(
            policy.name,
            version=version,
            cache_hints={method: CacheHint(ttl_ms=0, scope="private") for method in _CACHEABLE_METHODS},
            get_tool_input_schema=lambda _name: None,  # the handler of `tools/call` checks the headers
        )
        handlers.register(self.sdk_server)
        keys = [encode_secret(key) for key in policy.state_keys]
        security = RequestStateSecurity(
            keys=keys or [secrets.token_bytes(32)],
            ttl=policy.answer_timeout,
            bind_principal=handlers.sessions.namespace_of,
        )
        boundary = RequestStateBoundary(security, default_audience=policy.name)
        # Without the SDK's tracing middleware, which takes longer than a small call.
        self.sdk_server.middleware[:] = [self._observe, boundary]
        self.direct_path: Final = DirectPath(handlers, self.sdk_server, boundary)

    async def serve_stdio(self, shutdown: anyio.Event) -> None:
        """Serve the client on the standard streams until it disconnects or `shutdown` is set.

        The first request of the client starts the upstreams.

        Raises:
            MirrorError: Standard output is closed.
        """
        self._waits_for_client = True
        pending_payloads = self.handlers.pending_payloads
        async with open_stdio_streams(pending_payloads, self.spool, shutdown, self.direct_path) as (read, write):
            notifications = NotificationOptions(tools_changed=True, resources_changed=True, prompts_changed=True)
            await self.sdk_server.run(read, write, self.sdk_server.create_initialization_options(notifications))

    def apply_auth(self, auth: AuthPolicy) -> bool:
        """Accept other tokens and issuers, from the next request on.

        Returns:
            False if the server must be restarted, because authentication was switched on or off.
        """
        if self.gate is not None and auth.is_required:
            self.gate.apply_policy(auth)
        return (self.gate is not None) == auth.is_required

    async def _observe(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Middleware of the SDK's server: track the session, and complete the result."""
        self._record_client(ctx)
        if ctx.method in ("initialize", "server/discover"):
            return self._stamp(ctx, await self._handle_handshake(ctx, call_next))
        try:
            result = await call_next(ctx)
        except BaseException:
            self.handlers.pending_payloads.discard(str(read_meta(ctx).get(MARK)))
            raise
        result = self._stamp(ctx, result)
        # If results depend on scopes, a shared cache could give a principal the result of another.
        if isinstance(result, dict) and "cacheScope" in result and self.handlers.gateway.upstreams.are_scoped:
            return {**result, "cacheScope": "private"}
        return result

    def _stamp(self, ctx: Context, result: HandlerResult) -> HandlerResult:
        """Return a result of protocol version 2026-07-28 with the identity of the server that the client sees."""
        if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS or not isinstance(result, dict):
            return result
        identity = self.handlers.gateway.find_identity(self.handlers.sessions.caller_of(ctx))
        if identity is None:
            return result
        return {**result, "_meta": {**(result.get("_meta") or {}), types.SERVER_INFO_META_KEY: identity}}

    def _record_client(self, ctx: Context) -> None:
        """Record the session of a request; the first request over stdio starts the upstreams for its client."""
        is_stateless = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        sessions = self.handlers.sessions
        session = None if is_stateless else sessions.record_request(ctx)
        if self._waits_for_client and ctx.request_id is not None:
            self._waits_for_client = False
            channel = session or NullChannel(read_caller(ctx, sessions.namespace_of(ctx), None))
            modes = ("auto", "legacy") if is_stateless else ("legacy", "auto")
            self.handlers.gateway.upstreams.start(ClientIdentity(channel, modes))  # type: ignore[arg-type]  # literals

    async def _handle_handshake(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Add the capabilities and instructions of the caller's upstreams to the result of a handshake."""
        gateway = self.handlers.gateway
        caller = self.handlers.sessions.caller_of(ctx)
        await self._wait_for_upstreams(caller)
        await take_sliced(gateway.listing_for(caller))  # counts the tokens that `instructions` asks for
        result = await call_next(ctx)
        assert isinstance(result, dict)  # noqa: S101  # the SDK returns serialized results to middlewares
        instructions = self.instructions(caller)
        capabilities = {"capabilities": self._join_capabilities(caller)}
        identity = gateway.find_identity(caller) if "serverInfo" in result else None
        described = {"serverInfo": identity} if identity else {}
        return {**result, **described, **capabilities, **({"instructions": instructions} if instructions else {})}

    async def _wait_for_upstreams(self, caller: Caller) -> None:
        """Wait until the upstreams have listings, or for a few seconds.

        Raises:
            MCPError: The server that the gateway replaces has failed to start.
        """
        gateway = self.handlers.gateway
        upstreams, wait = gateway.upstreams, gateway.state.config.mirror.startup_wait
        if not gateway.state.config.server.wraps:
            await upstreams.settle_listings(min(_HANDSHAKE_WAIT, wait), caller)
            return
        is_strict = self.policy.awaits_start
        await upstreams.settle(math.inf if is_strict else min(_HANDSHAKE_WAIT, wait), caller)
        await upstreams.settle_listings(wait, caller)
        for upstream in upstreams:
            if upstream.status.state == "down" and (is_strict or upstream.listing is None):
                raise MCPError(types.INTERNAL_ERROR, explain_failed_start(upstream))

    def _join_capabilities(self, caller: Caller) -> Mapping[str, Any]:
        """Return the capabilities of the gateway and of the upstreams that a caller may see."""
        relay = self.handlers.relay
        offered: dict[str, Any] = {"tools": {"listChanged": True}}
        if self.handlers.gateway.has_resources(caller) or relay.may_offer("resources", caller):
            subscribe = relay.may_offer("resources", caller, "subscribe")
            offered["resources"] = {"listChanged": True, "subscribe": subscribe}
        if relay.may_offer("prompts", caller):
            offered["prompts"] = {"listChanged": True}
        for name in ("completions", "logging"):
            offered |= {name: {}} if relay.may_offer(name, caller) else {}
        for name in ("experimental", "extensions"):
            merged = self._merge_capability(name, caller)
            offered |= {name: merged} if merged else {}
        return offered

    def _merge_capability(self, name: str, caller: Caller) -> Mapping[str, Any]:
        """Merge the members of one capability of all upstreams; the first upstream with a member has priority."""
        merged: dict[str, Any] = {}
        for upstream in self.handlers.gateway.upstreams.visible_to(caller):
            members = upstream.listing.capabilities.get(name) if upstream.listing else None
            merged = {**(members or {}), **merged}
        return {key: value for key, value in merged.items() if key not in UNSUPPORTED_EXTENSIONS}

    def instructions(self, caller: Caller) -> str:
        """Return the instructions of the configuration, the gateway and the upstreams that a caller may see."""
        state, upstreams = self.handlers.gateway.state, self.handlers.gateway.upstreams
        only = self.handlers.gateway.find_only_upstream(caller)
        suffix = "" if caller.upstream else state.config.mirror.suffix
        search = _SEARCH_INSTRUCTIONS if finish(self.handlers.gateway.listing_for(caller)).is_search else ""
        own = ""
        if not state.config.is_transparent:
            which = f"whose name ends with {suffix}" if suffix else "here"
            has_tools = bool(upstreams.visible_to(caller))
            about_paths = _OWN_INSTRUCTIONS.format(which=which) if has_tools else _MEMORY_INSTRUCTIONS
            own = " ".join((about_paths, *_write_tool_instructions(state.own_tools_for(caller))))
        if only is not None:  # its instructions come first, as without the gateway
            own = "\n\n".join(part for part in (search, own) if part)
            room = _MAX_INSTRUCTIONS - len(own) - 2
            parts = [_cut(_read_instructions(only, state.pins, room) or explain_missing([only]), room), own]
            return "\n\n".join(part for part in parts if part)
        visible = upstreams.visible_to(caller)
        of_upstreams = (_write_upstream_instructions(one, state.pins) for one in visible)
        parts = [self.policy.instructions or "", search, own, explain_missing(visible), *of_upstreams]
        return _cut("\n\n".join(part for part in parts if part), _MAX_INSTRUCTIONS)


def _write_tool_instructions(tools: Mapping[str, MemoryTool]) -> Iterator[str]:
    """Yield the instructions for the own tools that the gateway serves.

    Questions about whole values are for SQL if `memory_query` accepts it: small models write one SELECT without a
    mistake more often than a script (docs/evaluation/wording.md).
    """
    if "memory_read" in tools:
        yield _ABOUT_READ
    has_sql = accepts_sql(tools)
    if has_sql or RUN in tools:
        yield _ABOUT_WHOLE_VALUES.format(tool=QUERY if has_sql else RUN)
    yield from (text for name, text in _OWN_TOOLS.items() if name in tools)


def explain_failed_start(upstream: Upstream) -> str:
    """Return why a server did not start, in words for a person."""
    return f"Server {upstream.policy.name!r} did not start: {upstream.status.detail}"


def _write_upstream_instructions(upstream: Upstream, pins: Pins) -> str:
    """Return the instructions of an upstream; empty if it cannot be called, or if they must not be shown.

    While an upstream starts, the instructions of its last run apply: a call waits for it.
    """
    name = upstream.policy.name
    if upstream.status.state == "down":
        return ""
    text = _read_instructions(upstream, pins, _MAX_UPSTREAM_INSTRUCTIONS)
    return f"Server {name}: {_cut(text, _MAX_UPSTREAM_INSTRUCTIONS)}" if text else ""


def _read_instructions(upstream: Upstream, pins: Pins, limit: int) -> str:
    """Return the sanitized instructions of an upstream; empty if it has none, or they must not be shown."""
    instructions = upstream.listing.instructions if upstream.listing else None
    finding = pins.check_instructions(upstream.policy, instructions)
    if (finding and finding.is_blocked) or not upstream.policy.preview or not (text := (instructions or "").strip()):
        return ""
    return sanitize_lines(text, 4 * limit)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 4]} ..."
