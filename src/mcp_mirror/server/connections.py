"""Limits of HTTP connections: their number, and the time and size of a request's head.

A connection is pending until the gateway has admitted a request on it. The number of pending connections without a
complete head is limited for each client address. At a limit, a new connection closes the oldest waiting one.
"""

import asyncio
import ipaddress
import logging
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import unquote

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from mcp_mirror.server.handover import ConnectionHandover
from mcp_mirror.server.http_exchange import Exchange, HeldFlow
from mcp_mirror.server.http_parser import HeadTooLargeError, InvalidRequestError, RequestHead, RequestParser
from mcp_mirror.server.rejected_requests import build_busy_response
from mcp_mirror.server.turns import ChunkTurns, Turns
from mcp_mirror.settings.limits import TrafficPolicy
from mcp_mirror.system.shared_timer import SharedTimer

if sys.platform != "win32":
    import resource

_logger = logging.getLogger(__name__)

_CONNECTION: Final = "mcp_mirror.connection"
"""The key of the connection in the state of an ASGI scope."""
_REFUSED_CONNECTIONS: Final = 64
"""Connections over the limit that get HTTP 503; the server closes further ones without a response."""
_RESERVED_FILES: Final = 256
"""Open files that are reserved for stores, upstreams and logs, if the limit of the process is high enough."""
_NETWORK_BITS: Final = 64
"""Bits of an IPv6 address that name the network. One client may have all addresses of its network."""
_IDLE_TIMEOUT: Final = 620.0
"""Seconds after a response in which the next request must begin: more than the time for which proxies keep connections,
as a request on a connection that closes at that moment fails. nginx keeps them for 60 s, Traefik for 90 s, Caddy for
120 s, and the load balancers of Google Cloud for 600 s."""
_CROWDED: Final = (
    "Closed a connection of %s, which has over %d without a whole request (`limits.pending_connections_per_address`). "
    "Raise the limit if this is the address of a proxy. The log reports this once."
)
_REASONS: Final = {400: "invalid HTTP", 408: "head did not come", 431: "head too large", 503: "too many"}
"""The reason of a rejected request in the audit log, by its status."""
Report = Callable[[str, str], object]
_HANDOVER_RETRY: Final = 0.005
"""Seconds between two attempts to give a connection to another worker."""
_MIN_READ: Final = 32 << 10
"""Bytes that a connection reads at once, if they are not the rest of a body or of a chunk."""
_MAX_READ: Final = 256 << 10
"""Bytes that a connection reads at once."""
_MAX_READ_TOGETHER: Final = 16 << 20
"""Bytes that all connections together read at once, unless each reads `_MIN_READ`."""
_LAST_REQUEST: Final = 0.5
"""Seconds after the start of a shutdown in which idle connections still accept a request."""
_ENDED_AT_ONCE: Final = 16
"""Requests of disconnected clients that end in a pass: a proxy that stops disconnects all of its clients at once."""
_AFTER_HANDSHAKE: Final = frozenset({b"mcp-session-id", b"mcp-protocol-version"})
"""Headers of requests after the handshake of 2025-11-25, and of all requests of 2026-07-28. Others may be handshakes,
which take as long as several calls."""
_MAX_SEARCHED: Final = 4096
"""Bytes of a request that waits for its turn in which these headers are searched."""
BACKLOG: Final = 128
"""Connections that the system keeps until the server accepts them. A longer queue lets a flood of them in faster."""


