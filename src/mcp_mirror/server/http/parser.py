"""Parses HTTP/1 requests from the bytes of one connection, without I/O.

llhttp (`httptools`) parses header lines, lengths and chunks, without its leniencies. This module adds the rules that
llhttp leaves to its caller: the request line, `Host`, the only transfer coding, and the limits of size. It gives llhttp
the bytes of one request only: those after it stay unparsed, so that another worker process can receive them.
"""

import re
import sys
from typing import Final

import msgspec
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from mcp_mirror.system.patterns import lazy_pattern

_REQUEST_LINE: Final = lazy_pattern(rb"((?!CONNECT )[A-Z-]+) ([!-~]+) HTTP/(1\.[01])\r\n")
_ABSOLUTE: Final = lazy_pattern(rb"https?://([^/?#@]+)(?=[/?]|\Z)", re.IGNORECASE)
"""The beginning of a target in absolute form, with its authority."""
_UPGRADE_LINE: Final = lazy_pattern(rb"(?<=\r\n)upgrade:[^\r]*\r\n", re.IGNORECASE)
_CHUNK_LINE: Final = lazy_pattern(rb"([0-9A-Fa-f]{1,16})(?:;[^\r\n]*)?\r\n")
_PROXY_PROTOCOL: Final = "This is the PROXY protocol, and the server has HTTP/1.1 only. Switch it off in the proxy."
_OTHER_PROTOCOLS: Final = {
    b"\x16\x03": "This is TLS, and the server has plain HTTP. Use http:// in the URL, or a TLS proxy in front of it.",
    b"PRI * HTTP/2": "This is HTTP/2, and the server has HTTP/1.1. Set the client or the proxy to HTTP/1.1.",
    b"PROXY ": _PROXY_PROTOCOL,
    b"\r\n\r\n\0\r\nQUIT\n": _PROXY_PROTOCOL,
}
"""The beginnings of other protocols, and what their senders read."""
_EMPTY_LINE: Final = b"\r\n\r\n"
"""The end of a head, and of a chunked body."""
_LINE_END: Final = b"\r\n"
_MAX_LINES: Final = 1000
"""Lines of a head. More of them would take tens of milliseconds to read."""
_MAX_PATH: Final = 2_000
"""Bytes of a path. To decode 60,000 percent signs takes 30 ms."""
_MAX_QUERY: Final = 18_000
"""Bytes of a query. To read 30,000 parameters takes 60 ms."""


class InvalidRequestError(Exception):
    """A request is not valid HTTP, or more than the limit of bytes lies between the parts of its body.

    The message names the cause and the next step if another protocol or a header is the cause.
    """

    def __init__(self, message: str = "The request is not valid HTTP/1.1.") -> None:
        super().__init__(message)


class HeadTooLargeError(Exception):
    """A head is over a limit; the message names it."""


class RequestHead(msgspec.Struct):
    """The head of a request."""

    method: str
    target: bytes
    version: str
    """`1.0` or `1.1`."""
    headers: list[tuple[bytes, bytes]]
    """The headers, with names in lower case."""
    keeps_alive: bool
    """Whether another request may follow on the connection."""
    expects_continue: bool
    """Whether the client waits for a `100 Continue` before it sends the body."""

    def use_origin_form(self) -> None:
        """Replace a target in absolute form by its path and query; its host is then that of the request.

        RFC 9112, section 3.2.2: a server accepts this form, and ignores the `Host` header of such a request.
        """
        if (absolute := _ABSOLUTE.match(self.target)) is None:
            return
        path = self.target[absolute.end() :]
        self.target = path if path.startswith(b"/") else b"/" + path
        self.headers = [(b"host", absolute[1]), *(one for one in self.headers if one[0] != b"host")]


