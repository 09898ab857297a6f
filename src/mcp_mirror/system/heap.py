"""The heap of the C library."""

import ctypes
from contextlib import suppress
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
"""Parameters of `mallopt` in glibc's malloc.h."""
_KEPT: Final = 4 << 20
"""Bytes of freed memory that the heap keeps, and bytes from which a buffer has a mapping of its own."""


def keep_freed_memory() -> None:
    """Make glibc keep some freed memory, in place of 128 KiB; do nothing with other C libraries.

    Otherwise it returns the memory of each buffer to the system: for a message that is read in pieces, the page faults
    of the next piece cost as much as reading it.
    """
    with suppress(AttributeError, OSError, TypeError):  # TypeError: Windows cannot open the program itself
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, _KEPT)
        mallopt(_MMAP_THRESHOLD, _KEPT)
