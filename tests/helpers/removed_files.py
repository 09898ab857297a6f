"""Files that a thread removes."""

from contextlib import suppress
from pathlib import Path

from waiting import wait_until


def wait_until_gone(path: Path) -> None:
    """Wait until no file has this name."""
    wait_until(lambda: not path.exists())


def wait_until_left(folder: Path, over: int, count: int) -> None:
    """Wait until a folder has no more than so many files with over so many bytes, and check that it has them."""
    wait_until(lambda: len(_find_files(folder, over)) <= count)
    assert len(_find_files(folder, over)) == count


def _find_files(folder: Path, over: int) -> list[Path]:
    found = []
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            if path.stat().st_size > over:
                found.append(path)
    return found


def wait_until_empty(folder: Path) -> None:
    """Wait until a folder has no files."""
    for path in folder.iterdir():
        wait_until_gone(path)
    assert list(folder.iterdir()) == []