class RequestParser:
    """Parses the requests of one connection, one after the other.

    The connection adds bytes to `received`, and calls `read_head` and then, while `is_in_body`, `read_body`. They raise
    an `InvalidRequestError` for bytes that are not valid HTTP, and a `HeadTooLargeError` for a head over the limit.
    llhttp calls the methods `on_...`, within `_parse`.
    """

    def __init__(self, max_head_bytes: int) -> None:
        """Expect the head of a request.

        `max_head_bytes` is the limit of each head, and of the bytes between two parts of a chunked body.
        """
        self.received: bytearray = bytearray()
        """The bytes that are not parsed yet."""
        self.is_in_body: bool = False
        """Whether the body of the last head is not complete."""
        self._max_head_bytes = max_head_bytes
        self._parser = HttpRequestParser(self)
        self._searched = 0
        """The number of bytes that contain no end of the head."""
        # What llhttp has reported of the present request:
        self._headers: list[tuple[bytes, bytes]] = []
        self._is_head_complete = False
        self._is_complete = False
        self._keeps_alive = False
        self._body: list[bytes] = []
        # The body that is being read:
        self.is_chunked: bool = False
        """Whether the body of the last head is divided into chunks."""
        self.chunks: int = 0
        """The number of chunks that begin in the last part of a body."""
        self.missing: int = 0
        """The number of missing bytes of the body, or of the present chunk with the end of its line."""

    @property
    def is_at_start(self) -> bool:
        """Whether no byte of the next request has been received."""
        return not self.received and not self.is_in_body

    def read_head(self) -> RequestHead | None:
        """Parse the head of the next request; return None if it is not complete."""
        received = self.received
        if not received:
            return None
        end = received.find(_EMPTY_LINE, self._searched)
        size = end + len(_EMPTY_LINE) if end >= 0 else len(received)
        if size > self._max_head_bytes:
            raise HeadTooLargeError(f"The request's head is over `limits.max_header_bytes` ({self._max_head_bytes:,}).")
        line = _REQUEST_LINE.match(received)
        if line is None and (end >= 0 or b"\n" in received or not received[:1].isupper()):
            raise InvalidRequestError(*(text for start, text in _OTHER_PROTOCOLS.items() if received.startswith(start)))
        if line is None or end < 0:
            self._searched = max(0, size - len(_EMPTY_LINE) + 1)
            return None
        method, target, version = map(bytes, line.groups())  # before the bytes are removed
        self._parse_head(size, target)
        return self._check_head(method.decode(), target, version.decode())

    def read_body(self, max_chunks: int = sys.maxsize) -> bytes | None:
        """Parse a part of the body, which may be empty; return None if more bytes are needed.

        At most `max_chunks` chunks begin in the part.
        """
        size, is_end = self._measure_chunks(max_chunks) if self.is_chunked else self._measure_part()
        if not size:
            return None
        self._parse(size)
        if self._is_complete != is_end:
            raise InvalidRequestError
        self.is_in_body = not is_end
        body = b"".join(self._body)
        self._body.clear()
        return body

    def close(self) -> None:
        """Discard the received bytes, after which none may come."""
        self.received.clear()
        del self._parser  # they refer to each other

    def _measure_part(self) -> tuple[int, bool]:
        """Return the number of received bytes that belong to the body or the chunk, and whether they are all."""
        size = min(self.missing, len(self.received))
        self.missing -= size
        return size, not self.missing

    def _measure_chunks(self, most: int) -> tuple[int, bool]:
        """Return the number of received bytes that belong to the body, without a part of a line, and whether it ends.

        llhttp parses the lines too; here they only show where the body ends.
        """
        at, _ = self._measure_part()
        self.chunks = 0
        while at < len(self.received) and self.chunks < most:
            if (chunk := self._read_chunk_line(at)) is None:
                break
            size, begin = chunk
            if size == 0:
                return begin, True
            self.chunks += 1
            end = begin + size + len(_LINE_END)
            self.missing = max(0, end - len(self.received))
            at = min(end, len(self.received))
        return at, False

    def _read_chunk_line(self, at: int) -> tuple[int, int] | None:
        """Return the size of the chunk at an offset, and where its data begins; None if more bytes are needed.

        Of the last chunk, with the size 0, this is the end of the body, after the trailer.
        """
        received = self.received
        line = _CHUNK_LINE.match(received, at)
        if line is None and received.find(b"\n", at) >= 0:
            raise InvalidRequestError
        size, begin = (int(line[1], 16), line.end()) if line else (0, -1)
        if line and size == 0:
            begin = received.find(_EMPTY_LINE, begin - len(_LINE_END))
        if (len(received) if begin < 0 else begin) - at > self._max_head_bytes:
            raise InvalidRequestError
        if begin < 0:
            return None
        return size, begin if size else begin + len(_EMPTY_LINE)

    def _parse_head(self, size: int, target: bytes) -> None:
        head = self.received[:size]
        if head.count(_LINE_END, 0, -len(_EMPTY_LINE)) >= _MAX_LINES:
            raise HeadTooLargeError(f"The request's head has over {_MAX_LINES:,} lines.")
        path, _, query = target.partition(b"?")
        if len(path) > _MAX_PATH or len(query) > _MAX_QUERY:
            raise HeadTooLargeError(
                f"The path of the request has over {_MAX_PATH:,} bytes, or its query {_MAX_QUERY:,}."
            )
        self._headers, self._is_head_complete, self._is_complete, self._searched = [], False, False, 0
        try:
            self._parse(size)
        except HttpParserUpgrade:  # llhttp skips the body; without the offer, it does not
            self._headers, self._is_complete, self._parser = [], False, HttpRequestParser(self)
            self.received[:0] = head = bytearray(_UPGRADE_LINE.sub(b"", head))
            self._parse(len(head))

    def _parse(self, size: int) -> None:
        part = self.received[:size]
        del self.received[:size]
        try:
            self._parser.feed_data(part)
        except HttpParserError:
            raise InvalidRequestError from None

    def _check_head(self, method: str, target: bytes, version: str) -> RequestHead:
        headers = self._headers
        names = [name for name, _ in headers]
        is_old = version == "1.0"
        hosts = names.count(b"host")
        if not self._is_head_complete:
            raise InvalidRequestError
        if hosts > 1 or not (hosts or is_old):
            raise InvalidRequestError("The request must have one Host header.")
        self.missing, self.chunks, self.is_chunked = 0, 0, False
        if b"content-length" in names:
            self.missing = int(headers[names.index(b"content-length")][1])
        elif b"transfer-encoding" in names:
            codings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
            if codings != [b"chunked"] or is_old:
                raise InvalidRequestError
            self.is_chunked = True
        expects_continue = b"expect" in names and headers[names.index(b"expect")][1].lower() == b"100-continue"
        self._headers = []  # for the fields of a trailer
        self.is_in_body = not self._is_complete
        return RequestHead(
            method, target, version, headers, self._keeps_alive and not is_old, expects_continue and not is_old
        )

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header."""
        self._headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        """Note the end of the head."""
        self._is_head_complete = True
        self._keeps_alive = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        """Add a part of the body."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Note the end of the request."""
        self._is_complete = True
