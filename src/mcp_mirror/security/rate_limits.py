"""Concurrency limits with fair queues, and rate limits with token buckets.

`PrincipalLimiter` and `UpstreamLimiter` combine both for one owner. This module must not know tools or protocols.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import anyio
import msgspec

from mcp_mirror.callers import ClientChannel
from mcp_mirror.errors import BusyError, UpstreamError
from mcp_mirror.settings.limits import UpstreamBounds
from mcp_mirror.system.fair_queue import FairQueue

_OWNER: Final = "The principal of this client"
"""A principal in error messages, which its client reads."""
_MINUTE: Final = 60.0
_MANY: Final = 1000
"""Limiters of principals above which the idle ones are removed."""
_SOON: Final = 1.0
"""Seconds after which to retry when the concurrency limit is reached."""


class Limit(msgspec.Struct, frozen=True):
    """A limit with its name in the configuration; an empty name if it is not there."""

    name: str
    most: int

    def __str__(self) -> str:
        return f"`limits.{self.name}` ({self.most:,})" if self.name else f"{self.most:,}"


class Queue(msgspec.Struct, frozen=True):
    """The limits of a waiting queue."""

    bound: Limit
    seconds: float


class ConcurrencyLimiter(FairQueue):
    """A concurrency limit with a bounded, fair waiting queue."""

    def __init__(self, bound: Limit, queue: Queue, owner: str) -> None:
        """Start without calls. Error messages name the limited object, `owner`, such as `Upstream 'x'`."""
        super().__init__(bound.most)
        self._bound = bound
        self._queue = queue
        self._owner = owner

    @asynccontextmanager
    async def acquire(self, key: str, *, leaves_room: bool = False) -> AsyncIterator[None]:
        """Hold one place for the duration of the context; see `enter`."""
        await self.enter(key, leaves_room=leaves_room)
        try:
            yield
        finally:
            self.release(key)

    async def enter(self, key: str, *, leaves_room: bool = False) -> None:
        """Take a place, which `release` frees.

        Args:
            key: The caller. Callers are admitted round-robin.
            leaves_room: Other callers may need places too, so this key gets at most as many as it leaves free. Calls
                that take long, such as those that wait for a person, then never block all other callers, however many
                callers make them.

        Raises:
            BusyError: The queue is full, or this call has waited too long.
        """
        share = None if leaves_room else self._bound.most
        if self.try_enter(key, share):
            return
        if self.waiting_count >= self._queue.bound.most:
            raise self._busy_error(f"{self._queue.bound} calls wait already")
        if not await self.wait(key, share, self._queue.seconds):
            raise self._busy_error(f"no place became free within {self._queue.seconds:g} s (`limits.queue_timeout`)")

    def _busy_error(self, reason: str) -> BusyError:
        calls = "calls" if self.taken >= self._bound.most else "calls, of which one client gets at most half,"
        return BusyError(f"{self._owner} is busy: {self._bound} {calls} are running, and {reason}.", _SOON)


class TokenBucket:
    """A rate limit per minute. A minute's worth of calls may come at once."""

    def __init__(self, bound: Limit, owner: str, clock: Callable[[], float]) -> None:
        """Start with a full bucket of `bound` calls per minute. Error messages name `owner`, the limited object."""
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
        """Take one token; raise a `BusyError` if the bucket is empty."""
        self._refill()
        if self._left < 1:
            seconds = (1 - self._left) * _MINUTE / self._bound.most
            raise BusyError(f"{self._owner} has had {self._bound} calls in a minute.", seconds)
        self._left -= 1

    def _refill(self) -> None:
        now = self._clock()
        self._left = min(self._bound.most, self._left + (now - self._seen) * self._bound.most / _MINUTE)
        self._seen = now


