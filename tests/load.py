"""How busy the machine is, so that bounds on time hold on a busy one too and stay tight on an idle one."""

import asyncio
import gc
import threading
import time
from collections.abc import Awaitable
from contextlib import suppress
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

    Neither the time in which other programs had the processor (Linux), also if a thread that has the interpreter's lock
    waited for it, nor the garbage collector's visits to the objects of the test process count: a gateway freezes its
    own at its start.
    """
    pauses: list[float] = []

    async def watch() -> None:
        while True:
            waits, began = _read_waits(), time.perf_counter()
            await asyncio.sleep(0)
            pauses.append(time.perf_counter() - began - _wait_since(waits))

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


def _read_waits() -> dict[str, int]:
    """The nanoseconds in which each thread could run but had no processor; empty where the system does not count."""
    waits = {}
    for thread in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            waits[thread.parent.name] = int(thread.read_text().split()[1])
    return waits


def _wait_since(before: dict[str, int]) -> float:
    """The seconds in which this thread could not run, or another one could not, which may have had the lock."""
    waited = {thread: wait - before.get(thread, wait) for thread, wait in _read_waits().items()}
    own = waited.pop(str(threading.get_native_id()), 0)
    return (own + max(waited.values(), default=0)) / 1e9
