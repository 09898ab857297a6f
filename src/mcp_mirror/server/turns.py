"""The order in which connections begin requests: a few in each pass of the event loop."""

import asyncio
from typing import Final, Protocol

_BEGUN_AT_ONCE: Final = 4
"""Requests that begin in a pass of the event loop, so that other events do not wait for a burst of requests."""
_CONNECTED_FIRST: Final = 3
"""Requests of connected clients that begin before one of a new connection."""


class _Connection(Protocol):
    """What a turn needs of a connection."""

    loop: asyncio.AbstractEventLoop
    is_admitted: bool
    """Whether the gateway has admitted a request of it."""

    def resume(self) -> None: ...


class Turns:
    """Lets a few connections begin a request in each pass of the event loop, in the order in which they ask.

    Connections with an admitted request come first, and after some of them one without: a burst of handshakes does not
    delay the calls of connected clients, nor these the handshakes.
    """

    def __init__(self) -> None:
        self._taken = 0
        """Turns of this pass."""
        self._connected: dict[_Connection, None] = {}
        """Connections with an admitted request and without a turn, in the order in which they asked."""
        self._new: dict[_Connection, None] = {}
        """Other connections without a turn, as above."""
        self._since_new = 0
        """Connected ones that began after the last new one."""

    def take(self, connection: _Connection) -> bool:
        """Return whether a connection may begin a request now; if not, its `resume` is called in a later pass."""
        if not self._taken:
            connection.loop.call_soon(self._begin_pass)
        if self._taken == _BEGUN_AT_ONCE:
            (self._connected if connection.is_admitted else self._new)[connection] = None
            return False
        self._taken += 1
        return True

    def take_all(self) -> None:
        """Let no other request begin in this pass, because the one that begins now takes as long as several."""
        self._taken = _BEGUN_AT_ONCE

    def has(self, connection: _Connection) -> bool:
        """Whether a connection waits for its turn."""
        return connection in self._connected or connection in self._new

    def remove(self, connection: _Connection) -> None:
        """Forget a connection that is closed or closing."""
        self._connected.pop(connection, None)
        self._new.pop(connection, None)

    def _begin_pass(self) -> None:
        self._taken = 0
        while self._taken < _BEGUN_AT_ONCE and (self._connected or self._new):
            is_new = bool(self._new) and (not self._connected or self._since_new >= _CONNECTED_FIRST)
            self._since_new = 0 if is_new else self._since_new + 1
            connection = next(iter(self._new if is_new else self._connected))
            self.remove(connection)
            connection.resume()  # one that is closing takes no turn
