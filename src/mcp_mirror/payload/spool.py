"""Large messages on disk: written while they arrive and memory-mapped for reading.

If no file can be written, such as on a full disk, a message up to `spool_bytes` stays in memory and a larger one is
discarded. Other messages of the connection are not affected.

A spool is a directory of one process; the next start removes that of a killed process. A file in it exists while its
message is processed. To keep the bytes, link the file elsewhere or keep the map.
"""

import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Lock, Thread
from typing import Final, Self

import msgspec

from mcp_mirror.payload.framing import END, HEAD, DiscardedFrame
from mcp_mirror.payload.json_bounds import MAX_VALUES, has_more_values
from mcp_mirror.payload.json_rpc import RequestId, begins_response, recover_first_id, recover_id, recover_last_id
from mcp_mirror.settings.policies import WirePolicy
from mcp_mirror.system.files import BINARY, create_claimed_folder, open_folder, remove_unclaimed, write_all
from mcp_mirror.system.limited_logs import RepeatedLog
from mcp_mirror.system.mapped_files import map_file, unlink_large
from mcp_mirror.types import Buffer

_logger = logging.getLogger(__name__)

_PREFIX: Final = "mcp-mirror-spool-"
_SMALL: Final = 1 << 16
"""Bytes up to which the values of a message are not counted, and up to which it stays in memory in any case."""
_JOINED: Final = 1 << 12
"""Bytes up to which small pieces of a message are joined as they arrive."""
_MAX_IN_MEMORY: Final = 64 << 20
"""Bytes of larger messages that all connections together keep in memory. Further messages go to files."""
_AHEAD: Final = 3
"""Bytes written to the file for each byte that arrives, in the second half of `spool_bytes`. So a message that grows
past that size is in the file already: writing it at once would stall the event loop."""
_OWN_NAMES: Final = (f"{_PREFIX}*", "lock")
"""Globs of the names in a spool's parent folder: spools, and the lock file of the process's folder."""


class SpooledFrame(msgspec.Struct, eq=False):
    """A message in a file."""

    path: Path
    size: int
    head: bytes
    _view: memoryview | None = None

    def __len__(self) -> int:
        return self.size

    @property
    def view(self) -> memoryview:
        """The bytes, memory-mapped. The map stays readable after the file is removed."""
        if self._view is None:
            self._view = map_file(self.path)
        return self._view

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def discard(self) -> None:
        """Remove the file and the decoded files beside it. Their maps and hard links stay."""
        unlink_large(self.path)
        with suppress(OSError):  # without a free file handle, decoded files stay until the folder is removed
            for path in self.path.parent.glob(f"{self.path.name}.*"):
                unlink_large(path)


Frame = bytes | SpooledFrame | DiscardedFrame


def frame_id(frame: Frame) -> RequestId | None:
    """The id of an unparsed message, if it is the first or the last member."""
    if isinstance(frame, bytes):
        return recover_id(frame)
    first = recover_first_id(frame.head)
    if first is not None:
        return first
    return recover_last_id(frame.end if isinstance(frame, DiscardedFrame) else bytes(frame.view[-HEAD:]))


def answered_id(frame: Frame) -> RequestId | None:
    """The id of the request that an unparsed message answers; None for a message that is not a response."""
    head = frame if isinstance(frame, bytes) else frame.head
    return frame_id(frame) if begins_response(head) else None


def is_json_rpc(frame: Frame) -> bool:
    """Whether an unparsed message is one of JSON-RPC, and not any other output of a server."""
    head = frame if isinstance(frame, bytes) else frame.head
    return head.lstrip()[:1] == b"{" and b'"jsonrpc"' in head


def skip_text(frame: SpooledFrame | DiscardedFrame, size: int) -> SpooledFrame | DiscardedFrame:
    """The message without the text at its beginning; in a file, spaces replace the text.

    Raises:
        OSError: The file cannot be written.
    """
    if isinstance(frame, DiscardedFrame):
        return frame._replace(head=frame.head[size:])
    spaces = b" " * size
    with frame.path.open("r+b") as file:
        file.write(spaces)
    return SpooledFrame(frame.path, frame.size, spaces + frame.head[size:])


def discard_after(frame: object) -> AbstractContextManager[object]:
    """Remove the file of a spooled message when the context ends; do nothing for another message."""
    return frame if isinstance(frame, SpooledFrame) else nullcontext()


