"""One connection to an upstream: it reconnects when it ends, with exponential backoff and jitter.

A request waits for a short time while the connection reconnects. After several failures in a row a circuit breaker
opens: requests fail at once with the upstream's last error, and one request a second tries to reconnect.
"""

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from time import monotonic
from typing import Final

import anyio
import anyio.lowlevel
import msgspec
from anyio.abc import TaskStatus
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcp_mirror.callers import ClientChannel
from mcp_mirror.errors import RefusedError, UpstreamError
from mcp_mirror.upstreams.connection_settings import ConnectionSettings
from mcp_mirror.upstreams.list_changes import ListChanges, subscribe_to_changes
from mcp_mirror.upstreams.listing import Listing, PagedList
from mcp_mirror.upstreams.notifications import ConnectionOwner
from mcp_mirror.upstreams.reconnect import (
    JUST_ENDED,
    STABLE_AFTER,
    STOPPED,
    Backoff,
    CircuitBreaker,
    ConnectionEnd,
    ExpiredSessionError,
    FloodError,
    HandshakeModes,
    OutageLog,
    Status,
    add_jitter,
    check_protocol,
    describe_failure,
    explain_end,
    explain_timeout,
)
from mcp_mirror.upstreams.request_failures import ConnectionLostError, RejectedRequestError, SessionLostError
from mcp_mirror.upstreams.served_lists import ServedLists
from mcp_mirror.upstreams.session import Mode, UpstreamSession, open_session
from mcp_mirror.upstreams.transports.requests import RawResponse
from mcp_mirror.upstreams.transports.server_output import ServerOutput
from mcp_mirror.upstreams.upstream_request import UpstreamRequest

_FIRST_DELAY: Final = 0.25
"""Seconds before each attempt to reconnect, to which the backoff adds its delay, this one at first."""
_LONGEST_DELAY: Final = 60.0
"""Seconds between two attempts to reconnect, at most."""
_FALLBACK_WAIT: Final = 3.0
"""Seconds that an upstream has to list its tools before a listing for clients without capabilities is used."""
_REQUEST_WAIT: Final = 5.0
"""Seconds that a request waits while the connection reconnects."""

_logger = logging.getLogger(__name__)


