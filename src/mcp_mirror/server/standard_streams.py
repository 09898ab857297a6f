"""The standard streams of the process, for one connection."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from mcp_mirror.errors import MirrorError


@contextmanager
def claim_standard_streams() -> Iterator[tuple[int, int]]:
    """Redirect the standard streams so that other code of the process cannot disturb the connection.

    It yields private descriptors of the original standard input and output.

    Raises:
        MirrorError: Standard output is closed.
    """
    # Python sets a stream to None if its descriptor was closed at the start.
    standard_streams: tuple[TextIO | None, ...] = (sys.stdin, sys.stdout, sys.stderr)
    has_input, has_output, has_errors = (stream is not None for stream in standard_streams)
    if not has_output:
        raise MirrorError("Standard output is closed, so stdio clients cannot connect. Use --http to serve over HTTP.")
    null = os.open(os.devnull, os.O_RDWR)
    source = os.dup(0 if has_input else null)  # another file may have the number of a closed descriptor
    sink = os.dup(1)
    if has_input:
        os.dup2(null, 0)
    os.dup2(2 if has_errors else null, 1)
    _flush_printed_text()
    try:
        yield source, sink
    finally:
        _flush_printed_text()
        os.dup2(sink, 1)
        os.close(null)


def _flush_printed_text() -> None:
    """Write what other code has printed, and Python still buffers, to standard error: it is not for the client."""
    with suppress(OSError, ValueError):  # nothing reads standard error, or the program closed its stream
        sys.stdout.flush()
