"""Reads files by memory maps, and writes whole buffers to descriptors."""

import mmap
import os
from pathlib import Path

from mcp_mirror.types import Buffer


def map_file(path: Path | str) -> memoryview:
    """Memory-map a file for reading. The map stays readable after the file is removed."""
    with Path(path).open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def write_all(file: int, data: Buffer) -> None:
    """Write all bytes to a descriptor."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
