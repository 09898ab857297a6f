"""Many timers with the same delay on one timer of the event loop.

A timer of the event loop stays in its heap after it is cancelled, so one for each request would cost more than the
request's other bookkeeping.
"""

import asyncio
from collections.abc import Callable, Hashable


class SharedTimer:
    """Calls functions once after a delay."""

    def __init__(self, delay: float) -> None:
        """Wait for nothing yet."""
        self.delay: float = delay
        """Seconds."""
        self._waiting: dict[Hashable, tuple[float, Callable[[], object]]] = {}
        """When each function is due, and the function; the earliest first."""
        self._timer: asyncio.TimerHandle | None = None

    def start(self, key: Hashable, callback: Callable[[], object]) -> None:
        """Call a function after the delay, unless `cancel` is called with this key before."""
        loop = asyncio.get_running_loop()
        self._waiting.pop(key, None)  # a new entry is the last one
        self._waiting[key] = (loop.time() + self.delay, callback)
        if self._timer is None:
            self._timer = loop.call_later(self.delay, self._call_due)

    def cancel(self, key: Hashable) -> None:
        """Do not call the function of this key, if it waits."""
        self._waiting.pop(key, None)

    def _call_due(self) -> None:
        """Call one function if it is due: many that are due at once must not stop the event loop."""
        loop, self._timer, callback = asyncio.get_running_loop(), None, None
        for key, (due, waiting) in self._waiting.items():
            if due <= loop.time():
                del self._waiting[key]
                callback = waiting
            break
        for due, _ in self._waiting.values():
            self._timer = loop.call_at(due, self._call_due)
            break
        if callback is not None:
            callback()