def find_connection(scope: Scope) -> "LimitedProtocol | None":
    """Return the connection of a request; None if another server has received it."""
    connection: LimitedProtocol | None = scope.get("state", {}).get(_CONNECTION)
    return connection


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
        self.max_read: int = _MAX_READ
        """Bytes that a connection reads at once."""
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
        self.max_read = min(_MAX_READ, _MAX_READ_TOGETHER // len(self._open))
        if len(self._open) <= self._capacity:
            return True
        oldest = next(iter(self._pending), None) or next(iter(self._idle), None)
        if oldest is None:
            return False
        oldest.drop()
        return len(self._open) <= self._capacity

    @property
    def is_overrun(self) -> bool:
        """Whether there are too many connections to answer further ones with HTTP 503."""
        return len(self._open) > self._capacity + _REFUSED_CONNECTIONS

    def mark_waiting(self, connection: "LimitedProtocol") -> None:
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

    def mark_serving(self, connection: "LimitedProtocol") -> None:
        """Record that the server handles a request of a connection."""
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
        self.max_read = min(_MAX_READ, _MAX_READ_TOGETHER // (len(self._open) or 1))
        self.mark_serving(connection)

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


class LimitedProtocol(HttpToolsProtocol):
    """A connection: uvicorn's HTTP protocol with limits, and with a parser that reads one request after the other."""

    app: Any
    cycle: Exchange | None  # type: ignore[assignment]  # None before the first request and after the end
    flow: HeldFlow

    def __init__(self, connections: Connections, *, received: bytes = b"", **keys: Any) -> None:
        """Create a connection; another worker process may have read bytes from it. `keys` are uvicorn's arguments."""
        super().__init__(**keys)
        self._requests = RequestParser(connections.policy.max_header_bytes)
        self._received = received
        self._state = {**self.app_state, _CONNECTION: self}
        self.on_disconnect: Callable[[], object] | None = None
        """Called if the client disconnects; None without a request that waits for it."""
        self.address = ""
        self.is_admitted = False
        """Whether the gateway has admitted a request, so that the connection is not pending any more."""
        self._has_ended = False
        """The client sends no more, and its last request waits."""
        self._connections = connections
        self._deadline: SharedTimer | None = None
        """The timer that closes the connection; None while the server handles a request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Count the connection, and close or refuse it if there are too many."""
        super().connection_made(transport)
        self.flow = HeldFlow(transport)
        self._limit_read()
        self.address = _find_network(self.client[0] if self.client else "")
        if not self._connections.add(self):
            self.app = self._connections.refuse
        if self._connections.is_overrun:
            self.drop()
        else:
            self.data_received(self._received)
            self._received = b""
        if self._connections.is_shutting_down:
            self.shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the count, and leave no circle of objects, which would stay in memory for long."""
        self._release()
        self._requests.close()
        super().connection_lost(exc)
        self.cycle = None
        self._state.clear()
        if self.on_disconnect is not None:
            self._connections.report_disconnect(self)

    def data_received(self, data: bytes) -> None:
        """Parse bytes of the client."""
        self._requests.received += data
        if self._is_waiting:
            self.flow.pause_reading()
            return
        self._handle_received()
        self._limit_read()

    def eof_received(self) -> bool:  # type: ignore[override]  # as asyncio has it
        """Close the connection, but not before a request that waits has begun: the client has not cancelled it."""
        self._has_ended = self._is_waiting
        return self._has_ended

    def _limit_read(self) -> None:
        """Set how many bytes asyncio reads at once: few if they may be many small chunks, which are slow to parse."""
        self.transport.max_size = max(_MIN_READ, min(self._requests.missing, self._connections.max_read))  # type: ignore[attr-defined]

    def _handle_received(self) -> None:
        """Parse the received bytes up to the end of a request, and answer an invalid one."""
        try:
            self._read_request()
        except InvalidRequestError as error:
            self._close_with(400, str(error))
        except HeadTooLargeError as error:
            self._close_with(431, str(error))
        self._update_limits()

    def _read_request(self) -> None:
        """Begin an exchange, continue it, or give the connection to the worker of the request's session."""
        while not self.transport.is_closing():
            if self._requests.is_in_body:
                body = self._connections.chunk_turns.read_body(self, self._requests)
                if body is None:
                    return
                self._add_body(body)
            elif self._is_serving:
                if self._requests.received:
                    self.flow.pause_reading()
                return
            else:
                head = self._read_head()
                if head is None:
                    return
                self._begin(head)

    @property
    def may_be_handshake(self) -> bool:
        """Whether the request that has arrived may be a handshake."""
        received = bytes(self._requests.received[:_MAX_SEARCHED]).lower()
        return not any(header in received for header in _AFTER_HANDSHAKE)

    def _read_head(self) -> RequestHead | None:
        """Return the head of a request that may begin now; None if it is not complete, or another worker serves it."""
        if not self._requests.received or self._is_given() or not self._connections.turns.take(self):
            return None
        return self._requests.read_head()

    def _begin(self, head: RequestHead) -> None:
        if head.method == "POST" and _AFTER_HANDSHAKE.isdisjoint(name for name, _ in head.headers):
            self._connections.turns.take_all()
        head.use_origin_form()
        raw_path, _, query = head.target.partition(b"?")
        scope: Any = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": head.version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "method": head.method,
            "root_path": self.root_path,
            "path": unquote(raw_path.decode()),
            "raw_path": raw_path,
            "query_string": query,
            "headers": head.headers,
            "state": self._state.copy(),
        }
        self.cycle = Exchange(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=head.expects_continue,
            keep_alive=head.keeps_alive and not self._connections.is_shutting_down,
            on_response=self.on_response_complete,
        )
        self._add_body(b"")
        self._start_asgi_task(self.cycle, self.app)

    def _add_body(self, body: bytes) -> None:
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return
        cycle.body += body
        cycle.more_body = self._requests.is_in_body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        if body or not cycle.more_body:
            cycle.message_event.set()

    def _is_given(self) -> bool:
        """Give the connection to another worker if its next request belongs there. Returns whether it does."""
        handover, received = self._connections.handover, self._requests.received
        if handover is None or (owner := handover.find_owner(received)) is None:
            return False
        connection = self.transport.get_extra_info("socket").fileno()
        try:
            is_given = not self.transport.get_write_buffer_size() and handover.give(owner, connection, bytes(received))
        except OSError:
            return False  # this worker answers that the session does not exist
        if is_given:
            self.drop()
        else:
            self.flow.pause_reading()
            self.loop.call_later(_HANDOVER_RETRY, self.resume)
        return True

    def resume(self) -> None:
        """Handle the received bytes, which had to wait."""
        if not self.transport.is_closing():
            self.flow.release()
            self._handle_received()
            if self._has_ended and not self.flow.read_paused:  # paused: the bytes still wait
                self.transport.close()

    def on_response_complete(self) -> None:
        """Handle the next request, or wait for it."""
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        if self._requests.received:
            self._handle_received()
        else:
            self._update_limits()

    def take_body(self) -> bytes | None:
        """Return the body of the request if it has been received completely and not been read; else None.

        This costs less than to receive it as an ASGI message within a timeout.
        """
        return self.cycle.take_body() if self.cycle is not None else None

    def watch_disconnect(self, callback: Callable[[], object] | None) -> None:
        """Set the function that is called if the client disconnects, and call it if it has; None: no function."""
        self.on_disconnect = callback
        if callback is not None and self.transport.is_closing():
            if self.cycle is not None:  # asyncio reports the end in a later pass
                self.cycle.disconnected = True
            callback()

    def shutdown(self) -> None:
        """Close the connection after its request, or after one that its client has already sent.

        The close of a connection with unread bytes resets it, and the client would not learn why.
        """
        if self.cycle is not None and self._is_serving:
            self.cycle.keep_alive = False
        else:
            self.loop.call_later(_LAST_REQUEST, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if not self._is_serving and not self._is_waiting:
            self.transport.close()

    def drop(self) -> None:
        """Close the connection immediately, without a response."""
        self._release()
        self.transport.abort()

    @property
    def _is_serving(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _is_waiting(self) -> bool:
        """Whether a request has to wait for the requests of other connections to begin."""
        return self._connections.turns.has(self)

    def _update_limits(self) -> None:
        """Update the count and the deadline after a change of the connection's state."""
        if self.transport.is_closing():
            self._release()
        elif self._is_serving or self._is_waiting:
            self._set_deadline(None)
            self._connections.mark_serving(self)
        else:
            is_idle = self.cycle is not None and self._requests.is_at_start
            self._set_deadline(self._connections.idle_deadline if is_idle else self._connections.head_deadline)
            self._connections.mark_waiting(self)

    def _set_deadline(self, deadline: SharedTimer | None) -> None:
        """Start another timer; leave a running one as it is."""
        if deadline is not self._deadline:
            if self._deadline is not None:
                self._deadline.cancel(self)
            if deadline is not None:
                deadline.start(self, self._close_at_deadline)
            self._deadline = deadline

    def _close_at_deadline(self) -> None:
        if self._requests.is_at_start:
            self.transport.close()  # it counts until the client has read the last response
        else:
            seconds = f"{self._connections.policy.header_timeout:g} s"
            self._close_with(408, f"The request's head took over {seconds} (`limits.header_timeout`).")

    def _close_with(self, status: int, message: str) -> None:
        """Send a response if the client can receive one now, and close the connection."""
        self._connections.report_rejection(status, message)
        has_begun = self.cycle is not None and self.cycle.response_started
        if (self._requests.is_in_body and has_begun) or self.transport.get_write_buffer_size():
            self.drop()
            return
        body = message.encode()
        head = b"content-type: text/plain; charset=utf-8\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()
        self._release()

    def _release(self) -> None:
        self._set_deadline(None)
        self._connections.remove(self)


def _find_network(address: str) -> str:
    """Return the network of an IPv6 address; other addresses unchanged."""
    try:
        return str(ipaddress.IPv6Network((address.partition("%")[0], _NETWORK_BITS), strict=False))
    except ValueError:
        return address
