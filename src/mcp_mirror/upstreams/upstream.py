"""What tools come from; and one of the user's MCP servers: which connection a caller's request takes, in which era.

A connection is everybody's where the protocol lets it be, else one client's or one principal's own.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import anyio
from anyio.abc import TaskGroup

from mcp_mirror.callers import ClientChannel
from mcp_mirror.errors import RefusedError, UpstreamError
from mcp_mirror.settings.policies import UpstreamPolicy
from mcp_mirror.upstreams.channel_proxy import scoped
from mcp_mirror.upstreams.connection import ConnectionSettings, Modes, ReconnectingConnection, Status
from mcp_mirror.upstreams.content_filter import (
    ContentFilteredChannel,
    check_questions,
    filter_content,
    is_filtered,
    refused,
    unsaid,
)
from mcp_mirror.upstreams.dedicated import DedicatedConnections, Sessions, Slot
from mcp_mirror.upstreams.elicitation import (
    InputRequired,
    InputRound,
    SuspendedCalls,
    ask_live,
    check_capabilities,
    next_round,
    read_asked,
    unveiled,
    veiled,
)
from mcp_mirror.upstreams.notifications import ConnectionOwner
from mcp_mirror.upstreams.session import Listing, UpstreamRequest
from mcp_mirror.upstreams.transports.payloads import RawResponse

_LONGEST_SWEEP: Final = 15.0
"""Seconds between two looks for dedicated connections that are not used any more."""

Key = str
"""Whose connection it is: a session's, or that of callers who can do the same; see `Caller.party`."""


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """The one client of a gateway that has one alone, as it introduced itself."""

    channel: ClientChannel
    modes: Modes
    """How to connect on its behalf: in its own era where the upstream speaks it."""


@dataclass(frozen=True, slots=True)
class DedicatedConnectionPolicy:
    """What dedicated connections are made under, over all upstreams."""

    connections: DedicatedConnections
    sessions: Sessions
    idle: float
    """Seconds without use after which a principal's connection is closed. That of a session ends with its session."""


@dataclass(frozen=True, slots=True)
class ChangeListeners:
    """Who is told of what upstreams announce."""

    on_change: Callable[[str, str | None, str], anyio.Event | None]
    """Which list has changed, for which owner (None: all), of which upstream. See `ConnectionOwner.on_change`."""
    on_update: Callable[[str, str | None, str, Mapping[str, Any]], None]
    """Of which upstream, over whose connection, which resource was updated, and the notification's parameters."""
    may_show: Callable[[str], bool] = lambda _upstream: True
    """Whether the model may see what an upstream says; see `Gateway.may_show`."""


class Upstream(Protocol):
    """Where tools are: one of the user's MCP servers, or functions of the program that we run in."""

    @property
    def policy(self) -> UpstreamPolicy:
        """Its name, and how it is treated."""

    @property
    def status(self) -> Status:
        """How it is."""

    @property
    def listing(self) -> Listing | None:
        """What it said of itself last."""

    @property
    def settled(self) -> anyio.Event:
        """Set once the first attempt to connect has ended, well or not."""

    @property
    def listed(self) -> anyio.Event:
        """Set once there is a listing, of this run or an earlier one, or the first attempt to connect has ended."""

    @property
    def inflight_count(self) -> int:
        """How many requests to it wait for their answers."""

    @property
    def connections(self) -> tuple[ReconnectingConnection, ...]:
        """Every connection to it."""

    def listing_for(self, owner: str | None) -> Listing | None:
        """What it said of itself last to a party; see `Caller.party`."""

    def offers(self, capability: str, detail: str = "") -> bool:
        """Whether it has a capability, and within it a detail."""

    def refusal(self, what: str, code: int, message: str, *, hidden: bool) -> RefusedError:
        """A JSON-RPC error of its that came in a file."""

    def present(self, client: ClientIdentity) -> None:
        """Told before the start that one client alone is served."""

    def release(self, key: Key) -> None:
        """A party has gone."""

    async def attempt(self) -> None:
        """Try to connect now, if it is not connected."""

    async def settle_for(self, channel: ClientChannel) -> None:
        """Wait until the connection that a caller's requests take has been tried, and has told what it lists."""

    async def connection_for(self, channel: ClientChannel) -> ReconnectingConnection:
        """The connection that a caller's requests take.

        Raises:
            UpstreamError: Its token lacks a scope that this upstream requires, or it would get one connection too many.
        """

    def listing_connection(self, channel: ClientChannel) -> ReconnectingConnection:
        """The connection that lists for a caller: its own if it has one already, else the shared one.

        Raises:
            UpstreamError: Its token lacks a scope that this upstream requires.
        """

    async def run(self) -> None:
        """Be there; until cancelled."""

    async def request(
        self, order: UpstreamRequest, channel: ClientChannel, again: InputRound | None = None
    ) -> RawResponse | InputRequired:
        """Send a caller's request.

        Args:
            order: The request.
            channel: The way back to the caller.
            again: The answers, where the caller makes the request again to bring them.

        Raises:
            ToolError: The arguments do not fit.
            UpstreamError: It is not connected, the request is over its limit, or failed.
        """


