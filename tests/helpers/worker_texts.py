"""Texts that act in the worker process that reads them."""

import os
from pathlib import Path
from typing import Self

import anyio.to_thread


class FatalText(str):
    """A text that ends the process that reads it."""

    __slots__ = ()

    def __reduce__(self) -> tuple[object, ...]:
        return os._exit, (1,)


class ReportedText(str):
    """A text that reports its arrival in another process."""

    __slots__ = ("_pipe",)
    _pipe: Path

    def __new__(cls, text: str, pipe: Path) -> Self:
        """Create a text, and a named pipe for the report."""
        os.mkfifo(pipe)
        self = super().__new__(cls, text)
        self._pipe = pipe
        return self

    async def wait_for_arrival(self) -> None:
        """Wait until the other process has the text and continues."""
        await anyio.to_thread.run_sync(self._pipe.read_bytes, abandon_on_cancel=True)

    def __reduce__(self) -> tuple[object, ...]:
        return eval, (f"__import__('pathlib').Path({str(self._pipe)!r}).write_bytes(b'') or {str(self)!r}",)
