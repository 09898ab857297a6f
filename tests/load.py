"""How busy the machine is, so that bounds on time hold on a busy one too and stay tight on an idle one."""

import asyncio
import time
from collections.abc import Awaitable
from typing import Any

_SAMPLE = 0.03
"""Seconds of processor time that a sample takes."""


def slowness() -> float:
    """The slowdown of a program by other programs that run now; 1 on an idle machine."""
    began, worked = time.monotonic(), time.thread_time()
    while time.thread_time() - worked < _SAMPLE:
        pass
    return max(1.0, (time.monotonic() - began) / _SAMPLE)


async def measure_pause(request: Awaitable[Any]) -> float:
    """Return the seconds of the longest pass of the event loop during a request."""
    pauses: list[float] = []

    async def watch() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0)
            pauses.append(time.perf_counter() - began)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    await request
    await asyncio.sleep(0)
    watching.cancel()
    return max(pauses)
