"""One of the user's MCP servers.

A `ServerUpstream` picks the connection for each caller. Connections are shared if the protocol version and the
configured `scope` allow it; else each session, or each principal, gets a dedicated connection.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

import anyio
import msgspec

from mcp_mirror.callers import LOCAL, Caller, ClientChannel
from mcp_mirror.errors import RefusedError, UpstreamError
from mcp_mirror.security.rate_limits import UpstreamLimiter
from mcp_mirror.security.redaction import Redactor
from mcp_mirror.settings.upstreams import HttpEndpoint, StdioEndpoint, UpstreamPolicy
from mcp_mirror.system.shared_timer import SharedTimer
from mcp_mirror.upstreams.client_backlog import ClientBacklog
from mcp_mirror.upstreams.client_values import ClientValues
from mcp_mirror.upstreams.connection import ReconnectingConnection
from mcp_mirror.upstreams.connection_settings import ConnectionServices, ConnectionSettings
from mcp_mirror.upstreams.content_filter import ContentFilteredChannel, filter_content, is_filtered
from mcp_mirror.upstreams.dedicated import ConnectionKey, ConnectionSlots, DedicatedConnection
from mcp_mirror.upstreams.elicitation import (
    InputRequired,
    InputRound,
    InputRounds,
    SuspendedCalls,
    restore_keys,
)
from mcp_mirror.upstreams.listing import Listing
from mcp_mirror.upstreams.notifications import ConnectionOwner
from mcp_mirror.upstreams.reconnect import Status
from mcp_mirror.upstreams.request_failures import build_refusal
from mcp_mirror.upstreams.session import Mode
from mcp_mirror.upstreams.transports.commands import is_run_by_node
from mcp_mirror.upstreams.transports.requests import RawResponse
from mcp_mirror.upstreams.upstream_request import INTERACTIVE_METHODS, UpstreamRequest

_LONGEST_SWEEP_INTERVAL: Final = 15.0
"""Seconds between two checks for expired dedicated connections, at most."""
_OWN_LISTING_WAIT: Final = 10.0
"""Seconds that a list waits for the first tools of a caller's own connection, at most."""
_HTTP_LIMIT: Final = 4 << 20
"""Bytes of a body that the HTTP servers of the MCP SDKs accept."""
_NODE_LIMIT: Final = 10 << 20
"""Bytes of a message that the stdio servers of the TypeScript SDK accept; they end at larger ones."""


class ChangeListeners(msgspec.Struct, frozen=True):
    """The listeners to changes that upstreams announce."""

    on_change: Callable[[str, str | None, str], anyio.Event | None]
    """Called with the list, the owner (None: all) and the upstream. See `ConnectionOwner.on_change`."""
    on_update: Callable[[str, str | None, str, Mapping[str, Any]], None]
    """Called with the upstream, the owner, the URI of the resource, and the parameters of the notification."""
    may_show: Callable[[str], bool]
    """Whether an upstream's text may be shown to models; see `Gateway.may_show`."""


class UpstreamDependencies(ConnectionServices, frozen=True, kw_only=True):
    """The objects that all upstreams share."""

    listeners: ChangeListeners
    slots: ConnectionSlots
    answer_timeout: float
    """Seconds that a suspended call waits for a client's answer."""


