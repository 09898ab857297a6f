"""Writing a file by rename: readers see the old or the new content, never a part."""

import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Final

from mcp_mirror.types import Buffer

DRAFT_NAMES: Final = ".*.part"
"""A glob of the names of unfinished files, which a killed process leaves behind."""
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def atomic_write(
    path: Path | str,
    pieces: Iterable[Buffer],
    mode: int = 0o600,
    *,
    folder: int | None = None,
    overwrite: bool = True,
    keep_mode: bool = False,
) -> int:
    """Write a file by rename, synced to the disk, and return its size in bytes.

    Args:
        path: The file. With `folder`, a name in that folder.
        pieces: The content.
        mode: The permissions of the file, without those of the umask.
        folder: Descriptor of the folder; None on systems without `dir_fd`.
        overwrite: Replace an existing file.
        keep_mode: A file that is replaced keeps its permissions.

    Raises:
        FileExistsError: The file exists, and `overwrite` is false.
        OSError: The file cannot be written.
    """
    draft = str(PurePath(path).with_name(f".{secrets.token_hex(8)}.part"))
    file = os.open(draft, _NEW, mode, dir_fd=folder)
    try:
        with os.fdopen(file, "wb") as stream:
            size = sum(stream.write(piece) for piece in pieces)
            stream.flush()
            os.fsync(file)
        if keep_mode and Path(path).exists():
            Path(draft).chmod(Path(path).stat().st_mode & 0o777)
        if not overwrite:
            os.close(os.open(path, _NEW, mode, dir_fd=folder))  # reserves the name; fails if it exists
        os.replace(draft, path, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=folder)
    return size
