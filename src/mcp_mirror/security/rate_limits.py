"""Concurrency limits with fair queues, and rate limits with token buckets.

Waiters are admitted round-robin by key (a principal), however many calls each key has in the queue. This module must
not know tools, upstreams or protocols.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import anyio

from mcp_mirror.errors import BusyError

_MINUTE: Final = 60.0
_MANY: Final = 1000
"""Token buckets above which the idle ones are removed."""
_SOON: Final = 1.0
"""Seconds after which to retry when the concurrency limit is reached."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit with its name in the configuration."""

    name: str
    most: int

    def __str__(self) -> str:
        return f"`limits.{self.name}` ({self.most:,})"


@dataclass(frozen=True, slots=True)
class Queue:
    """The limits of a waiting queue."""

    bound: Limit
    seconds: float


@dataclass(eq=False, slots=True)
class _Waiter:
    is_admitted: anyio.Event = field(default_factory=anyio.Event)


class ConcurrencyLimiter:
    """A concurrency limit with a bounded, fair waiting queue."""

    def __init__(self, bound: Limit, queue: Queue, owner: str) -> None:
        """Start without calls.

        Args:
            bound: The concurrency limit.
            queue: The limits of the waiting queue.
            owner: The limited object in error messages, such as `Upstream 'x'`.
        """
        self._bound = bound
        self._queue = queue
        self._owner = owner
        self._running: dict[str, int] = {}
        """Running calls by key."""
        self._total = 0
        """Running calls."""
        self._waiting: dict[str, deque[_Waiter]] = {}
        """Waiters by key, in the order of admission."""
        self._shares: dict[str, int] = {}
        """The concurrency limit of each waiting key."""

    @property
    def is_idle(self) -> bool:
        """Whether no call runs or waits."""
        return not self._running and not self._waiting

    @property
    def waiting_count(self) -> int:
        """The number of calls in the queue."""
        return sum(map(len, self._waiting.values()))

    def acquire(self, key: str, *, is_shared: bool = False) -> "Place":
        """Hold one place for the duration of the context.

        Args:
            key: The caller. Callers are admitted round-robin.
            is_shared: Other callers may need places too, so this key gets at most half of them. Calls that take long,
                such as those that wait for a person, then never block all other callers.

        Raises:
            BusyError: The queue is full, or this call has waited too long.
        """
        return Place(self, key, max(1, self._bound.most // 2) if is_shared else self._bound.most)

    async def enter(self, key: str, share: int) -> None:
        """Take a place for a caller that gets at most `share` of them.

        Raises:
            BusyError: See `acquire`.
        """
        if self._waiting.get(key) or not self._has_room(key, share):
            await self._wait(key, share)
        else:
            self._admit(key)

    def _has_room(self, key: str, share: int) -> bool:
        return self._total < self._bound.most and self._running.get(key, 0) < share

    def _admit(self, key: str) -> None:
        self._running[key] = self._running.get(key, 0) + 1
        self._total += 1

    async def _wait(self, key: str, share: int) -> None:
        """Wait in the queue until this call is admitted."""
        if self.waiting_count >= self._queue.bound.most:
            raise self._busy_error(f"{self._queue.bound} calls wait already")
        waiter = _Waiter()
        self._waiting.setdefault(key, deque()).append(waiter)
        self._shares[key] = share
        try:
            with anyio.move_on_after(self._queue.seconds):
                await waiter.is_admitted.wait()
        except BaseException:
            self._withdraw(key, waiter)
            raise
        if not waiter.is_admitted.is_set():
            self._withdraw(key, waiter)
            raise self._busy_error(f"no place became free within {self._queue.seconds:g} s (`limits.queue_timeout`)")

    def _withdraw(self, key: str, waiter: _Waiter) -> None:
        if waiter.is_admitted.is_set():  # admitted while it was cancelled
            self.release(key)
            return
        self._waiting[key].remove(waiter)
        if not self._waiting[key]:
            del self._waiting[key], self._shares[key]

    def release(self, key: str) -> None:
        """Free a place and admit the next waiter, round-robin by key."""
        self._total -= 1
        self._running[key] -= 1
        if not self._running[key]:
            del self._running[key]
        for following in tuple(self._waiting) if self._waiting else ():
            if not self._has_room(following, self._shares[following]):
                continue
            waiters = self._waiting.pop(following)
            self._admit(following)
            waiters.popleft().is_admitted.set()
            if waiters:
                self._waiting[following] = waiters
            else:
                del self._shares[following]

    def _busy_error(self, reason: str) -> BusyError:
        calls = "calls" if self._total >= self._bound.most else "calls, of which one client gets half,"
        return BusyError(f"{self._owner} is busy: {self._bound} {calls} are running, and {reason}.", _SOON)


class Place:
    """A place that `ConcurrencyLimiter.acquire` returns. Every call takes some, so this is not a generator."""

    __slots__ = ("_key", "_limiter", "_share")

    def __init__(self, limiter: ConcurrencyLimiter, key: str, share: int) -> None:
        self._limiter, self._key, self._share = limiter, key, share

    async def __aenter__(self) -> None:
        await self._limiter.enter(self._key, self._share)

    async def __aexit__(self, *_: object) -> None:
        self._limiter.release(self._key)


class TokenBucket:
    """A rate limit per minute. A minute's worth of calls may come at once."""

    def __init__(self, bound: Limit, owner: str, clock: Callable[[], float]) -> None:
        """Start with a full bucket.

        Args:
            bound: The rate limit in calls per minute.
            owner: The limited object in error messages.
            clock: Monotonic seconds.
        """
        self._bound = bound
        self._owner = owner
        self._clock = clock
        self._left = float(bound.most)
        self._seen = clock()

    @property
    def is_idle(self) -> bool:
        """Whether the bucket is full."""
        self._refill()
        return self._left >= self._bound.most

    def take(self) -> None:
        """Take one token.

        Raises:
            BusyError: The bucket is empty.
        """
        self._refill()
        if self._left < 1:
            seconds = (1 - self._left) * _MINUTE / self._bound.most
            raise BusyError(f"{self._owner} has had {self._bound} calls in a minute.", seconds)
        self._left -= 1

    def _refill(self) -> None:
        now = self._clock()
        self._left = min(self._bound.most, self._left + (now - self._seen) * self._bound.most / _MINUTE)
        self._seen = now


class PerKeyLimiter:
    """A concurrency limit and an optional rate limit for each of many owners: principals or upstreams."""

    def __init__(self, bound: Limit, rate: Limit | None, queue: Queue, clock: Callable[[], float]) -> None:
        self._bound = bound
        self._rate = rate
        self._queue = queue
        self._clock = clock
        self._limiters: dict[str, ConcurrencyLimiter] = {}
        self._buckets: dict[str, TokenBucket] = {}

    def __len__(self) -> int:
        """The number of owners with running or recent calls."""
        return len(self._limiters.keys() | self._buckets.keys())

    @property
    def waiting_count(self) -> int:
        """The number of calls in all queues."""
        return sum(limiter.waiting_count for limiter in self._limiters.values())

    def acquire(self, owner: str, key: str, title: str, *, is_shared: bool = False) -> "OwnedPlace":
        """Hold one place of an owner for the duration of the context.

        Args:
            owner: The owner of the limits.
            key: The caller. Several callers share the places of an owner fairly.
            title: The owner in error messages.
            is_shared: See `ConcurrencyLimiter.acquire`.

        Raises:
            BusyError: A limit is reached.
        """
        return OwnedPlace(self, owner, key, title, is_shared=is_shared)

    def take(self, owner: str, title: str) -> ConcurrencyLimiter:
        """Count a call by the rate limit of an owner, and return the owner's concurrency limit.

        Raises:
            BusyError: The rate limit is reached.
        """
        if self._rate is not None:
            self._sweep()
            if (bucket := self._buckets.get(owner)) is None:
                bucket = self._buckets[owner] = TokenBucket(self._rate, title, self._clock)
            bucket.take()
        if (limiter := self._limiters.get(owner)) is None:
            limiter = self._limiters[owner] = ConcurrencyLimiter(self._bound, self._queue, title)
        return limiter

    def count(self, owner: str, title: str) -> None:
        """Count a call by the rate limit of an owner, without a place.

        Raises:
            BusyError: The rate limit is reached.
        """
        self.drop_idle(owner, self.take(owner, title))

    def drop_idle(self, owner: str, limiter: ConcurrencyLimiter) -> None:
        """Forget the concurrency limit of an owner without calls."""
        if limiter.is_idle and self._limiters.get(owner) is limiter:
            del self._limiters[owner]

    def _sweep(self) -> None:
        """Remove full buckets if there are many."""
        if len(self._buckets) < _MANY:
            return
        for name in [name for name, bucket in self._buckets.items() if bucket.is_idle]:
            del self._buckets[name]


class OwnedPlace:
    """A place that `PerKeyLimiter.acquire` returns."""

    __slots__ = ("_is_shared", "_key", "_limiter", "_limiters", "_owner", "_place", "_title")

    def __init__(self, limiters: PerKeyLimiter, owner: str, key: str, title: str, *, is_shared: bool) -> None:
        self._limiters, self._owner, self._key, self._title, self._is_shared = limiters, owner, key, title, is_shared

    async def __aenter__(self) -> None:
        self._limiter = self._limiters.take(self._owner, self._title)
        self._place = self._limiter.acquire(self._key, is_shared=self._is_shared)
        try:
            await self._place.__aenter__()
        except BaseException:
            self._limiters.drop_idle(self._owner, self._limiter)
            raise

    async def __aexit__(self, *_: object) -> None:
        await self._place.__aexit__()
        self._limiters.drop_idle(self._owner, self._limiter)
