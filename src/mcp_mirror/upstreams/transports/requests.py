"""A request of the gateway to a server: its timeout, its outcome, and the stream that sends it."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Final

import anyio
import mcp_types as types
import msgspec

from mcp_mirror.payload.pipes import MessageSink
from mcp_mirror.payload.spool import SpooledFrame
from mcp_mirror.system.shared_timer import SharedTimer
from mcp_mirror.types import Buffer, Segments

_INFINITE: Final = float("inf")
_STOPPED: Final = 1.0
"""Seconds after the end of a timeout at which the process must have been stopped, such as in a paused container."""
_READING: Final = 1.0
"""Seconds that a request then has, because its response may have arrived."""
RawResult = Mapping[str, Buffer]
"""The members of a result, each as the bytes that the upstream sent."""

RawResponse = RawResult | SpooledFrame
"""A result as it arrived: its members, or the whole response, unread, in a spool file."""


class UnknownSessionError(Exception):
    """The server does not know the session, so it did not execute the request."""


class MisdirectedResponseError(Exception):
    """The server answered the request under the id of another one."""


Outcome = RawResponse | types.ErrorData | Exception
"""What ended a request: a result, the server's error, or the reason why neither can come."""


class RequestTimeoutError(Exception):
    """The timeout of the request is over, or the request was stopped."""


class PausableTimeout:
    """The timeout of a request. It pauses while the client answers a request of the server.

    It needs no cancel scope while the request only waits for its response: entering one costs as much as sending a
    small request.
    """

    def __init__(self, seconds: float, timer: SharedTimer | None = None) -> None:
        """Start the timeout in the running event loop.

        `timer` is for timeouts of its delay; others, and rests after a pause, need one of their own.
        """
        self.seconds = seconds
        self.is_over: bool = False
        """The timeout is over, or the request was stopped."""
        self.reason: str | None = None
        """Why the request was stopped early: the part of the error that follows the upstream's name."""
        self._on_end: Callable[[], object] | None = None
        self._loop = asyncio.get_running_loop()
        self._shared = timer
        self._own: asyncio.TimerHandle | None = None
        self._remaining = _INFINITE
        """Seconds that remained at the beginning of the pause."""
        self._pauses = 0
        self._is_running = True
        self._schedule(seconds)

    @property
    def remaining(self) -> float:
        """Seconds until the end; infinite during a pause."""
        return _INFINITE if self._pauses else self._due - self._loop.time()

    def stop(self, reason: str) -> None:
        """Stop the request now."""
        self.reason = reason
        self._end()

    def close(self) -> None:
        """Release the timer: the request has ended."""
        self._is_running, self._on_end = False, None
        self._cancel_timer()

    def restart(self) -> None:
        """Start the timeout again; it has no effect during a pause."""
        if not self._pauses:
            self._start(self.seconds)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the timeout for the duration of the context; contexts may overlap."""
        if not self._pauses:
            self._remaining = self.remaining
            self._cancel_timer()
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            if not self._pauses:
                self._start(self._remaining)

    @contextmanager
    def cancelling(self) -> Iterator[None]:
        """Cancel what runs in the context at the end of the timeout.

        Raises:
            RequestTimeoutError: The timeout is over.
        """
        with anyio.CancelScope() as scope:
            self.call_at_end(scope.cancel)
            yield
        if scope.cancelled_caught:
            raise RequestTimeoutError

    def call_at_end(self, function: Callable[[], object]) -> None:
        """Call a function at the end of the timeout, instead of the last one; at once if the timeout is over."""
        self._on_end = function
        if self.is_over:
            function()

    def _start(self, seconds: float) -> None:
        self._cancel_timer()
        if self._is_running:
            self._schedule(seconds)

    def _schedule(self, seconds: float) -> None:
        self._due = self._loop.time() + seconds
        if self._shared is not None and self._shared.delay == seconds:
            self._shared.start(self, self._expire)
        else:
            self._own = self._loop.call_later(seconds, self._expire)

    def _cancel_timer(self) -> None:
        if self._shared is not None:
            self._shared.cancel(self)
        if self._own is not None:
            self._own.cancel()

    def _expire(self) -> None:
        if self._loop.time() > self._due + _STOPPED:
            self._start(_READING)
        else:
            self._end()

    def _end(self) -> None:
        self._is_running, self.is_over = False, True
        self._cancel_timer()
        if self._on_end is not None:
            self._on_end()


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request of the gateway."""

    method: str
    params: Segments
    """The parameters, as JSON text."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers that name the request, for a transport over HTTP."""
    token: str = field(default_factory=lambda: token_hex(16))
    """Names the request in messages about it: its progress token, and `ServerMessage.about`."""
    id: int = 0
    """The id of the last attempt; 0 before the first."""
    is_sent: bool = False
    """The transport has sent all of it."""
    is_abandoned: bool = False
    """It was cancelled at the server, which may still work on it."""
    outcome: Outcome | None = None
    """None until the request has ended, and after `take`. `PayloadBypass.close` removes errors."""
    stop: Callable[[], None] | None = None
    """Called with the outcome: stops the transport if it still sends the request or reads the response."""
    _waiter: "asyncio.Future[None] | None" = field(default=None, init=False)

    @property
    def frame(self) -> Segments:
        """The message to send."""
        head = b'{"jsonrpc":"2.0","id":%d,"method":%b,"params":' % (self.id, msgspec.json.encode(self.method))
        return (head, *self.params, b"}")

    def finish(self, outcome: Outcome) -> None:
        """Set the outcome and wake the waiter."""
        self.outcome = outcome
        self.wake()
        if self.stop is not None:
            self.stop()

    async def wait(self, limit: PausableTimeout) -> None:
        """Wait for the outcome.

        Raises:
            RequestTimeoutError: The timeout is over.
        """
        if self.outcome is None:
            self._waiter = asyncio.get_running_loop().create_future()
            limit.call_at_end(self.wake)
            await self._waiter
        if self.outcome is None:
            raise RequestTimeoutError

    def wake(self) -> None:
        """Wake the waiter, if there is one."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def take(self) -> RawResponse:
        """Return the result, once; `PayloadBypass.exchange` has returned."""
        result, self.outcome = self.outcome, None
        assert isinstance(result, dict | SpooledFrame)  # noqa: S101  # `exchange` raises everything else
        return result


class RequestSink(MessageSink):
    """The stream to the server: messages of the SDK, and requests of the gateway."""

    async def send_request(self, request: PendingRequest) -> None:
        """Send a request and set `is_sent`; the bypass gets its response later.

        Raises:
            anyio.BrokenResourceError: The connection has ended.
        """

    def send_at_once(self, request: PendingRequest) -> bool:  # noqa: ARG002  # this sink cannot
        """Send a request and set `is_sent` if that needs no wait; return whether it was sent.

        Raises:
            anyio.BrokenResourceError: The connection has ended.
        """
        return False
