"""Dedicated connections, which belong to one session or one principal, and the limits on their number.

At a limit, a new connection replaces an idle one. The session of the closed connection ends too, so that its client
learns that the server's state is lost.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Final, Protocol

import anyio
import msgspec

from mcp_mirror.errors import UpstreamError
from mcp_mirror.security.rate_limits import Limit
from mcp_mirror.upstreams.connection import ReconnectingConnection

_MIN_IDLE: Final = 5.0
"""Seconds without use before a connection may be replaced: a session keeps its own between two requests."""
_SLOT_WAIT: Final = 10.0
"""Seconds that a new connection waits for a slot: a child process may take a while to end."""
_CHECK_INTERVAL: Final = 0.25
"""Seconds between two checks for a connection that has become idle."""
_PER_PRINCIPAL: Final = "connections_per_principal"

ConnectionKey = str
"""The owner of a dedicated connection: a session, or callers of one principal with the same capabilities."""


class ClientSessions(Protocol):
    """The clients' sessions, by the keys of their dedicated connections."""

    def is_open(self, key: str) -> bool:
        """Whether a session has a request or a stream open."""

    def is_alive(self, key: str) -> bool:
        """Whether a session has not ended."""

    def end(self, key: str) -> None:
        """End a session; the client learns it from the response to its next request."""


@dataclass(slots=True, eq=False)
class ConnectionSlot:
    """The place of one dedicated connection; it is taken until the connection has closed."""

    upstream: str
    namespace: str
    """The namespace of the principal."""
    connection: "DedicatedConnection | None" = field(default=None, init=False)
    """The connection that uses the slot; None before it is created."""
    is_closing: bool = field(default=False, init=False)
    """The connection is about to close."""


class ConnectionSlots:
    """Limits the number of dedicated connections to all upstreams."""

    def __init__(self, per_principal: int) -> None:
        """Take `limits.connections_per_principal`."""
        self._per_principal = per_principal
        self._slots: set[ConnectionSlot] = set()
        self._freed = anyio.Event()

    async def reserve(self, upstream: str, namespace: str, per_upstream: int) -> ConnectionSlot:
        """Reserve a slot for a new connection of a principal; at a limit, close an idle connection first.

        `per_upstream` is `limits.connections_per_upstream`.

        Raises:
            UpstreamError: All connections are in use.
        """
        deadline = anyio.current_time() + _SLOT_WAIT
        while limit := self._find_reached_limit(upstream, namespace, per_upstream):
            may_have_room = self._reclaim(upstream, namespace, limit)
            if not may_have_room or anyio.current_time() >= deadline:
                scope = "of this client" if limit.name == _PER_PRINCIPAL else "to this upstream"
                raise UpstreamError(
                    f"Upstream {upstream!r} gets no further connection: {limit} connections {scope} are in use. End "
                    "sessions that are not needed, raise the limit, or set `scope: principal` or `scope: shared` for "
                    "the upstream."
                )
            with anyio.move_on_after(_CHECK_INTERVAL):
                await self._freed.wait()
        slot = ConnectionSlot(upstream, namespace)
        self._slots.add(slot)
        return slot

    def free(self, slot: ConnectionSlot) -> None:
        """Free the slot of a connection that has closed."""
        if slot in self._slots:
            self._slots.remove(slot)
            self._freed.set()
            self._freed = anyio.Event()

    def _find_reached_limit(self, upstream: str, namespace: str, per_upstream: int) -> Limit | None:
        if sum(slot.namespace == namespace for slot in self._slots) >= self._per_principal:
            return Limit(_PER_PRINCIPAL, self._per_principal)
        if sum(slot.upstream == upstream for slot in self._slots) >= per_upstream:
            return Limit("connections_per_upstream", per_upstream)
        return None

    def _reclaim(self, upstream: str, namespace: str, limit: Limit) -> bool:
        """Close the longest idle connection of the principal with the most; return whether a slot may become free.

        A principal makes room for its own new connections, and for those of principals with fewer at this upstream.
        """
        if limit.name == _PER_PRINCIPAL:
            slots = [slot for slot in self._slots if slot.namespace == namespace]
        else:
            slots = [slot for slot in self._slots if slot.upstream == upstream]
        counts = Counter(slot.namespace for slot in slots)
        candidates = [
            slot for slot in slots if slot.namespace == namespace or counts[slot.namespace] > counts[namespace]
        ]
        if any(slot.is_closing for slot in candidates):
            return True
        idle = [(slot, slot.connection) for slot in candidates if slot.connection and slot.connection.is_idle]
        if not idle:
            return False
        _, longest_idle = min(idle, key=lambda one: (-counts[one[0].namespace], one[1].last_used))
        if longest_idle.last_used <= monotonic() - _MIN_IDLE:
            longest_idle.reclaim()
        return True


class DedicatedConnectionPolicy(msgspec.Struct, frozen=True):
    """The rules for dedicated connections, over all upstreams."""

    slots: ConnectionSlots
    sessions: ClientSessions
    idle_timeout: float
    """Seconds without use after which a principal's connection closes; a session's connection ends with the session."""


class DedicatedConnection(msgspec.Struct):
    """A connection that belongs to one session or one principal."""

    key: ConnectionKey
    connection: ReconnectingConnection
    slot: ConnectionSlot
    policy: DedicatedConnectionPolicy
    release: Callable[[ConnectionKey], None]
    """Closes the connection with a key."""
    scope: anyio.CancelScope = msgspec.field(default_factory=anyio.CancelScope)

    @property
    def is_idle(self) -> bool:
        """Whether no request is in flight, and its session has neither a request nor a stream open."""
        connection = self.connection
        is_used = connection.inflight_count or connection.keep_open_count or not connection.settled.is_set()
        return not is_used and not self.policy.sessions.is_open(self.key)

    @property
    def is_expired(self) -> bool:
        """Whether the connection was idle for the idle timeout, and its session, if it has one, has ended."""
        is_unused = self.last_used < monotonic() - self.policy.idle_timeout
        return is_unused and self.is_idle and not self.policy.sessions.is_alive(self.key)

    @property
    def last_used(self) -> float:
        """The time of its last use, in monotonic seconds."""
        return self.connection.last_used

    async def run(self) -> None:
        """Connect, and reconnect, until the connection is closed; then free its slot."""
        try:
            with self.scope:
                await self.connection.run()
        finally:
            self.policy.slots.free(self.slot)

    def reclaim(self) -> None:
        """Close the connection, and end its session."""
        self.policy.sessions.end(self.key)
        self.release(self.key)

    def close(self) -> None:
        """Close the connection."""
        self.slot.is_closing = True
        self.scope.cancel()
