"""Cancelled requests on which the server may still work."""

import asyncio
from collections.abc import Callable
from typing import Final

_LONGEST: Final = 60.0
"""Seconds after which a request counts as ended in any case: MCP servers need not answer a cancelled request. A server
that has sent nothing for as long since the cancellation may hang."""


class AbandonedRequests:
    """The cancelled requests of one connection whose messages the server reads one after the other.

    A serial server reads a cancellation only after its work, and the requests behind it would fill the pipe. A request
    has ended when the server has answered it or a later one, or the time is over.
    """

    def __init__(self, longest: float = _LONGEST) -> None:
        """Start without requests; `longest` is in seconds."""
        self._longest = longest
        self.ends: dict[int, tuple[asyncio.TimerHandle, Callable[[], None]]] = {}
        """By id of a request: the end of its time, and what to call."""
        self.silent_since: int = 0
        """The id of the first cancelled request since whose cancellation the server has sent nothing; 0: it has."""
        self._silence_began = 0.0

    def add(self, identity: int, on_end: Callable[[], None]) -> None:
        """Add a request, and call a function at its end."""
        loop = asyncio.get_running_loop()
        self.ends[identity] = loop.call_later(self._longest, self._end, identity), on_end
        if not self.silent_since:
            self.silent_since, self._silence_began = identity, loop.time()

    def is_silent(self, identity: int) -> bool:
        """Whether the server has sent nothing for the whole time, not even to the request with this id."""
        is_later = 0 < self.silent_since < identity
        return is_later and asyncio.get_running_loop().time() >= self._silence_began + self._longest

    def end_until(self, identity: int) -> None:
        """End the requests up to this id, whose request the server has answered."""
        for earlier in [one for one in self.ends if one <= identity]:
            self._end(earlier)

    def end_all(self) -> None:
        """End all requests: the connection has ended."""
        for identity in tuple(self.ends):
            self._end(identity)

    def _end(self, identity: int) -> None:
        timer, on_end = self.ends.pop(identity)
        timer.cancel()
        on_end()