class ReconnectingConnection:
    """A connection to one upstream, shared or dedicated to one owner, that reconnects until it is cancelled.

    `run` opens one session after the other. The state in `status` is `starting` until the first attempt to connect has
    ended, `ready` while a session is open, and `down` after a failed attempt or the end of a session. A request that
    finds no session ends the pause before the next attempt.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        owner: ConnectionOwner,
        modes: tuple[Mode, ...] = ("auto", "legacy"),
        *,
        is_cached: bool = False,
        may_be_refused: bool = False,
        earlier_lists: ServedLists | None = None,
    ) -> None:
        """Create a connection that is not connected yet.

        Args:
            settings: The settings and helpers that all connections to the upstream share.
            owner: The session or principal that the connection belongs to.
            modes: The ways to connect, in the order in which to try them.
            is_cached: Its listings go into the listing cache.
            may_be_refused: A refused handshake does not count as a failure of the server.
            earlier_lists: The lists of the connection that serves the owner until this one is ready.
        """
        self.settings = settings
        self.list_changes: ListChanges = ListChanges()
        self.owner: ConnectionOwner = msgspec.structs.replace(owner, on_change=self.list_changes.note)
        self.status: Status = Status("starting")
        self.listing: Listing | None = None
        """The last listing; it stays while the upstream is down, so that tools keep their names."""
        self.settled: anyio.Event = anyio.Event()
        """Set when the first attempt to connect has ended, successful or not, or the gateway has stopped it."""
        self.listed: anyio.Event = anyio.Event()
        """Set when there is a listing, of this run or an earlier one, or the connection is settled."""
        self.failure: UpstreamError | None = None
        """Why the last attempt failed; None while it is connected, or before the first attempt."""
        self.served_lists: ServedLists = ServedLists(earlier_lists)
        self.last_used: float = monotonic()
        self.keep_open_count: int = 0
        """Users that need the connection open without a request, such as subscriptions."""
        self._is_cached = is_cached
        self._may_be_refused = may_be_refused
        self._announce = owner.on_change
        self._session: UpstreamSession | None = None
        self._expired = set[UpstreamSession]()
        """Sessions that the server does not know any more, in which requests still run."""
        self._state_changed = anyio.Event()
        self._reconnect_requested = anyio.Event()
        self._circuit_breaker = CircuitBreaker()
        self._failed_attempts = 0
        """Failed attempts of this connection, never reset: a waiting request learns by it that an attempt has ended."""
        self._ready_since = 0.0
        """When the last session was opened; 0 before the first one."""
        self._modes = HandshakeModes(modes)
        self._outage_log = OutageLog(settings.policy, is_shared=owner.key == owner.name)

    @property
    def inflight_count(self) -> int:
        """The number of requests that wait for their responses."""
        sessions = (*self._expired, self._session) if self._session else self._expired
        return sum(session.inflight_count for session in sessions)

    @property
    def is_circuit_open(self) -> bool:
        """Whether requests fail at once, because the last attempts to connect failed."""
        return self._circuit_breaker.is_open and self.status.state != "ready"

    @property
    def client_session(self) -> str | None:
        """The client session that the connection belongs to; None if it is shared or belongs to a principal."""
        return self.owner.channel.caller.session if self.owner.channel else None

    @property
    def current_session(self) -> UpstreamSession | None:
        """The session that is open now; None while the upstream is down."""
        return None if self._is_down() else self._session

    async def request(self, request: UpstreamRequest, channel: ClientChannel | None) -> RawResponse:
        """Send a request within the limits of the upstream; see `UpstreamSession.request`.

        A request that the server did not receive is sent again in a new session, a lost one only if it may be repeated.

        Raises:
            UpstreamError: A limit is exceeded, or the request failed.
        """
        await self.settings.limiter.enter(channel)
        try:
            session = await self.get_session()
            try:
                return await session.request(request, channel)
            except RejectedRequestError as error:
                self.settings.log.warning("%s", error.log_message, kind="rejected")
                raise
            except (SessionLostError, ConnectionLostError) as error:
                if not session.ended.is_set():  # over HTTP, where the session stays and the state is `ready`
                    self.settings.log.warning("%s", error.log_message, kind="lost")
                if isinstance(error, ConnectionLostError) and not request.is_repeatable:
                    raise
            return await (await self.get_session()).request(request, channel)
        finally:
            self.settings.limiter.leave(channel)
            self.last_used = monotonic()

    async def list_all(self, method: str, member: str, channel: ClientChannel) -> PagedList:
        """Read a list for a caller; see `UpstreamSession.list_all`.

        Raises:
            UpstreamError: A limit is exceeded, or a request failed.
        """
        await self.settings.limiter.enter(channel)
        try:
            session = await self.get_session()
            try:
                page = await session.list_all(method, member, channel)
            except SessionLostError:
                page = await (await self.get_session()).list_all(method, member, channel)
            self.served_lists.note_list(method, page)
            return page  # noqa: TRY300  # the exceptions are those of the two lines above
        except UpstreamError as error:
            self.served_lists.note_failure(method, error)
            raise
        finally:
            self.settings.limiter.leave(channel)
            self.last_used = monotonic()

    async def get_session(self) -> UpstreamSession:
        """Return the open session. While the upstream is down, reconnect now and wait, if the circuit breaker allows.

        Raises:
            UpstreamError: The upstream is down.
        """
        if self._session is not None and not self._session.ended.is_set():
            return self._session
        failed_before = self._failed_attempts
        if self.status is not STOPPED and self._circuit_breaker.allow_attempt(anyio.current_time()):
            self._reconnect_requested.set()
            with anyio.move_on_after(_REQUEST_WAIT):
                while self._is_down() and self._failed_attempts == failed_before and self.status is not STOPPED:
                    await self._state_changed.wait()
        if self._session is None or self._is_down():
            status = JUST_ENDED if self.status.state == "ready" else self.status
            reason = f": {status.detail.rstrip('.')}" if status.detail else ""
            name = self.settings.policy.name
            raise UpstreamError(f"Upstream {name!r} is {status.state}{reason}. {status.advice}")
        return self._session

    async def wait_for_change(self) -> None:
        """Wait until the connection opens or ends, or an attempt to connect fails."""
        await self._state_changed.wait()

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """Keep the connection from counting as idle for the duration of the context."""
        self.keep_open_count += 1
        try:
            yield
        finally:
            self.keep_open_count -= 1
            self.last_used = monotonic()

    async def run(self) -> None:
        """Connect, and reconnect with backoff and jitter whenever the connection ends; until cancelled."""
        backoff = Backoff(_FIRST_DELAY, _LONGEST_DELAY)
        try:
            async with anyio.create_task_group() as sessions:
                while True:
                    self._reconnect_requested = anyio.Event()
                    end: ConnectionEnd = await sessions.start(self._serve)
                    self.failure = end.error
                    has_failed = self.status.state != "ready"  # a mode that has just worked stays
                    if has_failed and self._modes.switch(end.error, was_ready=self._ready_since > 0):
                        continue
                    if self.listing and self.listing.is_stale:
                        self.listing = None
                        await self._announce_change("tools")
                    delay = add_jitter(backoff.next_delay(self._set_down(end)))
                    await anyio.sleep(_FIRST_DELAY)
                    with anyio.move_on_after(delay):
                        await self._reconnect_requested.wait()
        finally:
            self._end_attempt(STOPPED)  # calls that wait for the connection would wait forever

    async def _serve(self, *, task_status: TaskStatus[ConnectionEnd]) -> None:
        """Connect, serve requests until the connection ends, and report the end, after which `run` reconnects.

        Requests that run in a session that the server does not know any more may take their time after the report.
        """
        settings, is_reported = self.settings, False
        output = ServerOutput(settings.redactor)
        try:
            async with self._open_session(output) as session:
                await self._follow(session)
                if session.is_unknown:
                    is_reported = True
                    task_status.started(ConnectionEnd(ExpiredSessionError("It ended the session.")))
                    await self._drain(session)
                    return
                raise UpstreamError(JUST_ENDED.detail)  # noqa: TRY301  # one exit for every end
        except anyio.get_cancelled_exc_class():
            await anyio.lowlevel.checkpoint_if_cancelled()  # raises if the gateway cancelled this connection
            if not is_reported:
                # The SDK's #3560 cancels without a request.
                task_status.started(ConnectionEnd(UpstreamError("It aborted the connection.")))
        except Exception as error:  # noqa: BLE001  # a server's failure must not affect other upstreams
            if is_reported:
                return
            is_starting = self.status.state != "ready"
            reason = explain_end(error, output, settings.policy, settings.redactor, is_starting=is_starting)
            task_status.started(ConnectionEnd(reason, output.lines if is_starting else ()))

    @asynccontextmanager
    async def _open_session(self, output: ServerOutput) -> AsyncIterator[UpstreamSession]:
        policy, transport = self.settings.policy, self.settings.transport(output, self._accepts_cookies)
        with anyio.CancelScope() as scope:
            scope.deadline = anyio.current_time() + policy.startup_timeout
            async with open_session(self.settings, transport.open, self.owner, self._modes.current) as session:
                check_protocol(policy.oldest_protocol, session.client.protocol_version)
                self.listing = await session.list_tools()
                scope.deadline = float("inf")
                yield session
        if scope.cancelled_caught:
            raise explain_timeout(policy)

    def _accepts_cookies(self, version: str | None) -> bool:
        """Whether to keep the cookies of a response: a load balancer may need them to find the session again.

        A dedicated connection keeps all. A shared connection keeps only those of its own handshake in protocol version
        2025-11-25, which has sessions, and none if `scope` is `shared`.
        """
        if not self.owner.is_shared:
            return True
        is_handshake = self._session is None and version not in MODERN_PROTOCOL_VERSIONS
        return is_handshake and self.settings.policy.scope != "shared"

    async def _follow(self, session: UpstreamSession) -> None:
        """Serve requests in a session, and follow list changes, until it ends."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._save_listing)
                await self._announce_change("tools")
                self._set_ready(session)
                tasks.start_soon(self._announce_differences, session)
                tasks.start_soon(subscribe_to_changes, session)
                tasks.start_soon(self.list_changes.follow, partial(self._read_changes, session))
                await session.ended.wait()
                tasks.cancel_scope.cancel()
        finally:
            self._session = None
            self._notify_waiters()
        if reason := session.flood_reason:
            raise FloodError(reason)
        if reason := session.restart_reason:
            raise UpstreamError(reason)

    async def _drain(self, session: UpstreamSession) -> None:
        """Wait until the requests that run in an expired session have ended."""
        self._expired.add(session)
        try:
            await session.drain()
        finally:
            self._expired.remove(session)

    def _set_ready(self, session: UpstreamSession) -> None:
        """Note that a session is open."""
        self._session = session
        self.failure = None
        self.settings.counts.opened += 1
        self._ready_since = anyio.current_time()
        self._end_attempt(Status("ready"))
        self._outage_log.log_ready()

    def _set_down(self, end: ConnectionEnd) -> float:
        """Note that an attempt failed or the connection ended; return the seconds that the connection was usable."""
        error, was_ready = end.error, self.status.state == "ready"
        if not was_ready:
            self._failed_attempts += 1
        if self._may_be_refused and isinstance(error, RefusedError):
            self._end_attempt(Status("down", str(error)))
            return 0.0
        if was_ready:
            self.settings.counts.lost += 1
        else:
            self.settings.counts.failed += 1
        is_usable = was_ready and not isinstance(error, FloodError)
        lasted = anyio.current_time() - self._ready_since if is_usable else 0.0
        is_expired = isinstance(error, ExpiredSessionError)
        self._circuit_breaker.record_end(was_stable=is_expired or lasted > STABLE_AFTER)
        self._end_attempt(describe_failure(error, end.output))
        if is_expired:
            _logger.info("upstream %s ended the session, so the gateway opens a new one", self.settings.policy.name)
        else:
            self._outage_log.log_down(end)
        return lasted

    def _end_attempt(self, status: Status) -> None:
        """Set the state after an attempt to connect, and wake the requests that wait for it."""
        self.status = status
        self.settled.set()
        self.listed.set()
        self._notify_waiters()

    def _notify_waiters(self) -> None:
        self._state_changed.set()
        self._state_changed = anyio.Event()

    def _is_down(self) -> bool:
        return self._session is None or self._session.ended.is_set()

    async def restore_listing(self) -> None:
        """Use the cached listing of an earlier run until the first attempt to connect has ended.

        Without one for the client's capabilities, use the one without capabilities, which `mcp-mirror check` writes.
        Some tools may be missing in it, so the upstream gets a few seconds to list them itself.
        """
        settings, services = self.settings, self.settings.services
        if services.listing_cache is None:
            return
        load = partial(services.listing_cache.load, settings.policy, settings.redactor)
        exact = await load(self.owner.capabilities)
        cached = exact or await load({})
        if cached is None:
            return
        inspected = await services.inspect_tools(settings.policy, cached.tools)
        if self.listing is not None or self.settled.is_set():
            return
        self.listing = Listing(
            tools=tuple(dict(one.raw) for one in inspected),
            instructions=cached.instructions,
            protocol_version=cached.protocol_version,
            server=cached.server,
            capabilities=cached.capabilities,
            hints=((0, "private"),),  # clients must not cache it
            inspected=inspected,
            info=cached.info,
            is_stale=True,
        )
        await self._announce_change("tools")
        if exact is None:
            with anyio.move_on_after(_FALLBACK_WAIT):
                await self.settled.wait()
        self.listed.set()

    async def _save_listing(self) -> None:
        """Write the listing to the cache, even if the gateway stops now, as `mcp-mirror check` does."""
        settings, cache = self.settings, self.settings.services.listing_cache
        if self._is_cached and self.listing and cache:
            capabilities = self.owner.capabilities
            with anyio.CancelScope(shield=True):
                await cache.save(settings.policy, settings.redactor, capabilities, self.listing)

    async def _read_changes(self, session: UpstreamSession, changed: set[str]) -> None:
        """Read the tools again if they have changed, and announce the changed lists."""
        try:
            if "tools" in changed:
                self.listing = await session.list_tools()
                await self._save_listing()
        except UpstreamError as error:
            _logger.warning("%s", error.log_message)
            changed.discard("tools")
        for kind in sorted(changed):
            await self._announce_change(kind)

    async def _announce_differences(self, session: UpstreamSession) -> None:
        """Announce the lists of resources and prompts that differ in this session from those that clients got."""
        for kind in await self.served_lists.find_changed(session):
            await self._announce_change(kind)

    async def _announce_change(self, kind: str) -> None:
        """Announce a changed list, and wait until clients see the change."""
        if (is_seen := self._announce(kind)) is not None:
            await is_seen.wait()
