"""Large values as files that are named by a hash of their owner and content, sealed ones by chance.

Equal values of one owner share a file. Values of two owners never do, so that the time of storing or deleting a value
does not tell whether another owner keeps an equal one. Which files are needed is not known here.
"""

import hmac
import os
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mcp_mirror.types import FileSpan, Segments

_CHUNK: Final = 1 << 20
_DIGEST: Final = 32
_WORTH_A_LINK: Final = 0.5
"""Part of a message's file from which on a value in it is kept as a link to it."""


@dataclass(frozen=True)
class SystemCalls:
    """What is asked of the system, and may fail."""

    open: Callable[..., int] = os.open
    write: Callable[..., int] = os.write
    fsync: Callable[[int], None] = os.fsync
    close: Callable[[int], None] = os.close
    link: Callable[..., None] = os.link
    rename: Callable[..., None] = os.replace
    unlink: Callable[..., None] = os.unlink
    mkdir: Callable[..., None] = os.mkdir


SYSTEM: Final = SystemCalls()


def name_of(digest: str, start: int) -> str:
    """What a blob's file is called; who has found a blob never reads it from where an equal one is in its file."""
    return f"{digest}.{start}" if start else digest


@dataclass(frozen=True, slots=True)
class Draft:
    """A blob on the disk under a name that nobody knows yet."""

    path: Path
    digest: str
    """HMAC-SHA-256 of the content under the owner's name, hexadecimal; of a sealed blob as many digits by chance.

    Blobs that earlier versions wrote have the SHA-256 of their content.
    """
    start: int
    """Where in the file the blob begins."""
    held: int
    """Bytes of the file."""


class Blobs:
    """A folder of blobs. `adopt`, `remove` and `sizes` are for who holds the index's lock."""

    def __init__(self, folder: Path, drafts: Path, calls: SystemCalls, *, fsync: bool) -> None:
        """Open nothing yet.

        Args:
            folder: Where they are.
            drafts: Folder of this process's own on the same file system.
            calls: How the system is asked.
            fsync: A draft is on the disk before it is adopted, and its name is before `adopt` returns.
        """
        self._folder = folder
        self._drafts = drafts
        self._calls = calls
        self._fsync = fsync

    def open(self) -> None:
        """Make the folder.

        Raises:
            OSError: It cannot be made.
        """
        with suppress(FileExistsError):
            self._calls.mkdir(self._folder, 0o700)
        self._sync(self._folder.parent, _READ)

    def path_of(self, digest: str, start: int) -> Path:
        """Where a blob is that begins so many bytes into its file."""
        return self._folder / name_of(digest, start)

    @contextmanager
    def draft(self, owner: str, blob: Segments, file: FileSpan | None) -> Iterator[Draft]:
        """Put a blob on the disk; what is not adopted goes with the context.

        Args:
            owner: The namespace that shares the file among its equal values.
            blob: The bytes.
            file: Where the same bytes are already.

        Raises:
            OSError: It cannot be written.
        """
        with self._fleeting() as path:
            yield (file and self._linked(path, owner, blob, file)) or self._written(path, owner, blob)

    @contextmanager
    def sealed_draft(self, chunks: Iterable[bytes]) -> Iterator[Draft]:
        """Put on the disk what nobody else can read; its name tells nothing of it, and no other blob is equal to it.

        Raises:
            OSError: It cannot be written.
        """
        with self._fleeting() as path:
            yield Draft(path, secrets.token_hex(_DIGEST), 0, self._write_file(path, map(memoryview, chunks)))

    def adopt(self, draft: Draft) -> None:
        """Give a draft its name.

        Raises:
            OSError: It cannot be renamed.
        """
        self._calls.rename(draft.path, self.path_of(draft.digest, draft.start))
        self._sync(self._folder, _READ)

    def remove(self, name: str) -> bool:
        """Remove a file, maps of which stay readable; False where the system does not let us now."""
        try:
            self._calls.unlink(self._folder / name)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def sizes(self) -> dict[str, int]:
        """The size of every file that is there, by its name."""
        with os.scandir(self._folder) as found:
            return {entry.name: entry.stat().st_size for entry in found}

    @contextmanager
    def _fleeting(self) -> Iterator[Path]:
        """A new name, which goes with the context."""
        path = self._drafts / secrets.token_hex(16)
        try:
            yield path
        finally:
            with suppress(OSError):
                self._calls.unlink(path)

    def _linked(self, path: Path, owner: str, blob: Segments, file: FileSpan) -> Draft | None:
        """The message's own file under another name; None where that cannot be, or would keep too much."""
        held = Path(file.path).stat().st_size
        if file.span.length < held * _WORTH_A_LINK:
            return None
        try:
            self._calls.link(file.path, path)
        except OSError:  # another file system, or one without links
            return None
        self._sync(path, _CHANGE)
        digest = _hash_for(owner)
        for segment in blob:
            digest.update(segment)
        return Draft(path, digest.hexdigest(), file.span.start, held)

    def _written(self, path: Path, owner: str, blob: Segments) -> Draft:
        digest = _hash_for(owner)

        def digested() -> Iterator[memoryview]:
            for piece in _pieces(blob):
                digest.update(piece)
                yield piece

        held = self._write_file(path, digested())
        return Draft(path, digest.hexdigest(), 0, held)

    def _write_file(self, path: Path, pieces: Iterable[memoryview]) -> int:
        """Write a new file; gives its size."""
        held = 0
        file = self._calls.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o600)
        try:
            for piece in pieces:
                held += len(piece)
                self._write(file, piece)
            if self._fsync:
                self._calls.fsync(file)
        finally:
            self._calls.close(file)
        return held

    def _write(self, file: int, piece: memoryview) -> None:
        while piece:
            piece = piece[self._calls.write(file, piece) :]

    def _sync(self, path: Path, how: int) -> None:
        """Wait until the disk has a file, or a folder's names; on Windows a folder cannot be waited for."""
        if not self._fsync or (sys.platform == "win32" and path.is_dir()):
            return
        file = self._calls.open(path, how)
        try:
            self._calls.fsync(file)
        finally:
            self._calls.close(file)


_READ: Final = os.O_RDONLY
_CHANGE: Final = os.O_RDWR
"""Some systems only wait for files that were opened for writing."""
_BINARY: Final = getattr(os, "O_BINARY", 0)


def _hash_for(owner: str) -> hmac.HMAC:
    return hmac.new(owner.encode("utf-8", "surrogatepass"), digestmod="sha256")


def _pieces(blob: Segments) -> Iterator[memoryview]:
    for segment in blob:
        view: memoryview[Any] = memoryview(segment)
        for start in range(0, len(view), _CHUNK):
            yield view[start : start + _CHUNK]
