"""When to reconnect: exponential backoff with jitter, and a circuit breaker for requests."""

import random
from typing import Final

STABLE_AFTER: Final = 10.0
"""Seconds after which a connection counts as stable: backoff starts again from the first delay."""
_MAX_DOUBLINGS: Final = 16
"""Doublings of a delay; further ones would exceed every limit."""
_JITTER: Final = 0.2
"""Share by which a delay varies."""
_FAILURE_THRESHOLD: Final = 5
"""Failures in a row that open the circuit breaker."""
_HALF_OPEN_INTERVAL: Final = 1.0
"""Seconds between two attempts that requests start while the circuit breaker is open."""


def backoff_delay(attempts: int, first: float, longest: float) -> float:
    """Return the seconds until the next attempt: `first` doubled per attempt, at most `longest`."""
    return min(first * (1 << min(attempts, _MAX_DOUBLINGS)), longest)


def add_jitter(seconds: float) -> float:
    """Return a delay up to 20 % shorter or longer, so that servers do not all reconnect at once."""
    return seconds * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311  # not a secret


class Backoff:
    """Exponential backoff that starts again after a connection that was stable."""

    def __init__(self, first: float, longest: float) -> None:
        """Take the first and the longest delay, in seconds."""
        self._first = first
        self._longest = longest
        self._attempts = 0

    def next_delay(self, lasted: float) -> float:
        """Return the seconds until the next attempt, given the seconds that the last one lasted."""
        self._attempts = 0 if lasted > STABLE_AFTER else self._attempts + 1
        return backoff_delay(self._attempts, self._first, self._longest)


class CircuitBreaker:
    """Opens after 5 failures in a row. While it is open, requests fail at once, and one a second tries to reconnect."""

    def __init__(self) -> None:
        self._failures = 0
        self._last_attempt = -_HALF_OPEN_INTERVAL

    @property
    def is_open(self) -> bool:
        """Whether requests fail at once."""
        return self._failures >= _FAILURE_THRESHOLD

    def allow_attempt(self, now: float) -> bool:
        """Whether a request may reconnect now; an allowed attempt is counted."""
        if self.is_open and now < self._last_attempt + _HALF_OPEN_INTERVAL:
            return False
        self._last_attempt = now
        return True

    def record_end(self, *, was_stable: bool) -> None:
        """Count a failed attempt, or the end of a connection; the end of a stable one closes the circuit breaker."""
        self._failures = 0 if was_stable else self._failures + 1
