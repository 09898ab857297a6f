"""Threads for long computations of principals.

Threads that compute take turns with the event loop: with forty of them, it would get a fraction of its time. So only a
few run at once, and one principal leaves some of them to others.
"""

from collections.abc import Callable
from typing import Final, TypeVar, TypeVarTuple

import anyio.lowlevel
import anyio.to_thread

from mcp_mirror.system.fair_queue import FairQueue

_THREADS: Final = 4
_SHARE: Final = 2
"""The most threads that one principal may take."""
_places: Final = anyio.lowlevel.RunVar[FairQueue]("mcp_mirror.fair_threads")
"""The threads of each event loop."""

T = TypeVar("T")
Args = TypeVarTuple("Args")


async def run_fairly(principal: str, work: Callable[[*Args], T], *args: *Args) -> T:
    """Return the result of work in a thread. Principals take turns if all threads compute."""
    places = _places.get(None)
    if places is None:
        _places.set(places := FairQueue(_THREADS))
    if not places.try_enter(principal, _SHARE):
        await places.wait(principal, _SHARE, None)
    try:
        return await anyio.to_thread.run_sync(work, *args)
    finally:
        places.release(principal)
