"""Reads the HTTP/1.1 responses of one connection with llhttp, without I/O and within bounds."""

from typing import Final

import httpx2
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

_MAX_BETWEEN: Final = 100 * 1024
"""Bytes of a head with its trailer, and of the line before a chunk."""
_MAX_LINES: Final = 1000
"""Lines of a head: more would take tens of milliseconds."""
_MAX_INFORMATIONAL: Final = 1 << 17
"""Lines of informational responses before a response: a server that sends them without an end costs CPU for as long."""
_FEWEST_LINES: Final = 3
"""Lines that such a response counts without its headers."""
_SLICE: Final = 1 << 14
"""Bytes that are read at once, if they may be many small parts."""
PARTS_AT_ONCE: Final = 64
"""Parts of a response after which other tasks run: received bytes may contain many small chunks."""
_SEPARATORS: Final = len(": \r\n")
"""Bytes of a header beside its name and its value."""
_FIRST_FINAL: Final = 200
"""The lowest status of a response that is not informational."""
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})
"""Headers without which the end of the connection is that of the body."""
CLOSED_EARLY: Final = "it ended before the response was complete"
LARGE_HEAD: Final = f"it sent over 100 KiB or {_MAX_LINES:,} lines of headers"


class ResponseReader:
    """Reads one response after the other. The parser calls the methods that begin with `on_`."""

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True)
        self.parts: int = 0
        """The number of headers and parts of bodies so far."""
        self._slice = _SLICE
        """Bytes that are read at once: about `PARTS_AT_ONCE`, if the parts are as small as the last ones."""
        self.begin()

    def begin(self) -> None:
        """Expect another response."""
        self.status: int = 0
        """The status of the response; 0 until its head is complete."""
        self.headers: list[tuple[bytes, bytes]] = []
        self.body: list[bytes] = []
        """The parts of the body that the last `feed` has read."""
        self.is_complete: bool = False
        self.keeps_alive: bool = False
        """Whether another response may follow, and none has begun."""
        self._has_length = self._ends_with_connection = False
        self._lines = self._informational = 0
        self._head_size = 0
        """Bytes of the head, as far as its lines are complete, and of a trailer."""
        self._between = 0
        """Bytes since the last part of a body."""

    def feed(self, data: memoryview) -> memoryview:
        """Read some of the received bytes, and return the others; no bytes are the end of the connection.

        Raises:
            httpx2.RemoteProtocolError: They are not HTTP, or over a bound, or the response has not ended.
        """
        if not data:
            if not self._ends_with_connection:
                raise httpx2.RemoteProtocolError(CLOSED_EARLY)
            self.is_complete = True
        part, before = data if self._has_length else data[: self._slice], self.parts
        self._between += len(part)
        try:
            self._parser.feed_data(part)
        except (HttpParserError, HttpParserUpgrade) as error:
            if not self.is_complete:
                raise httpx2.RemoteProtocolError(f"it is not valid HTTP/1.1: {error}") from error
            self.keeps_alive = False
        self._slice = min(_SLICE, 1 + len(part) * PARTS_AT_ONCE // max(self.parts - before, 1))
        if max(self._between, self._head_size) > _MAX_BETWEEN or self._lines > _MAX_LINES:
            raise httpx2.RemoteProtocolError(LARGE_HEAD)
        if self._informational > _MAX_INFORMATIONAL:
            raise httpx2.RemoteProtocolError("the server sends informational responses without an end")
        return data[len(part) :]

    def on_message_begin(self) -> None:
        """Begin a head; an error if the response before it was the last one that is expected."""
        if self.is_complete:
            raise ValueError
        self._lines = self._head_size = 0

    def on_status(self, reason: bytes) -> None:
        """Count the reason phrase, which may come in pieces."""
        self._head_size += len(reason)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header, or a field of a trailer."""
        self.parts += 1
        self._lines += 1
        self._head_size += len(name) + len(value) + _SEPARATORS
        self.headers.append((name, value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        """Note the end of a head; skip that of an informational response."""
        self._between = 0
        status = self._parser.get_status_code()
        if status < _FIRST_FINAL:
            self.parts += 1
            self._informational += len(self.headers) + _FEWEST_LINES
            self.headers.clear()
            return
        names = {name.lower() for name, _ in self.headers}
        self.status = status
        self._ends_with_connection = names.isdisjoint(_FRAMING)
        self._has_length = b"content-length" in names

    def on_body(self, body: bytes) -> None:
        """Add a part of the body."""
        self.parts += 1
        self._between = 0
        self.body.append(body)

    def on_message_complete(self) -> None:
        """Note the end of the response."""
        self.is_complete = self.status > 0
        self.keeps_alive = self._parser.should_keep_alive()
