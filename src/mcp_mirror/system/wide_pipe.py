"""A pipe for large messages."""

import os
import sys
from contextlib import suppress
from typing import Final

PIPE_BYTES: Final = 1 << 20
"""Capacity of a pipe where the system permits it (Linux: 64 KiB by default)."""


def open_wide_pipe() -> tuple[int, int]:
    """Open a pipe with a capacity of 1 MiB where the system permits it. Returns its reading and its writing end."""
    reading, writing = os.pipe()
    if sys.platform == "linux":
        import fcntl  # noqa: PLC0415  # missing on Windows

        with suppress(OSError):  # over /proc/sys/fs/pipe-user-pages-soft: keep the default capacity
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return reading, writing
