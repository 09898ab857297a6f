"""The settings and helpers that all connections to one upstream share."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import mcp_types as types
import msgspec
from msgspec.structs import replace

from mcp_mirror.core.results.processing import RejectedFrame
from mcp_mirror.core.schemas.tool_inspection import InspectedTool
from mcp_mirror.payload.spool import Spool, SpooledFrame
from mcp_mirror.security.rate_limits import UpstreamLimiter
from mcp_mirror.security.redaction import Redactor
from mcp_mirror.settings.upstreams import HttpEndpoint, LocalEndpoint, StdioEndpoint, UpstreamPolicy
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.system.limited_logs import RepeatedLog
from mcp_mirror.system.shared_timer import SharedTimer
from mcp_mirror.types import Buffer
from mcp_mirror.upstreams.client_backlog import ClientBacklog
from mcp_mirror.upstreams.listing import ListingCache
from mcp_mirror.upstreams.transports.server_output import ServerOutput
from mcp_mirror.upstreams.transports.stdio import StdioTransport
from mcp_mirror.workers.frame_jobs import OpenedList

if TYPE_CHECKING:
    from mcp_mirror.upstreams.oauth.tokens import Authorizer
    from mcp_mirror.upstreams.transports.cookies import AcceptCookies
    from mcp_mirror.upstreams.transports.http import HttpTransport

_logger = logging.getLogger(__name__)

InspectTools = Callable[[UpstreamPolicy, Sequence[Buffer]], Awaitable[tuple[InspectedTool, ...]]]
"""Inspects the tools of a listing, given as JSON text."""

OpenList = Callable[[SpooledFrame, str, int], Awaitable[OpenedList | RejectedFrame]]
"""Reads a page of a list from a spool file. Arguments: the page, the member with the list, its limit in bytes."""


class ConnectionCounts(msgspec.Struct):
    """Counts of events of the connections of one upstream since its start."""

    opened: int = 0
    failed: int = 0
    """Attempts to connect that failed."""
    lost: int = 0
    """Open connections that ended."""


class ConnectionServices(msgspec.Struct, frozen=True):
    """The objects that the connections to all upstreams share."""

    spool: Spool
    child_watchdog: ChildWatchdog
    client_info: types.Implementation
    inspect_tools: InspectTools
    open_list: OpenList
    listing_cache: ListingCache | None = None
    """Keeps listings between runs; None: listings are not kept."""


class ConnectionSettings(msgspec.Struct, frozen=True):
    """The settings and helpers of all connections to one upstream."""

    policy: UpstreamPolicy
    services: ConnectionServices
    redactor: Redactor
    limiter: UpstreamLimiter
    backlog: ClientBacklog
    authorizer: "Authorizer | None" = None
    """Provides OAuth tokens; None if the upstream needs none."""
    counts: ConnectionCounts = msgspec.field(default_factory=ConnectionCounts)
    log: RepeatedLog = msgspec.field(default_factory=lambda: RepeatedLog(_logger))
    """Logs requests that the server did not answer, or rejected."""
    timer: SharedTimer | None = None
    """The timer for requests with the `timeout` of the policy; None: each request has a timer of its own."""

    def for_client(self, values: Mapping[str, str]) -> "ConnectionSettings":
        """Return the settings of a connection with these headers or variables of one client; the same without any."""
        if not values:
            return self
        endpoint = self.policy.endpoint
        assert not isinstance(endpoint, LocalEndpoint)  # noqa: S101  # local functions have no connection
        policy = replace(self.policy, endpoint=endpoint.with_client_values(values))
        return replace(self, policy=policy, redactor=Redactor(policy.endpoint), authorizer=None)

    def transport(self, output: ServerOutput, accept_cookies: "AcceptCookies") -> "StdioTransport | HttpTransport":
        """Return a new transport for one session."""
        endpoint, spool = self.policy.endpoint, self.services.spool
        if isinstance(endpoint, HttpEndpoint):
            from mcp_mirror.upstreams.transports.http import HttpTransport  # noqa: PLC0415  # takes long to import

            return HttpTransport(endpoint, self.policy.timeout, spool, accept_cookies, self.authorizer)
        assert isinstance(endpoint, StdioEndpoint)  # noqa: S101  # local functions have no connection
        return StdioTransport(self.policy.name, endpoint, spool, self.services.child_watchdog, output)
