"""The order in which connections begin requests and parse chunks: a few in each pass of the event loop."""

from typing import TYPE_CHECKING, Final

from mcp_mirror.server.http.parser import RequestParser

if TYPE_CHECKING:
    from mcp_mirror.server.http.connections import LimitedProtocol

_BEGUN_AT_ONCE: Final = 4
"""Requests that begin in a pass of the event loop, so that other events do not wait for a burst of requests."""
_SHORT_FIRST: Final = 3
"""Requests that begin before one that may be a handshake."""
_CHUNKS_AT_ONCE: Final = 256
"""Chunks of bodies that all connections parse in a pass of the event loop. A chunk takes a microsecond and may have one
byte: without a limit, 20 connections would occupy each pass for 100 ms."""


class Turns:
    """Lets a few connections begin a request in each pass of the event loop, in the order in which they ask.

    A handshake begins after a few other requests, if there are any: a burst of handshakes does not delay calls, nor a
    burst of calls the handshakes.
    """

    def __init__(self) -> None:
        self._taken = 0
        """Turns of this pass."""
        self._short: dict[LimitedProtocol, None] = {}
        """Connections without a turn whose request is not a handshake, in the order in which they asked."""
        self._handshakes: dict[LimitedProtocol, None] = {}
        """Other connections without a turn, as above."""
        self._since_handshake = 0
        """Short requests that began after the last handshake."""

    def take(self, connection: "LimitedProtocol") -> bool:
        """Return whether a connection may begin a request now; if not, its `resume` is called in a later pass."""
        if not self._taken:
            connection.loop.call_soon(self._begin_pass)
        if self._taken == _BEGUN_AT_ONCE:
            (self._handshakes if connection.may_be_handshake else self._short)[connection] = None
            return False
        self._taken += 1
        return True

    def take_all(self) -> None:
        """Let no other request begin in this pass, because the one that begins now takes as long as several."""
        self._taken = _BEGUN_AT_ONCE

    def has(self, connection: "LimitedProtocol") -> bool:
        """Whether a connection waits for its turn."""
        return connection in self._short or connection in self._handshakes

    def remove(self, connection: "LimitedProtocol") -> None:
        """Forget a connection that is closed or closing."""
        self._short.pop(connection, None)
        self._handshakes.pop(connection, None)

    def _begin_pass(self) -> None:
        self._taken = 0
        while self._taken < _BEGUN_AT_ONCE and (self._short or self._handshakes):
            is_handshake = bool(self._handshakes) and (not self._short or self._since_handshake >= _SHORT_FIRST)
            self._since_handshake = 0 if is_handshake else self._since_handshake + 1
            connection = next(iter(self._handshakes if is_handshake else self._short))
            self.remove(connection)
            connection.resume()  # one that is closing takes no turn


class ChunkTurns:
    """Lets all connections together parse a few chunks of bodies in each pass of the event loop.

    The others parse in later passes, in the order in which they asked.
    """

    def __init__(self) -> None:
        self._left = _CHUNKS_AT_ONCE
        """Chunks that can be parsed in this pass."""
        self._is_spent = False
        """Whether some of them were parsed."""
        self._waiting: dict[LimitedProtocol, None] = {}

    def read_body(self, connection: "LimitedProtocol", requests: RequestParser) -> bytes | None:
        """Parse a part of a connection's body; return None if more bytes, or a later pass, are needed.

        Without a turn, the connection reads no more bytes until its `resume` is called.
        """
        if requests.is_chunked and requests.received and not self._left:
            connection.flow.hold()
            self._waiting[connection] = None
            return None
        body = requests.read_body(self._left)
        if requests.chunks and not self._is_spent:
            self._is_spent = True
            connection.loop.call_soon(self._begin_pass)
        self._left -= requests.chunks
        return body

    def remove(self, connection: "LimitedProtocol") -> None:
        """Forget a connection that is closed or closing."""
        self._waiting.pop(connection, None)

    def _begin_pass(self) -> None:
        self._left, self._is_spent = _CHUNKS_AT_ONCE, False
        while self._left and self._waiting:
            connection = next(iter(self._waiting))
            self.remove(connection)
            connection.resume()
