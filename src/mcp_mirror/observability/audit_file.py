"""The file of an audit log: one line per record, written by a separate thread, so that calls do not wait for the disk.

Each line is appended in one write, so several gateways and log rotation programs can share the file. After a rotation
by rename, send SIGHUP to the gateway. A rotation that copies and truncates the file needs no signal.
"""

import asyncio
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import anyio

from mcp_mirror.core.amounts import format_count
from mcp_mirror.errors import MirrorError
from mcp_mirror.observability.audit import AuditRecord, format_record
from mcp_mirror.observability.logging import create_path_hasher
from mcp_mirror.security.sanitize import PathHasher
from mcp_mirror.settings.policies import Config
from mcp_mirror.system.files import UnsafePathError, open_log
from mcp_mirror.system.limited_logs import OutageLog

_logger = logging.getLogger(__name__)

_QUEUE_SIZE: Final = 10_000
"""Records in the queue. Further records are lost and counted."""
_WRITE_TIMEOUT: Final = 5.0
"""Seconds that a call waits for a required record, and that `close` waits for the queue."""


def _has_truncated_line(path: str) -> bool:
    """Whether the last line of a file has no end."""
    try:
        if not Path(path).is_file():  # reading from a pipe would take its data
            return False
        with Path(path).open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:  # the file is empty, or this user may only append to it
        return False


def _explain(error: OSError | UnsafePathError) -> str:
    return (error.strerror or "it cannot be written") if isinstance(error, OSError) else str(error).rstrip(".")


class AuditFile:
    """An `AuditSink` that writes to a file until `close`."""

    def __init__(self, path: str, path_hasher: PathHasher, clock: Callable[[], float]) -> None:
        """Open the file; the clock returns seconds since the epoch. Only this user can read a new file.

        Raises:
            MirrorError: The file cannot be opened.
        """
        self._path, self._path_hasher, self._clock = path, path_hasher, clock
        self._queue: queue.Queue[Callable[[], object] | None] = queue.Queue(_QUEUE_SIZE)
        """The work of the thread; None ends it."""
        self._outages = OutageLog(_logger)
        self._dropped = self._failed = 0
        self.written: int = 0
        """Lines in the file."""
        try:
            self._file = open_log(path)
        except UnsafePathError as error:
            raise MirrorError(f"The audit log cannot be used: {error}") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "not a usable path"
            fix = "Correct or remove 'audit.path'."
            if isinstance(error, FileNotFoundError):
                reason, fix = "its folder does not exist", "Create the folder, or correct 'audit.path'."
            raise MirrorError(f"The audit log {path!r} cannot be opened: {reason}. {fix}") from None
        self._is_truncated = _has_truncated_line(path)
        self._thread = threading.Thread(target=self._write_all, name="audit", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> int:
        """Number of records that were not written."""
        return self._dropped + self._failed

    @property
    def counts(self) -> Mapping[str, int]:
        """See `AuditSink.counts`."""
        return {"written": self.written, "lost": self.lost}

    def enqueue(self, record: AuditRecord) -> None:
        """Write a record soon; see `AuditSink.enqueue`."""
        self._add(partial(self._write_line, self._format_line(record)))

    async def write(self, record: AuditRecord) -> bool:
        """Write a record and wait for it; see `AuditSink.write`."""
        line, done = self._format_line(record), Future[bool]()
        if not self._add(lambda: done.set_result(self._write_line(line))):
            return False
        with anyio.move_on_after(_WRITE_TIMEOUT):
            return await asyncio.shield(asyncio.wrap_future(done))  # shielded: the thread sets the result in any case
        return False

    def reopen(self) -> None:
        """Open the path again after a log rotation, and continue in the new file."""
        self._add(self._reopen_file)

    def close(self) -> None:
        """Write the queued records within a few seconds, and close the file."""
        try:
            self._queue.put(None, timeout=_WRITE_TIMEOUT)
        except queue.Full:
            return
        self._thread.join(_WRITE_TIMEOUT)

    def _format_line(self, record: AuditRecord) -> bytes:
        now = datetime.fromtimestamp(self._clock(), UTC)
        return format_record(record, f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond // 1000:03}Z", self._path_hasher)

    def _add(self, work: Callable[[], object]) -> bool:
        try:
            self._queue.put_nowait(work)
        except queue.Full:
            self._dropped += 1
            self._report_loss("the disk is too slow")
            return False
        return True

    def _write_all(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
        os.close(self._file)

    def _reopen_file(self) -> None:
        try:
            self._open_new_file()
        except (OSError, UnsafePathError) as error:
            _logger.error(  # noqa: TRY400  # a traceback adds nothing
                "The audit log %s cannot be opened again and continues in the old file: %s. Correct that, then send "
                "SIGHUP.",
                self._path,
                _explain(error),
            )

    def _open_new_file(self) -> None:
        opened = open_log(self._path)
        os.close(self._file)
        self._file, self._is_truncated = opened, _has_truncated_line(self._path)

    def _write_line(self, line: bytes) -> bool:
        """Append a whole line or nothing. If the last line of the file is truncated, end that line first."""
        try:
            if not os.fstat(self._file).st_nlink:  # a record in a file without a name is lost
                self._open_new_file()
                _logger.warning(
                    "The audit log %s was removed, and continues in a new file. To rotate it, rename it and send "
                    "SIGHUP.",
                    self._path,
                )
            line = b"\n" + line if self._is_truncated else line
            size = os.write(self._file, line)
        except (OSError, UnsafePathError) as error:
            return self._fail(_explain(error))
        if size < len(line):
            self._is_truncated |= not self._remove_end(size)
            return self._fail("the disk is full")
        self._is_truncated = False
        self.written += 1
        if self._outages.kind:
            lost = format_count(self.lost, "record")
            self._outages.recover(
                "The audit log %s is written again. It has lost %s since the start.", self._path, lost
            )
        return True

    def _remove_end(self, size: int) -> bool:
        """Remove the last `size` bytes, of a truncated line, so that other gateways do not append to that line.

        Returns:
            False if another gateway has appended to the line already, or if the file cannot be cut, such as a pipe.
        """
        try:
            end = os.lseek(self._file, 0, os.SEEK_CUR)
            if os.fstat(self._file).st_size != end:
                return False
            os.ftruncate(self._file, end - size)
        except OSError:
            return False
        return True

    def _fail(self, reason: str) -> bool:
        self._failed += 1
        self._report_loss(reason)
        return False

    def _report_loss(self, reason: str) -> None:
        """Log the first loss, and again after records were written."""
        self._outages.fail(
            reason,
            "The audit log %s loses records: %s. Correct that; the gateway tries again with each record.",
            self._path,
            reason,
            level=logging.ERROR,
        )


@contextmanager
def open_audit_file(config: Config) -> Iterator[AuditFile | None]:
    """Open the audit log for the duration of the context; yield None if the configuration has none."""
    if config.audit.path is None:
        yield None
        return
    file = AuditFile(config.audit.path, create_path_hasher(config), time.time)
    try:
        yield file
    finally:
        file.close()
