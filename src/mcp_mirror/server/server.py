"""The MCP server: handshake, capabilities and instructions, over stdio and HTTP, for both protocol versions."""

import math
import secrets
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import anyio
import mcp_types as types
from mcp.server import CacheHint, NotificationOptions, Server
from mcp.server.context import CallNext, HandlerResult
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from mcp_mirror.callers import Caller
from mcp_mirror.payload.json_rpc import PAYLOAD_MARK
from mcp_mirror.payload.spool import Spool
from mcp_mirror.security.redaction import encode_secret
from mcp_mirror.server.client_channel import LateSession, Session
from mcp_mirror.server.direct_path import DirectPath
from mcp_mirror.server.handlers import Handlers
from mcp_mirror.server.http.rejected_requests import RejectedRequests
from mcp_mirror.server.instructions import write_instructions
from mcp_mirror.server.request_context import UNSUPPORTED_EXTENSIONS, Context, read_caller, read_meta
from mcp_mirror.server.sessions import STDIO
from mcp_mirror.server.stdio import open_stdio_streams
from mcp_mirror.settings.access import AuthPolicy
from mcp_mirror.settings.policies import ServerPolicy
from mcp_mirror.system.slices import take_sliced
from mcp_mirror.upstreams.registry import Upstream

_HANDSHAKE_WAIT: Final = 3.0
"""Seconds that a handshake waits for upstreams, so that the instructions contain theirs."""
_ASKED_WAIT: Final = 1.0
"""Seconds that it waits for a listing after a request to the client: most servers list tools without its answer."""
_MAX_FAULTS: Final = 3
"""Parameters that an error about them names."""
_NO_OBJECT: Final = ("dict_type", "model_type")
"""Faults that Pydantic describes with the names of Python's types."""
_HANDSHAKES: Final = ("initialize", "server/discover")
_CACHEABLE_METHODS: Final = (
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
)


