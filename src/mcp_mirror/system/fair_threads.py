"""Threads that principals share: one principal leaves some of them to others.

Threads that compute take turns with the event loop: with forty of them, it would get a fraction of its time. So only a
few run at once.
"""

from collections.abc import Callable
from typing import Final, TypeVar, TypeVarTuple

import anyio.lowlevel
import anyio.to_thread

from mcp_mirror.system.fair_queue import FairQueue

_THREADS: Final = 4
_SHARE: Final = 2
"""The most threads that one principal may take."""

T = TypeVar("T")
Args = TypeVarTuple("Args")


class FairThreads:
    """A number of threads. Principals take turns if all of them work."""

    def __init__(self, threads: int, share: int | None) -> None:
        """Create the queue; one principal may take `share` threads at most. For None see `FairQueue.try_enter`."""
        self._places = FairQueue(threads)
        self._share = share
        self._limiter = anyio.CapacityLimiter(threads)

    async def run(self, principal: str, work: Callable[[*Args], T], *args: *Args) -> T:
        """Return the result of work in one of the threads."""
        if not self._places.try_enter(principal, self._share):
            await self._places.wait(principal, self._share, None)
        try:
            return await anyio.to_thread.run_sync(work, *args, limiter=self._limiter)
        finally:
            self._places.release(principal)


_computing: Final = anyio.lowlevel.RunVar[FairThreads]("mcp_mirror.fair_threads")
"""The threads for computations of each event loop."""


async def run_fairly(principal: str, work: Callable[[*Args], T], *args: *Args) -> T:
    """Return the result of a computation in a thread. Principals take turns if all such threads compute."""
    threads = _computing.get(None)
    if threads is None:
        _computing.set(threads := FairThreads(_THREADS, _SHARE))
    return await threads.run(principal, work, *args)
