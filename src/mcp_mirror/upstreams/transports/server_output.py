"""What a server gives beside MCP, kept for the operator who looks for the reason of a failure."""

import re
from typing import Final

from mcp_mirror.payload.spool import Frame
from mcp_mirror.security.redaction import Redactor
from mcp_mirror.security.sanitize import sanitize_to_lines

_KEPT: Final = 8192
"""Bytes of a child's standard error that are kept for the report when it ends."""
_LINES: Final = 20
"""Lines of them that are shown to the operator."""
_LINE: Final = 300
"""Characters of a line that are shown."""
_TERMINAL: Final = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|.)")
"""Colours and other commands to a terminal."""
_TELLING: Final = re.compile(
    r"(?i)error|exception|fatal|panic|cannot|could not|unable|not found|no such|missing|required|denied|invalid|usage:"
)
"""Lines that say why a program ended: the last one of all is often a version or a bracket."""


class ServerOutput:
    """What a server gave us beside MCP, or instead of it: what a program printed, or an HTTP response that is not MCP.

    The secrets that we gave it are redacted, and characters that nobody sees are removed.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._kept = _KEPT + 4 * redactor.longest
        self._tail = b""
        self._stray: bytes | None = None
        self.refusal: str | None = None
        """The last HTTP response, in words of ours, where it is not MCP."""

    def add(self, data: bytes) -> None:
        """Keep the newest bytes of standard error."""
        self._tail = (self._tail + data)[-self._kept :]

    def add_stray(self, line: Frame) -> None:
        """Keep a line of standard output that is not a message, if it is the first."""
        if self._stray is None and isinstance(line, bytes):
            self._stray = line[:_KEPT]

    @property
    def stray(self) -> str | None:
        """The first line on standard output that is not MCP."""
        if self._stray is None:
            return None
        return "".join(self._clean(self._stray.decode("utf-8", "replace")).splitlines())[:_LINE]

    @property
    def lines(self) -> tuple[str, ...]:
        """The last lines of standard error, without empty ones."""
        text = self._clean(self._tail.decode("utf-8", "replace"))
        if len(self._tail) == self._kept:
            text = text[self._redactor.longest :]  # where the end of a secret may be
        lines = (line.rstrip()[:_LINE] for line in text.splitlines())
        return tuple(line for line in lines if line)[-_LINES:]

    @property
    def summary(self) -> str:
        """The line of standard error that most likely says what went wrong; empty where there is none."""
        lines = self.lines
        telling = [line for line in lines if not line[0].isspace() and _TELLING.search(line)]
        return next(reversed(telling or lines), "").strip()

    def _clean(self, text: str) -> str:
        return self._redactor.clean(
            sanitize_to_lines(_TERMINAL.sub("", self._redactor.clean(text)).replace("\r", "\n"))
        )
