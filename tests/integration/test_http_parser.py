"""The parser of HTTP requests: the same requests however their bytes arrive, and only those that h11 reads too."""

from collections import deque
from contextlib import suppress
from typing import Final

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_mirror.server.http.parser import HeadTooLargeError, InvalidRequestError, RequestHead, RequestParser

MOST: Final = 400
"""Bytes of a head."""
HEAD: Final = b"POST /mcp?a=b HTTP/1.1\r\nhost: a\r\naccept: x, y\r\n"
WITH_LENGTH: Final = HEAD + b"content-length: 5\r\n\r\n\r\n\r\nx"
WITH_CHUNKS: Final = (
    HEAD + b"transfer-encoding: chunked\r\n\r\n6;a=b\r\nx\r\n\r\ny\r\n1\r\nz\r\n0\r\nt: 1\r\nu: 2\r\n\r\n"
)
WITHOUT_BODY: Final = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
UPGRADE: Final = HEAD + b"Upgrade: h2c\r\nconnection: Upgrade\r\ncontent-length: 1\r\n\r\nx"
STREAM: Final = WITH_CHUNKS + WITHOUT_BODY + WITH_LENGTH + WITH_CHUNKS + UPGRADE + WITHOUT_BODY

Found = list[tuple[bytes, bytes, tuple[tuple[bytes, bytes], ...], bytes]]
"""The method, the target, the headers and the body of each request."""


class Reader:
    """Reads the requests of one connection."""

    def __init__(self) -> None:
        self.parser = RequestParser(MOST)
        self.found: Found = []
        self._head: RequestHead | None = None
        self._body = b""

    def receive(self, data: bytes) -> None:
        self.parser.received += data
        while True:
            if self._head is None:
                self._head = self.parser.read_head()
                if self._head is None:
                    return
            while self.parser.is_in_body:
                part = self.parser.read_body()
                if part is None:
                    return
                self._body += part
            head = self._head
            self.found.append((head.method.encode(), head.target, tuple(head.headers), self._body))
            self._head, self._body = None, b""


def read_all(*parts: bytes) -> Found:
    reader = Reader()
    for part in parts:
        reader.receive(part)
    assert reader.parser.is_at_start
    return reader.found


def read_with_h11(data: bytes) -> Found:
    """The requests that h11 reads, until it needs more data or finds an error."""
    connection, found = h11.Connection(h11.SERVER), Found()
    connection.receive_data(data)
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                found.append((event.method, event.target, tuple(event.headers), b""))
            elif isinstance(event, h11.Data):
                found[-1] = (*found[-1][:3], found[-1][3] + event.data)
            elif event is h11.PAUSED:
                connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                connection.send(h11.EndOfMessage())
                connection.start_next_cycle()
            elif not isinstance(event, h11.EndOfMessage):
                return found
    except (h11.RemoteProtocolError, h11.LocalProtocolError):
        return found


WHOLE: Final = read_all(STREAM)


def test_requests_are_those_that_h11_reads() -> None:
    without_offer = [(*one[:2], tuple(field for field in one[2] if field[0] != b"upgrade"), one[3]) for one in WHOLE]
    expected = read_with_h11(STREAM.replace(b"Upgrade: h2c\r\n", b""))
    assert len(expected) == 6
    assert without_offer == WHOLE == expected


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_requests_are_the_same_in_parts_of_any_size(size: int) -> None:
    assert read_all(*(STREAM[at : at + size] for at in range(0, len(STREAM), size))) == WHOLE


def test_requests_are_the_same_wherever_their_bytes_are_cut() -> None:
    for at in range(len(STREAM)):
        assert read_all(STREAM[:at], STREAM[at:]) == WHOLE, at


@pytest.mark.parametrize(
    ("received", "cause"),
    [
        (b"\x16\x03\x01\x02\x00\x01", "This is TLS"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "This is HTTP/2"),
        (
            b"PROXY TCP4 192.0.2.1 192.0.2.2 40000 443\r\nGET / HTTP/1.1\r\n",
            "This is the PROXY protocol",
        ),
        (b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + bytes(12), "This is the PROXY protocol"),
        (b"GET / HTTP/1.1\r\n\r\n", "one Host header"),
        (b"GET / HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n", "one Host header"),
        (b"GET / HTTP/1.1\r\nhost: a\r\n b\r\n\r\n", "not valid HTTP/1.1"),
        (b"hello\r\n\r\n", "not valid HTTP/1.1"),
    ],
)
def test_an_invalid_request_is_rejected_with_the_cause(received: bytes, cause: str) -> None:
    with pytest.raises(InvalidRequestError, match=cause):
        read_all(received)


def test_bytes_after_a_request_are_not_parsed() -> None:
    for request in (WITH_LENGTH, WITH_CHUNKS, WITHOUT_BODY, UPGRADE):
        parser = RequestParser(MOST)
        parser.received += request + b"\0 not parsed"
        assert parser.read_head()
        while parser.is_in_body:
            assert parser.read_body() is not None
        assert parser.received == b"\0 not parsed"


def test_heads_are_limited_exactly() -> None:
    start, end = b"GET / HTTP/1.1\r\nhost: a\r\nx:", b"\r\n\r\n"
    for size, is_read in ((MOST, True), (MOST + 1, False)):
        head = start + b"a" * (size - len(start) - len(end)) + end
        for parts in ((head,), (head[:-1], head[-1:])):
            if is_read:
                assert len(read_all(*parts)) == 1
            else:
                with pytest.raises(HeadTooLargeError):
                    read_all(*parts)


