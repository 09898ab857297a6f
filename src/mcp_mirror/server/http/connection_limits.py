"""The limits of all HTTP connections of a server: their number, their number by address, and their deadlines.

A connection is pending until the gateway has admitted a request on it. The number of pending connections without a
complete head is limited for each client address. At a limit, a new connection closes the oldest waiting one.
"""

import ipaddress
import logging
import sys
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from starlette.types import Receive, Scope, Send

from mcp_mirror.server.http.handover import ConnectionHandover
from mcp_mirror.server.http.rejected_requests import build_busy_response
from mcp_mirror.server.http.turns import ChunkTurns, Turns
from mcp_mirror.settings.limits import TrafficPolicy
from mcp_mirror.system.shared_timer import SharedTimer

if TYPE_CHECKING:
    from mcp_mirror.server.http.connections import LimitedProtocol
if sys.platform != "win32":
    import resource

_logger = logging.getLogger(__name__)

_REFUSED_CONNECTIONS: Final = 64
"""Connections over the limit that get HTTP 503; the server closes further ones without a response."""
_RESERVED_FILES: Final = 256
"""Open files that are reserved for stores, upstreams and logs, if the limit of the process is high enough."""
_NETWORK_BITS: Final = 64
"""Bits of an IPv6 address that name the network. One client may have all addresses of its network."""
_IDLE_TIMEOUT: Final = 620.0
"""Seconds after a response in which the next request must begin. A request fails if its connection closes at that
moment, so proxies, which keep connections for less time, close them first: nginx keeps them for 60 s, Traefik for 90 s,
Caddy for 120 s, and the load balancers of Google Cloud for 600 s."""
_MAX_READ: Final = 256 << 10
"""Bytes that a connection reads at once."""
_MAX_READ_TOGETHER: Final = 16 << 20
"""Bytes that all connections together read at once, unless each reads the least that one may."""
_ENDED_AT_ONCE: Final = 16
"""Requests of disconnected clients that end in a pass: a proxy that stops disconnects all of its clients at once."""
_CROWDED: Final = (
    "Closed a connection of %s, which has over %d without a whole request (`limits.pending_connections_per_address`). "
    "Raise the limit if this is the address of a proxy. The log reports this once."
)
_REASONS: Final = {400: "invalid HTTP", 408: "head did not come", 431: "head too large", 503: "too many"}
"""The reason of a rejected request in the audit log, by its status."""
Report = Callable[[str, str], object]


