"""The heap: freed memory of the C library, and objects that refer to each other."""

import ctypes
import gc
import math
import os
import sys
from contextlib import suppress
from pathlib import Path
from time import thread_time
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
"""Parameters of `mallopt` in glibc's malloc.h."""
_KEPT: Final = 4 << 20
"""Bytes of freed memory that the heap keeps, and bytes from which a buffer has a mapping of its own."""
_CHECK_INTERVAL: Final = 2.0
"""Seconds between two checks."""
_NEW_OBJECTS: Final = 5_000
"""New objects after which the blocks of the heap are counted: four blocks each make `_LITTLE_GARBAGE`."""
_NEW_BYTES: Final = 16 << 20
"""Growth of the resident memory after which they are counted in any case."""
_GROWN: Final = 1.25
"""How often its size the heap must have before an idle event loop collects garbage."""
_TOO_LARGE: Final = 4.0
"""The same for a loop that is never idle."""
_FEW_BLOCKS: Final = 200_000
"""Blocks that the heap may grow in any case, about 20 MB."""
_LITTLE_GARBAGE: Final = 20_000
"""Blocks by which the heap must have grown before a short collection in a busy loop while no event waits."""
_SHORT: Final = 0.004
"""Seconds that this collection may take."""
_MUCH_GARBAGE: Final = 200_000
"""The same before a collection that may take longer, if half of the time is for what has grown: 40 ms or more."""
_BLOCK_SECONDS: Final = 1e-7
"""About the seconds that a collection takes for each block that is new since the last one."""
_FEW_BYTES: Final = 64 << 20
"""Bytes that the resident memory may grow in any case."""
_RELEASE_PAUSE: Final = 60.0
"""Seconds after a release in which memory is released only if it grows. Doubled after each release in vain."""


def keep_freed_memory() -> None:
    """Make glibc keep some freed memory, in place of 128 KiB; do nothing with other C libraries.

    Otherwise it returns the memory of each buffer to the system: for a message that is read in pieces, the page faults
    of the next piece cost as much as reading it.
    """
    with suppress(AttributeError, OSError, TypeError):  # TypeError: Windows cannot open the program itself
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, _KEPT)
        mallopt(_MMAP_THRESHOLD, _KEPT)


