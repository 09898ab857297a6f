"""The output of a server that is not MCP, printed on standard error and kept to explain a failure to the operator."""

import os
import re
import sys
from contextlib import suppress
from typing import Final

import anyio

from mcp_mirror.payload.spool import Frame
from mcp_mirror.security.redaction import Redactor
from mcp_mirror.security.sanitize import sanitize_to_lines

_MAX_BYTES: Final = 8192
"""Bytes of a child's standard error that are kept."""
_MAX_LINES: Final = 20
"""Lines that the operator sees."""
_MAX_LINE: Final = 300
"""Characters of a line that the operator sees."""
_TERMINAL: Final = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|.)")
"""Terminal escape sequences."""
_INFORMATIVE: Final = re.compile(
    r"(?i)error|exception|fatal|panic|cannot|could not|unable|not found|no such|missing|required|denied|invalid|usage:"
)
"""Lines that explain an exit; the last line is often only a version or a bracket."""
_DESCRIPTOR: Final = 2
_PIECE: Final = 4096
"""PIPE_BUF of Linux: a write up to this size does not block once a pipe is writable."""


class ServerOutput:
    """The output of a server that is not MCP: text that a program printed, or an HTTP response.

    Configured secrets are redacted, and invisible characters are removed.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._kept = _MAX_BYTES + 4 * redactor.longest
        self._tail = b""
        self._stray: bytes | None = None
        self.refusal: str | None = None
        """A description of the last HTTP response, if it was not MCP; without the server's text."""

    def add(self, data: bytes) -> None:
        """Add bytes of standard error; the newest are kept."""
        self._tail = (self._tail + data)[-self._kept :]

    def add_stray(self, line: Frame) -> None:
        """Add a line of standard output that is not a message; the first is kept."""
        if self._stray is None and isinstance(line, bytes):
            self._stray = line[:_MAX_BYTES]

    @property
    def stray(self) -> str | None:
        """The first line on standard output that is not MCP."""
        if self._stray is None:
            return None
        return "".join(self._clean(self._stray.decode("utf-8", "replace")).splitlines())[:_MAX_LINE]

    @property
    def lines(self) -> tuple[str, ...]:
        """The last lines of standard error, without empty ones."""
        text = self._clean(self._tail.decode("utf-8", "replace"))
        if len(self._tail) == self._kept:
            text = text[self._redactor.longest :]  # it may begin with the end of a secret
        lines = (line.rstrip()[:_MAX_LINE] for line in text.splitlines())
        return tuple(line for line in lines if line)[-_MAX_LINES:]

    @property
    def summary(self) -> str:
        """The line of standard error that most likely explains the failure; empty without output."""
        lines = self.lines
        informative = [line for line in lines if not line[0].isspace() and _INFORMATIVE.search(line)]
        return next(reversed(informative or lines), "").strip()

    def _clean(self, text: str) -> str:
        return self._redactor.clean(
            sanitize_to_lines(_TERMINAL.sub("", self._redactor.clean(text)).replace("\r", "\n"))
        )


async def write_to_stderr(data: bytes) -> None:
    """Write bytes as they are; drop them if standard error is closed. A reader that does not read makes this wait."""
    if sys.stderr is None:  # the descriptor was closed at the start
        return
    with suppress(OSError):
        for start in range(0, len(data), _PIECE):
            piece = memoryview(data)[start : start + _PIECE]
            while piece:
                with suppress(PermissionError):  # a regular file, which is always writable
                    await anyio.wait_writable(_DESCRIPTOR)
                piece = piece[os.write(_DESCRIPTOR, piece) :]
