"""Limits of what clients and upstreams may send, request and list: the section `limits` of a configuration.

Each error that a limit causes names its key.
"""

from typing import Annotated, Final, NamedTuple

from mcp_mirror.callers import name_principal
from mcp_mirror.settings.declarations import NAME, Bytes, Count, Duration, Example, Number, Rate, Section, Whole

MAX_DEPTH: Final = 700
"""Levels of nesting that pass everywhere: the parser counts them on the interpreter's stack, which is deeper from
Python 3.12 on."""
Depth = Annotated[int, Number(f"a number of levels from 1 to {MAX_DEPTH}", minimum=1, maximum=MAX_DEPTH)]

_DEFAULT_RATE: Final = 6000
"""Requests of one principal a minute if `auth` requires tokens and the file sets no rate."""


class QueuePolicy(Section, frozen=True):
    """Limits of waiting requests."""

    queued_calls: Whole = 1000
    """Requests of one principal, or to one upstream, that may wait; one more is refused."""
    queue_timeout: Duration = 60.0
    """Time that a request may wait."""


class CallQuota(NamedTuple):
    """Calls that one principal may make; 0: no limit."""

    calls_per_day: int
    calls_per_month: int


class PrincipalLimits(Section, frozen=True):
    """Limits of one principal, in place of those for all."""

    name: Annotated[str, NAME]
    calls_per_day: Annotated[Rate | None, Example(100_000)] = None
    """Its tool calls a day. Default: `limits.calls_per_day`."""
    calls_per_month: Annotated[Rate | None, Example("none")] = None
    """Its tool calls a month. Default: `limits.calls_per_month`."""
    namespace_bytes: Annotated[Bytes | None, Example("4GiB")] = None
    """Bytes of its values. Default: `store.namespace_bytes`."""
    namespace_values: Annotated[Whole | None, Example(50_000)] = None
    """Number of its values. Default: `store.namespace_values`."""


def find_limits(principals: tuple[PrincipalLimits, ...], namespace: str) -> PrincipalLimits | None:
    """Return the own limits of a namespace's principal; None if it has none."""
    if not principals:
        return None
    name = name_principal(namespace)
    return next((one for one in principals if one.name == name), None)


class TrafficPolicy(QueuePolicy, frozen=True):
    """Limits of clients."""

    calls_per_principal: Count = 100
    """Concurrent requests of one principal; others wait."""
    calls_per_minute: Annotated[Rate | None, Example(6000)] = None
    """Requests of one principal a minute. Default: 6000 if `auth` requires tokens, else none."""
    calls_per_day: Annotated[Rate | None, Example(10_000)] = None
    """Tool calls of one principal a day (UTC); refused calls do not count. Default: none."""
    calls_per_month: Annotated[Rate | None, Example(200_000)] = None
    """Tool calls of one principal a calendar month (UTC); refused calls do not count. Default: none."""
    max_pointers: Count = 1000
    """Memory paths in the arguments of one call."""
    sessions_per_principal: Count = 500
    """HTTP sessions of one principal (protocol version 2025-11-25)."""
    connections_per_principal: Count = 32
    """Dedicated upstream connections of one principal, for all its sessions; shared connections do not count."""
    requests_per_principal: Count = 2000
    """Open requests of one principal, over HTTP including streams."""
    streams_per_principal: Count = 200
    """Notification streams of one principal (`subscriptions/listen`)."""
    subscriptions_per_principal: Count = 1000
    """Resources that one principal subscribes to."""
    max_connections: Count = 4096
    """Connections to the HTTP endpoint, of all clients together."""
    pending_connections_per_address: Count = 256
    """Connections of one client address on which the gateway has not accepted a request yet."""
    max_header_bytes: Bytes = 64 << 10
    """Bytes of an HTTP request's first line and headers."""
    header_timeout: Duration = 10.0
    """Time from the start of a connection, or the first byte of a request, to the end of the request's headers."""
    body_timeout: Duration = 30.0
    """Time that a request's body may pause."""

    def quota_for(self, own: PrincipalLimits | None) -> CallQuota:
        """Return the quota of calls of a principal."""
        day, month = self.calls_per_day, self.calls_per_month
        if own is not None:
            day = day if own.calls_per_day is None else own.calls_per_day
            month = month if own.calls_per_month is None else own.calls_per_month
        return CallQuota(day or 0, month or 0)

    def rate(self, *, has_auth: bool) -> int:
        """Return the requests of one principal a minute; 0: no limit."""
        default = _DEFAULT_RATE if has_auth else 0
        return default if self.calls_per_minute is None else self.calls_per_minute


class UpstreamBounds(QueuePolicy, frozen=True):
    """Limits of each upstream."""

    calls_per_upstream: Count = 100
    """Concurrent requests to one upstream; others wait, round-robin by principal."""
    upstream_calls_per_minute: Annotated[Rate | None, Example(600)] = None
    """Requests to one upstream a minute. Default: none."""
    connections_per_upstream: Count = 64
    """Dedicated connections to one upstream, for all sessions and principals; the shared connection does not count."""
    max_tools: Count = 20_000
    """Tools of one upstream that the gateway serves."""
    max_name_bytes: Bytes = 1 << 10
    """Bytes of a tool's name."""
    max_tool_bytes: Bytes = 1 << 20
    """Bytes of one tool's definition."""
    max_schema_depth: Depth = 128
    """Levels of nesting in one tool's definition."""
    max_listing_bytes: Bytes = 64 << 20
    """Bytes of one list of an upstream, all pages together."""
    max_listing_pages: Count = 1000
    """Pages of one list."""
    max_queued_notification_bytes: Bytes = 64 << 20
    """Bytes of an upstream's notifications that wait for slow clients, and of its requests that wait for answers; the
    gateway drops or refuses more."""
    max_input_requests_per_call: Count = 100
    """Requests of an upstream to the client (elicitation, sampling, roots) within one call; one more ends the call.
    Outside of calls: requests within one minute."""
    max_input_requests: Count = 100
    """Requests of an upstream that wait for answers, over one connection; a further one gets an error."""
