"""The heap: freed memory of the C library, and objects that refer to each other."""

import ctypes
import gc
import math
import sys
from contextlib import suppress
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
"""Parameters of `mallopt` in glibc's malloc.h."""
_KEPT: Final = 4 << 20
"""Bytes of freed memory that the heap keeps, and bytes from which a buffer has a mapping of its own."""
_CHECK_INTERVAL: Final = 10.0
"""Seconds between two looks at the size of the heap."""
_GROWN: Final = 1.25
"""How often its size the heap must have before an idle event loop collects garbage."""
_TOO_LARGE: Final = 4.0
"""The same for a loop that is never idle."""
_FEW_BLOCKS: Final = 200_000
"""Blocks that the heap may grow in any case, about 20 MB."""


def keep_freed_memory() -> None:
    """Make glibc keep some freed memory, in place of 128 KiB; do nothing with other C libraries.

    Otherwise it returns the memory of each buffer to the system: for a message that is read in pieces, the page faults
    of the next piece cost as much as reading it.
    """
    with suppress(AttributeError, OSError, TypeError):  # TypeError: Windows cannot open the program itself
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, _KEPT)
        mallopt(_MMAP_THRESHOLD, _KEPT)


class GarbageCollection:
    """Collects all garbage when the heap has grown since the last time, if possible while the event loop is idle.

    The interpreter does so only after 160 million new objects (`cli/run.py`), because that stops the event loop: 10 ms
    with few tools, longer with many. Until then, what sessions leave behind in circles would stay in memory.
    """

    def __init__(self) -> None:
        self.next_check: float = math.inf
        """The time of the monotonic clock at which `run` must be called, also if the loop is not idle."""
        self._blocks = 0
        """Of the heap after the last collection."""

    def start(self, now: float) -> None:
        """Begin; what is in memory now has never been garbage."""
        self._blocks = sys.getallocatedblocks()
        self.next_check = now + _CHECK_INTERVAL

    def run(self, now: float, *, is_idle: bool) -> bool:
        """Collect garbage if the heap has grown enough, and return whether it has.

        To find that out takes 0.03 ms for each million of blocks.
        """
        self.next_check = now + _CHECK_INTERVAL
        most = self._blocks * (_GROWN if is_idle else _TOO_LARGE) + _FEW_BLOCKS
        if sys.getallocatedblocks() <= most:
            return False
        gc.collect()
        self._blocks = sys.getallocatedblocks()
        return True
