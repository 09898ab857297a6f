"""How busy the machine is, so that bounds on time hold on a busy one too and stay tight on an idle one."""

import asyncio
import gc
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from mcp_mirror.system.event_loop import find_stalls

_SAMPLE = 0.03
"""Seconds of processor time that a sample takes."""


def slowness() -> float:
    """The slowdown of a program by other programs that run now; 1 on an idle machine."""
    began, worked = time.monotonic(), time.thread_time()
    while time.thread_time() - worked < _SAMPLE:
        pass
    return max(1.0, (time.monotonic() - began) / _SAMPLE)


async def measure_pause(request: Awaitable[Any]) -> float:
    """Return the seconds of the longest pass of the event loop during a request.

    Neither the time in which other programs had the processor (Linux) nor the garbage collector's visits to the objects
    of the test process count: a gateway freezes its own at its start.
    """
    pauses: list[float] = []

    async def watch() -> None:
        while True:
            began, waited = time.perf_counter(), _read_wait()
            await asyncio.sleep(0)
            pauses.append(time.perf_counter() - began - (_read_wait() - waited))

    gc.collect()
    gc.freeze()
    watching = asyncio.create_task(watch())
    try:
        await asyncio.sleep(0)
        await request
        await asyncio.sleep(0)
    finally:
        watching.cancel()
        gc.unfreeze()
    return max(pauses)


async def find_longest_stall() -> float:
    """Return the longest stall of the running loop, which measures them, up to the pass that asks."""
    await asyncio.sleep(0.001)  # a pass ends when the loop looks for events
    stalls = find_stalls()
    assert stalls
    return stalls.longest


def _read_wait() -> float:
    """The seconds in which this thread could run but had no processor; 0 where the system does not count them."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except FileNotFoundError:
        return 0.0