@pytest.mark.parametrize("filler", [b"1;" + b"a" * 500, b"0\r\nx: " + b"a" * 500, b"0\r\n" + b"x: 1\r\n" * 100])
def test_bytes_between_parts_of_a_body_are_limited(filler: bytes) -> None:
    reader = Reader()
    reader.receive(HEAD + b"transfer-encoding: chunked\r\n\r\n")
    parts = (filler[at : at + 1] for at in range(len(filler)))
    with pytest.raises(InvalidRequestError):
        deque(map(reader.receive, parts), 0)


def test_heads_of_many_lines_are_rejected() -> None:
    for lines, is_read in ((998, True), (999, False)):
        parser = RequestParser(1 << 16)
        parser.received += b"GET / HTTP/1.1\r\nhost: a\r\n" + b"a:\r\n" * lines + b"\r\n"
        if is_read:
            assert parser.read_head()
        else:
            with pytest.raises(HeadTooLargeError, match=r"over 1,000 lines"):
                parser.read_head()


def test_long_paths_and_queries_are_rejected() -> None:
    for path, query, is_read in ((2_000, 18_000, True), (2_001, 0, False), (1, 18_001, False)):
        parser = RequestParser(1 << 16)
        parser.received += b"GET %b?%b HTTP/1.1\r\nhost: a\r\n\r\n" % (b"/" * path, b"%" * query)
        if is_read:
            assert parser.read_head()
        else:
            with pytest.raises(HeadTooLargeError, match=r"over 2,000 bytes, or its query 18,000"):
                parser.read_head()


def test_empty_lines_do_not_divide_a_chunk() -> None:
    parser, body = RequestParser(MOST), b"\r\n\r\n" * 50_000
    parser.received += HEAD + b"transfer-encoding: chunked\r\n\r\n%x\r\n" % len(body) + body
    assert parser.read_head()
    assert parser.read_body() == body
    parser.received += b"\r\n" + b"4\r\n\r\n\r\n\r\n" * 2 + b"0\r\n\r\n"
    assert parser.read_body() == b"\r\n" * 4
    assert not parser.is_in_body


PIECES: Final = (
    *(
        b"\r\n",
        b"\r",
        b"\n",
        b" ",
        b"\t",
        b":",
        b";",
        b",",
        b"\0",
        b"\x0b",
        b"\x7f",
        b"\xe4",
        b"0",
        b"1",
        b"-",
        b"+",
        b"x",
    ),
    *(b"content-length: 5\r\n", b"Content-Length : 1\r\n", b"transfer-encoding: chunked\r\n", b"host: b\r\n"),
    *(b"transfer-encoding: gzip\r\n", b"upgrade: x\r\n", b"connection: upgrade\r\n", b"connection: close\r\n"),
    *(b"\r\n ", b"0\r\n\r\n", b"1\r\n", b"HTTP/1.0", b"HTTP/1.1", WITHOUT_BODY),
)
EDITS = st.lists(st.tuples(st.integers(0, len(STREAM)), st.integers(0, 8), st.sampled_from(PIECES)), max_size=4)


@settings(max_examples=500, deadline=None)
@given(edits=EDITS, start=st.sampled_from((WITH_LENGTH, WITH_CHUNKS, WITHOUT_BODY, UPGRADE)))
def test_no_request_is_read_that_h11_does_not_read(edits: list[tuple[int, int, bytes]], start: bytes) -> None:
    data = start + WITHOUT_BODY
    for at, removed, piece in edits:
        data = data[: at % len(data)] + piece + data[at % len(data) + removed :]
    reader = Reader()
    with suppress(InvalidRequestError, HeadTooLargeError):
        reader.receive(data)
    expected = [(method, target, clean(headers), body) for method, target, headers, body in read_with_h11(data)]
    found = [(method, target, clean(headers), body) for method, target, headers, body in reader.found]
    assert found == expected[: len(found)]


def clean(headers: tuple[tuple[bytes, bytes], ...]) -> list[tuple[bytes, bytes]]:
    """Headers without the offers to upgrade, which the gateway ignores."""
    return [field for field in headers if field[0] != b"upgrade"]


@pytest.mark.parametrize(
    ("target", "expected", "host"),
    [
        (b"http://b:8000/mcp?x=http://c/", b"/mcp?x=http://c/", b"b:8000"),
        (b"HTTPS://[::1]:1/mcp", b"/mcp", b"[::1]:1"),
        (b"http://b", b"/", b"b"),
        (b"http://b?x=1", b"/?x=1", b"b"),
        (b"/http://b/", b"/http://b/", b"a"),
        (b"*", b"*", b"a"),
        (b"http:///mcp", b"http:///mcp", b"a"),  # without a host
        (b"http://user@b/mcp", b"http://user@b/mcp", b"a"),
        (b"ftp://b/mcp", b"ftp://b/mcp", b"a"),
    ],
)
def test_the_host_of_an_absolute_target_is_that_of_the_request(target: bytes, expected: bytes, host: bytes) -> None:
    head = RequestHead("GET", target, "1.1", [(b"accept", b"x"), (b"host", b"a")], True, False)  # noqa: FBT003
    head.use_origin_form()
    assert (head.target, sorted(head.headers)) == (expected, [(b"accept", b"x"), (b"host", host)])
