"""Bounded waits for a state that another process, thread or task causes, and that has no event."""

import asyncio
import time
from collections.abc import Callable
from inspect import isawaitable
from typing import Any, Final

BOUND: Final = 60.0
"""Seconds that anything may take."""
_INTERVAL: Final = 0.01


async def until(read: Callable[[], Any], is_wanted: Callable[[Any], object] = bool, *, within: float = BOUND) -> Any:
    """Read a state again and again until it is the wanted one, and return it.

    Args:
        read: Returns the state, or an awaitable of it.
        is_wanted: Whether a state ends the wait; without it, any true one does.
        within: Seconds that it may take.

    Raises:
        TimeoutError: The state was not reached in time.
    """
    async with asyncio.timeout(within):
        while True:
            state = read()
            if isawaitable(state):
                state = await state
            if is_wanted(state):
                return state
            await asyncio.sleep(_INTERVAL)


def wait_until(read: Callable[[], Any], *, within: float = BOUND) -> None:
    """Block this thread until a function returns something true.

    Raises:
        TimeoutError: It did not within so many seconds.
    """
    deadline = time.monotonic() + within
    while not read():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(_INTERVAL)