class MirrorServer:
    """The MCP server of a gateway, for any number of connections."""

    def __init__(self, handlers: Handlers, policy: ServerPolicy, auth: AuthPolicy, spool: Spool, version: str) -> None:
        self.auth: AuthPolicy = auth
        """Of HTTP requests, from the next one on."""
        self.handlers: Final = handlers
        self.rejected_requests: Final = RejectedRequests(handlers.gateway.audit)
        self.policy: Final = policy
        self.spool: Final = spool
        self._waits_for_client = False
        """The first request over stdio starts the upstreams."""
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
            options = self.sdk_server.create_initialization_options(notifications)
            await self.sdk_server.run(read, write, options)
            if read.has_second_handshake:
                await self.sdk_server.run(read, write, options)

    async def _observe(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Middleware of the SDK's server: track the session, and complete the result."""
        session = self._record_session(ctx)
        if self._waits_for_client and ctx.request_id is not None:
            self._start_upstreams(ctx, session)
        try:
            if ctx.method in _HANDSHAKES:
                return self._stamp(ctx, await self._handle_handshake(ctx, call_next))
            result = await call_next(ctx)
        except BaseException as error:
            self.handlers.pending_payloads.discard(str(read_meta(ctx).get(PAYLOAD_MARK)))
            if isinstance(error, ValidationError):
                raise MCPError(types.INVALID_PARAMS, _explain_parameters(error)) from None
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
        identity = self.handlers.gateway.find_identity(
            self.handlers.sessions.caller_of(ctx), is_whole=ctx.method in _HANDSHAKES
        )
        if identity is None:
            return result
        return {**result, "_meta": {**(result.get("_meta") or {}), types.SERVER_INFO_META_KEY: identity}}

    def _record_session(self, ctx: Context) -> Session | None:
        """Record and return the session of a request; None for stateless requests."""
        is_stateless = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        return None if is_stateless else self.handlers.sessions.record_request(ctx)

    def _start_upstreams(self, ctx: Context, session: Session | None) -> None:
        """Start the upstreams for the client on stdio, which has sent its first request."""
        self._waits_for_client = False
        sessions = self.handlers.sessions
        late = LateSession(read_caller(ctx, sessions.namespace_of(ctx), None), partial(sessions.find, STDIO))
        self.handlers.gateway.upstreams.start(session or late)

    async def _handle_handshake(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Add the capabilities and instructions of the caller's upstreams to the result of a handshake."""
        gateway = self.handlers.gateway
        caller = self.handlers.sessions.caller_of(ctx)
        await self._wait_for_upstreams(caller, self.handlers.sessions.session_of(ctx))
        await take_sliced(gateway.listing_for(caller))  # counts the tokens that `instructions` asks for
        result = await call_next(ctx)
        assert isinstance(result, dict)  # noqa: S101  # the SDK returns serialized results to middlewares
        result = {**result, "capabilities": self._join_capabilities(caller)}
        if "serverInfo" in result and (identity := gateway.find_identity(caller, is_whole=True)):
            result["serverInfo"] = identity
        if instructions := self.instructions(caller):
            result["instructions"] = instructions
        return result

    async def _wait_for_upstreams(self, caller: Caller, session: Session | None) -> None:
        """Wait until the upstreams have listings, for a few seconds, or until one of them sends the client a request.

        The client answers such a request after its handshake: a server may list its tools only when it knows the roots.
        An upstream without a listing gets a second more.

        Raises:
            MCPError: The server that the gateway replaces has failed to start.
        """
        upstreams, config = self.handlers.gateway.upstreams, self.handlers.gateway.state.config
        longest = config.mirror.startup_wait
        short = min(_HANDSHAKE_WAIT, longest)
        async with anyio.create_task_group() as tasks:
            if session is not None:
                tasks.start_soon(self._cancel_when_asked, session, caller, tasks.cancel_scope)
            if config.server.wraps:
                await upstreams.wait_for_attempts(math.inf if self.policy.awaits_start else short, caller)
            await upstreams.wait_for_listings(longest if config.server.wraps else short, caller)
            tasks.cancel_scope.cancel()
        if config.server.wraps:
            for upstream in upstreams:
                if upstream.status.state == "down" and (self.policy.awaits_start or upstream.listing is None):
                    raise MCPError(types.INTERNAL_ERROR, explain_failed_start(upstream, upstream.status.detail))

    async def _cancel_when_asked(self, session: Session, caller: Caller, scope: anyio.CancelScope) -> None:
        await session.asked.wait()
        if any(one.listing is None for one in self.handlers.gateway.upstreams.visible_to(caller)):
            await anyio.sleep(_ASKED_WAIT)
        scope.cancel()

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
            if relay.may_offer(name, caller):
                offered[name] = {}
        for name in ("experimental", "extensions"):
            if merged := self._merge_capability(name, caller):
                offered[name] = merged
        return offered

    def _merge_capability(self, name: str, caller: Caller) -> Mapping[str, Any]:
        """Merge the members of one capability of all upstreams; the first upstream with a member has priority."""
        merged: dict[str, Any] = {}
        for upstream in self.handlers.gateway.upstreams.visible_to(caller):
            members = upstream.listing.capabilities.get(name) if upstream.listing else None
            merged = {**(members or {}), **merged}
        return {key: value for key, value in merged.items() if key not in UNSUPPORTED_EXTENSIONS}

    def instructions(self, caller: Caller) -> str:
        """Return the instructions for a caller; see `write_instructions`."""
        return write_instructions(self.handlers.gateway, caller, self.policy.instructions or "")


def _explain_parameters(error: ValidationError) -> str:
    """Return which parameters of a request are not those of the protocol, without their values."""
    faults = error.errors(include_url=False, include_input=False, include_context=False)
    causes = "; ".join(
        f"`{'.'.join(map(str, fault['loc'][1:] or fault['loc']))}`: "
        + ("Input should be an object" if fault["type"] in _NO_OBJECT else fault["msg"])
        for fault in faults[:_MAX_FAULTS]
    )
    return f"The request is not valid: {causes}. Correct the parameters and send the request again."


def explain_failed_start(upstream: Upstream, reason: str) -> str:
    """Return why a server did not start, in words for a person."""
    return f"Server {upstream.policy.name!r} did not start: {reason}"
