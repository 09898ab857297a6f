"""How much others may send, ask and list: what the user decided, as small frozen policies.

Each bound has the name under which the configuration has it (`limits.*`), and the error that it brings names it. A
policy is data: it knows neither the file that it came from nor the module that obeys it.
"""

from dataclasses import dataclass
from typing import Final

MAX_DEPTH: Final = 700
"""Levels of nesting that pass everywhere: the parser counts them on the interpreter's stack, which is deeper from
Python 3.12 on."""


SHOWN_RATE: Final = 6000
"""Requests a minute of one principal where everybody has to show a token and nothing else is said."""


@dataclass(frozen=True, slots=True)
class TrafficPolicy:
    """How much clients may ask at once and how often."""

    calls_per_principal: int = 100
    """Requests of one principal that are under way at once; others wait."""
    queued_calls: int = 1000
    """Requests of one principal, or to one upstream, that wait."""
    queue_timeout: float = 60.0
    """Seconds that one waits."""
    calls_per_minute: int | None = None
    """One principal's. 0: as many as it likes; None: the same, but where people show tokens `SHOWN_RATE`."""
    max_pointers: int = 1000
    """Memory paths in one call's arguments."""
    sessions_per_principal: int = 500
    """Open at once, over HTTP."""
    connections_per_principal: int = 32
    """Dedicated connections of one principal, to all upstreams together; see `UpstreamBounds`."""
    requests_per_principal: int = 2000
    """HTTP requests that are open at once, streams among them."""
    streams_per_principal: int = 200
    """Streams of announcements."""
    subscriptions_per_principal: int = 1000
    """Resources that are watched."""
    max_connections: int = 4096
    """To our HTTP face, of all clients together."""
    pending_connections_per_address: int = 256
    """Of one client address: connections that have not sent a complete head, and on which no request was admitted."""
    max_header_bytes: int = 64 << 10
    """Of one HTTP request, its first line included."""
    header_timeout: float = 10.0
    """Seconds from a connection's beginning, or a request's first byte, to the end of the request's head."""
    body_timeout: float = 30.0
    """Seconds without a byte of a request's body."""

    def rate(self, *, shows_tokens: bool) -> int:
        """Requests of one principal a minute; 0: as many as it likes."""
        default = SHOWN_RATE if shows_tokens else 0
        return default if self.calls_per_minute is None else self.calls_per_minute


@dataclass(frozen=True, slots=True)
class UpstreamBounds:
    """What one upstream may list, say and be asked. Bytes, where nothing else is said."""

    calls_per_upstream: int = 100
    """Requests that are under way at once; others wait."""
    upstream_calls_per_minute: int | None = None
    """None or 0: as many as clients like."""
    queued_calls: int = 1000
    """Requests that wait."""
    queue_timeout: float = 60.0
    """Seconds that one waits."""
    connections_per_upstream: int = 64
    """Dedicated connections: those of one session or one principal. The shared connection is not counted."""
    max_tools: int = 20_000
    """That are served of it."""
    max_name_bytes: int = 1 << 10
    """Of a tool's name."""
    max_tool_bytes: int = 1 << 20
    """Of one tool's definition."""
    max_schema_depth: int = 128
    """Levels of nesting in one tool's definition."""
    max_listing_bytes: int = 64 << 20
    """Of one list, all its pages."""
    max_listing_pages: int = 1000
    """Of one list."""
    max_queued_news_bytes: int = 64 << 20
    """Of notifications that wait for a client that is slow to take them."""
    max_questions_per_call: int = 100
    """Its requests to the client within one call, or its rounds of input; outside of calls in a minute."""
    max_questions: int = 100
    """Of it that wait for their answers, over one connection."""
