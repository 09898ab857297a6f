"""Rate limit for unsolicited messages, time slices and threads for long work, and a bound for repeated log lines.

Reading a flood alternates with all other work of the event loop. The caller reads, and reacts to an exceeded limit.
"""

import logging
from collections.abc import Callable, Generator
from time import monotonic
from typing import Final, TypeVar, TypeVarTuple

import anyio
import anyio.lowlevel
import anyio.to_thread

from mcp_mirror.types import Buffer

_SLICE: Final = 0.002
"""Seconds of work after which other tasks run."""
REST: Final = 2.0
"""Seconds of rest for each second of reading unsolicited messages, which so take at most a third of the time."""
BURST: Final = 50_000
"""Unsolicited messages that a connection may send at once."""
RATE: Final = 5_000
"""Unsolicited messages per second that a connection may send continuously."""
INLINE_BYTES: Final = 1 << 15
"""Bytes of JSON that the event loop reads at once: with very many keys or content blocks they take about 10 ms."""
_INLINE_PARTS: Final = 1 << 12
"""Quotes of JSON text that the event loop visits at once, in about 10 ms. An object or an array counts as eight."""
_INTERVAL: Final = 10.0
"""Seconds between two log lines of one kind."""


class Pacer:
    """Lets other tasks run after each slice of work."""

    def __init__(self, rest: float = 0.0) -> None:
        """Start without work.

        Args:
            rest: Seconds of rest for each second of work. With 0, other tasks get one turn.
        """
        self._rest = rest
        self._began: float | None = None
        self._spent = 0.0

    def begin(self) -> None:
        """Start measuring work."""
        self._began = monotonic()

    def skip(self) -> None:
        """Do not count the work since `begin`."""
        self._began = None

    async def end(self) -> None:
        """Stop measuring work, and rest if the slice is over."""
        if self._began is not None:
            self._spent += monotonic() - self._began
        if self._spent >= _SLICE:
            spent, self._spent = self._spent, 0.0
            await anyio.sleep(self._rest * spent)


T = TypeVar("T")
Args = TypeVarTuple("Args")
Steps = Generator[None, None, T]
"""Work in small steps, so that others can run between them; the result is its return value."""


def finish(steps: Steps[T]) -> T:
    """Take all steps at once and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


async def take_sliced(steps: Steps[T]) -> T:
    """Take all steps, let other tasks run after each slice of 2 ms, and return the result."""
    began = monotonic()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        if monotonic() > began + _SLICE:
            await anyio.lowlevel.checkpoint()
            began = monotonic()


async def run_by_size(size: int, work: Callable[[*Args], T], *args: *Args) -> T:
    """Return the result of work on `size` bytes, which runs in a thread if they are too many for the event loop."""
    return work(*args) if size <= INLINE_BYTES else await anyio.to_thread.run_sync(work, *args)


def has_few_parts(text: Buffer) -> bool:
    """Whether the event loop may visit each string, object and array of a JSON text at once."""
    text = bytes(text)
    return text.count(b'"') + 8 * (text.count(b"{") + text.count(b"[")) <= _INLINE_PARTS


async def run_by_parts(text: Buffer, work: Callable[[*Args], T], *args: *Args) -> T:
    """Return the result of work that visits each part of `text`, in a thread if that is too much for the event loop."""
    size = len(text) if has_few_parts(text) else INLINE_BYTES + 1
    return await run_by_size(size, work, *args)


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


class RepeatedLog:
    """Writes one log line of each kind per interval, with the number of suppressed lines."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = monotonic) -> None:
        self._log = log
        self._clock = clock
        self._kinds: dict[str, tuple[float, int]] = {}
        """By format: the time of the last line, and the number of lines suppressed since."""

    def warning(self, text: str, *args: object) -> None:
        """Log a warning. The format, `text`, is its kind."""
        now = self._clock()
        since, suppressed = self._kinds.get(text, (float("-inf"), 0))
        if now - since < _INTERVAL:
            self._kinds[text] = since, suppressed + 1
            return
        self._kinds[text] = now, 0
        if suppressed:
            self._log.warning(f"{text} (and %d more like it in %.0f s)", *args, suppressed, now - since)
        else:
            self._log.warning(text, *args)

    def close(self) -> None:
        """Log how many lines were suppressed in the last interval."""
        for text, (since, suppressed) in self._kinds.items():
            if suppressed:
                kind = text.replace("%s", "...").replace("%d", "...")
                self._log.warning("%s: %d more in %.0f s", kind, suppressed, self._clock() - since)
        self._kinds.clear()
