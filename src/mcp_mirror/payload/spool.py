"""Large messages on disk: written as they arrive, mapped to be read, never held in memory.

A spool is one directory of one process. A file in it lives as long as its message is under way; whoever wants to
keep the bytes links the file elsewhere or holds on to the map.
"""

import mmap
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from mcp_mirror.payload.framing import HEAD, Overlong
from mcp_mirror.payload.json_rpc import MOST_VALUES, RequestId, has_more_values, recover_id
from mcp_mirror.settings.policies import WirePolicy
from mcp_mirror.system.private_files import open_folder
from mcp_mirror.types import Buffer

_PREFIX: Final = "mcp-mirror-"
_SMALL: Final = 1 << 16
"""Bytes of a message whose values are not counted."""
_OWN_NAMES: Final = (f"{_PREFIX}*", "lock")
"""Globs of the names in the folder that is given to a spool: spools, and the lock of a process's own folder."""


@dataclass(eq=False, slots=True)
class SpooledFrame:
    """A message in a file."""

    path: Path
    size: int
    head: bytes
    tail: bytes
    _view: memoryview | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return self.size

    @property
    def view(self) -> memoryview:
        """The bytes, mapped. The map outlives the file's name."""
        if self._view is None:
            self._view = map_file(self.path)
        return self._view

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def discard(self) -> None:
        """Remove the file's name, and those of what was decoded beside it; maps and links of them stay."""
        for path in (self.path, *self.path.parent.glob(f"{self.path.name}.*")):
            path.unlink(missing_ok=True)


Frame = bytes | SpooledFrame | Overlong


def identity_of(frame: Frame) -> RequestId | None:
    """The id of a message that was not opened, if it stands first or last in it."""
    if isinstance(frame, SpooledFrame):
        first = recover_id(frame.head)
        return recover_id(frame.tail) if first is None else first
    return recover_id(frame.head if isinstance(frame, Overlong) else frame)


@contextmanager
def discarding(arrived: object) -> Iterator[None]:
    """Whatever becomes of a message that arrived in a file, the file's name goes at the end."""
    try:
        yield
    finally:
        if isinstance(arrived, SpooledFrame):
            arrived.discard()


def map_file(path: Path | str) -> memoryview:
    """A file's bytes, mapped; the map outlives the file's name."""
    with Path(path).open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


class Spool:
    """The directory for the messages under way."""

    def __init__(self, policy: WirePolicy, directory: Path | None = None) -> None:
        self.policy = policy
        self._parent = directory
        self._directory: Path | None = None

    def __enter__(self) -> Self:
        if self._parent is not None and self._parent.exists():
            open_folder(self._parent, _OWN_NAMES)
        return self

    def __exit__(self, *_: object) -> None:
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def directory(self) -> Path:
        """Made when first needed, for our eyes alone."""
        if self._directory is None:
            if self._parent is not None:
                open_folder(self._parent, _OWN_NAMES)
            self._directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=self._parent))
        return self._directory

    def new_path(self) -> Path:
        """A file name that nobody uses."""
        return self.directory / secrets.token_hex(16)

    def collector(self) -> "SpoolCollector":
        """Where one connection's messages grow, one after another."""
        return SpoolCollector(self)


class SpoolCollector:
    """Collects a message in memory, past `spool_bytes` in a file, past `max_message_bytes` not at all.

    A message with very many values goes to a file too: it is read in another process, see `Scanner`.
    """

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._pieces: list[bytes] = []
        self._file: int | None = None
        self._path: Path | None = None
        self._tail = b""
        self._dropping = False
        self.size = 0

    def add(self, piece: Buffer) -> None:
        """Take the next bytes; they may be overwritten afterwards."""
        self.size += len(piece)
        policy = self._spool.policy
        if self.size > policy.max_message_bytes:
            self._drop(piece)
        elif self.size > policy.spool_bytes:
            self._write(piece)
        else:
            self._pieces.append(bytes(piece))

    @property
    def is_dropping(self) -> bool:
        """Whether the message under way is past its bound."""
        return self._dropping

    def take(self) -> Frame:
        """The message."""
        size, self.size = self.size, 0
        pieces, self._pieces = self._pieces, []
        if self._dropping:
            self._dropping = False
            return Overlong(pieces[0], size)
        if self._file is None or self._path is None:
            message = b"".join(pieces)
            if size <= _SMALL or not has_more_values(message, MOST_VALUES):
                return message
            pieces = [message[:HEAD]]
            self._file, self._path = self._new_file()
            self._append(message)
        os.close(self._file)
        frame = SpooledFrame(self._path, size, pieces[0], self._tail)
        self._file = self._path = None
        self._tail = b""
        return frame

    def close(self) -> None:
        """Forget a message that will not be finished."""
        if self._file is not None and self._path is not None:
            os.close(self._file)
            self._path.unlink(missing_ok=True)
            self._file = self._path = None
        self._pieces = []

    def _write(self, piece: Buffer) -> None:
        if self._file is None:
            self._file, self._path = self._new_file()
            held, self._pieces = self._pieces, []
            for part in held:  # not joined: 16 MiB more of memory would be felt by everybody
                write_all(self._file, part)
            self._pieces.append(_head_of((*held, piece)))
        self._append(piece)

    def _new_file(self) -> tuple[int, Path]:
        path = self._spool.new_path()
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), path

    def _append(self, piece: Buffer) -> None:
        assert self._file is not None  # noqa: S101  # opened before
        write_all(self._file, piece)
        self._tail = (self._tail + bytes(piece[-HEAD:]))[-HEAD:]

    def _drop(self, piece: Buffer) -> None:
        """Keep the head alone; the rest of this message is discarded as it comes."""
        if not self._dropping:
            head = _head_of((*self._pieces, piece))
            self.close()
            self._pieces, self._dropping = [head], True


def _head_of(pieces: Iterable[Buffer]) -> bytes:
    head = b""
    for piece in pieces:
        head += bytes(piece[: HEAD - len(head)])
        if len(head) == HEAD:
            break
    return head


def write_all(file: int, data: Buffer) -> None:
    """Write all of it to a descriptor."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
