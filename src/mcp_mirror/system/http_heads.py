"""The bounds of the heads of HTTP responses.

h11 reads all lines of a head at once, so it must not get too many of them.
"""

from typing import Final

import httpx2

from mcp_mirror.system.patterns import lazy_pattern

MAX_HEAD: Final = 100 * 1024
"""Bytes of a response's head, of a trailer, and of the line before a chunk."""
_MAX_LINES: Final = 1000
"""Lines of a head: more would take tens of milliseconds."""
_END_OF_HEAD: Final = lazy_pattern(rb"\n\r?\n")
"""As h11 finds it."""
LARGE_HEAD: Final = f"it sent over 100 KiB or {_MAX_LINES:,} lines of headers"


class HeadReader:
    """Finds the end of each head, and checks its size before h11 reads it."""

    def __init__(self) -> None:
        self._last = b""
        """The last bytes of a head that is not complete: the first ones of a possible end."""
        self._size = self._lines = 0
        self._rest = b""

    def read(self, data: bytes) -> bytes:
        """Return the received bytes that belong to a head, at least one, and keep the others.

        Raises:
            httpx2.RemoteProtocolError: The head is too large.
        """
        known = len(self._last)
        data = self._last + data
        end = _END_OF_HEAD.search(data)
        until = end.end() if end else len(data)
        self._size += until - known
        self._lines += data.count(b"\n", known, until)
        if self._size > MAX_HEAD or self._lines > _MAX_LINES:
            raise httpx2.RemoteProtocolError(LARGE_HEAD)
        if end:
            self._last, self._size, self._lines = b"", 0, 0
        else:
            self._last = data[-2:]
        self._rest = data[until:]
        return data[known:until]

    def take_rest(self) -> bytes:
        """Return the bytes that were kept, once."""
        rest, self._rest = self._rest, b""
        return rest