class PrincipalLimiter:
    """The concurrency limit and the optional rate limit of each principal; a call over a limit is a `BusyError`."""

    def __init__(self, bound: Limit, rate: Limit | None, queue: Queue, clock: Callable[[], float]) -> None:
        """Start without calls. `rate` is in calls per minute and principal, `clock` in monotonic seconds."""
        self._bound = bound
        self._rate = rate
        self._queue = queue
        self._clock = clock
        self._limiters: dict[str, ConcurrencyLimiter] = {}
        self._buckets: dict[str, TokenBucket] = {}

    def change_rate(self, rate: Limit | None) -> None:
        """Use another rate limit from the next call on."""
        if rate != self._rate:
            self._rate = rate
            self._buckets.clear()

    def __len__(self) -> int:
        """The number of principals with running or recent calls."""
        return len(self._limiters.keys() | self._buckets.keys())

    @property
    def waiting_count(self) -> int:
        """The number of calls in all queues."""
        return sum(limiter.waiting_count for limiter in self._limiters.values())

    @asynccontextmanager
    async def acquire(self, principal: str) -> AsyncIterator[None]:
        """Count a call of a principal, and hold one of its places for the duration of the context."""
        await self.enter(principal)
        try:
            yield
        finally:
            self.leave(principal)

    async def enter(self, principal: str) -> None:
        """Count a call of a principal, and take one of its places, which `leave` frees."""
        self.count(principal)
        if (limiter := self._limiters.get(principal)) is None:
            _drop_idle(self._limiters)
            limiter = self._limiters[principal] = ConcurrencyLimiter(self._bound, self._queue, _OWNER)
        await limiter.enter(principal)

    def leave(self, principal: str) -> None:
        """Free the place of a call."""
        self._limiters[principal].release(principal)

    def count(self, principal: str) -> None:
        """Count a call by the rate limit of a principal, without a place."""
        if self._rate is None:
            return
        if (bucket := self._buckets.get(principal)) is None:
            _drop_idle(self._buckets)
            bucket = self._buckets[principal] = TokenBucket(self._rate, _OWNER, self._clock)
        bucket.take()


def _drop_idle(limiters: dict[str, ConcurrencyLimiter] | dict[str, TokenBucket]) -> None:
    """Drop the limiters of principals without recent calls, if there are many."""
    if len(limiters) >= _MANY:
        for name in [name for name, limiter in limiters.items() if limiter.is_idle]:
            del limiters[name]


class UpstreamLimiter:
    """The concurrency limit and the rate limit of one upstream, over all its connections, round-robin by principal."""

    def __init__(self, name: str, bounds: UpstreamBounds) -> None:
        """Take the name of the upstream and its limits."""
        per_minute = bounds.upstream_calls_per_minute
        rate = Limit("upstream_calls_per_minute", per_minute) if per_minute else None
        queue = Queue(Limit("queued_calls", bounds.queued_calls), bounds.queue_timeout)
        concurrency = Limit("calls_per_upstream", bounds.calls_per_upstream)
        title = f"Upstream {name!r}"
        self._rate = TokenBucket(rate, title, anyio.current_time) if rate else None
        self._limiter = ConcurrencyLimiter(concurrency, queue, title)

    @property
    def waiting_count(self) -> int:
        """The number of requests in the queue."""
        return self._limiter.waiting_count

    async def enter(self, channel: ClientChannel | None) -> None:
        """Admit a request; it takes a place, which `leave` frees. The gateway's own (`channel` None) are not limited.

        Raises:
            UpstreamError: The request exceeds a limit.
        """
        if channel is None:
            return
        has_others = channel.caller.scopes is not None  # without tokens there is one principal
        try:
            if self._rate is not None:
                self._rate.take()
            await self._limiter.enter(channel.caller.namespace, leaves_room=has_others)
        except BusyError as error:
            raise UpstreamError(str(error), error.reason, error.retry_after) from None

    def hold(self, channel: ClientChannel) -> None:
        """Take a place, without waiting, for a request that has ended here and still runs at the upstream."""
        self._limiter.take(channel.caller.namespace)

    def leave(self, channel: ClientChannel | None) -> None:
        """Free the place of a request."""
        if channel is not None:
            self._limiter.release(channel.caller.namespace)


def explain_too_many_requests(limit: int) -> str:
    """Return the part of an error that follows the name of a server which exceeded `max_input_requests_per_call`."""
    return (
        f"asked for input more than `limits.max_input_requests_per_call` ({limit:,}) times in one call, so it was "
        "ended. Raise the limit if the server needs more."
    )
