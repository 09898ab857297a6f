"""Who may go on now, who waits, and who is turned away: calls at once and calls a minute, by whom or for what.

Waiting is in turn: of several who want the same, each gets the next place once, whoever asks most. What is asked, and
of whom, is not known here.
"""

from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import anyio

from mcp_mirror.errors import BusyError

_MINUTE: Final = 60.0
_MANY: Final = 1000
"""Meters past which those that nobody has used for a while are forgotten."""
_SOON: Final = 1.0
"""Seconds after which a place may be free where that cannot be told."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A bound, and what it is called in the configuration and in errors."""

    name: str
    most: int

    def __str__(self) -> str:
        return f"`limits.{self.name}` ({self.most:,})"


@dataclass(frozen=True, slots=True)
class Queue:
    """How many may wait, and for how long."""

    bound: Limit
    seconds: float


@dataclass(eq=False, slots=True)
class _Waiter:
    """Somebody who waits."""

    is_free: anyio.Event = field(default_factory=anyio.Event)


class ConcurrencyLimiter:
    """Lets so many in at once; the others wait in turn, and a bounded number of them."""

    def __init__(self, bound: Limit, queue: Queue, what: str) -> None:
        """Let nobody in yet.

        Args:
            bound: How many may be in.
            queue: How many may wait.
            what: Who turns those away that are too many, for a message: `Upstream 'x'`.
        """
        self._bound = bound
        self._queue = queue
        self._what = what
        self._held = Counter[str]()
        """Places by who has them."""
        self._waiting: dict[str, deque[_Waiter]] = {}
        """By who waits, in the order in which they are let in."""
        self._shares: dict[str, int] = {}
        """How many places those who wait may have at once."""

    @property
    def is_idle(self) -> bool:
        """Whether nobody is in and nobody waits."""
        return not self._held and not self._waiting

    @asynccontextmanager
    async def entered(self, who: str, *, is_shared: bool = False) -> AsyncIterator[None]:
        """While one is in.

        Args:
            who: Who wants in.
            is_shared: Others may want in too: this one gets half of the places at most, so that calls which take long,
                such as those that wait for a person, never keep all others out.

        Raises:
            BusyError: Too many wait, or this one has waited too long.
        """
        share = max(1, self._bound.most // 2) if is_shared else self._bound.most
        if self._waiting.get(who) or not self._has_room(who, share):
            await self._wait(who, share)
        else:
            self._held[who] += 1
        try:
            yield
        finally:
            self._leave(who)

    def _has_room(self, who: str, share: int) -> bool:
        return self._held.total() < self._bound.most and self._held[who] < share

    async def _wait(self, who: str, share: int) -> None:
        """Until there is a place, which is then taken."""
        if sum(map(len, self._waiting.values())) >= self._queue.bound.most:
            raise self._busy(f"{self._queue.bound} wait already")
        place = _Waiter()
        self._waiting.setdefault(who, deque()).append(place)
        self._shares[who] = share
        try:
            with anyio.move_on_after(self._queue.seconds):
                await place.is_free.wait()
        except BaseException:
            self._give_up(who, place)
            raise
        if not place.is_free.is_set():
            self._give_up(who, place)
            raise self._busy(f"no place has become free for {self._queue.seconds:g} s (`limits.queue_timeout`)")

    def _give_up(self, who: str, place: _Waiter) -> None:
        if place.is_free.is_set():  # a place was given that nobody takes
            self._leave(who)
            return
        self._waiting[who].remove(place)
        if not self._waiting[who]:
            del self._waiting[who], self._shares[who]

    def _leave(self, who: str) -> None:
        """Whose turn it is gets the place; who has got one stands last again."""
        self._held[who] -= 1
        if not self._held[who]:
            del self._held[who]
        for following in tuple(self._waiting):
            if not self._has_room(following, self._shares[following]):
                continue
            places = self._waiting.pop(following)
            self._held[following] += 1
            places.popleft().is_free.set()
            if places:
                self._waiting[following] = places
            else:
                del self._shares[following]

    def _busy(self, why: str) -> BusyError:
        calls = "calls" if self._held.total() >= self._bound.most else "calls, of which one client gets half,"
        return BusyError(f"{self._what} is busy: {self._bound} {calls} are under way, and {why}.", _SOON)


class TokenBucket:
    """Lets so many through a minute: as many at once as a minute's, then each as its time comes."""

    def __init__(self, bound: Limit, what: str, clock: Callable[[], float]) -> None:
        """Let through a minute's worth at first.

        Args:
            bound: How many a minute.
            what: Who is told of.
            clock: Seconds that only grow.
        """
        self._bound = bound
        self._what = what
        self._clock = clock
        self._left = float(bound.most)
        self._seen = clock()

    @property
    def is_idle(self) -> bool:
        """Whether it would let through as many as a new one."""
        self._refill()
        return self._left >= self._bound.most

    def pass_one(self) -> None:
        """Let one through.

        Raises:
            BusyError: There were too many.
        """
        self._refill()
        if self._left < 1:
            seconds = (1 - self._left) * _MINUTE / self._bound.most
            raise BusyError(f"{self._what} has had {self._bound} calls in a minute.", seconds)
        self._left -= 1

    def _refill(self) -> None:
        now = self._clock()
        self._left = min(self._bound.most, self._left + (now - self._seen) * self._bound.most / _MINUTE)
        self._seen = now


class PerKeyLimiter:
    """One door, and one meter where there is a rate, for each of many: principals, or the one upstream."""

    def __init__(self, bound: Limit, rate: Limit | None, queue: Queue, clock: Callable[[], float]) -> None:
        self._bound = bound
        self._rate = rate
        self._queue = queue
        self._clock = clock
        self._doors: dict[str, ConcurrencyLimiter] = {}
        self._meters: dict[str, TokenBucket] = {}

    def __len__(self) -> int:
        """How many are remembered."""
        return len(self._doors.keys() | self._meters.keys())

    @asynccontextmanager
    async def admitted(self, to: str, who: str, what: str, *, is_shared: bool = False) -> AsyncIterator[None]:
        """While a call of somebody's is under way.

        Args:
            to: Whose door it is.
            who: Who wants in; several share a door fairly.
            what: What the door's owner is called in an error.
            is_shared: See `ConcurrencyLimiter.entered`.

        Raises:
            BusyError: It cannot be let in.
        """
        if self._rate is not None:
            self._sweep()
            self._meters.setdefault(to, TokenBucket(self._rate, what, self._clock)).pass_one()
        limiter = self._doors.setdefault(to, ConcurrencyLimiter(self._bound, self._queue, what))
        try:
            async with limiter.entered(who, is_shared=is_shared):
                yield
        finally:
            if limiter.is_idle and self._doors.get(to) is limiter:
                del self._doors[to]

    def _sweep(self) -> None:
        """Forget those who have not called for a minute, as soon as there are many."""
        if len(self._meters) < _MANY:
            return
        for name in [name for name, bucket in self._meters.items() if bucket.is_idle]:
            del self._meters[name]