class ServerUpstream:
    """One of the user's MCP servers."""

    def __init__(
        self, policy: UpstreamPolicy, dependencies: UpstreamDependencies, client: ClientChannel | None
    ) -> None:
        """Create an upstream that is not started.

        `client` is the only client of the gateway, which then owns the one connection; None if there may be several.
        """
        redactor, authorizer = Redactor(policy.endpoint), None
        if isinstance(policy.endpoint, HttpEndpoint) and policy.endpoint.oauth:
            from mcp_mirror.upstreams.oauth.tokens import Authorizer  # noqa: PLC0415  # takes long to import

            authorizer = Authorizer(policy.name, policy.endpoint, redactor)
        self.policy: UpstreamPolicy = policy
        self._request_limit = find_request_limit(policy)
        self._settings = ConnectionSettings(
            policy,
            services=dependencies,
            redactor=redactor,
            limiter=UpstreamLimiter(policy.name, policy.bounds),
            backlog=ClientBacklog(policy.bounds.max_queued_notification_bytes),
            authorizer=authorizer,
            timer=SharedTimer(policy.timeout),
        )
        self._listeners = dependencies.listeners
        self._slots = dependencies.slots
        self._has_one_client = client is not None
        is_legacy = client is not None and not client.caller.is_stateless
        modes: tuple[Mode, ...] = ("legacy", "auto") if is_legacy else ("auto", "legacy")  # first as the client itself
        self._shared = ReconnectingConnection(self._settings, self._build_owner(client), modes, is_cached=True)
        self.settled: anyio.Event = self._shared.settled
        """Set when the first attempt to connect has ended, successful or not."""
        self.listed: anyio.Event = self._shared.listed
        """Set when there is a listing, of this run or an earlier one, or the first attempt has ended."""
        self._client_values = ClientValues(policy)
        self._takes_client_values = bool(policy.client_values)
        self._dedicated: dict[ConnectionKey, DedicatedConnection] = {}
        self._current: dict[str, DedicatedConnection] = {}
        """The dedicated connection that each owner used last."""
        self._tasks = anyio.create_task_group()
        self._input_rounds = InputRounds(policy.name, policy.bounds.max_input_requests_per_call, self._settings.backlog)
        self._suspended: SuspendedCalls[RawResponse] = SuspendedCalls(self._tasks, dependencies.answer_timeout)
        self._refuses_handshakes = False
        """The server rejects the handshake of protocol version 2025-11-25, so all callers use the shared connection."""
        self._waiting = 0
        """Callers that wait for a connection or a response."""

    @property
    def status(self) -> Status:
        """The state of the upstream. It is down while its server cannot be reached, although the session stays open."""
        session = self._shared.current_session
        unreachable = session.unreachable if session else None
        return Status("down", unreachable) if unreachable else self._shared.status

    @property
    def listing(self) -> Listing | None:
        """The last listing."""
        return self._shared.listing

    def listing_for(self, owner: str | None, principal: str | None = None) -> Listing | None:
        """Return the last listing for an owner of dedicated connections; None: for all others.

        `principal` is the `Caller.principal_key` of an owner that is a session.
        """
        is_of_principal = self.policy.scope == "principal" and principal is not None
        return self._listed_connection(principal if is_of_principal else owner).listing

    async def wait_for_changes(self, channel: ClientChannel) -> None:
        """Wait while changes of a caller's tools are being read; see `ListChanges.wait_for_tools`.

        Where the configured values can list no tools, a caller that sends its own gets the tools of its connection.
        """
        caller = channel.caller
        if self.listing is None and self.needs_headers(caller):
            with suppress(UpstreamError), anyio.move_on_after(_OWN_LISTING_WAIT):
                await self.connection_for(channel)
        connection = self._listed_connection(self._choose_owner(caller))
        if connection.current_session is not None:
            await connection.list_changes.wait_for_tools()

    def _listed_connection(self, owner: str | None) -> ReconnectingConnection:
        """Return the connection whose tools an owner sees."""
        dedicated = self._current.get(owner) if owner else None
        return dedicated.connection if dedicated and dedicated.connection.listing else self._shared

    @property
    def inflight_count(self) -> int:
        """The number of requests that wait for their responses."""
        return sum(connection.inflight_count for connection in self.connections)

    @property
    def is_in_use(self) -> bool:
        """Whether a caller waits for a response, or for the connection that its request needs."""
        return self._waiting > 0 or self.inflight_count > 0

    @property
    def connections(self) -> tuple[ReconnectingConnection, ...]:
        """All connections to the upstream."""
        return (self._shared, *(dedicated.connection for dedicated in self._dedicated.values()))

    def offers(self, capability: str, detail: str = "") -> bool:
        """Whether the upstream has a capability, and within it a detail."""
        listing = self.listing or next((one.listing for one in self.connections if one.listing), None)
        offered = listing.capabilities.get(capability) if listing else None
        return offered is not None and (not detail or bool(offered.get(detail)))

    def refusal(self, what: str, code: int, message: str, caller: Caller, *, is_content_hidden: bool) -> RefusedError:
        """Return the exception for a JSON-RPC error, to a request of a caller, that arrived in a spool file."""
        settings = self._settings.for_client(self._client_values.read(caller))
        return build_refusal(settings, what, code, message, is_content_hidden=is_content_hidden)

    async def run(self) -> None:
        """Keep the upstream connected; until cancelled."""
        async with self._tasks as tasks:
            tasks.start_soon(self._shared.restore_listing)
            tasks.start_soon(self._shared.run)
            try:
                while True:
                    await anyio.sleep(min(_LONGEST_SWEEP_INTERVAL, self._slots.idle_timeout / 4))
                    for key in [key for key, dedicated in self._dedicated.items() if dedicated.is_expired]:
                        self.release(key)
            finally:
                for dedicated in self._dedicated.values():
                    self._slots.free(dedicated)

    async def request(
        self, request: UpstreamRequest, channel: ClientChannel, answered: InputRound | None = None
    ) -> RawResponse | InputRequired:
        """Send a caller's request, or its answers if it repeats the request to bring them.

        Raises:
            UpstreamError: The upstream is down, the request exceeds a limit, or it failed.
        """
        if self._request_limit is not None and request.size > self._request_limit:
            raise self._build_size_error(request.size, self._request_limit)
        self._waiting += 1
        try:
            if answered is not None and "held" in answered.state:
                self._check_scopes(channel)
                return await self._suspended.resume(answered, channel)
            connection = await self.connection_for(channel)
            filtered = channel if self.policy.preview else filter_content(channel)
            if answered is not None:
                answered = restore_keys(self._client_values.check_round(answered, channel.caller))
                request = request.with_answers(answered.answers, answered.state.get("state"))
            is_upstream_stateless = connection.listing is None or connection.listing.is_stateless
            is_answerable = request.method in INTERACTIVE_METHODS and channel.caller.can_answer_any
            if channel.caller.is_stateless and not is_upstream_stateless and is_answerable:
                is_hidden = is_filtered(filtered)
                return await self._suspended.begin(
                    channel,
                    lambda later: connection.request(request, filter_content(later) if is_hidden else later),
                )
            response = await connection.request(request, filtered)
            required = self._input_rounds.read(response) if is_upstream_stateless else None
            if required is None:
                return response
            if filtered.caller.is_stateless:
                required = self._input_rounds.return_to_client(required, answered, filtered)
                return self._client_values.bind_round(required, channel.caller)
            return await self._input_rounds.complete(
                required, request, filtered, lambda following: connection.request(following, filtered)
            )
        finally:
            self._waiting -= 1

    def _build_size_error(self, size: int, limit: int) -> UpstreamError:
        """Return the error for a request that is too large: some servers exit at a message that they do not take."""
        how = ": `mcp-mirror wrap --set max_request_bytes=BYTES`" if self.policy.is_wrapped else ""
        return UpstreamError(
            f"The arguments are {size:,} bytes and upstream {self.policy.name!r} takes {limit:,} "
            "(`max_request_bytes`). Pass a smaller part of the value; if the server takes more, raise the "
            f"setting{how}."
        )

    async def wait_for_connection(self, channel: ClientChannel) -> None:
        """Wait until the first attempt of a caller's own connection has ended; its requests may use the shared one."""
        if self._connection_key(channel.caller) is None:
            return
        self._waiting += 1
        try:
            await self.connection_for(channel)
        finally:
            self._waiting -= 1

    async def connection_for(self, channel: ClientChannel) -> ReconnectingConnection:
        """Return the connection for a caller's requests; create a dedicated one if needed.

        Raises:
            UpstreamError: The caller's token lacks a required scope, the request lacks a header whose value the
                upstream gets, or a limit on connections is reached.
        """
        self._check_scopes(channel)
        key = self._connection_key(channel.caller)
        return self._shared if key is None else await self._get_dedicated(key, channel)

    async def _get_dedicated(self, key: ConnectionKey, channel: ClientChannel) -> ReconnectingConnection:
        """Return the dedicated connection of an owner, or the shared one if the server refuses the other handshake."""
        dedicated = self._dedicated.get(key) or await self._open_dedicated(key, channel)
        if dedicated.is_superseded:
            self._set_current(dedicated)
            self._listeners.on_change("tools", dedicated.owner, self.policy.name)
        connection = dedicated.connection
        await connection.settled.wait()
        is_refused = isinstance(connection.failure, RefusedError) and self.listing and self.listing.is_stateless
        if connection.listing is not None or not is_refused or dedicated.key != dedicated.owner:
            return connection  # the shared one has other values than those of the client
        self._refuses_handshakes = True
        self.release(key)
        return self._shared

    def listing_connection(self, channel: ClientChannel) -> ReconnectingConnection:
        """Return the connection for a caller's lists: its dedicated one if it exists, else the shared one.

        Raises:
            UpstreamError: The caller's token lacks a required scope.
        """
        self._check_scopes(channel)
        return self._listed_connection(self._choose_owner(channel.caller))

    async def connection_for_lists(self, channel: ClientChannel) -> ReconnectingConnection:
        """Like `listing_connection`, but create the dedicated connection of a caller that has sent its own values.

        Raises:
            UpstreamError: As for `connection_for`.
        """
        if not self.needs_headers(channel.caller):
            return self.listing_connection(channel)
        if self.find_missing_header(channel.caller) is None:
            return await self.connection_for(channel)
        self._check_scopes(channel)
        return self._shared

    def needs_headers(self, caller: Caller) -> bool:
        """Whether requests of a caller need headers whose values the upstream gets."""
        return self._client_values.are_needed(caller)

    def find_missing_header(self, caller: Caller) -> str | None:
        """Return a header that a caller needs and its request lacks; None without one."""
        return self._client_values.find_missing_header(caller)

    async def connect(self) -> None:
        """Reconnect now if the upstream is down, and wait for the attempt."""
        with suppress(UpstreamError):
            await self._shared.get_session()

    def release(self, key: ConnectionKey) -> None:
        """Close a dedicated connection, if it exists."""
        if dedicated := self._dedicated.pop(key, None):
            dedicated.scope.cancel()
            if not dedicated.is_superseded:
                del self._current[dedicated.owner]
                self._listeners.on_change("tools", dedicated.owner, self.policy.name)

    def release_owner(self, owner: str) -> None:
        """Close the dedicated connections of an owner."""
        for key in [key for key, one in self._dedicated.items() if one.owner == owner]:
            self.release(key)

    def _set_current(self, dedicated: DedicatedConnection) -> None:
        """Note the dedicated connection that an owner uses now; another one of the owner ends when it is idle."""
        if before := self._current.get(dedicated.owner):
            before.is_superseded = True
        dedicated.is_superseded = False
        self._current[dedicated.owner] = dedicated

    def _choose_owner(self, caller: Caller) -> str | None:
        """Return the owner of the connection for a caller's requests; None for the shared connection.

        `RuntimeState.catalog_for` finds the tools on the connections of the same owners.
        """
        if not self.needs_headers(caller):
            return self._connection_key(caller)
        is_of_session = caller.session is not None and self.policy.scope != "principal"
        return caller.session if is_of_session else caller.principal_key

    def _connection_key(self, caller: Caller) -> ConnectionKey | None:
        """Return the key of the connection for a caller's requests; None for the shared connection.

        Raises:
            UpstreamError: The request lacks a header whose value the upstream gets.
        """
        scope = self.policy.scope
        if self._has_one_client or scope == "shared":
            return None
        if self._takes_client_values and (digest := self._client_values.digest(caller)) is not None:
            return f"{self._choose_owner(caller)} {digest}"
        listing = self._shared.listing
        if caller.session is not None and scope in (None, "session"):
            return None if self._refuses_handshakes else caller.session
        is_like_all = caller.namespace == LOCAL and not caller.capabilities
        if scope is None and (is_like_all or listing is None or listing.is_stateless):
            return None
        return caller.principal_key

    async def _open_dedicated(self, key: ConnectionKey, channel: ClientChannel) -> DedicatedConnection:
        """Open a dedicated connection; an UpstreamError if a limit is reached, or the upstream was stopped."""
        name, namespace = self.policy.name, channel.caller.namespace
        await self._slots.wait_for_slot(name, namespace, self.policy.bounds.connections_per_upstream)
        if dedicated := self._dedicated.get(key):  # another request of the same owner was faster
            return dedicated
        values = self._client_values.read(channel.caller)
        owner = (self._choose_owner(channel.caller) if values else None) or key
        modes: tuple[Mode, ...] = ("legacy", "auto") if values else ("legacy",)
        if channel.caller.is_stateless:
            modes = ("auto", "legacy")
        # A server of protocol version 2026-07-28 may refuse the handshake, see `_get_dedicated`.
        is_new = self.listing is not None and self.listing.is_stateless
        connection = ReconnectingConnection(
            self._settings.for_client(values),
            self._build_owner(channel, key, owner),
            modes,
            may_be_refused=is_new and not values,
            earlier_lists=self._shared.served_lists,
        )
        dedicated = DedicatedConnection(key, owner, name, namespace, connection, self._slots, self.release)
        try:
            self._tasks.start_soon(dedicated.run)
        except RuntimeError:  # the task group has ended: a reload stopped the upstream
            raise UpstreamError(f"Upstream {name!r} was stopped by a reload. List the tools again.") from None
        self._slots.take(dedicated)
        self._dedicated[key] = dedicated
        self._set_current(dedicated)
        return dedicated

    def _build_owner(
        self, channel: ClientChannel | None, key: ConnectionKey | None = None, owner: str | None = None
    ) -> ConnectionOwner:
        """Return the owner of a connection; without a channel it is shared by all callers."""
        listeners, upstream = self._listeners, self.policy.name
        lasting = channel.session_channel if channel else None
        if lasting is not None:
            required = self.policy.required_scopes
            lasting = ContentFilteredChannel(lasting, lambda: not listeners.may_show(upstream), required)
        name = owner or (lasting.caller.session if lasting else None)
        return ConnectionOwner(
            on_change=lambda kind: listeners.on_change(kind, name, upstream),
            on_update=partial(listeners.on_update, upstream, key or name),
            channel=lasting,
            capabilities=channel.caller.capabilities if channel else {},
            name=name,
            key=key or name,
            is_shared=channel is None,
        )

    def _check_scopes(self, channel: ClientChannel) -> None:
        """Check the scopes that the upstream requires. A caller without them does not see its tools anyway."""
        required = self.policy.required_scopes
        if required and not channel.caller.has_scopes(required):
            raise UpstreamError("The token lacks a scope that this upstream requires. Use a token with that scope.")


def find_request_limit(policy: UpstreamPolicy) -> int | None:
    """Return the bytes of the largest arguments that an upstream accepts, as configured or known; None: no limit."""
    if policy.max_request_bytes is not None:
        return policy.max_request_bytes
    if isinstance(policy.endpoint, HttpEndpoint):
        return _HTTP_LIMIT
    is_node = isinstance(policy.endpoint, StdioEndpoint) and is_run_by_node(policy.endpoint)
    return _NODE_LIMIT if is_node else None
