"""The timeout of a request to an upstream."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import anyio

_INFINITE: Final = float("inf")


class RequestTimeoutError(Exception):
    """The timeout of the request is over, or the request was stopped."""


class PausableTimeout:
    """The timeout of a request. It pauses while the client answers a request of the server.

    It needs no cancel scope while the request only waits for its response: entering one costs as much as sending a
    small request.
    """

    def __init__(self, seconds: float) -> None:
        """Start the timeout in the running event loop."""
        self.seconds = seconds
        self.is_over: bool = False
        """The timeout is over, or the request was stopped."""
        self.reason: str | None = None
        """Why the request was stopped early: the part of the error that follows the upstream's name."""
        self._on_end: Callable[[], object] | None = None
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(seconds, self._end)
        self._remaining = _INFINITE
        """Seconds that remained at the beginning of the pause."""
        self._pauses = 0
        self._is_running = True

    @property
    def remaining(self) -> float:
        """Seconds until the end; infinite during a pause."""
        return _INFINITE if self._pauses else self._timer.when() - self._loop.time()

    def stop(self, reason: str) -> None:
        """Stop the request now."""
        self.reason = reason
        self._end()

    def close(self) -> None:
        """Release the timer: the request has ended."""
        self._is_running, self._on_end = False, None
        self._timer.cancel()

    def restart(self) -> None:
        """Start the timeout again; it has no effect during a pause."""
        if not self._pauses:
            self._start(self.seconds)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the timeout for the duration of the context; contexts may overlap."""
        if not self._pauses:
            self._remaining = self.remaining
            self._timer.cancel()
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
        self._timer.cancel()
        if self._is_running:
            self._timer = self._loop.call_later(seconds, self._end)

    def _end(self) -> None:
        self._is_running, self.is_over = False, True
        self._timer.cancel()
        if self._on_end is not None:
            self._on_end()
