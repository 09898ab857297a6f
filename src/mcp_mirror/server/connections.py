"""Limits of HTTP connections: their number, and the time and size of a request's head.

A connection is pending until the gateway has admitted a request on it. The number of pending connections without a
complete head is limited for each client address. At a limit, a new connection closes the oldest waiting one.
"""

import asyncio
import ipaddress
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import h11
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from mcp_mirror.server.handover import ConnectionHandover
from mcp_mirror.settings.limits import TrafficPolicy

if sys.platform != "win32":
    import resource

_logger = logging.getLogger(__name__)

_ADMIT: Final = "admit_connection"
"""The key in an ASGI scope's state of the function that marks the connection as admitted."""
_WATCH: Final = "watch_disconnect"
"""The key in an ASGI scope's state of the function that sets the callback for a disconnection."""
_REFUSED_CONNECTIONS: Final = 64
"""Connections over the limit that get HTTP 503; the server closes further ones without a response."""
_RESERVED_FILES: Final = 256
"""Open files that are reserved for stores, upstreams and logs, if the limit of the process is high enough."""
_NETWORK_BITS: Final = 64
"""Bits of an IPv6 address that name the network. One client may have all addresses of its network."""
_RETRY_AFTER: Final = 5
"""Seconds."""
_INTERNAL_ERROR: Final = -32603

_MAX_MERGED: Final = 1 << 16
"""Bytes of a part of a body that is written in one piece with the head."""

_HANDOVER_RETRY: Final = 0.005
"""Seconds between two attempts to give a connection to another worker."""
BACKLOG: Final = 128
"""Connections that the server accepts before it counts them; fewer than `_RESERVED_FILES`."""


def admit_connection(scope: Scope) -> None:
    """Mark the connection of a request as admitted, so that it is not pending any more."""
    admit: Callable[[], None] | None = scope.get("state", {}).get(_ADMIT)
    if admit:
        admit()


def watch_disconnect(scope: Scope, callback: Callable[[], object] | None) -> None:
    """Set the function that is called if the client disconnects before the response; None: no function."""
    watch: Callable[[Callable[[], object] | None], None] | None = scope.get("state", {}).get(_WATCH)
    if watch:
        watch(callback)


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


@dataclass(frozen=True, slots=True)
class _HeadLimits:
    """Limits of a request's head."""

    max_bytes: int
    timeout: float
    """Seconds."""


class Connections:
    """All connections of one server, and their limits."""

    def __init__(self, policy: TrafficPolicy, handover: ConnectionHandover | None = None) -> None:
        """Create an empty set of connections.

        Args:
            policy: The limits.
            handover: Gives connections to other worker processes; None in a single process.
        """
        self.handover: ConnectionHandover | None = handover
        self.head: _HeadLimits = _HeadLimits(policy.max_header_bytes, policy.header_timeout)
        self._policy = policy
        self._capacity = _limit_connections(policy.max_connections)
        self._open: set[LimitedProtocol] = set()
        self._pending: dict[LimitedProtocol, None] = {}
        """Connections that wait for a complete head, without an admitted request before; the oldest first."""
        self._idle: dict[LimitedProtocol, None] = {}
        """Connections that wait for a complete head after an admitted request; the oldest first."""
        self._pending_by_address: dict[str, dict[LimitedProtocol, None]] = {}

    def protocol(self) -> Callable[..., "LimitedProtocol"]:
        """Return a factory of connections, which uvicorn calls with its own arguments."""
        return partial(LimitedProtocol, self)

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
        if len(neighbours) > self._policy.pending_connections_per_address:
            next(iter(neighbours)).drop()

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
        self.mark_serving(connection)

    async def refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request with HTTP 503: the ASGI application of connections over the limit."""
        limit = f"`limits.max_connections` ({self._capacity:,})"
        message = f"{limit} connections are in use. Try again in {_RETRY_AFTER} s."
        body = {"jsonrpc": "2.0", "id": None, "error": {"code": _INTERNAL_ERROR, "message": message}}
        headers = {"connection": "close", "retry-after": str(_RETRY_AFTER)}
        await JSONResponse(body, 503, headers)(scope, receive, send)


class _LimitedHead(h11.Connection):
    """An h11 connection that rejects every head over the limit; h11 checks only incomplete heads."""

    def __init__(self, max_head_bytes: int) -> None:
        super().__init__(h11.SERVER, max_head_bytes)
        self._max_head_bytes = max_head_bytes
        self.is_head_too_large: bool = False

    def next_event(self) -> Any:
        """Parse the next event; see `h11.Connection.next_event`.

        Raises:
            h11.RemoteProtocolError: The client violates the protocol, or its request's head is over the limit.
        """
        if self.their_state is not h11.IDLE:
            return super().next_event()
        before = self.buffered
        try:
            event = super().next_event()
        except h11.RemoteProtocolError:
            self.is_head_too_large = before > self._max_head_bytes
            raise
        if isinstance(event, h11.Request) and before - self.buffered > self._max_head_bytes:
            self.is_head_too_large = True
            raise h11.RemoteProtocolError("the head is too large", error_status_hint=431)
        return event

    @property
    def buffered(self) -> int:
        """The number of received bytes that are not parsed."""
        return len(self.trailing_data[0])


class _HeadMerger:
    """Writes a response to a connection: its head and the beginning of its body in one piece.

    uvicorn writes them one after the other. The client would then wake for the head, and again for the body.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""
        """The head that waits for the body; empty if no head waits."""

    def write(self, data: bytes) -> None:
        """Write a part of a response. A head waits at most until the event loop has run the other ready tasks."""
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head + data if len(data) < _MAX_MERGED else head)
            if len(data) >= _MAX_MERGED:
                self._transport.write(data)
        elif data.startswith(b"HTTP/"):
            self._head = data
            self._loop.call_soon(self._flush)
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Write a waiting head, and close the connection."""
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether the connection is closed or closing."""
        return self._transport.is_closing()

    def _flush(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)


