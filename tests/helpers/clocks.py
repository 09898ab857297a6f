"""Clocks that a test sets."""

from collections.abc import Awaitable, Callable

__all__ = ["Clock", "PassTime"]

PassTime = Callable[[float], Awaitable[None]]
"""Advances the clock of the event loop by so many seconds."""


class Clock:
    """Seconds that a test sets (`clock.now += 60`). Each look advances it by `step`."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now
        self.step = 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now
