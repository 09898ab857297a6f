"""Pace long work, pace and bound what a peer sends unasked, and bound what is logged about it.

Reading a flood takes turns with all other work of the event loop. What is read, and what happens past the rate, is the
caller's decision.
"""

import logging
from collections.abc import Callable, Generator
from time import monotonic
from typing import Final, TypeVar

import anyio
import anyio.lowlevel

_SLICE: Final = 0.002
"""Seconds of work after which other tasks run."""
_STEPS: Final = 0.002
"""Seconds of steps after which other tasks run."""
REST: Final = 2.0
"""Seconds of rest for each second that unasked messages take: they take a third of the time at most."""
BURST: Final = 50_000
"""Unasked messages that a connection may send at once."""
RATE: Final = 5_000
"""Unasked messages a second that a connection may send for ever."""
_INTERVAL: Final = 10.0
"""Seconds between two lines of the log of one kind."""


class Pacer:
    """Lets other tasks run after each slice of work."""

    def __init__(self, rest: float = 0.0) -> None:
        """Start.

        Args:
            rest: Seconds of rest for each second of work; 0: other tasks get one turn.
        """
        self._rest = rest
        self._began = 0.0
        self._spent = 0.0

    def begin(self) -> None:
        """Work begins."""
        self._began = monotonic()

    async def end(self) -> None:
        """Work ends. Where a slice is over, rest."""
        self._spent += monotonic() - self._began
        if self._spent >= _SLICE:
            spent, self._spent = self._spent, 0.0
            await anyio.sleep(self._rest * spent)


T = TypeVar("T")
Steps = Generator[None, None, T]
"""Work in small steps, so that others can run between them; the result is its return value."""


def finish(steps: Steps[T]) -> T:
    """Take all steps at once; the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


async def take_sliced(steps: Steps[T]) -> T:
    """Take steps; after each slice of 2 ms others run. The result."""
    began = monotonic()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        if monotonic() > began + _STEPS:
            await anyio.lowlevel.checkpoint()
            began = monotonic()


class Flood:
    """Counts the unasked messages of one connection: a token bucket."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.pacer = Pacer(REST)
        self.reason = ""
        """Why the connection is to end, a sentence; empty while it is within the rate."""
        self._clock = clock
        self._tokens = float(BURST)
        self._filled = clock()

    def take(self) -> None:
        """Count a message as unasked."""
        self._tokens -= 1
        if self._tokens < 0:
            now = self._clock()
            self._tokens = min(float(BURST), self._tokens + (now - self._filled) * RATE)
            self._filled = now
        if self._tokens < 0 and not self.reason:
            self.reason = (
                f"It sent more than {BURST:,} messages and {RATE:,} a second that nobody asked for, such as lines that "
                "are not MCP, so the gateway ended the connection. Check what the server writes to standard output."
            )

    def give_back(self) -> None:
        """The message that was counted last was an answer."""
        self._tokens += 1


class RepeatedLog:
    """Writes one line of a kind per interval, with the number of those that were left out."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = monotonic) -> None:
        self._log = log
        self._clock = clock
        self._kinds: dict[str, tuple[float, int]] = {}
        """By format: when a line was written, and how many were left out since."""

    def warning(self, text: str, *args: object) -> None:
        """Log a warning; its kind is `text`, the format."""
        now = self._clock()
        since, left_out = self._kinds.get(text, (float("-inf"), 0))
        if now - since < _INTERVAL:
            self._kinds[text] = since, left_out + 1
            return
        self._kinds[text] = now, 0
        if left_out:
            self._log.warning(f"{text} (and %d more like it in %.0f s)", *args, left_out, now - since)
        else:
            self._log.warning(text, *args)

    def close(self) -> None:
        """Log how many were left out last."""
        for text, (since, left_out) in self._kinds.items():
            if left_out:
                kind = text.replace("%s", "...").replace("%d", "...")
                self._log.warning("%s: %d more in %.0f s", kind, left_out, self._clock() - since)
        self._kinds.clear()