class Connections:
    """All connections of one server, and their limits."""

    def __init__(
        self, policy: TrafficPolicy, handover: ConnectionHandover | None = None, report: Report | None = None
    ) -> None:
        """Create an empty set of connections.

        `handover` gives some of them to other worker processes, if there are any. `report` is called with the reason
        for which a connection rejects a request, and a sentence for the log.
        """
        self.handover: ConnectionHandover | None = handover
        self._report = report
        self.policy: TrafficPolicy = policy
        self.turns: Turns = Turns()
        self.chunk_turns: ChunkTurns = ChunkTurns()
        self.head_deadline: SharedTimer = SharedTimer(policy.header_timeout)
        self.idle_deadline: SharedTimer = SharedTimer(_IDLE_TIMEOUT)
        self._capacity = _limit_connections(policy.max_connections)
        self._open: set[LimitedProtocol] = set()
        self._pending: dict[LimitedProtocol, None] = {}
        """Connections that wait for a complete head, without an admitted request before; the oldest first."""
        self._idle: dict[LimitedProtocol, None] = {}
        """Connections that wait for a complete head after an admitted request; the oldest first."""
        self._pending_by_address: dict[str, dict[LimitedProtocol, None]] = {}
        self._has_warned = False
        self.is_shutting_down = False
        """Whether each connection ends with its present or its next request."""
        self._disconnected: deque[LimitedProtocol] = deque()
        """Closed connections whose requests do not know it yet."""

    def add(self, connection: "LimitedProtocol") -> bool:
        """Count a new connection; return False if the capacity is exhausted.

        At the limit, this closes the oldest pending or idle connection.
        """
        self._open.add(connection)
        if len(self._open) <= self._capacity:
            return True
        oldest = next(iter(self._pending), None) or next(iter(self._idle), None)
        if oldest is None:
            return False
        oldest.drop()
        return len(self._open) <= self._capacity

    @property
    def max_read(self) -> int:
        """Bytes that a connection reads at once."""
        return min(_MAX_READ, _MAX_READ_TOGETHER // (len(self._open) or 1))

    @property
    def is_overrun(self) -> bool:
        """Whether there are too many connections to answer further ones with HTTP 503."""
        return len(self._open) > self._capacity + _REFUSED_CONNECTIONS

    def add_waiting(self, connection: "LimitedProtocol") -> None:
        """Record that a connection waits for a complete head."""
        if connection.is_admitted:
            self._idle.setdefault(connection)
            return
        if connection in self._pending:
            return
        self._pending[connection] = None
        neighbours = self._pending_by_address.setdefault(connection.address, {})
        neighbours[connection] = None
        if len(neighbours) > self.policy.pending_connections_per_address:
            next(iter(neighbours)).drop()
            if not self._has_warned:
                self._has_warned = True
                _logger.warning(_CROWDED, connection.address, self.policy.pending_connections_per_address)

    def remove_waiting(self, connection: "LimitedProtocol") -> None:
        """Record that a connection does not wait for a head."""
        self._idle.pop(connection, None)
        if connection in self._pending:
            del self._pending[connection]
            neighbours = self._pending_by_address[connection.address]
            del neighbours[connection]
            if not neighbours:
                del self._pending_by_address[connection.address]

    def remove(self, connection: "LimitedProtocol") -> None:
        """Forget a connection that is closed or closing."""
        self._open.discard(connection)
        self.turns.remove(connection)
        self.chunk_turns.remove(connection)
        self.remove_waiting(connection)

    def report_disconnect(self, connection: "LimitedProtocol") -> None:
        """Tell the request of a closed connection that its client has disconnected, soon."""
        if not self._disconnected:
            connection.loop.call_soon(self._report_disconnects)
        self._disconnected.append(connection)

    def _report_disconnects(self) -> None:
        for _ in range(min(_ENDED_AT_ONCE, len(self._disconnected))):
            connection = self._disconnected.popleft()
            if connection.on_disconnect is not None:
                connection.on_disconnect()
        if self._disconnected:
            connection.loop.call_soon(self._report_disconnects)

    def report_rejection(self, status: int, explanation: str) -> None:
        """Report a request that gets a status before the application gets the request."""
        if self._report is not None:
            self._report(_REASONS[status], explanation)

    async def refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request with HTTP 503: the ASGI application of connections over the limit."""
        self.report_rejection(503, f"`limits.max_connections` ({self._capacity:,}) connections are in use.")
        response = build_busy_response(503, "max_connections", self._capacity, "connections are in use")
        response.headers["connection"] = "close"
        await response(scope, receive, send)


def _limit_connections(configured: int) -> int:
    """Return the number of connections to accept: the configured one, or less if the limit of open files is low."""
    if sys.platform == "win32":
        return configured
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return configured
    available = files - max(min(_RESERVED_FILES, files // 2), files // 4)
    if available < configured:
        _logger.warning(
            "`limits.max_connections` (%s) is too high for a limit of %s open files: the gateway accepts %s "
            "connections. Raise the limit (`ulimit -n`), or lower `limits.max_connections`.",
            *(f"{number:,}" for number in (configured, files, available)),
        )
    return min(configured, available)


def find_network(address: str) -> str:
    """Return the network of an IPv6 address; other addresses unchanged."""
    try:
        return str(ipaddress.IPv6Network((address.partition("%")[0], _NETWORK_BITS), strict=False))
    except ValueError:
        return address
