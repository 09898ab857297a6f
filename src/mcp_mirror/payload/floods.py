"""A bound for the messages of a connection that come unasked.

Reading a flood of messages alternates with all other work of the event loop. The caller reads, and reacts to an
exceeded limit.
"""

from collections.abc import Callable
from time import monotonic
from typing import Final

from mcp_mirror.system.slices import Pacer

REST: Final = 2.0
"""Seconds of rest for each second of reading unsolicited messages, which so take at most a third of the time."""
BURST: Final = 50_000
"""Unsolicited messages that a connection may send at once."""
RATE: Final = 5_000
"""Unsolicited messages per second that a connection may send continuously."""


class Flood:
    """The rate limit for unsolicited messages of one connection: a token bucket."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.pacer: Pacer = Pacer(REST)
        self.reason: str = ""
        """Why the connection must end, as a sentence; empty while the rate limit is kept."""
        self._clock = clock
        self._tokens = float(BURST)
        self._filled = clock()

    def take(self) -> None:
        """Count a message as unsolicited."""
        self._tokens -= 1
        if self._tokens < 0:
            now = self._clock()
            self._tokens = min(float(BURST), self._tokens + (now - self._filled) * RATE)
            self._filled = now
        if self._tokens < 0 and not self.reason:
            self.reason = (
                f"It sent more than {BURST:,} unsolicited messages at more than {RATE:,} per second, such as lines "
                "that are not MCP, so the gateway closed the connection. Check the server's standard output."
            )

    def give_back(self) -> None:
        """Undo the last `take`, and do not count the work: the message was a response."""
        self._tokens += 1
        self.pacer.skip()
