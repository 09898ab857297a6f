"""Large values as files. Equal values of one owner share a file, unless they are encrypted.

The name of a file begins with a fingerprint: a hash of samples of the value with its owner as key. The rest is random.
Values with the same fingerprint are compared byte by byte, which takes a seventh of the time of a hash of all bytes.
Values of two owners never share a file, so the time to store or delete a value does not reveal whether another owner
has an equal one. The index, not this module, knows which files are needed.
"""

import hmac
import os
import secrets
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from mcp_mirror.stores.base import cut_into_pieces
from mcp_mirror.system.files import BINARY, write_all
from mcp_mirror.types import Buffer, FileSpan, Segments

PIECE: Final = 1 << 18
"""Bytes that are compared and written at once. They stay in the processor's cache."""
_SAMPLES: Final = 16
_SAMPLE_BYTES: Final = 1 << 12
_FINGERPRINT: Final = 16
"""Bytes of the fingerprint in a name."""
_RANDOM: Final = 16
"""Random bytes in a name."""
_WORTH_A_LINK: Final = 0.5
"""Share of a message's file that a value must have to be stored as a hard link to the file."""


class BlobRemovedError(Exception):
    """The file of a blob was removed by another change of the store."""


def name_of(digest: str, start: int) -> str:
    """The name of a blob's file. It includes the offset, so that equal blobs at other offsets have other files."""
    return f"{digest}.{start}" if start else digest


class BlobDraft(msgspec.Struct, frozen=True):
    """A blob on the disk under a temporary name, or under its final one."""

    path: Path | None
    """The temporary name; None for a blob that is already stored."""
    digest: str
    """The fingerprint and random digits, hexadecimal; for an encrypted blob only random ones."""
    start: int
    """The offset of the blob in the file."""
    file_size: int
    """The size of the file in bytes."""


class Blobs(msgspec.Struct, frozen=True):
    """A folder of blobs. Call `adopt`, `remove` and `sizes` only with the index's write lock.

    Methods raise `OSError` if the system refuses an operation.
    """

    folder: Path
    drafts: Path
    """A folder of this process on the same file system."""
    fsync: bool
    """Sync drafts before they are adopted, and the folder before `adopt` returns."""

    def open(self) -> None:
        """Create the folder."""
        with suppress(FileExistsError):
            self.folder.mkdir(0o700)
        self._sync(self.folder.parent)

    @property
    def exists(self) -> bool:
        """Whether the folder exists."""
        return self.folder.exists()

    def build_path(self, digest: str, start: int) -> Path:
        """The file of a blob with this digest and offset."""
        return self.folder / name_of(digest, start)

    def find_equal(self, blob: Segments, known: Iterable[tuple[str, int]]) -> BlobDraft | None:
        """The first of the known blobs, each a digest and an offset, that has the same bytes as `blob`."""
        for digest, start in known:
            path = self.build_path(digest, start)
            try:
                if _has_bytes(path, start, blob):
                    return BlobDraft(None, digest, start, path.stat().st_size)
            except OSError:  # another process has removed the file
                continue
        return None

    @contextmanager
    def draft(
        self, pieces: Iterable[Buffer], fingerprint: str | None = None, file: FileSpan | None = None
    ) -> Iterator[BlobDraft]:
        """Write a blob to the disk. The context removes a draft that was not adopted.

        `fingerprint` is the beginning of its name, from `compute_fingerprint`; None for an encrypted blob. `file` is an
        existing file with the same bytes, which may be linked.
        """
        digest = f"{fingerprint or secrets.token_hex(_FINGERPRINT)}{secrets.token_hex(_RANDOM)}"
        path = self.drafts / secrets.token_hex(16)
        try:
            linked = self._link(path, digest, file) if file else None
            yield linked or BlobDraft(path, digest, 0, self._write_file(path, pieces))
        finally:
            with suppress(OSError):
                path.unlink()

    def adopt(self, draft: BlobDraft) -> None:
        """Rename a draft to its final name; do nothing for a blob that is already stored.

        BlobRemovedError if the file of that blob was removed since.
        """
        path = self.build_path(draft.digest, draft.start)
        if draft.path is None:
            if not path.exists():
                raise BlobRemovedError
            return
        draft.path.replace(path)
        self._sync(self.folder)

    def remove(self, name: str) -> bool:
        """Remove a file. Maps of it stay readable. Returns False if the system refuses."""
        try:
            (self.folder / name).unlink()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def sizes(self) -> dict[str, int]:
        """The sizes of all files by name."""
        with os.scandir(self.folder) as found:
            return {entry.name: entry.stat().st_size for entry in found}

    def _link(self, path: Path, digest: str, file: FileSpan) -> BlobDraft | None:
        """Link the message's file; None if links are not supported or the file is too large for the blob."""
        file_size = Path(file.path).stat().st_size
        if file.span.length < file_size * _WORTH_A_LINK:
            return None
        try:
            os.link(file.path, path)
        except OSError:  # another file system, or one without links
            return None
        self._sync(path)
        return BlobDraft(path, digest, file.span.start, file_size)

    def _write_file(self, path: Path, pieces: Iterable[Buffer]) -> int:
        """Write a new file and return its size."""
        file_size = 0
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, 0o600)
        try:
            for piece in pieces:
                write_all(file, piece)
                file_size += len(piece)
            if self.fsync:
                os.fsync(file)
        finally:
            os.close(file)
        return file_size

    def _sync(self, path: Path) -> None:
        """Sync a file or a folder to the disk. Windows cannot sync folders."""
        if not self.fsync:
            return
        is_folder = path.is_dir()
        if is_folder and sys.platform == "win32":
            return
        file = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)  # some systems sync only files that one can write
        try:
            os.fsync(file)
        finally:
            os.close(file)


def compute_fingerprint(owner: str, blob: Segments) -> str:
    """The fingerprint of a blob, hexadecimal: equal blobs of one owner, a namespace, have the same."""
    size = sum(map(len, blob))
    hashed = hmac.new(owner.encode("utf-8", "surrogatepass"), size.to_bytes(8, "big"), "sha256")
    starts = [at * max(size - _SAMPLE_BYTES, 0) // (_SAMPLES - 1) for at in range(_SAMPLES)]
    position = 0
    for piece in cut_into_pieces(blob, PIECE):
        for start in starts:
            in_piece = start - position
            if -_SAMPLE_BYTES < in_piece < len(piece):  # it begins before the piece, or in it
                hashed.update(piece[max(in_piece, 0) : in_piece + _SAMPLE_BYTES])
        position += len(piece)
    return hashed.hexdigest()[: 2 * _FINGERPRINT]


def _has_bytes(path: Path, start: int, blob: Segments) -> bool:
    """Whether a file has these bytes at an offset. Other threads run while it is read."""
    read = bytearray(PIECE)
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        for piece in cut_into_pieces(blob, PIECE):
            if len(piece) < len(read):
                read = bytearray(len(piece))
            # A bytearray is compared by memcmp, also with a memoryview.
            if file.readinto(read) != len(read) or read != piece:  # type: ignore[comparison-overlap]
                return False
    return True