@dataclass(slots=True)
class _DedicatedConnection:
    """A dedicated connection."""

    key: Key
    link: ReconnectingConnection
    slot: Slot
    sessions: Sessions
    release: Callable[[Key], None]
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    @property
    def is_idle(self) -> bool:
        """See `Dedicated.is_idle`."""
        is_used = self.link.inflight_count or self.link.pins or not self.link.settled.is_set()
        return not is_used and not self.sessions.is_open(self.key)

    @property
    def last_used(self) -> float:
        """See `Dedicated.last_used`."""
        return self.link.last_used

    def reclaim(self) -> None:
        """See `Dedicated.reclaim`."""
        self.sessions.end(self.key)
        self.release(self.key)

    def close(self) -> None:
        """Close the connection; its slot is free once it is closed."""
        self.slot.is_closing = True
        self.scope.cancel()


class ServerUpstream:
    """One of the user's MCP servers."""

    def __init__(
        self,
        connection_settings: ConnectionSettings,
        audience: ChangeListeners,
        residency: DedicatedConnectionPolicy,
        hold: float,
    ) -> None:
        """Make one that is not started.

        Args:
            connection_settings: What connections are made with.
            audience: Who is told of its announcements.
            residency: What dedicated connections are made under.
            hold: Seconds that a call waits for a client's answer.
        """
        self._residency = residency
        self.policy: UpstreamPolicy = connection_settings.policy
        self._connection_settings = connection_settings
        self._audience = audience
        self._hold = hold
        self._solitary = False
        self._trunk = ReconnectingConnection(connection_settings, self._owner(None), is_kept=True)
        self._leases: dict[Key, _DedicatedConnection] = {}
        self._tasks: TaskGroup | None = None
        self._held: SuspendedCalls | None = None
        self._modern_only = False

    @property
    def status(self) -> Status:
        """How it is."""
        return self._trunk.status

    @property
    def listing(self) -> Listing | None:
        """What it said of itself last."""
        return self._trunk.listing

    def listing_for(self, owner: str | None) -> Listing | None:
        """What it said of itself last on a party's own connection, if it has one; see `Caller.party`."""
        lease = self._leases.get(owner) if owner else None
        return lease.link.listing if lease and lease.link.listing else self.listing

    @property
    def settled(self) -> anyio.Event:
        """Set once the first attempt to connect has ended, well or not."""
        return self._trunk.settled

    @property
    def listed(self) -> anyio.Event:
        """See `Upstream.listed`."""
        return self._trunk.listed

    @property
    def inflight_count(self) -> int:
        """How many requests to it wait for their answers."""
        return self._trunk.inflight_count + sum(lease.link.inflight_count for lease in self._leases.values())

    @property
    def connections(self) -> tuple[ReconnectingConnection, ...]:
        """Every connection to it."""
        return (self._trunk, *(lease.link for lease in self._leases.values()))

    def offers(self, capability: str, detail: str = "") -> bool:
        """Whether it has a capability, and within it a detail."""
        offered = self.listing.capabilities.get(capability) if self.listing else None
        return offered is not None and (not detail or bool(offered.get(detail)))

    def refusal(self, what: str, code: int, message: str, *, hidden: bool) -> RefusedError:
        """A JSON-RPC error of the server's that came in a file."""
        if hidden or not self.policy.preview:
            return unsaid(self.policy.name, what, code)
        said = self._connection_settings.redactor.quote(message)
        told = f"Upstream {self.policy.name!r} refused {what}: {said.rstrip('.')} (error {code})."
        refusal = RefusedError(told, code, said)
        return refusal.with_log_message(refused(self.policy.name, code))

    def present(self, client: ClientIdentity) -> None:
        """Told before the start that one client alone is served: every connection is its own."""
        self._solitary = True
        self._trunk = ReconnectingConnection(
            self._connection_settings, self._owner(client.channel), client.modes, is_kept=True
        )

    async def run(self) -> None:
        """Connect, and keep connected; until cancelled."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            self._held = SuspendedCalls(tasks, self._hold)
            tasks.start_soon(self._trunk.restore)
            tasks.start_soon(self._trunk.run)
            try:
                while True:
                    await anyio.sleep(min(_LONGEST_SWEEP, self._residency.idle / 4))
                    self._sweep()
            finally:
                for lease in self._leases.values():
                    self._residency.connections.free(lease.slot)

    async def request(
        self, order: UpstreamRequest, channel: ClientChannel, again: InputRound | None = None
    ) -> RawResponse | InputRequired:
        """Send a caller's request over the connection that is its own; see `Upstream.request`."""
        self._check_scopes(channel)
        self._check_size(order.size)
        hides = is_filtered(channel) or not self.policy.preview
        way = filter_content(channel, may_show=not hides) or channel
        if again is not None and "held" in again.state:
            return await self._holding.resume(again, channel)
        link = await self.connection_for(channel)
        if again is not None:
            again = unveiled(again)
            order = order.with_params(requestState=again.state.get("state"))
            order = replace(order, params={**order.params, "inputResponses": (again.answers,)})
        modern = link.listing is None or link.listing.modern
        if channel.caller.is_stateless and not modern and channel.caller.can_answer_any:
            return await self._holding.begin(
                channel, lambda held: link.request(order, filter_content(held, may_show=not hides))
            )
        arrival = await link.request(order, way)
        asked = read_asked(arrival) if modern else None
        if asked is None:
            return arrival
        most = self.policy.bounds.max_questions_per_call
        if hides:
            check_questions(asked.requests.values())
        if channel.caller.is_stateless:
            check_capabilities(channel.caller, asked)
            return next_round(veiled(asked) if hides else asked, again, most)
        return await ask_live(asked, order, way, lambda following: link.request(following, way), most)

    async def settle_for(self, channel: ClientChannel) -> None:
        """Make the caller's own connection, if it is to have one."""
        await self.connection_for(channel)

    async def connection_for(self, channel: ClientChannel) -> ReconnectingConnection:
        """The connection that a caller's requests take; made where there is none yet."""
        self._check_scopes(channel)
        key = self._key(channel)
        if key is None:
            return self._trunk
        lease = self._leases.get(key) or await self._lease(key, channel)
        await lease.link.settled.wait()
        if lease.link.listing is not None or not self._refuses_handshakes(lease):
            return lease.link
        self._modern_only = True
        self.release(key)
        return self._trunk

    def listing_connection(self, channel: ClientChannel) -> ReconnectingConnection:
        """See `Upstream.listing_connection`: a list alone makes no connection."""
        self._check_scopes(channel)
        lease = self._leases.get(self._key(channel) or "")
        return lease.link if lease and lease.link.listing else self._trunk

    async def attempt(self) -> None:
        """Try to connect now, if it is not connected."""
        with suppress(UpstreamError):
            await self._trunk.get_session()

    def release(self, key: Key) -> None:
        """End a connection that was made for one client or principal."""
        if lease := self._leases.pop(key, None):
            lease.close()
            self._audience.on_change("tools", key, self.policy.name)

    def _key(self, channel: ClientChannel) -> Key | None:
        """Whose connection a caller's requests take; None: everybody's."""
        caller, scope = channel.caller, self.policy.scope
        if self._solitary or scope == "shared":
            return None
        if caller.session is not None and scope in (None, "session"):
            return None if self._modern_only else caller.session
        if (self.listing is None or self.listing.modern) and scope is None:
            return None
        return caller.connection_key if scope is None else caller.sharing_key

    async def _lease(self, key: Key, channel: ClientChannel) -> _DedicatedConnection:
        """Make a dedicated connection.

        Raises:
            UpstreamError: There are too many.
        """
        assert self._tasks is not None  # noqa: S101  # requests come after the start
        most, connections = self.policy.bounds.connections_per_upstream, self._residency.connections
        slot = await connections.reserve(self.policy.name, channel.caller.namespace, most)
        if lease := self._leases.get(key):  # another request of the same party was faster
            connections.free(slot)
            return lease
        modes: Modes = ("auto", "legacy") if channel.caller.is_stateless else ("legacy",)
        lease = _DedicatedConnection(
            key,
            ReconnectingConnection(self._connection_settings, self._owner(channel, key), modes),
            slot,
            self._residency.sessions,
            self.release,
        )
        self._leases[key] = slot.connection = lease
        self._tasks.start_soon(self._keep, lease)
        return lease

    async def _keep(self, lease: _DedicatedConnection) -> None:
        try:
            with lease.scope:
                await lease.link.run()
        finally:
            self._residency.connections.free(lease.slot)

    def _refuses_handshakes(self, lease: _DedicatedConnection) -> bool:
        """Whether a connection of the 2025 era cannot be had, where one of the 2026 era can."""
        return isinstance(lease.link.failure, RefusedError) and bool(self.listing and self.listing.modern)

    def _owner(self, channel: ClientChannel | None, key: Key | None = None) -> ConnectionOwner:
        home = scoped(channel.session_channel, self.policy.required_scopes) if channel else None
        home = ContentFilteredChannel(home, lambda: not self._audience.may_show(self.policy.name)) if home else None
        name = key or (home.caller.session if home else None)

        def changed(kind: str) -> anyio.Event | None:
            return self._audience.on_change(kind, name, self.policy.name)

        def updated(uri: str, params: Mapping[str, Any]) -> None:
            self._audience.on_update(self.policy.name, name, uri, params)

        capabilities = channel.caller.capabilities if channel else {}
        return ConnectionOwner(changed, updated, home, capabilities, name, is_shared=channel is None)

    @property
    def _holding(self) -> SuspendedCalls:
        assert self._held is not None  # noqa: S101  # requests come after the start
        return self._held

    def _sweep(self) -> None:
        """Close the connections that were not used for a while, and whose session, if they have one, has ended."""
        before = anyio.current_time() - self._residency.idle
        for key, lease in tuple(self._leases.items()):
            if lease.last_used < before and lease.is_idle and not self._residency.sessions.is_alive(key):
                self.release(key)

    def _check_scopes(self, channel: ClientChannel) -> None:
        """Whoever may not see it has no way to name it; what got here all the same goes no further."""
        if not channel.caller.has_scopes(self.policy.required_scopes):
            raise UpstreamError("This upstream is not for this caller.")

    def _check_size(self, size: int) -> None:
        """Some servers end at a message that is too large for them: it is not sent."""
        limit = self.policy.request_limit
        if limit is not None and size > limit:
            raise UpstreamError(
                f"The arguments are {size:,} bytes and upstream {self.policy.name!r} takes {limit:,} "
                "(`max_request_bytes`). Pass a smaller part of the value; if the server takes more, raise the setting."
            )