class LimitedProtocol(H11Protocol):
    """A connection: uvicorn's HTTP protocol with limits."""

    app: Any
    app_state: dict[str, Any]
    conn: _LimitedHead
    cycle: RequestResponseCycle | None  # type: ignore[assignment]  # None before the first request

    def __init__(self, connections: Connections, *, received: bytes = b"", **keys: Any) -> None:
        """Create a connection.

        Args:
            connections: All connections.
            received: Bytes that another worker process has read from it.
            keys: The arguments of uvicorn.
        """
        super().__init__(**keys)
        self._received = received
        self.conn = _LimitedHead(connections.head.max_bytes)
        self.app_state = {**self.app_state, _ADMIT: self.admit, _WATCH: self.watch_disconnect}
        self._on_disconnect: Callable[[], object] | None = None
        self.address = ""
        self.is_admitted = False
        self._connections = connections
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Count the connection, and close or refuse it if there are too many."""
        super().connection_made(transport)
        self.address = _find_network(self.client[0] if self.client else "")
        if not self._connections.add(self):
            self.app = self._connections.refuse
        if self._connections.is_overrun:
            self.drop()
        elif self._received:
            self.data_received(self._received)
            self._received = b""
        else:
            self._update_limits()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the count."""
        self._release()
        super().connection_lost(exc)
        if self._on_disconnect is not None:
            self._on_disconnect()

    def data_received(self, data: bytes) -> None:
        """Parse bytes of the client."""
        super().data_received(data)
        self._update_limits()

    def handle_events(self) -> None:
        """Handle parsed events, which may begin a request, or give the connection to the worker of its session."""
        if self._connections.handover is not None and self._is_given(self._connections.handover):
            return
        super().handle_events()
        if self.cycle is not None and self.cycle.transport is self.transport:
            self.cycle.transport = _HeadMerger(self.transport, self.loop)  # type: ignore[assignment]  # has what the cycle uses

    def _is_given(self, handover: ConnectionHandover) -> bool:
        """Give the connection to another worker if its next request belongs there. Returns whether it does."""
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            return False
        received = self.conn.trailing_data[0]
        owner = handover.find_owner(received)
        if owner is None:
            return False
        connection = self.transport.get_extra_info("socket").fileno()
        try:
            is_given = not self.transport.get_write_buffer_size() and handover.give(owner, connection, received)
        except OSError:
            return False  # this worker answers that the session does not exist
        if is_given:
            self.drop()
        else:
            self.flow.pause_reading()
            self.loop.call_later(_HANDOVER_RETRY, self._retry_handover)
        return True

    def _retry_handover(self) -> None:
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self.handle_events()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._update_limits()

    def send_400_response(self, msg: str) -> None:
        """Answer an invalid request with HTTP 400, or 431 for a head over the limit, and close the connection."""
        if not self.conn.is_head_too_large:
            super().send_400_response(msg)
            return
        limit = f"`limits.max_header_bytes` ({self._connections.head.max_bytes:,})"
        self._close_with(431, f"The request's head is over {limit}.")

    def admit(self) -> None:
        """Mark the connection as admitted."""
        self.is_admitted = True

    def watch_disconnect(self, callback: Callable[[], object] | None) -> None:
        """Set the function that is called if the client disconnects; call it now if the client has disconnected."""
        self._on_disconnect = callback
        if callback is not None and self.transport.is_closing():
            callback()

    def drop(self) -> None:
        """Close the connection immediately, without a response."""
        self._release()
        self.transport.abort()

    def _update_limits(self) -> None:
        """Update the count and the deadline of the head after a change of the connection's state."""
        if self.transport.is_closing():
            self._release()
        elif self.cycle is not None and not self.cycle.response_complete:
            self._cancel_deadline()
            self._connections.mark_serving(self)
        else:
            if self._deadline is None and self.timeout_keep_alive_task is None:
                self._deadline = self.loop.call_later(self._connections.head.timeout, self._close_at_deadline)
            self._connections.mark_waiting(self)

    def _close_at_deadline(self) -> None:
        self._deadline = None
        if self.cycle is None and not self.conn.buffered:
            self.drop()
            return
        seconds = f"{self._connections.head.timeout:g} s"
        self._close_with(408, f"The request's head took over {seconds} (`limits.header_timeout`).")

    def _close_with(self, status: int, message: str) -> None:
        """Send a response if the client can receive one now, and close the connection."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) and not self.transport.get_write_buffer_size():
            headers = [("content-type", "text/plain; charset=utf-8"), ("connection", "close")]
            start, body = h11.Response(status_code=status, headers=headers), h11.Data(data=message.encode())
            event: h11.Event
            for event in (start, body, h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
            self.transport.close()
            self._release()
        else:
            self.drop()

    def _release(self) -> None:
        self._cancel_deadline()
        self._connections.remove(self)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _find_network(address: str) -> str:
    """Return the network of an IPv6 address; other addresses unchanged."""
    try:
        return str(ipaddress.IPv6Network((address.partition("%")[0], _NETWORK_BITS), strict=False))
    except ValueError:
        return address