class Spool:
    """The directory for large messages that are being processed."""

    def __init__(self, policy: WirePolicy, directory: Path | None = None) -> None:
        self.policy = policy
        self._parent = directory
        self._directory: Path | None = None
        self._directory_lock = Lock()
        """Worker threads write files, too."""
        self._claim: int | None = None
        self._log = RepeatedLog(_logger)
        self.in_memory: int = 0
        """Bytes in memory of messages that arrive or are handled now, without small ones."""

    def __enter__(self) -> Self:
        # `Path.exists` raises for a path that is too long, or in a folder of another user.
        if self._parent is not None and os.path.exists(self._parent):  # noqa: PTH110
            open_folder(self._parent, _OWN_NAMES)
        parent = self._parent or Path(tempfile.gettempdir())
        Thread(target=remove_unclaimed, args=(parent, _PREFIX), name="mcp-mirror-spools", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
        self._release()

    @property
    def directory(self) -> Path:
        """The directory, accessible only to this user: created at first use, and again if a cleaner removed it."""
        with self._directory_lock:
            if self._directory is None or not self._directory.exists():
                if self._parent is not None:
                    open_folder(self._parent, _OWN_NAMES)
                self._release()
                self._directory, self._claim = create_claimed_folder(self._parent, _PREFIX)
            return self._directory

    def _release(self) -> None:
        if self._claim is not None:
            os.close(self._claim)
            self._claim = None

    def new_path(self) -> Path:
        """A new, unused file name."""
        return self.directory / secrets.token_hex(16)

    def map_copy(self, data: Buffer) -> Buffer:
        """The same bytes, memory-mapped from a file that is removed already; `data` if no file can be written."""
        try:
            path = self.new_path()
            try:
                path.write_bytes(data)
                return map_file(path)
            finally:
                unlink_large(path)
        except OSError:
            return data

    def report_failure(self, error: OSError) -> str:
        """Log that no file could be written, and return the reason, which does not name the folder."""
        reason = error.strerror or type(error).__name__
        folder = self._directory or self._parent or tempfile.gettempdir()
        self._log.warning(
            "Temporary files cannot be written in %s: %s. Messages over `limits.spool_bytes` are discarded. Make room "
            "there, or start the gateway with another folder (`%s`).",
            folder,
            reason,
            "store.path" if self._parent else "TMPDIR",
        )
        return reason

    @contextmanager
    def holding(self, frame: Frame) -> Iterator[None]:
        """Count a message as in memory while it is handled."""
        size = len(frame) if isinstance(frame, bytes) and len(frame) > _SMALL else 0
        self.in_memory += size
        try:
            yield
        finally:
            self.in_memory -= size

    def collector(self) -> "SpoolCollector":
        """A collector for the messages of one connection."""
        return SpoolCollector(self)


class SpoolCollector:
    """Buffers a message in memory, past `spool_bytes` in a file, and discards it past `max_message_bytes`.

    A message with very many values is also written to a file, because a worker process reads it (`FrameScanner`).
    """

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        policy = spool.policy
        self.whole_bytes: Final = min(_SMALL, policy.spool_bytes // 2, policy.max_message_bytes)
        """Bytes of the largest message that needs no buffer if it arrives in one piece."""
        self._joined_bytes: Final = min(_JOINED, policy.spool_bytes >> 8)
        self._pieces: list[bytes] = []
        """The message in memory; its head if the message is only in the file, or discarded."""
        self._end = b""
        """The last bytes of a message that is not in memory."""
        self._counted = 0
        """Bytes that count as in memory."""
        self._written = 0
        """The number of pieces that the file contains already."""
        self._file: int | None = None
        self._path: Path | None = None
        self._is_spooled = False
        """The message is only in the file."""
        self.is_dropping: bool = False
        """The rest of the current message is discarded as it arrives; later messages wait for its end."""
        self._failure: str | None = None
        """Why the current message could not be written to a file."""
        self.size: int = 0

    def add(self, piece: Buffer) -> None:
        """Append the next bytes. The caller may overwrite them afterwards."""
        self.size += len(piece)
        policy = self._spool.policy
        is_discarded = self.is_dropping or self.size > policy.max_message_bytes
        if not is_discarded and not self._is_spooled and self.size <= policy.spool_bytes:
            self._keep_in_memory(piece)
            return
        # The end, where the id may be, is kept whether the message will be written or discarded.
        is_in_memory = not self._is_spooled and not self.is_dropping
        self._end = _read_end((*(self._pieces if is_in_memory else (self._end,)), piece))
        if is_discarded:
            self._drop(piece)
        else:
            self._write(piece)

    def _keep_in_memory(self, piece: Buffer) -> None:
        # Many small pieces would take a multiple of their bytes, and a write to the file each.
        if self._written < len(self._pieces) and len(self._pieces[-1]) + len(piece) <= self._joined_bytes:
            self._pieces[-1] += bytes(piece)
        else:
            self._pieces.append(bytes(piece))
        if self.size > min(_SMALL, self._spool.policy.spool_bytes // 2):
            self._limit_memory(len(piece))

    def take(self) -> Frame:
        """Return the message and begin the next one."""
        size, self.size = self.size, 0
        if self.is_dropping:
            return self._take_discarded(size)
        if not self._is_spooled:
            message = b"".join(self._pieces)
            if size <= _SMALL or not has_more_values(message, MAX_VALUES):
                self.close()
                return message
            try:
                self._write_ahead(size)
            except OSError as error:
                self._end = message[-END:]
                self._fail(error, b"")
                return self._take_discarded(size)
            self._pieces = [message[:HEAD]]
        assert self._file is not None  # noqa: S101  # of a spooled message
        assert self._path is not None  # noqa: S101
        os.close(self._file)
        frame = SpooledFrame(self._path, size, self._pieces[0])
        self._file = None
        self.close()
        return frame

    def close(self) -> None:
        """Discard an unfinished message."""
        if self._path is not None:
            self._remove_file()
        if self._counted:
            self._count(0)
        self._pieces, self._is_spooled = [], False

    def _limit_memory(self, size: int) -> None:
        """Write the message to the file if many others are in memory, or else ahead, after `size` further bytes."""
        self._count(self.size)
        with suppress(OSError):  # the message is in memory
            if self._spool.in_memory > _MAX_IN_MEMORY:
                self._end = _read_end(self._pieces)
                self._move_to_file()
            elif self.size > self._spool.policy.spool_bytes // 2 and len(self._pieces[-1]) > self._joined_bytes // 2:
                self._write_ahead(_AHEAD * size)

    def _count(self, size: int) -> None:
        """Count so many bytes of the message as in memory."""
        self._spool.in_memory += size - self._counted
        self._counted = size

    def _move_to_file(self, piece: Buffer = b"") -> None:
        """Write what is in memory to the file; keep the head, of which `piece` may be a part."""
        self._write_ahead(self.size)
        self._pieces, self._is_spooled = [_read_head((*self._pieces, piece))], True
        self._count(0)

    def _write(self, piece: Buffer) -> None:
        """Write a piece to the file, after what is in memory; discard the message if that is not possible."""
        try:
            if not self._is_spooled:
                self._move_to_file(piece)
            assert self._file is not None  # noqa: S101  # opened above
            write_all(self._file, piece)
        except OSError as error:
            self._fail(error, piece)

    def _write_ahead(self, size: int) -> None:
        """Write the next pieces of the message, about `size` bytes, to the file.

        Raises:
            OSError: That is not possible. The pieces are in memory, and the file is removed.
        """
        try:
            if self._file is None:
                self._path = self._spool.new_path()
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, 0o600)
            while size > 0 and self._written < len(self._pieces):
                piece = self._pieces[self._written]
                write_all(self._file, piece)
                self._written += 1
                size -= len(piece)
        except OSError:
            self._remove_file()
            raise

    def _remove_file(self) -> None:
        if self._file is not None and self._path is not None:
            os.close(self._file)
            with suppress(OSError):
                unlink_large(self._path)
        self._file = self._path = None
        self._written = 0

    def _fail(self, error: OSError, piece: Buffer) -> None:
        """Discard the message, of which `piece` is the last part so far, because no file can be written."""
        self._failure = self._spool.report_failure(error)
        self._drop(piece)

    def _take_discarded(self, size: int) -> DiscardedFrame:
        (head,), end, failure = self._pieces, self._end, self._failure
        self._pieces, self._end, self.is_dropping, self._failure = [], b"", False, None
        return DiscardedFrame(head, size, failure, end)

    def _drop(self, piece: Buffer) -> None:
        """Keep only the head, and discard the rest of this message as it arrives."""
        if not self.is_dropping:
            head = _read_head((*self._pieces, piece))
            self.close()
            self._pieces, self.is_dropping = [head], True


def _read_head(pieces: Iterable[Buffer]) -> bytes:
    head = b""
    for piece in pieces:
        head += bytes(piece[: HEAD - len(head)])
        if len(head) == HEAD:
            break
    return head


def _read_end(pieces: Sequence[Buffer]) -> bytes:
    end = b""
    for piece in reversed(pieces):
        end = bytes(piece[-(END - len(end)) :]) + end
        if len(end) == END:
            break
    return end
