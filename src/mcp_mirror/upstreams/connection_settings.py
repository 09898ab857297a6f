"""The settings and helpers that all connections to one upstream share."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
import mcp_types as types

from mcp_mirror.callers import Caller, ClientChannel
from mcp_mirror.core.result_processing import RejectedFrame
from mcp_mirror.core.tool_inspection import InspectedTool
from mcp_mirror.errors import BusyError, UpstreamError
from mcp_mirror.payload.spool import Spool, SpooledFrame
from mcp_mirror.security.rate_limits import ConcurrencyLimiter, Limit, Queue, TokenBucket
from mcp_mirror.security.redaction import Redactor
from mcp_mirror.settings.limits import UpstreamBounds
from mcp_mirror.settings.upstreams import HttpEndpoint, StdioEndpoint, UpstreamPolicy
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.types import Buffer
from mcp_mirror.upstreams.listing_cache import ListingCache
from mcp_mirror.upstreams.transports.server_output import ServerOutput
from mcp_mirror.upstreams.transports.stdio import StdioTransport
from mcp_mirror.workers.frames import OpenedList

if TYPE_CHECKING:
    from mcp_mirror.upstreams.oauth import Authorizer
    from mcp_mirror.upstreams.transports.http import AcceptCookies, HttpTransport

Examine = Callable[[UpstreamPolicy, Sequence[Buffer]], Awaitable[tuple[InspectedTool, ...]]]
"""Examines the tools of a listing, given as JSON text."""

OpenList = Callable[[SpooledFrame, str, int], Awaitable[OpenedList | RejectedFrame]]
"""Reads a page of a list from a spool file. Arguments: the page, the member with the list, its limit in bytes."""


class UpstreamLimiter:
    """The concurrency limit and the rate limit of one upstream, over all its connections, round-robin by principal."""

    def __init__(self, name: str, bounds: UpstreamBounds) -> None:
        """Take the name of the upstream and its limits."""
        per_minute = bounds.upstream_calls_per_minute
        rate = Limit("upstream_calls_per_minute", per_minute) if per_minute else None
        queue = Queue(Limit("queued_calls", bounds.queued_calls), bounds.queue_timeout)
        concurrency = Limit("calls_per_upstream", bounds.calls_per_upstream)
        title = f"Upstream {name!r}"
        self._rate = TokenBucket(rate, title, anyio.current_time) if rate else None
        self._limiter = ConcurrencyLimiter(concurrency, queue, title)

    @property
    def waiting_count(self) -> int:
        """The number of requests in the queue."""
        return self._limiter.waiting_count

    def acquire(self, channel: ClientChannel | None) -> "UpstreamPlace":
        """Admit a request for the duration of the context; the gateway's own (`channel` None) are not limited.

        Raises:
            UpstreamError: The request exceeds a limit.
        """
        return UpstreamPlace(self, channel.caller if channel else None)

    async def enter(self, caller: Caller) -> None:
        """Admit a request of a caller, until `release`.

        Raises:
            UpstreamError: The request exceeds a limit.
        """
        has_others = caller.scopes is not None  # without tokens there is one principal
        try:
            if self._rate is not None:
                self._rate.take()
            await self._limiter.enter(caller.namespace, is_shared=has_others)
        except BusyError as error:
            raise UpstreamError(str(error)) from None

    def release(self, caller: Caller) -> None:
        """Record that a request of a caller has ended."""
        self._limiter.release(caller.namespace)


class UpstreamPlace:
    """A place that `UpstreamLimiter.acquire` returns. Every call takes one, so this is not a generator."""

    __slots__ = ("_caller", "_limiter")

    def __init__(self, limiter: UpstreamLimiter, caller: Caller | None) -> None:
        self._limiter, self._caller = limiter, caller

    async def __aenter__(self) -> None:
        if self._caller is not None:
            await self._limiter.enter(self._caller)

    async def __aexit__(self, *_: object) -> None:
        if self._caller is not None:
            self._limiter.release(self._caller)


@dataclass(slots=True)
class ConnectionCounts:
    """What has happened to the connections of one upstream since its start."""

    opened: int = 0
    failed: int = 0
    """Attempts to connect that failed."""
    lost: int = 0
    """Open connections that ended."""


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """The settings and helpers of all connections to one upstream."""

    policy: UpstreamPolicy
    spool: Spool
    child_watchdog: ChildWatchdog
    client_info: types.Implementation
    redactor: Redactor
    examine: Examine
    open_list: OpenList
    limiter: UpstreamLimiter
    authorizer: "Authorizer | None" = None
    """Provides OAuth tokens; None if the upstream needs none."""
    listing_cache: ListingCache | None = None
    """Keeps listings between runs; None: listings are not kept."""
    counts: ConnectionCounts = field(default_factory=ConnectionCounts)

    def transport(self, output: ServerOutput, accept_cookies: "AcceptCookies") -> "StdioTransport | HttpTransport":
        """Return a new transport for one session."""
        endpoint = self.policy.endpoint
        if isinstance(endpoint, HttpEndpoint):
            from mcp_mirror.upstreams.transports.http import HttpTransport  # noqa: PLC0415  # takes long to import

            return HttpTransport(endpoint, self.policy.timeout, self.spool, accept_cookies, output, self.authorizer)
        assert isinstance(endpoint, StdioEndpoint)  # noqa: S101  # local functions have no connection
        return StdioTransport(self.policy.name, endpoint, self.spool, self.child_watchdog, output)
