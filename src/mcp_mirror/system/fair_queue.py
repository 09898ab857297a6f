"""A concurrency limit whose waiters are admitted round-robin by key, such as a principal.

However many waiters a key has in the queue, the others take turns with it.
"""

import math
from collections import deque
from collections.abc import Callable

import anyio


class FairQueue:
    """A number of places and the queue for them."""

    def __init__(self, places: int) -> None:
        self.taken = 0
        """Places that are taken."""
        self._places = places
        self._taken_by: dict[str, int] = {}
        """Taken places by key."""
        self._waiting: dict[str, deque[anyio.Event]] = {}
        """Waiters by key, in the order of admission."""
        self._shares: dict[str, int | None] = {}
        """The most places that each waiting key may take; None: see `try_enter`."""

    @property
    def is_idle(self) -> bool:
        """Whether no place is taken and nothing waits."""
        return not self._taken_by and not self._waiting

    @property
    def waiting_count(self) -> int:
        """The number of waiters."""
        return sum(map(len, self._waiting.values()))

    def count_taken(self, key: str) -> int:
        """The number of places that a key has taken."""
        return self._taken_by.get(key, 0)

    def try_enter(self, key: str, share: int | None) -> bool:
        """Take a place, which `release` frees, and return True; return False if the key must wait.

        The key may take at most `share` places; None: half of them, and as many as it leaves free. Several such keys
        share the places equally, and another key finds one free.
        """
        return not self._waiting.get(key) and self._take(key, share)

    async def wait(
        self,
        key: str,
        share: int | None,
        seconds: float | None,
        check: Callable[[], None] | None = None,
        every: float = math.inf,
    ) -> bool:
        """Wait for a place, as for `try_enter`, and return True; return False if none became free in time.

        `seconds` is the longest wait; None for no limit. `check` is called every `every` seconds.
        """
        waiter = anyio.Event()
        self._waiting.setdefault(key, deque()).append(waiter)
        self._shares[key] = share
        is_admitted = False
        try:
            with anyio.move_on_after(seconds):
                while not waiter.is_set():
                    with anyio.move_on_after(every):
                        await waiter.wait()
                    if check is not None and not waiter.is_set():
                        check()
            is_admitted = waiter.is_set()
        finally:
            if not is_admitted:
                self._withdraw(key, waiter)
        return is_admitted

    def take(self, key: str) -> None:
        """Take a place, even one too many: then the next waiter is admitted later."""
        self._taken_by[key] = self._taken_by.get(key, 0) + 1
        self.taken += 1

    def release(self, key: str) -> None:
        """Free a place and admit the next waiter, round-robin by key."""
        self.taken -= 1
        self._taken_by[key] -= 1
        if not self._taken_by[key]:
            del self._taken_by[key]
        for following in tuple(self._waiting):
            if not self._take(following, self._shares[following]):
                continue
            waiters = self._waiting.pop(following)
            waiters.popleft().set()
            if waiters:
                self._waiting[following] = waiters
            else:
                del self._shares[following]

    def _take(self, key: str, share: int | None) -> bool:
        """Take a place if there is one for this key."""
        taken, free = self._taken_by.get(key, 0), self._places - self.taken
        if share is None:
            share = max(1, min(self._places // 2, free))
        if free <= 0 or taken >= share:
            return False
        self._taken_by[key] = taken + 1
        self.taken += 1
        return True

    def _withdraw(self, key: str, waiter: anyio.Event) -> None:
        if waiter.is_set():  # admitted while it was cancelled
            self.release(key)
            return
        self._waiting[key].remove(waiter)
        if not self._waiting[key]:
            del self._waiting[key], self._shares[key]
