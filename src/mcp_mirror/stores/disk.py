"""Values in files of one folder, mapped when they are read; what is known about them is in this process's memory."""

import os
import secrets

from mcp_mirror.models import Buffer, FileSpan, Segments, Span
from mcp_mirror.spool import map_file, write_all
from mcp_mirror.stores.memory import MemoryStore


class DiskStore(MemoryStore):
    """A `MemoryStore` that keeps no value in memory."""

    def _held(self, blob: Segments, file: FileSpan | None) -> tuple[Buffer, FileSpan | None]:
        size = sum(len(segment) for segment in blob)
        kept = self._linked(file) if file else self._written(blob, size)
        return map_file(kept.path)[kept.span.start : kept.span.stop] if size else b"", kept

    def _written(self, blob: Segments, size: int) -> FileSpan:
        path = self._folder() / secrets.token_hex(16)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            for segment in blob:
                write_all(descriptor, segment)
        finally:
            os.close(descriptor)
        return FileSpan(str(path), Span(0, size))
