"""Connections of HTTP clients: how many there are, how long a request's head may take, and how large it may be.

A connection is pending until a request on it was admitted. Pending connections that have not sent a complete head are
bounded for each client address. Where all places are taken, the oldest of them makes room for a new one.
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

from mcp_mirror.settings.limits import TrafficPolicy

if sys.platform != "win32":
    import resource

_logger = logging.getLogger(__name__)

_ADMIT: Final = "admit_connection"
"""The key in an ASGI scope's state of what tells that the connection's client may use the gateway."""
_SPARE: Final = 64
"""Connections over the bound that are answered with HTTP 503; more are closed without an answer."""
_OWN_HANDLES: Final = 256
"""File handles that are kept for stores, upstreams and logs, where the process may have so many."""
_NETWORK: Final = 64
"""Bits of an IPv6 address that name a network: one client may have all addresses of its network."""
_RETRY: Final = 5
"""Seconds."""
_INTERNAL_ERROR: Final = -32603

BACKLOG: Final = 128
"""Connections that are accepted at once, before any of them is counted: fewer than `_OWN_HANDLES`."""


def admit_connection(scope: Scope) -> None:
    """Say that the client of a request may use the gateway: its connection is not pending any more."""
    admit: Callable[[], None] | None = scope.get("state", {}).get(_ADMIT)
    if admit:
        admit()


def capacity_of(most: int) -> int:
    """How many connections to accept: `limits.max_connections`, or as many as the process's file handles allow."""
    if sys.platform == "win32":
        return most
    handles, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if handles == resource.RLIM_INFINITY:
        return most
    room = handles - max(min(_OWN_HANDLES, handles // 2), handles // 4)
    if room < most:
        _logger.warning(
            "`limits.max_connections` (%s) is too high for a limit of %s open files: %s connections are accepted. "
            "Raise the limit (`ulimit -n`), or lower `limits.max_connections`.",
            *(f"{number:,}" for number in (most, handles, room)),
        )
    return min(most, room)


@dataclass(frozen=True, slots=True)
class _Head:
    """Bounds of a request's head."""

    max_bytes: int
    timeout: float


class Connections:
    """All connections of one server, with its bounds."""

    def __init__(self, policy: TrafficPolicy) -> None:
        """Know none yet."""
        self.head = _Head(policy.max_header_bytes, policy.header_timeout)
        self._policy = policy
        self._capacity = capacity_of(policy.max_connections)
        self._open: set[BoundedProtocol] = set()
        self._pending: dict[BoundedProtocol, None] = {}
        """Those that wait for a complete head, and on which no request was admitted; the oldest first."""
        self._idle: dict[BoundedProtocol, None] = {}
        """Those that wait for a complete head after a request that was admitted; the oldest first."""
        self._pending_at: dict[str, dict[BoundedProtocol, None]] = {}
        """The pending ones of each address."""

    def protocol(self) -> Callable[..., "BoundedProtocol"]:
        """What makes the protocol of a new connection, from uvicorn's arguments."""
        return partial(BoundedProtocol, self)

    def add(self, connection: "BoundedProtocol") -> bool:
        """Count a new connection; False where it must not be served.

        Where the bound is reached, the oldest pending or idle connection is closed.
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
        """Whether there is no place even for an answer that says so."""
        return len(self._open) > self._capacity + _SPARE

    def wait(self, connection: "BoundedProtocol") -> None:
        """Note that a connection waits for a complete head."""
        if connection.is_admitted:
            self._idle.setdefault(connection)
            return
        if connection in self._pending:
            return
        self._pending[connection] = None
        here = self._pending_at.setdefault(connection.address, {})
        here[connection] = None
        if len(here) > self._policy.pending_connections_per_address:
            next(iter(here)).drop()

    def serve(self, connection: "BoundedProtocol") -> None:
        """Note that a request of a connection's is being served."""
        self._idle.pop(connection, None)
        if connection in self._pending:
            del self._pending[connection]
            self._forget_at(connection)

    def remove(self, connection: "BoundedProtocol") -> None:
        """Forget a connection that is closed, or is being closed."""
        self._open.discard(connection)
        self.serve(connection)

    def _forget_at(self, connection: "BoundedProtocol") -> None:
        here = self._pending_at[connection.address]
        del here[connection]
        if not here:
            del self._pending_at[connection.address]

    async def refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request on a connection that has no place: an ASGI application."""
        message = f"`limits.max_connections` ({self._capacity:,}) connections are in use. Try again in {_RETRY} s."
        body = {"jsonrpc": "2.0", "id": None, "error": {"code": _INTERNAL_ERROR, "message": message}}
        headers = {"connection": "close", "retry-after": str(_RETRY)}
        await JSONResponse(body, 503, headers)(scope, receive, send)


class _BoundedHead(h11.Connection):
    """Refuses a head over the bound: h11 itself checks only heads that are not complete yet."""

    def __init__(self, max_head_bytes: int) -> None:
        super().__init__(h11.SERVER, max_head_bytes)
        self._max_head_bytes = max_head_bytes
        self.is_head_too_large = False

    def next_event(self) -> Any:
        """Parse the next event; see `h11.Connection.next_event`.

        Raises:
            h11.RemoteProtocolError: The client breaks the protocol, or its request's head is over the bound.
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
        """Bytes that came and are not parsed yet."""
        return len(self.trailing_data[0])


class BoundedProtocol(H11Protocol):
    """uvicorn's protocol of a connection, with bounds."""

    conn: _BoundedHead
    cycle: RequestResponseCycle | None  # type: ignore[assignment]  # None before the first request

    def __init__(self, connections: Connections, **keys: Any) -> None:
        super().__init__(**keys)
        self.conn = _BoundedHead(connections.head.max_bytes)
        self.app_state = {**self.app_state, _ADMIT: self.admit}
        self.address = ""
        self.is_admitted = False
        self._guard = connections
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Begin."""
        super().connection_made(transport)
        self.address = _network_of(self.client[0] if self.client else "")
        if not self._guard.add(self):
            self.app = self._guard.refuse
        if self._guard.is_overrun:
            self.drop()
        else:
            self._follow()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._release()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes of the client's."""
        super().data_received(data)
        self._follow()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._follow()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request, and close."""
        if not self.conn.is_head_too_large:
            super().send_400_response(msg)
            return
        self._close_with(431, f"The request's head is over `limits.max_header_bytes` ({self._guard.head.max_bytes:,}).")

    def admit(self) -> None:
        """Note that a request on this connection was admitted."""
        self.is_admitted = True

    def drop(self) -> None:
        """Close at once, to make room."""
        self._release()
        self.transport.abort()

    def _follow(self) -> None:
        """Keep the count and the deadline in step with what the connection does now."""
        if self.transport.is_closing():
            self._release()
        elif self.cycle is not None and not self.cycle.response_complete:
            self._cancel_deadline()
            self._guard.serve(self)
        else:
            if self._deadline is None and self.timeout_keep_alive_task is None:
                self._deadline = self.loop.call_later(self._guard.head.timeout, self._end_late)
            self._guard.wait(self)

    def _end_late(self) -> None:
        """The head has not come in time."""
        self._deadline = None
        if self.cycle is None and not self.conn.buffered:
            self.drop()
            return
        self._close_with(408, f"The request's head took over {self._guard.head.timeout:g} s (`limits.header_timeout`).")

    def _close_with(self, status: int, said: str) -> None:
        """Say why, where that can be said and read, and close."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) and not self.transport.get_write_buffer_size():
            headers = [("content-type", "text/plain; charset=utf-8"), ("connection", "close")]
            event: h11.Event
            for event in (h11.Response(status_code=status, headers=headers), h11.Data(data=said.encode()), _END):
                self.transport.write(self.conn.send(event) or b"")
            self.transport.close()
            self._release()
        else:
            self.drop()

    def _release(self) -> None:
        self._cancel_deadline()
        self._guard.remove(self)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


_END: Final = h11.EndOfMessage()


def _network_of(address: str) -> str:
    """What stands for a client's address: of IPv6 addresses the network."""
    try:
        return str(ipaddress.IPv6Network((address.partition("%")[0], _NETWORK), strict=False))
    except ValueError:
        return address
