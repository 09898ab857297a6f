"""Files under the folders that the operator has named, and no others: no symbolic link is followed to anywhere.

A path is walked folder by folder, each opened in the one before, so that nothing can be exchanged meanwhile. Where the
system cannot do that (Windows), the path is resolved and checked instead. What is read and written is not known here.
"""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

from mcp_mirror.errors import ToolError
from mcp_mirror.system.atomic_write import atomic_write
from mcp_mirror.types import Buffer

_WALKS: Final = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
_FOLDER: Final = (
    os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
)
_FILE: Final = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)  # a pipe would wait for its other end
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)


@dataclass(frozen=True, slots=True)
class Roots:
    """The folders."""

    folders: tuple[str, ...]

    @contextmanager
    def reading(self, name: str) -> Iterator[int]:
        """A regular file under one of the folders, open.

        Args:
            name: Its path: absolute under a root, or relative to one.

        Raises:
            ToolError: There is none there that may be read.
        """
        for place in self._places(name):
            with _told(name):
                file = _opened(place)
            if file is None:
                continue
            try:
                if not stat.S_ISREG(os.fstat(file).st_mode):
                    raise ToolError(f"{name!r} is no regular file. Give a file.")
                yield file
            finally:
                os.close(file)
            return
        raise ToolError(f"There is no file {name!r} under the roots {self._listed} (`memory_tools.roots`).")

    def write(self, name: str, pieces: Iterable[Buffer], *, overwrite: bool) -> int:
        """Write a file whole: it is there with all of its bytes, or not at all. Gives how many they are.

        Raises:
            ToolError: It may not be written there, or there is one.
        """
        place = self._places(name)[0]
        with _told(name), _parent(place) as (folder, last):
            return atomic_write(last, pieces, folder=folder, overwrite=overwrite)

    def _places(self, name: str) -> "list[_Place]":
        path = PurePath(os.path.expanduser(name))  # noqa: PTH111  # Path.expanduser raises for an unknown user
        is_odd = bool(path.anchor) and not path.is_absolute()  # Windows: relative to a drive
        if not path.name or ".." in path.parts or "\0" in name or is_odd:
            raise ToolError(f"{name!r} is no path of a file. Give one without `..` under {self._listed}.")
        if not path.is_absolute():
            return [_Place(root, path.parts) for root in self.folders]
        under = [root for root in self.folders if path.is_relative_to(root)]
        if not under:
            raise ToolError(
                f"{name!r} is not under the roots {self._listed} (`memory_tools.roots`). Give a path there."
            )
        return [_Place(root, path.relative_to(root).parts) for root in under]

    @property
    def _listed(self) -> str:
        return ", ".join(map(repr, self.folders))


def _opened(place: "_Place") -> int | None:
    """The file; None where there is none."""
    try:
        with _parent(place) as (folder, last):
            return os.open(last, _FILE, dir_fd=folder)
    except FileNotFoundError:
        return None


@dataclass(frozen=True, slots=True)
class _Place:
    """A path below a root."""

    root: str
    parts: tuple[str, ...]


@contextmanager
def _parent(place: _Place) -> Iterator[tuple[int | None, str]]:
    """The open folder in which a file is, and its name there; where folders cannot be opened, None and its path."""
    if not _WALKS:
        yield None, _checked(place)
        return
    folder = os.open(os.path.realpath(place.root), _FOLDER)
    try:
        for part in place.parts[:-1]:
            below = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = below
        yield folder, place.parts[-1]
    finally:
        os.close(folder)


def _checked(place: _Place) -> str:
    root = os.path.realpath(place.root)
    path = Path(root, *place.parts)
    if Path(os.path.realpath(path)) != path:
        raise OSError(errno.ELOOP, "a symbolic link")
    return str(path)


@contextmanager
def _told(name: str) -> Iterator[None]:
    """What the system refuses, in words."""
    try:
        yield
    except FileExistsError:
        raise ToolError(f"There is a file {name!r} already. Give another name, or set `overwrite`.") from None
    except FileNotFoundError:
        raise ToolError(f"The folder of {name!r} is not there. Give a file in a folder that is.") from None
    except OSError as error:
        link = error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK)
        reason = "a symbolic link or a file stands in its way" if link else error.strerror
        raise ToolError(f"{name!r} cannot be used: {reason}. Give another file.") from None
