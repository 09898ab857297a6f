"""Removes expired values in the background, in small batches with pauses, so that no caller waits for them."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from mcp_mirror.errors import StoreError

EXPIRED_PER_PUT: Final = 2
"""Expired values that a put removes although it does not need their room, so that a store cannot grow by them."""
EXPIRED_PER_BATCH: Final = 500
"""Maximum of expired values that one batch removes."""
BATCH_SECONDS: Final = 0.001
"""Seconds after which a batch ends early: a put may wait for a batch."""
_IDLE: Final = 2.0
"""Seconds between searches for expired values."""
_PAUSE: Final = 0.01
"""Minimum of seconds between batches."""
_PAUSE_PART: Final = 3
"""The pause after a batch as a multiple of its duration."""


class ExpirySweeper:
    """A background task that removes expired values."""

    def __init__(self, remove_batch: Callable[[], Awaitable[int]]) -> None:
        """Configure the task.

        Args:
            remove_batch: Removes some expired values, and returns their number. It may raise `StoreError`.
        """
        self._remove_batch = remove_batch
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    def start(self) -> None:
        """Start the task."""
        self._stopping.clear()
        self._task = asyncio.create_task(self._sweep())

    async def stop(self) -> None:
        """Stop the task. A batch is not cancelled: its thread or transaction would continue in a closed store."""
        self._stopping.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _sweep(self) -> None:
        pause = _IDLE
        while not await self._is_stopped_within(pause * random.uniform(0.75, 1.25)):  # noqa: S311  # gateways take turns
            pause, began = _IDLE, time.monotonic()
            with suppress(StoreError):  # callers get the same error
                if await self._remove_batch():
                    pause = max(_PAUSE, _PAUSE_PART * (time.monotonic() - began))

    async def _is_stopped_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        return self._stopping.is_set()
