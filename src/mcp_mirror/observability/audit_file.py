"""The file of an audit log: one line a record, written by a thread of its own, so that no call waits for a disk.

Every line is appended in one write, so that several gateways and programs that rotate logs may share the file. Who
rotates it by renaming sends SIGHUP; who copies and empties it has nothing to do.
"""

import logging
import os
import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import anyio.to_thread

from mcp_mirror.errors import MirrorError
from mcp_mirror.observability.audit import AuditRecord, line_of
from mcp_mirror.security.path_hash import PathHasher
from mcp_mirror.system.private_files import UnsafePathError, open_log

_logger = logging.getLogger(__name__)

_WAITING: Final = 10_000
"""Records that wait to be written at most; one more is lost, and counted."""
_PATIENCE: Final = 5.0
"""Seconds that a call which must be written down waits for that, and that the end waits for what is not written yet."""
_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)


@dataclass(frozen=True, slots=True)
class _Waiting:
    line: bytes
    done: "Future[bool] | None" = None
    """Told whether it was written."""


_REOPEN: Final = _Waiting(b"")
_END: Final = _Waiting(b"")


class AuditFile:
    """Writes records to a file, from its opening to `close`."""

    def __init__(self, path: str, path_hasher: PathHasher, clock: Callable[[], float]) -> None:
        """Open the file; a new one is for this user alone to read.

        Args:
            path: Where it is.
            path_hasher: Says memory paths.
            clock: Seconds since the epoch.

        Raises:
            MirrorError: It cannot be opened.
        """
        self._path, self._path_hasher, self._clock = path, path_hasher, clock
        self._waiting: queue.Queue[_Waiting] = queue.Queue(_WAITING)
        self._is_torn = self._is_failing = False
        self._refused = self._failed = 0
        self.written = 0
        """Lines in the file."""
        try:
            self._file = open_log(path, _FLAGS)
        except UnsafePathError as error:
            raise MirrorError(f"The audit log cannot be used: {error}") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "not a usable path"
            raise MirrorError(
                f"The audit log {path!r} cannot be opened: {reason}. Mend 'audit.path', or take it out."
            ) from None
        self._thread = threading.Thread(target=self._write_all, name="audit", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> int:
        """Records that are in no file."""
        return self._refused + self._failed

    @property
    def counts(self) -> Mapping[str, int]:
        """See `Sink.counts`."""
        return {"written": self.written, "lost": self.lost}

    def put(self, record: AuditRecord) -> None:
        """Write it soon; see `Sink.put`."""
        self._add(_Waiting(self._line(record)))

    async def keep(self, record: AuditRecord) -> bool:
        """Write it now; see `Sink.keep`."""
        done: Future[bool] = Future()
        if not self._add(_Waiting(self._line(record), done)):
            return False
        try:
            return await anyio.to_thread.run_sync(done.result, _PATIENCE, abandon_on_cancel=True)
        except TimeoutError:
            return False

    def reopen(self) -> None:
        """Go on in the file that now has its name."""
        self._add(_REOPEN)

    def close(self) -> None:
        """Write what is waiting, as far as that can be done soon."""
        try:
            self._waiting.put(_END, timeout=_PATIENCE)
        except queue.Full:
            return
        self._thread.join(_PATIENCE)

    def _line(self, record: AuditRecord) -> bytes:
        now = datetime.fromtimestamp(self._clock(), UTC)
        return line_of(record, f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond // 1000:03}Z", self._path_hasher)

    def _add(self, waiting: _Waiting) -> bool:
        try:
            self._waiting.put_nowait(waiting)
        except queue.Full:
            self._refused += 1
            self._tell("it is written too slowly")
            return False
        return True

    def _write_all(self) -> None:
        while (waiting := self._waiting.get()) is not _END:
            if waiting is _REOPEN:
                self._channel()
                continue
            is_written = self._write(waiting.line)
            if waiting.done:
                waiting.done.set_result(is_written)
        os.close(self._file)

    def _channel(self) -> None:
        try:
            opened = open_log(self._path, _FLAGS)
        except (OSError, UnsafePathError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            _logger.error("The audit log cannot be opened anew and goes on in the old file: %s", reason)  # noqa: TRY400  # no traceback says more
            return
        os.close(self._file)
        self._file, self._is_torn = opened, False

    def _write(self, line: bytes) -> bool:
        """Append a line. One that a full disk has cut is ended before the next begins."""
        line = b"\n" + line if self._is_torn else line
        try:
            size = os.write(self._file, line)
        except OSError as error:
            return self._fail(error.strerror or "it cannot be written")
        self._is_torn = size < len(line)
        if self._is_torn:
            return self._fail("the disk is full")
        self.written += 1
        if self._is_failing:
            self._is_failing = False
            _logger.warning("The audit log is written again; %d records are lost", self.lost)
        return True

    def _fail(self, reason: str) -> bool:
        self._failed += 1
        self._tell(reason)
        return False

    def _tell(self, reason: str) -> None:
        """Log it once, until it goes again."""
        if not self._is_failing:
            self._is_failing = True
            _logger.error("The audit log loses records: %s", reason)
