"""Files that a thread removes."""

import time
from pathlib import Path

_SECONDS = 20


def wait_until_gone(path: Path) -> None:
    """Wait until no file has this name."""
    deadline = time.monotonic() + _SECONDS
    while path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not path.exists()


def wait_until_empty(folder: Path) -> None:
    """Wait until a folder has no files."""
    for path in folder.iterdir():
        wait_until_gone(path)
    assert list(folder.iterdir()) == []
