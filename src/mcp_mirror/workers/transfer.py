"""The files in which large values cross between the event loop and worker processes.

The event loop would copy a value that it sends through a pipe several times, which stalls it for 10 ms from 1 MB on.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Self, TypeVar

import anyio.to_thread

from mcp_mirror.payload.spool import Spool
from mcp_mirror.system.mapped_files import FileRemovedError, unlink_large
from mcp_mirror.types import Buffer, FileSpan, Span

Answer = TypeVar("Answer")

_SENT_BYTES: Final = 1 << 16
"""Bytes up to which a value is sent through the pipe."""


class TransferFiles:
    """The files of one task of a worker process, removed when the context ends. Their maps stay readable."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._paths: list[Path] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for path in self._paths:
            unlink_large(path)

    def new_result_path(self) -> str:
        """A new, unused file name for a large result; empty if the disk cannot be used."""
        try:
            return str(self._new_path())
        except OSError:
            return ""

    async def place(self, blob: Buffer, file: FileSpan | None = None) -> FileSpan | bytes:
        """Return a value as a worker process gets it; a thread writes a large value without a file to one.

        If the disk cannot be used, a large value is sent through the pipe. `file` has the same bytes as the value.
        """
        if len(blob) <= _SENT_BYTES:
            return bytes(blob)
        if file is not None:
            return file
        try:
            path = self._new_path()
            await anyio.to_thread.run_sync(path.write_bytes, blob)
        except OSError:
            return bytes(blob)
        return FileSpan(str(path), Span(0, len(blob)))

    async def run_with(
        self, run: Callable[[FileSpan | bytes], Awaitable[Answer]], blob: Buffer, file: FileSpan | None
    ) -> Answer:
        """Run a job with a value, which gets another file if its own was removed."""
        try:
            return await run(await self.place(blob, file))
        except FileRemovedError:
            return await run(await self.place(blob))

    def _new_path(self) -> Path:
        path = self._spool.new_path()
        self._paths.append(path)
        return path
