"""Opens and writes files below the folders in `memory_tools.roots`, without following symbolic links.

Each folder of a path is opened relative to its parent, so that another process cannot replace a folder by a link
between check and use. On systems without this (Windows), the path is resolved and checked instead.
"""

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Final

import msgspec

from mcp_mirror.core.amounts import shorten
from mcp_mirror.errors import ToolError
from mcp_mirror.system.files import BINARY, atomic_write
from mcp_mirror.types import Buffer

_HAS_DIR_FD: Final = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
_FOLDER_FLAGS: Final = (
    os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
)
_FILE_FLAGS: Final = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)  # opening a pipe would block until its other end opens
    | getattr(os, "O_CLOEXEC", 0)
    | BINARY
)
_MAX_NAME: Final = 1 << 15
"""Characters of a path: `pathlib` of Python 3.12 takes seconds for one of 100,000 parts."""
_NAME_CHARACTERS: Final = 1000
"""Characters of a file's name in a text for the model. The parts `.` of a path make names of any length valid."""


class Roots(msgspec.Struct, frozen=True):
    """The folders in which the gateway may read and write files. Methods raise `ToolError` for other files."""

    folders: tuple[str, ...]

    @contextmanager
    def open_file(self, name: str) -> Iterator[int]:
        """Open a regular file, absolute or relative to a root, for reading and yield its descriptor."""
        for root, parts in self._resolve(name):
            try:
                with _explain_errors(name), _open_parent(root, parts) as (folder, last):
                    file = os.open(last, _FILE_FLAGS, dir_fd=folder)
            except FileNotFoundError:
                continue
            try:
                if not stat.S_ISREG(os.fstat(file).st_mode):
                    raise ToolError(f"{quote_name(name)} is not a regular file. Give a file.")
                yield file
            finally:
                os.close(file)
            return
        raise ToolError(
            f"{quote_name(name)} does not exist under the roots {self._listed} (`memory_tools.roots`). "
            "Give another file."
        )

    def write(self, name: str, pieces: Iterable[Buffer], *, overwrite: bool) -> int:
        """Write a file, absolute or relative to the first root, atomically and return its size in bytes."""
        root, parts = self._resolve(name)[0]
        try:
            with _explain_errors(name), _open_parent(root, parts) as (folder, last):
                return atomic_write(last, pieces, folder=folder, overwrite=overwrite)
        except FileNotFoundError:
            raise ToolError(
                f"The folder of {quote_name(name)} does not exist under the roots {self._listed} "
                "(`memory_tools.roots`). Give a path in an existing folder there."
            ) from None

    def _resolve(self, name: str) -> list[tuple[str, tuple[str, ...]]]:
        """The roots, and the parts of a path below each, that a name may mean, the likeliest first."""
        if len(name) > _MAX_NAME:
            raise ToolError(f"{quote_name(name)} is longer than {_MAX_NAME:,} characters. Give a shorter path.")
        path = PurePath(os.path.expanduser(name))  # noqa: PTH111  # Path.expanduser raises for an unknown user
        is_odd = bool(path.anchor) and not path.is_absolute()  # Windows: relative to a drive
        if not path.name or ".." in path.parts or "\0" in name or is_odd:
            raise ToolError(
                f"{quote_name(name)} is not a valid file path. Give a path without `..` under {self._listed}."
            )
        if not path.is_absolute():
            return [(root, path.parts) for root in self.folders]
        under = [root for root in self.folders if path.is_relative_to(root)]
        if path in map(PurePath, under):
            raise ToolError(f"{quote_name(name)} is a folder. Give a file in it.")
        if not under:
            raise ToolError(
                f"{quote_name(name)} is not under the roots {self._listed} (`memory_tools.roots`). Give a path there."
            )
        return [(root, path.relative_to(root).parts) for root in under]

    @property
    def _listed(self) -> str:
        return ", ".join(map(repr, self.folders))


def quote_name(name: str) -> str:
    """The name of a file for a text for the model."""
    return repr(shorten(name, _NAME_CHARACTERS))


@contextmanager
def _open_parent(root: str, parts: Sequence[str]) -> Iterator[tuple[int | None, str]]:
    """Open the folder of a file; yield its descriptor and the file's name, or None and the checked path on Windows."""
    if not _HAS_DIR_FD:
        whole = Path(os.path.realpath(root), *parts)
        if Path(os.path.realpath(whole)) != whole:
            raise OSError(errno.ELOOP, "a symbolic link")
        yield None, str(whole)
        return
    folder = os.open(os.path.realpath(root), _FOLDER_FLAGS)
    try:
        for part in parts[:-1]:
            below = os.open(part, _FOLDER_FLAGS, dir_fd=folder)
            os.close(folder)
            folder = below
        yield folder, parts[-1]
    finally:
        os.close(folder)


@contextmanager
def _explain_errors(name: str) -> Iterator[None]:
    """Replace errors of the operating system by tool errors, except that something does not exist."""
    try:
        yield
    except FileExistsError:
        raise ToolError(f"The file {quote_name(name)} exists already. Give another name, or set `overwrite`.") from None
    except FileNotFoundError:
        raise
    except OSError as error:
        link = error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK)
        reason = "a part of its path is a symbolic link or a file" if link else error.strerror
        raise ToolError(f"{quote_name(name)} cannot be used: {reason}. Give another file.") from None
