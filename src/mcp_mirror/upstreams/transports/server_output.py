"""The output of a server that is not MCP, printed on standard error and kept to explain a failure to the operator."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import anyio
import anyio.to_thread

from mcp_mirror.payload.spool import Frame
from mcp_mirror.security.redaction import Redactor
from mcp_mirror.security.sanitize import sanitize_to_lines
from mcp_mirror.system.patterns import lazy_pattern

_MAX_BYTES: Final = 8192
"""Bytes of a child's standard error that are kept."""
_MAX_LINES: Final = 20
"""Lines that the operator sees."""
_MAX_LINE: Final = 300
"""Characters of a line that the operator sees."""
_CUT: Final = " ... "
"""Replaces the middle of a longer line: an error often ends with what to do."""
_TERMINAL: Final = lazy_pattern(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|.)")
"""Terminal escape sequences."""
_INFORMATIVE: Final = lazy_pattern(
    r"(?i)error|exception|fatal|panic|\bcaused?(?: by)?\]?:|fail(?:ed|ure)(?: to\b|[:,])|cannot|could not|unable|"
    r"\bno (?:such|matching|module|solution)\b|not (?:found|set)\b|\b(?:is|are|was|were) not\b|"
    r"missing|required|denied|invalid|^\u2502 "
)
"""Lines that explain an exit, also in a box; the last line is often only a version or a bracket."""
_ITEM: Final = lazy_pattern(r"\s*[-*\u2022] ")
"""An item of a list. The line above the list is a hint if the line above that names the error."""
_ERROR: Final = lazy_pattern(r"(?i)(?:\w*error|fatal): ")
"""The beginning of a line that names an error."""
_USAGE: Final = lazy_pattern(r"(?i)usage:")
"""Lines that explain an exit if no other does: programs print their usage also after an error."""
_MARGIN: Final = lazy_pattern(
    r"^(?:npm (?:error|ERR!) ?|\s+(?:\| |[\u00d7\u2570\u251c\u2500\u25b6]+ |(?=\[?caused?(?: by)?\]?:)))"
)
"""What npm, exception groups of Python, and uv write before their lines, and the indentation of causes."""
_NOISE: Final = lazy_pattern(
    r"npm (?:warn|WARN|notice) |npm (?:error|ERR!) A complete log of this run|"
    r"[\u256d\u2570]\u2500|goroutine \d+ \[|created by |(?=[^(]*\.)[\w./\[\]-]++\(.*\)$"
)
"""Hints of npm, the edges of a box around an error, and the lines of a Go stack that are not indented."""
_BARS: Final = " \t|\u00d7\u2502\u2570\u251c\u2500\u25b6"
"""Characters before a line that are not part of its text."""
_DESCRIPTOR: Final = 2
_PIECE: Final = 4096
"""PIPE_BUF of Linux: a write up to this size does not block once a pipe is writable."""


class ServerOutput:
    """The output of a server that is not MCP: text that a program printed.

    Configured secrets are redacted, and invisible characters are removed.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._kept = _MAX_BYTES + 4 * redactor.longest
        self._tail = b""
        self._stray: bytes | None = None
        self.exit_code: int | None = None
        """The exit code of a program that ended by itself, or the negative number of the signal that ended it."""

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
        return self._read_lines()[-_MAX_LINES:]

    @property
    def summary(self) -> str:
        """The line of standard error that most likely explains the failure; empty without output.

        A line that ends with a colon is followed by the next line.
        """
        lines = self._read_lines()
        if not lines:
            return ""
        chosen = _choose_line(lines)
        found = lines[chosen].strip(_BARS)
        if found.endswith(":") and chosen + 1 < len(lines):
            found = f"{found} {lines[chosen + 1].strip(_BARS)}"
        return found

    def _read_lines(self) -> tuple[str, ...]:
        """Return the kept lines of standard error without empty ones, of limited length."""
        text = self._clean(self._tail.decode("utf-8", "replace"))
        if len(self._tail) == self._kept:
            text = text[self._redactor.longest :]  # it may begin with the end of a secret
        lines = (_shorten(line.rstrip()) for line in text.splitlines())
        return tuple(line for line in lines if line)

    def _clean(self, text: str) -> str:
        return self._redactor.clean(
            sanitize_to_lines(_TERMINAL.sub("", self._redactor.clean(text)).replace("\r", "\n"))
        )


def _choose_line(lines: Sequence[str]) -> int:
    """Return the index of the last informative line; without one, of the last usage, or else of the last line."""
    outer: list[tuple[int, str]] = []
    for index, line in enumerate(lines):
        text = _MARGIN.sub("", line)
        if text and not text[0].isspace() and not _NOISE.match(line):
            outer.append((index, text))
    newest_first = outer[: -_MAX_LINES - 1 : -1]
    for pattern in (_INFORMATIVE, _USAGE):
        for at, (index, text) in enumerate(newest_first):
            if pattern.search(text):
                is_hint = text.endswith(":") and _ITEM.match("".join(lines[index + 1 : index + 2]))
                before = newest_first[at + 1] if is_hint and at + 1 < len(newest_first) else (index, "")
                return before[0] if _ERROR.match(before[1]) else index
    return newest_first[0][0] if newest_first else len(lines) - 1


def _shorten(line: str) -> str:
    end = _MAX_LINE // 3
    return line if len(line) <= _MAX_LINE else f"{line[: _MAX_LINE - end - len(_CUT)]}{_CUT}{line[-end:]}"


async def write_to_stderr(data: bytes) -> None:
    """Write bytes as they are; drop them if standard error is closed. A reader that does not read makes this wait."""
    if sys.stderr is None:  # the descriptor was closed at the start
        return
    with suppress(OSError):
        for start in range(0, len(data), _PIECE):
            piece = memoryview(data)[start : start + _PIECE]
            while piece:
                piece = piece[await _write(piece) :]


async def _write(piece: memoryview) -> int:
    """Write to standard error, and return the number of written bytes."""
    if sys.platform == "win32":  # where only a socket can be waited for
        return await anyio.to_thread.run_sync(os.write, _DESCRIPTOR, piece, abandon_on_cancel=True)
    with suppress(PermissionError):  # a regular file, which is always writable
        await anyio.wait_writable(_DESCRIPTOR)
    return os.write(_DESCRIPTOR, piece)
