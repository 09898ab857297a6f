"""All upstreams, side by side: started together, stopped and exchanged one by one.

An upstream that fails is reported and tried again; the others do not notice.
"""

import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import anyio
import mcp_types as types
from anyio.abc import TaskGroup

from mcp_mirror.callers import Caller, ClientChannel
from mcp_mirror.errors import UpstreamError
from mcp_mirror.payload.spool import Spool
from mcp_mirror.security.redaction import Redactor
from mcp_mirror.settings.policies import HttpEndpoint, UpstreamPolicy
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.upstreams.connection import ConnectionSettings
from mcp_mirror.upstreams.limiter import UpstreamLimiter
from mcp_mirror.upstreams.listing_cache import ListingCache
from mcp_mirror.upstreams.local import LocalFunctions, LocalUpstream
from mcp_mirror.upstreams.oauth import Authorizer
from mcp_mirror.upstreams.session import Examine, OpenList
from mcp_mirror.upstreams.upstream import (
    ChangeListeners,
    ClientIdentity,
    DedicatedConnectionPolicy,
    ServerUpstream,
    Upstream,
)

_LOOK: Final = 0.05

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class UpstreamDependencies:
    """What all upstreams are made with."""

    spool: Spool
    child_watchdog: ChildWatchdog
    client_info: types.Implementation
    examine: Examine
    open_list: OpenList
    audience: ChangeListeners
    residency: DedicatedConnectionPolicy
    hold: float
    """Seconds that a call waits for a client's answer."""
    listings: ListingCache | None = None
    """Keeps listings from run to run."""