class HeapCleanup:
    """Collects all garbage and releases freed memory when the heap has grown, if possible while the event loop is idle.

    The interpreter collects only after 160 million new objects (`cli/run.py`), because that stops the event loop: a few
    ms with few tools and sessions, longer with many. Until then, circles that sessions leave behind, as the SDK does,
    would stay in memory. A loop that is never idle collects garbage early if that takes little time.
    glibc releases only memory at the end of its heap: one small buffer there keeps all that a flood of large messages
    has taken.
    """

    def __init__(self) -> None:
        self.next_check: float = math.inf
        """The time of the monotonic clock at which `run` must be called, also if the loop is not idle."""
        self._blocks = 0
        """Of the heap after the last collection."""
        self._expected = 0
        """Blocks by which the heap has grown since then, and that are in use."""
        self._counted = 0
        """The blocks when they were counted last."""
        self._counted_at = (0, 0)
        """The new objects and the bytes of resident memory at that time."""
        self._seconds = math.inf
        """The time that the last collection took for the objects that stayed."""
        self._has_freed = False
        """The last collection has freed much garbage, whose memory was not released yet."""
        self._resident = 0
        """Bytes of resident memory after the last release, or fewer if it has shrunk since."""
        self._lowest = 0
        """The fewest bytes of resident memory so far."""
        self._pause = _RELEASE_PAUSE
        self._next_release = math.inf
        """The time from which an idle loop releases memory that was in use at the last release, and may be free now."""

    def start(self, now: float) -> None:
        """Begin; the collector ignores what is in memory now: most of it stays while the gateway serves."""
        gc.freeze()
        for _ in range(2):  # the faster one counts
            self._count_blocks()
            self._collect()
        self._resident = self._lowest = _measure_resident()
        self.next_check = now + _CHECK_INTERVAL

    def expect_growth(self, blocks: int) -> None:
        """Count so many of the new blocks as used: by these, the heap has not grown by garbage."""
        self._expected += blocks

    def run(self, now: float, *, is_idle: bool, is_quiet: bool = False) -> bool:
        """Clean up if the heap has grown enough, and return whether garbage was collected.

        `now` is the time of the monotonic clock. The event loop has had nothing to do for some time (`is_idle`), or has
        nothing to do now (`is_quiet`).
        """
        self.next_check = now + _CHECK_INTERVAL
        growth = _GROWN if is_idle else _TOO_LARGE
        if self._may_have_grown() or self._is_too_large(growth, is_quiet=is_quiet):
            self._count_blocks()
        # It is paused while a thread converts values: they are in use, and a collection would visit all of them.
        collects = gc.isenabled() and self._is_too_large(growth, is_quiet=is_quiet)
        if collects:
            self._collect()
        resident = _measure_resident()
        has_grown = resident > self._resident * growth + _FEW_BYTES
        has_freed = self._has_freed and is_quiet and not collects  # two short pauses instead of one
        is_due = is_idle and now >= self._next_release and resident > self._lowest * growth + _FEW_BYTES
        if has_grown or has_freed or is_due:
            self._release_memory(now, resident, is_trial=not has_grown and not has_freed)
        self._resident = min(self._resident, resident)
        self._lowest = min(self._lowest, self._resident)
        return collects

    def _release_memory(self, now: float, resident: int, *, is_trial: bool) -> None:
        """Return freed memory to the system: 0.2 ms for each MB, and up to 15 ms if there is nothing to return.

        After a trial in vain, the next one comes later.
        """
        with suppress(AttributeError, OSError, TypeError):  # another C library than glibc
            ctypes.CDLL(None).malloc_trim(0)
        self._resident, self._has_freed = _measure_resident(), False
        is_in_vain = is_trial and self._resident > resident - _FEW_BYTES
        self._pause = 2 * self._pause if is_in_vain else _RELEASE_PAUSE
        self._next_release = now + self._pause

    def _may_have_grown(self) -> bool:
        """Whether there may be more blocks than were counted last.

        To count them reads all parts of the heap: 0.03 ms, and another 0.03 ms for each million of blocks, but 0.1 s or
        more if other memory has replaced the gateway's in the caches, or in the main memory.
        """
        objects_before, resident_before = self._counted_at
        objects, resident = _measure_growth()
        return objects >= objects_before + _NEW_OBJECTS or resident >= resident_before + _NEW_BYTES

    def _count_blocks(self) -> None:
        self._counted, self._counted_at = sys.getallocatedblocks(), _measure_growth()
        self._expected = max(0, min(self._expected, self._counted - self._blocks))

    def _collect(self) -> None:
        began = thread_time()
        gc.collect()
        seconds, blocks = thread_time() - began, sys.getallocatedblocks()
        garbage = self._counted - blocks
        for_the_rest = max(seconds - garbage * _BLOCK_SECONDS, 0.0)
        # One measurement may be far too long, if other programs had the caches of the processor.
        expected = self._seconds + max(blocks - self._blocks, 0) * _BLOCK_SECONDS
        self._seconds = min(expected, for_the_rest)
        self._blocks, self._expected, self._has_freed = blocks, 0, garbage > _MUCH_GARBAGE / 2
        self._counted, self._counted_at = blocks, _measure_growth()

    def _is_too_large(self, growth: float, *, is_quiet: bool) -> bool:
        """Whether the heap may have enough garbage for the time that a collection will take."""
        if self._counted > (self._blocks + self._expected) * growth + _FEW_BLOCKS:
            return True
        garbage = self._counted - self._blocks - self._expected
        seconds = self._seconds + (self._counted - self._blocks) * _BLOCK_SECONDS
        allowed = 2 * garbage * _BLOCK_SECONDS if garbage > _MUCH_GARBAGE else _SHORT
        return is_quiet and garbage > _LITTLE_GARBAGE and seconds < allowed


def _measure_growth() -> tuple[int, int]:
    """Return about how many objects that can refer to others were created, and the bytes of resident memory.

    The interpreter counts such objects as they come and go, up to a threshold. Then it collects those of one generation
    or more, and counts from 0.
    """
    collections = sum(generation["collections"] for generation in gc.get_stats())
    return collections * gc.get_threshold()[0] + gc.get_count()[0], _measure_resident()


def _measure_resident() -> int:
    """Return the bytes of resident memory; 0 on systems other than Linux."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
