"""Dedicated connections, which belong to one session or one principal, and the limits on their number.

At a limit, a new connection replaces an idle one. The session of the closed connection ends too, so that its client
learns that the server's state is lost.
"""

from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol

import anyio
import msgspec

from mcp_mirror.errors import RefusalReason, UpstreamError
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
"""The owner of a dedicated connection: a session, or callers of one principal with the same capabilities. Where the
upstream gets headers of clients, the key also has a digest of their values."""


class ClientSessions(Protocol):
    """The clients' sessions, by the keys of their dedicated connections."""

    def is_open(self, key: str) -> bool:
        """Whether a session has a request or a stream open."""

    def find(self, key: str) -> object | None:
        """Return a session; None if it has ended."""

    def end(self, key: str) -> None:
        """End a session; the client learns it from the response to its next request."""


class ConnectionSlots:
    """The rules for dedicated connections to all upstreams: their number, and when they close."""

    def __init__(self, per_principal: int, sessions: ClientSessions, idle_timeout: float) -> None:
        """Create the rules without connections.

        Args:
            per_principal: `limits.connections_per_principal`.
            sessions: The clients' sessions. The connection of a session ends with it.
            idle_timeout: Seconds without use after which the connection of a principal closes.
        """
        self.sessions: Final = sessions
        self.idle_timeout: Final = idle_timeout
        self._per_principal = per_principal
        self._taken: set[DedicatedConnection] = set()
        """The connections that have not closed yet."""
        self._promised: dict[DedicatedConnection, str] = {}
        """Those that are closing for a new connection, with the principal that waits for their slot."""
        self._freed = anyio.Event()

    async def wait_for_slot(self, upstream: str, namespace: str, per_upstream: int) -> None:
        """Wait for room for a new connection of a principal; at a limit, close an idle connection.

        The caller takes the slot at once, or another caller may. `per_upstream` is `limits.connections_per_upstream`.

        Raises:
            UpstreamError: All connections are in use.
        """
        deadline = anyio.current_time() + _SLOT_WAIT
        closing: DedicatedConnection | None = None
        try:
            while limit := self._find_reached_limit(upstream, namespace, per_upstream):
                candidates = self._list_candidates(upstream, namespace, limit)
                if closing not in self._taken:
                    closing = self._reclaim(candidates, namespace)
                may_have_room = any(one.is_closing or one.is_idle for one in candidates)
                if not may_have_room or anyio.current_time() >= deadline:
                    raise _build_limit_error(upstream, limit)
                with anyio.move_on_after(_CHECK_INTERVAL):
                    await self._freed.wait()
        finally:
            if closing is not None:
                self._promised.pop(closing, None)

    def take(self, connection: "DedicatedConnection") -> None:
        """Count a new connection."""
        self._taken.add(connection)

    def free(self, connection: "DedicatedConnection") -> None:
        """Stop counting a connection that has closed."""
        self._taken.discard(connection)
        self._promised.pop(connection, None)
        self._freed.set()
        self._freed = anyio.Event()

    def _find_reached_limit(self, upstream: str, namespace: str, per_upstream: int) -> Limit | None:
        if sum(one.namespace == namespace for one in self._taken) >= self._per_principal:
            return Limit(_PER_PRINCIPAL, self._per_principal)
        if sum(one.upstream == upstream for one in self._taken) >= per_upstream:
            return Limit("connections_per_upstream", per_upstream)
        return None

    def _list_candidates(self, upstream: str, namespace: str, limit: Limit) -> "list[DedicatedConnection]":
        """Return the connections that may close for a new one, the longest idle of the principal with the most first.

        A principal makes room for its own new connections, and for those of principals with fewer at this upstream.
        """
        if limit.name == _PER_PRINCIPAL:
            taken = [one for one in self._taken if one.namespace == namespace]
        else:
            taken = [one for one in self._taken if one.upstream == upstream]
        counts = Counter(self._promised.get(one, one.namespace) for one in taken)
        candidates = [one for one in taken if one.namespace == namespace or counts[one.namespace] > counts[namespace]]
        return sorted(candidates, key=lambda one: (-counts[one.namespace], one.connection.last_used))

    def _reclaim(self, candidates: "list[DedicatedConnection]", namespace: str) -> "DedicatedConnection | None":
        """Promise the slot of a connection to a waiting principal: of one that is closing, else of the first idle one.

        The idle connection closes. Return None if none may close now.
        """
        unpromised = [one for one in candidates if one not in self._promised]
        chosen = next((one for one in unpromised if one.is_closing), None)
        if chosen is None:
            chosen = next((one for one in unpromised if one.is_idle), None)
            if chosen is None or chosen.connection.last_used > monotonic() - _MIN_IDLE:
                return None
        self._promised[chosen] = namespace
        if not chosen.is_closing:
            chosen.reclaim()
        return chosen


def _build_limit_error(upstream: str, limit: Limit) -> UpstreamError:
    scope = "of this client" if limit.name == _PER_PRINCIPAL else "to this upstream"
    return UpstreamError(
        f"Upstream {upstream!r} gets no further connection: {limit} connections {scope} are in use. End "
        "sessions that are not needed, raise the limit, or set `scope: principal` for the upstream, or "
        "`scope: shared` if it gets no headers of clients.",
        RefusalReason.BUSY,
    )


class DedicatedConnection(msgspec.Struct, eq=False):
    """A connection that belongs to one session or one principal."""

    key: ConnectionKey
    owner: str
    """The session or the callers that it belongs to."""
    upstream: str
    namespace: str
    """The namespace of the principal."""
    connection: ReconnectingConnection
    slots: ConnectionSlots
    release: Callable[[ConnectionKey], None]
    """Closes the connection with a key."""
    is_superseded: bool = False
    """The owner uses another connection to the upstream now, because it sends other headers."""
    scope: anyio.CancelScope = msgspec.field(default_factory=anyio.CancelScope)

    @property
    def is_closing(self) -> bool:
        """Whether the connection is about to close."""
        return self.scope.cancel_called

    @property
    def is_idle(self) -> bool:
        """Whether no request is in flight, and its session has neither a request nor a stream open."""
        connection = self.connection
        is_used = connection.inflight_count or connection.keep_open_count or not connection.settled.is_set()
        return not is_used and (self.is_superseded or not self.slots.sessions.is_open(self.owner))

    @property
    def is_expired(self) -> bool:
        """Whether the connection was idle for the idle timeout, and its session, if it has one, has ended."""
        is_unused = self.connection.last_used < monotonic() - self.slots.idle_timeout
        is_over = self.is_superseded or self.slots.sessions.find(self.owner) is None
        return is_unused and is_over and self.is_idle

    async def run(self) -> None:
        """Connect, and reconnect, until the connection is closed; then free its slot."""
        try:
            with self.scope:
                await self.connection.run()
        finally:
            self.slots.free(self)

    def reclaim(self) -> None:
        """Close the connection, and end its session."""
        if not self.is_superseded:
            self.slots.sessions.end(self.owner)
        self.release(self.key)
