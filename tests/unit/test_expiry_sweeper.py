"""When a store searches for expired values in the background."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from mcp_mirror.stores.quotas import ExpirySweeper

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that were waited in vain; each such wait ends at once."""
    found: list[float] = []
    real = asyncio.timeout

    @asynccontextmanager
    async def expire(seconds: float) -> AsyncIterator[None]:
        try:
            async with real(0):
                yield
        except TimeoutError:
            found.append(seconds)
            raise

    monkeypatch.setattr(asyncio, "timeout", expire)
    monkeypatch.setattr("mcp_mirror.stores.quotas.time", SimpleNamespace(monotonic=lambda: 0.0))  # no search takes long
    return found


async def search(waits: list[float], number: int, answer: Callable[[ExpirySweeper, int], int]) -> list[float]:
    """Run a sweeper for a number of searches, and return the seconds before each."""
    seconds: list[float] = []
    finished = asyncio.Event()

    async def remove_batch() -> int:
        seconds.append(sum(waits))
        waits.clear()
        if len(seconds) == number:
            finished.set()
        return answer(sweeper, len(seconds))

    sweeper = ExpirySweeper(remove_batch)
    sweeper.start()
    await finished.wait()
    await sweeper.stop()
    return seconds[:number]


async def test_an_idle_store_searches_less_and_less_often(waits: list[float]) -> None:
    seconds = await search(waits, 7, lambda _sweeper, _number: 0)
    assert seconds == pytest.approx([2, 4, 8, 16, 32, 32, 32], abs=0.5)


async def test_a_store_in_use_searches_every_two_seconds(waits: list[float]) -> None:
    def put(sweeper: ExpirySweeper, number: int) -> int:
        if number > 4:
            sweeper.note_put()
        return 0

    assert await search(waits, 8, put) == pytest.approx([2, 4, 8, 16, 32, 2, 2, 2], abs=0.5)


async def test_found_values_are_removed_without_a_long_pause(waits: list[float]) -> None:
    seconds = await search(waits, 6, lambda _sweeper, number: 500 if number > 3 else 0)
    assert seconds == pytest.approx([2, 4, 8, 16, 0, 0], abs=0.5)
