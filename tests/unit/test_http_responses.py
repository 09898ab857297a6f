"""The reader of HTTP responses: the same responses however their bytes arrive, and errors for all other bytes."""

from itertools import pairwise

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_mirror.system.http_responses import ResponseReader

LENGTH = b"HTTP/1.1 200 OK\r\nX-Case: 1\r\ncontent-length: 5\r\n\r\nhello"
CHUNKS = b"HTTP/1.1 404 No\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nlast: 1\r\n\r\n"
EARLY = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + LENGTH
CLOSED = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nhello"
RESPONSES = {"length": LENGTH, "chunks": CHUNKS, "early": EARLY}

Found = tuple[int, list[tuple[bytes, bytes]], bytes, bool, bool]


def read(data: bytes, cuts: list[int], *, is_ended: bool = False) -> Found:
    """Read a response in parts that end at the cuts; at the end of the connection with `is_ended`."""
    reader, body = ResponseReader(), b""
    bounds = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, stop in pairwise(bounds):
        rest = memoryview(data[start:stop])
        while rest and not reader.is_complete:
            rest = reader.feed(rest)
        body += b"".join(reader.body)
        reader.body.clear()
    if is_ended and not reader.is_complete:
        reader.feed(memoryview(b""))
    return reader.status, reader.headers, body, reader.is_complete, reader.keeps_alive


@pytest.mark.parametrize("kind", RESPONSES)
@given(cuts=st.lists(st.integers(0, 300), max_size=20))
def test_a_response_is_the_same_however_its_bytes_arrive(kind: str, cuts: list[int]) -> None:
    status, headers, body, is_complete, keeps_alive = read(RESPONSES[kind], cuts)
    assert (status, body, is_complete, keeps_alive) == (404 if kind == "chunks" else 200, b"hello", True, True)
    named = dict(headers)
    assert named.get(b"X-Case", b"1") == b"1"
    assert b"link" not in named


@given(cuts=st.lists(st.integers(0, 100), max_size=9))
def test_a_response_without_a_length_ends_with_its_connection(cuts: list[int]) -> None:
    assert read(CLOSED, cuts)[2:] == (b"hello", False, False)
    assert read(CLOSED, cuts, is_ended=True)[2:] == (b"hello", True, False)


@given(
    st.sampled_from([LENGTH, CHUNKS, EARLY, CLOSED]),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 9), st.binary(max_size=9)), min_size=1, max_size=4),
)
def test_other_bytes_are_an_error_or_a_response(data: bytes, edits: list[tuple[int, int, bytes]]) -> None:
    for start, size, new in edits:
        data = data[:start] + new + data[start + size :]
    try:
        status, _, _, is_complete, _ = read(data, [], is_ended=True)
    except httpx2.RemoteProtocolError:
        return
    assert is_complete
    assert 200 <= status <= 999


def test_one_reader_reads_the_responses_of_a_connection() -> None:
    reader = ResponseReader()
    for data in (CHUNKS, LENGTH, EARLY):
        rest = memoryview(data)
        while rest:
            rest = reader.feed(rest)
        assert (b"".join(reader.body), reader.is_complete, reader.keeps_alive) == (b"hello", True, True)
        reader.begin()
        assert (reader.status, reader.headers, reader.is_complete) == (0, [], False)


@pytest.mark.parametrize("more", [b"junk", LENGTH, b"HTTP/1.1 100 Continue\r\n\r\n"])
def test_bytes_after_a_response_end_the_use_of_its_connection(more: bytes) -> None:
    assert read(LENGTH + more, [])[2:] == (b"hello", True, False)
