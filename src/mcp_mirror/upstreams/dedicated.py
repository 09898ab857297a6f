"""The bounds on dedicated connections: those that belong to one session or one principal.

At a bound an idle connection makes room. Its session ends with it, so that the client learns that the state is gone.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Final, Protocol

import anyio

from mcp_mirror.errors import UpstreamError

_LEAST_IDLE: Final = 5.0
"""Seconds without use before a connection makes room for another: a session in the midst of its work keeps its own."""
_PATIENCE: Final = 10.0
"""Seconds that a new connection waits for room. A child process may take a while to end."""
_LOOK: Final = 0.25
"""Seconds between two looks for a connection that has become idle."""


class Sessions(Protocol):
    """The sessions of clients, by the names that dedicated connections have."""

    def is_open(self, key: str) -> bool:
        """Whether a session has a request or a stream open."""

    def is_alive(self, key: str) -> bool:
        """Whether a session has not ended."""

    def end(self, key: str) -> None:
        """End a session; its client learns it with its next request."""


class Dedicated(Protocol):
    """A connection of one session or one principal."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way on it, and its session has neither a request nor a stream open."""

    @property
    def last_used(self) -> float:
        """When it was used last."""

    def reclaim(self) -> None:
        """Close it, and end the session that it belongs to."""


@dataclass(slots=True, eq=False)
class Slot:
    """The place of one dedicated connection; it is taken until the connection is closed."""

    upstream: str
    namespace: str
    """The principal's."""
    connection: Dedicated | None = None
    is_closing: bool = False


@dataclass(frozen=True, slots=True)
class _Bound:
    name: str
    most: int
    holders: str
    """What is counted, for an error."""


class DedicatedConnections:
    """Counts the dedicated connections to all upstreams."""

    def __init__(self, per_principal: int) -> None:
        self._per_principal = per_principal
        self._slots: set[Slot] = set()
        self._freed = anyio.Event()

    async def reserve(self, upstream: str, namespace: str, per_upstream: int) -> Slot:
        """A place for a new connection of a principal; at a bound it replaces an idle one.

        Raises:
            UpstreamError: All are in use.
        """
        deadline = anyio.current_time() + _PATIENCE
        while bound := self._reached(upstream, namespace, per_upstream):
            may_have_room = self._reclaim(upstream, namespace, bound)
            if not may_have_room or anyio.current_time() >= deadline:
                raise _full(upstream, bound)
            with anyio.move_on_after(_LOOK):
                await self._freed.wait()
        slot = Slot(upstream, namespace)
        self._slots.add(slot)
        return slot

    def free(self, slot: Slot) -> None:
        """A connection is closed."""
        if slot in self._slots:
            self._slots.remove(slot)
            self._freed.set()
            self._freed = anyio.Event()

    def _reached(self, upstream: str, namespace: str, per_upstream: int) -> _Bound | None:
        if sum(slot.namespace == namespace for slot in self._slots) >= self._per_principal:
            return _Bound("connections_per_principal", self._per_principal, "of this client")
        if sum(slot.upstream == upstream for slot in self._slots) >= per_upstream:
            return _Bound("connections_per_upstream", per_upstream, "to this upstream")
        return None

    def _reclaim(self, upstream: str, namespace: str, bound: _Bound) -> bool:
        """Close the idle connection of the principal with the most, the longest idle one; whether there is room soon.

        A principal makes room for its own new connections, and for those of principals with fewer at this upstream.
        """
        if bound.name == "connections_per_principal":
            slots = [slot for slot in self._slots if slot.namespace == namespace]
        else:
            slots = [slot for slot in self._slots if slot.upstream == upstream]
        held = Counter(slot.namespace for slot in slots)
        candidates = [slot for slot in slots if slot.namespace == namespace or held[slot.namespace] > held[namespace]]
        if any(slot.is_closing for slot in candidates):
            return True
        idle = [(slot, slot.connection) for slot in candidates if slot.connection and slot.connection.is_idle]
        if not idle:
            return False
        _, longest = min(idle, key=lambda one: (-held[one[0].namespace], one[1].last_used))
        if longest.last_used <= anyio.current_time() - _LEAST_IDLE:
            longest.reclaim()
        return True


def _full(upstream: str, bound: _Bound) -> UpstreamError:
    return UpstreamError(
        f"Upstream {upstream!r} gets no further connection: `limits.{bound.name}` ({bound.most:,}) connections "
        f"{bound.holders} are in use. End sessions that are not needed, raise the limit, or set `scope: principal` or "
        "`scope: shared` for the upstream."
    )
