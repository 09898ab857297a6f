"""Writes bytes to this process's standard error without blocking the event loop."""

import os
import sys
from contextlib import suppress
from typing import Final

import anyio

_DESCRIPTOR: Final = 2
_PIECE: Final = 4096
"""PIPE_BUF of Linux: a write up to this size does not block once a pipe is writable."""


async def write_to_stderr(data: bytes) -> None:
    """Write bytes as they are; drop them if standard error is closed. A reader that does not read makes this wait."""
    if sys.stderr is None:  # the descriptor was closed at the start
        return
    with suppress(OSError):
        for start in range(0, len(data), _PIECE):
            piece = memoryview(data)[start : start + _PIECE]
            while piece:
                with suppress(PermissionError):  # a regular file, which is always writable
                    await anyio.wait_writable(_DESCRIPTOR)
                piece = piece[os.write(_DESCRIPTOR, piece) :]
