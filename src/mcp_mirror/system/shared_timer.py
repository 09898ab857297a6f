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
        self._waiting.pop(key, None)  # a new entry is the last one
        self._waiting[key] = (asyncio.get_running_loop().time() + self.delay, callback)
        if self._timer is None:
            self._set_timer()

    def cancel(self, key: Hashable) -> None:
        """Do not call the function of this key, if it waits."""
        self._waiting.pop(key, None)

    def _call_due(self) -> None:
        """Call one function if it is due: many that are due at once must not stop the event loop."""
        self._timer = None
        if not self._waiting:
            return
        key, (due, callback) = next(iter(self._waiting.items()))
        is_due = due <= asyncio.get_running_loop().time()
        if is_due:
            del self._waiting[key]
        if self._waiting:
            self._set_timer()
        if is_due:
            callback()

    def _set_timer(self) -> None:
        """Wake when the first function is due."""
        due, _ = next(iter(self._waiting.values()))
        self._timer = asyncio.get_running_loop().call_at(due, self._call_due)
