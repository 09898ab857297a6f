"""Whether the files of this program are still those of its start. An upgrade replaces them while the program runs."""

from pathlib import Path
from typing import Final

_FILE: Final = Path(__file__)


def _identify() -> tuple[int, int] | None:
    try:
        status = _FILE.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


_AT_START: Final = _identify()


def is_replaced() -> bool:
    """Whether an upgrade has replaced the files of the program, or they were removed."""
    return _identify() != _AT_START