class UpstreamRegistry:
    """All upstreams, side by side."""

    def __init__(
        self,
        policies: Iterable[UpstreamPolicy],
        dependencies: UpstreamDependencies,
        functions: LocalFunctions | None = None,
    ) -> None:
        """Make all that the configuration names, and one more where there are local functions; none is started."""
        self._dependencies = dependencies
        local = LocalUpstream(functions, dependencies.audience) if functions is not None else None
        self._local: dict[str, Upstream] = {local.policy.name: local} if local else {}
        self._all = self._local | {policy.name: self._make(policy) for policy in policies}
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._tasks: TaskGroup | None = None
        self._client: ClientIdentity | None = None
        self._started = float("inf")

    def __iter__(self) -> Iterator[Upstream]:
        return iter(tuple(self._all.values()))

    def __getitem__(self, name: str) -> Upstream:
        try:
            return self._all[name]
        except KeyError:
            raise UpstreamError(f"Upstream {name!r} has been taken out of the configuration.") from None

    def visible_to(self, caller: Caller) -> tuple[Upstream, ...]:
        """Those that a caller may know of."""
        return tuple(one for one in self if caller.has_scopes(one.policy.required_scopes))

    @property
    def are_scoped(self) -> bool:
        """Whether callers may differ in what they see."""
        return any(one.policy.is_scoped for one in self)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Be ready to start; stop all at the end."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            yield
            tasks.cancel_scope.cancel()

    def start(self, client: ClientIdentity | None = None) -> None:
        """Start every upstream at once; on behalf of one client, where no other will be served."""
        if self._started == float("inf"):
            self._started = anyio.current_time()
            self._client = client
            for upstream in self:
                self._start(upstream)

    def replace(self, policies: Iterable[UpstreamPolicy], drain: float) -> None:
        """Go on with these: what is not among them is stopped, what is new is started, what differs is started anew.

        Local functions stay.

        Args:
            policies: All that are wanted.
            drain: Seconds that calls in flight to one that is stopped get to end.
        """
        before, self._all = self._all, dict(self._local)
        for name in self._local:
            del before[name]
        for policy in policies:
            known = before.get(policy.name)
            if known is not None and known.policy == policy:
                self._all[policy.name] = before.pop(policy.name)
                continue
            self._all[policy.name] = self._make(policy)
        for name, upstream in before.items():
            self._retire(upstream, self._scopes.pop(name, None), drain)
        for name, upstream in self._all.items():
            if self._started != float("inf") and name not in self._scopes:
                self._start(upstream)

    def end_session(self, session: str) -> None:
        """A client has gone: so do the connections that were made for it."""
        for upstream in self:
            upstream.release(session)

    async def set_level(self, channel: ClientChannel, level: str) -> None:
        """A client of the 2025 era has said what it wants to be told of: its servers are told so."""
        for upstream in self:
            for link in upstream.connections:
                if link.client_session == channel.caller.session and (connection := link.current_session):
                    try:
                        await connection.set_level(level)
                    except UpstreamError as error:
                        log.warning("%s", error.log_message)

    async def notify(self, session: str | None, method: str) -> None:
        """Pass a client's notification on to the servers whose connections are its own."""
        for upstream in self:
            for link in upstream.connections:
                if link.client_session == session and (connection := link.current_session) and not connection.modern:
                    await connection.notify(method)

    async def try_unlisted(self, caller: Caller) -> None:
        """Try those anew that have never told this caller their tools, and not only when their pause is over."""
        async with anyio.create_task_group() as tasks:
            for upstream in self.visible_to(caller):
                if upstream.listing is None:
                    tasks.start_soon(upstream.attempt)

    def may_show(self, name: str) -> bool:
        """Whether models are shown what an upstream says."""
        return name in self._all and self._all[name].policy.preview

    async def settle(self, seconds: float, caller: Caller | None = None) -> None:
        """Wait until each upstream has been tried once, and no longer than this many seconds after their start.

        Args:
            seconds: How long.
            caller: Who waits: for those alone that they may see.
        """
        with anyio.CancelScope(deadline=self._started + seconds):
            for upstream in self if caller is None else self.visible_to(caller):
                await upstream.settled.wait()

    async def settle_listings(self, seconds: float, caller: Caller) -> None:
        """The same, but a listing of an earlier run is enough."""
        with anyio.CancelScope(deadline=self._started + seconds):
            for upstream in self.visible_to(caller):
                await upstream.listed.wait()

    async def settle_one(self, name: str, seconds: float) -> None:
        """Wait until one upstream has been tried once, and no longer than this many seconds after the start."""
        with anyio.CancelScope(deadline=self._started + seconds):
            await self[name].settled.wait()

    def _make(self, policy: UpstreamPolicy) -> Upstream:
        dependencies = self._dependencies
        redactor, endpoint, authorizer = Redactor(policy.endpoint), policy.endpoint, None
        if isinstance(endpoint, HttpEndpoint) and endpoint.oauth:
            authorizer = Authorizer(policy.name, endpoint, redactor)
        limiter = UpstreamLimiter(policy.name, policy.bounds)
        given = (dependencies.spool, dependencies.child_watchdog, dependencies.client_info, redactor)
        connection_settings = ConnectionSettings(
            policy, *given, dependencies.examine, dependencies.open_list, authorizer, limiter, dependencies.listings
        )
        return ServerUpstream(connection_settings, dependencies.audience, dependencies.residency, dependencies.hold)

    def _start(self, upstream: Upstream) -> None:
        assert self._tasks is not None  # noqa: S101  # within `running`
        if self._client is not None:
            upstream.present(self._client)
        self._scopes[upstream.policy.name] = anyio.CancelScope()
        self._tasks.start_soon(
            self._run, upstream, self._scopes[upstream.policy.name], name=f"upstream {upstream.policy.name}"
        )

    def _retire(self, upstream: Upstream, scope: anyio.CancelScope | None, drain: float) -> None:
        if scope is not None and self._tasks is not None:
            self._tasks.start_soon(_stop_when_done, upstream, scope, drain)

    async def _run(self, upstream: Upstream, scope: anyio.CancelScope) -> None:
        with scope:
            await upstream.run()


async def _stop_when_done(upstream: Upstream, scope: anyio.CancelScope, drain: float) -> None:
    """Stop one that is served no more, once the calls that it has are answered or their time is over."""
    with anyio.move_on_after(drain):
        while upstream.inflight_count:  # noqa: ASYNC110  # requests end in many places, and this is no hot path
            await anyio.sleep(_LOOK)
    scope.cancel()
