"""HTTP messages on which two programs could disagree: the gateway rejects them, so that no request can hide in another.

A proxy before the gateway and the gateway must find the same end of each request (RFC 9112, section 11.2).
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

from tests.auth.conftest import HASHES, TOKENS
from tests.end_to_end.conftest import BOUND
from tests.hostile.raw_connections import Holder, holding
from waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.end_to_end.conftest import Configured, Serve

LINE = b"POST /mcp HTTP/1.1\r\n"
HOST = b"host: 127.0.0.1\r\n"
TOKEN = f"authorization: Bearer {TOKENS['alice']}\r\n".encode()
KINDS = b"content-type: application/json\r\naccept: application/json, text/event-stream\r\n"
CLOSE = b"connection: close\r\n"
HEAD = LINE + HOST + TOKEN + KINDS
PARAMS: dict[str, Any] = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "x", "version": "0"},
}
BODY = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": PARAMS}).encode()
LENGTH = b"content-length: %d\r\n" % len(BODY)
CHUNKED = b"transfer-encoding: chunked\r\n"
LAST = b"0\r\n\r\n"
CHUNKS = b"%x\r\n%b\r\n" % (len(BODY), BODY) + LAST
NEXT = b"GET /healthz HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n"
"""Another request; it is answered with 200 if the gateway finds it."""


def with_length(*lines: bytes) -> bytes:
    """A request with these header lines and a body of a known length."""
    return HEAD + b"".join(lines) + LENGTH + b"\r\n" + BODY


def with_chunks(*lines: bytes, chunks: bytes = CHUNKS) -> bytes:
    """A request with these header lines and a chunked body."""
    return HEAD + b"".join(lines) + CHUNKED + b"\r\n" + chunks


def first_chunk(size: bytes, after: bytes = b"\r\n") -> bytes:
    """A chunked request; its first chunk has this line of its size and is followed by these bytes."""
    return with_chunks(chunks=size + BODY + after + LAST) + NEXT


def last_chunk(end: bytes) -> bytes:
    """A chunked request that ends with these bytes."""
    return with_chunks(chunks=b"%x\r\n%b\r\n" % (len(BODY), BODY) + end) + NEXT


SIZE = b"%x" % len(BODY)

ACCEPTED: dict[str, tuple[bytes, list[int]]] = {
    "a length": (with_length(CLOSE), [200]),
    "chunks": (with_chunks(CLOSE), [200]),
    "a request after a length": (with_length() + NEXT, [200, 200]),
    "a request after chunks": (with_chunks() + NEXT, [200, 200]),
    "chunks in capitals": (with_chunks(CLOSE).replace(b"chunked", b"ChunkeD"), [200]),
    "many chunks": (with_chunks(chunks=b"".join(b"1\r\n%c\r\n" % one for one in BODY) + LAST) + NEXT, [200, 200]),
    "empty lines in a chunk": (with_chunks(chunks=b"4\r\n\r\n\r\n\r\n" + CHUNKS) + NEXT, [200, 200]),
    "a chunk extension": (first_chunk(SIZE + b";a=b\r\n"), [200, 200]),
    "a trailer": (last_chunk(b"0\r\nx-checksum: 1\r\n\r\n"), [200, 200]),
    "a token in a trailer": (last_chunk(b"0\r\n" + TOKEN + b"\r\n").replace(TOKEN, b"", 1), [401, 200]),
    "a header without a value": (with_length(b"x-empty:\r\n", CLOSE), [200]),
    "a header with spaces around its value": (with_length(CLOSE).replace(b"127.0.0.1", b" \t127.0.0.1 \t"), [200]),
    "a header with bytes that are not ASCII": (with_length(b"x-name: \xe4\r\n", CLOSE), [200]),
    "an offer to upgrade": (with_length(b"connection: upgrade\r\nupgrade: h2c\r\n") + NEXT, [200, 200]),
    "an offer to upgrade, with chunks": (with_chunks(b"Upgrade: h2c\r\nConnection: Upgrade\r\n") + NEXT, [200, 200]),
    "HTTP/1.0": (with_length().replace(b"HTTP/1.1", b"HTTP/1.0") + NEXT, [200]),
    "HTTP/1.0 that stays open": (with_length(b"connection: keep-alive\r\n").replace(b"/1.1", b"/1.0") + NEXT, [200]),
    "an expectation with a body": (with_length(b"expect: 100-continue\r\n", CLOSE), [200]),
    "a path with a query": (with_length(CLOSE).replace(b"/mcp", b"/mcp?a=%20b"), [200]),
    "an encoded path": (with_length(CLOSE).replace(b"/mcp", b"/%6dcp"), [200]),
}  # fmt: skip
"""Requests, and the statuses of the responses."""

REJECTED: dict[str, bytes] = {
    "a length and chunks": with_chunks(LENGTH) + NEXT,
    "chunks and a length": HEAD + CHUNKED + LENGTH + b"\r\n" + CHUNKS + NEXT,
    "two lengths": with_length(LENGTH) + NEXT,
    "two lengths in one line": with_length().replace(LENGTH, b"content-length: %d, %d\r\n" % (len(BODY), len(BODY)))
    + NEXT,
    "two lengths that differ": with_length(b"content-length: 1\r\n") + NEXT,
    "a negative length": HEAD + b"content-length: -1\r\n\r\n" + BODY + NEXT,
    "a length with a sign": with_length().replace(LENGTH, LENGTH.replace(b": ", b": +")) + NEXT,
    "a hexadecimal length": HEAD + b"content-length: 0x%x\r\n\r\n" % len(BODY) + BODY + NEXT,
    "a length with an underscore": HEAD + b"content-length: 1_0\r\n\r\n" + BODY + NEXT,
    "a length with a space": HEAD + b"content-length: 1 0\r\n\r\n" + BODY + NEXT,
    "a length without digits": HEAD + b"content-length:\r\n\r\n" + BODY + NEXT,
    "a length that overflows": HEAD + b"content-length: %d\r\n\r\n" % (1 << 70) + BODY + NEXT,
    "another coding": with_chunks().replace(b" chunked", b" gzip, chunked") + NEXT,
    "another coding in a line of its own": with_chunks(b"transfer-encoding: identity\r\n") + NEXT,
    "an identity coding": with_length(b"transfer-encoding: identity\r\n") + NEXT,
    "an unknown coding": with_chunks().replace(b" chunked", b" xchunked") + NEXT,
    "a coding without a name": with_chunks().replace(b" chunked", b"") + NEXT,
    "a coding after a vertical tab": with_chunks().replace(b" chunked", b"\x0bchunked") + NEXT,
    "chunks twice": with_chunks(CHUNKED) + NEXT,
    "chunks twice in one line": with_chunks().replace(b" chunked", b" chunked, chunked") + NEXT,
    "chunks in HTTP/1.0": with_chunks().replace(b"/1.1", b"/1.0") + NEXT,
    "line feeds only": with_length(CLOSE).replace(b"\r\n", b"\n"),
    "a line feed after a header": with_length(b"x: 1\n") + NEXT,
    "a line feed after the head": with_length().replace(b"\r\n\r\n", b"\r\n\n") + NEXT,
    "a header on two lines": with_length(b"x: 1\r\n 2\r\n") + NEXT,
    "a coding on two lines": with_chunks().replace(b" chunked", b"\r\n chunked") + NEXT,
    "a space before the colon": with_length().replace(b"content-length:", b"content-length :") + NEXT,
    "a tab before the colon": with_chunks().replace(b"transfer-encoding:", b"transfer-encoding\t:") + NEXT,
    "a space in a name": with_length(b"x y: 1\r\n") + NEXT,
    "a header without a colon": with_length(b"x\r\n") + NEXT,
    "a header without a name": with_length(b": x\r\n") + NEXT,
    "a name that is not ASCII": with_length(b"x\xe4: 1\r\n") + NEXT,
    "a carriage return in a line": with_length(b"x: 1\rtransfer-encoding: chunked\r\n") + NEXT,
    "a null byte in a value": with_length(b"x: 1\0\r\n") + NEXT,
    "a control character in a value": with_length(b"x: 1\x01\r\n") + NEXT,
    "a continuation of the request line": LINE + b" x: 1\r\n" + with_length()[len(LINE) :] + NEXT,
    "no host": with_length().replace(HOST, b"") + NEXT,
    "two hosts": with_length(HOST) + NEXT,
    "an empty line before the request": b"\r\n" + with_length() + NEXT,
    "a space before the request": b" " + with_length() + NEXT,
    "two spaces in the request line": with_length().replace(b"POST ", b"POST  ") + NEXT,
    "two spaces before the version": with_length().replace(b" HTTP", b"  HTTP") + NEXT,
    "a tab in the request line": with_length().replace(b"POST ", b"POST\t") + NEXT,
    "a space after the version": with_length().replace(b"/1.1", b"/1.1 ") + NEXT,
    "no version": with_length().replace(b" HTTP/1.1", b"") + NEXT,
    "the version 0.9": with_length().replace(b"/1.1", b"/0.9") + NEXT,
    "the version 2.0": with_length().replace(b"/1.1", b"/2.0") + NEXT,
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a method in small letters": with_length().replace(b"POST", b"post") + NEXT,
    "a method that opens a tunnel": b"CONNECT 127.0.0.1:80 HTTP/1.1\r\n" + HOST + b"\r\n" + NEXT,
    "a version of two digits": with_length().replace(b"/1.1", b"/1.10") + NEXT,
    "another protocol": b"DESCRIBE /mcp RTSP/1.0\r\n" + HOST + b"\r\n" + NEXT,
    "a path that is not ASCII": with_length().replace(b"/mcp", b"/m\xe4") + NEXT,
    "a null byte in a path": with_length().replace(b"/mcp", b"/m\0") + NEXT,
    "the greeting of TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a space before a chunk's size": first_chunk(b" " + SIZE + b"\r\n"),
    "a chunk's size with a sign": first_chunk(b"+" + SIZE + b"\r\n"),
    "a negative chunk's size": first_chunk(b"-" + SIZE + b"\r\n"),
    "a chunk's size with a prefix": first_chunk(b"0x" + SIZE + b"\r\n"),
    "a chunk's size with an underscore": first_chunk(b"0_" + SIZE + b"\r\n"),
    "a chunk's size that is not a number": first_chunk(b"g\r\n"),
    "a chunk without a size": first_chunk(b"\r\n"),
    "a chunk's size that overflows": first_chunk(b"f" * 21 + b"\r\n"),
    "a space after a chunk's size": first_chunk(SIZE + b" \r\n"),
    "a null byte in a chunk's extension": first_chunk(SIZE + b";a\0\r\n"),
    "a line feed after a chunk's size": first_chunk(SIZE + b"\n"),
    "a line feed after a chunk's extension": first_chunk(SIZE + b";a\n"),
    "a line feed after a chunk": first_chunk(SIZE + b"\r\n", b"\n"),
    "other bytes after a chunk": first_chunk(SIZE + b"\r\n", b"xx"),
    "a chunk that is longer than its size": first_chunk(b"1\r\n"),
    "a chunk that is shorter than its size": first_chunk(b"%x\r\n" % (len(BODY) + 1)),
    "a trailer without a colon": last_chunk(b"0\r\nx\r\n\r\n"),
    "a trailer with a space in its name": last_chunk(b"0\r\nx y: 1\r\n\r\n"),
    "a length in a trailer": last_chunk(b"0\r\ncontent-length: 1\r\n\r\n"),
    "a coding in a trailer": last_chunk(b"0\r\ntransfer-encoding: chunked\r\n\r\n"),
    "a trailer on two lines": last_chunk(b"0\r\nx: 1\r\n 2\r\n\r\n"),
    "line feeds after the last chunk": last_chunk(b"0\n\n"),
    "a line feed after the last chunk": last_chunk(b"0\r\n\n"),
}
"""Messages that the gateway rejects. None of them reveals the request at its end."""

ENDLESS: dict[str, bytes] = {
    "an endless chunk extension": with_chunks(chunks=b"1;" + b"a" * (1 << 20)),
    "an endless trailer": with_chunks(chunks=CHUNKS[:-2] + b"x: " + b"a" * (1 << 20)),
    "endless trailers": with_chunks(chunks=CHUNKS[:-2] + b"x: 1\r\n" * (1 << 18)),
}
"""Messages that are over `limits.max_header_bytes` between the parts of their bodies."""


REPORTED: dict[str, bytes] = {
    "invalid HTTP. This is TLS": b"\x16\x03\x01\x02\r\n\r\n",
    "invalid HTTP. The request must have one Host": LINE + b"\r\n",
    "head too large. The request's head is over `limits.max_header_bytes`": LINE + HOST + b"x: " + b"a" * (1 << 16),
    "head did not come. The request's head took over 1 s": LINE + HOST,
    "malformed message. The response has HTTP status 400": HEAD.replace(b"POST", b"GET") + CLOSE + b"\r\n",
    "unknown session. The response has HTTP status 404": with_length(b"mcp-session-id: none\r\n", CLOSE),
    "method not allowed. The response has HTTP status 405": HEAD.replace(b"POST", b"PUT") + CLOSE + b"\r\n",
    "not acceptable. The response has HTTP status 406": with_length(CLOSE).replace(b", text/event-stream", b""),
}
"""The beginnings of log records about rejected requests, and the requests."""


def write_config(configured: Configured) -> Path:
    return configured({}, auth={"tokens": HASHES})


async def read_statuses(holder: Holder, sent: bytes) -> list[int]:
    """Send bytes, and return the statuses of the responses when the gateway has closed the connection."""
    connection = await holder.hold(sent)
    await asyncio.wait_for(connection.over.wait(), BOUND)
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3})", connection.received)]


async def test_unusual_messages_are_served(configured: Configured, serve: Serve) -> None:
    async with serve(write_config(configured)) as served, holding(served.url) as holder:
        found = await asyncio.gather(*(read_statuses(holder, sent) for sent, _ in ACCEPTED.values()))
        wanted = {name: statuses for name, (_, statuses) in ACCEPTED.items()}
        assert dict(zip(ACCEPTED, found, strict=True)) == wanted


async def test_a_client_that_waits_for_it_gets_a_continue(configured: Configured, serve: Serve) -> None:
    head, body = with_length(b"expect: 100-continue\r\n", CLOSE).split(b"\r\n\r\n")
    async with serve(write_config(configured)) as served, holding(served.url) as holder:
        connection = await holder.hold(head + b"\r\n\r\n")
        await until(lambda: connection.received)
        assert connection.received == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert connection.transport
        connection.transport.write(body)
        await asyncio.wait_for(connection.over.wait(), BOUND)
        assert b"HTTP/1.1 200 OK" in connection.received


async def test_ambiguous_messages_are_rejected(configured: Configured, serve: Serve) -> None:
    async with serve(write_config(configured)) as served, holding(served.url) as holder:
        found = await asyncio.gather(*(read_statuses(holder, sent) for sent in REJECTED.values()))
        assert dict(zip(REJECTED, found, strict=True)) == {name: [400] for name in REJECTED}


async def test_endless_parts_of_messages_are_rejected(configured: Configured, serve: Serve) -> None:
    async with serve(write_config(configured)) as served, holding(served.url) as holder:
        found = await asyncio.gather(*(read_statuses(holder, sent) for sent in ENDLESS.values()))
        # A client that still sends may lose the response when the gateway closes the connection.
        assert all(statuses in ([], [400]) for statuses in found), found


async def test_the_log_reports_why_a_request_is_rejected(configured: Configured, serve: Serve) -> None:
    config = configured({}, auth={"tokens": HASHES}, limits={"header_timeout": 1})
    async with serve(config, "-v") as served, holding(served.url) as holder:
        await asyncio.gather(*(read_statuses(holder, sent) for sent in REPORTED.values()))
    log = b"".join(served.stderr).decode()
    assert [wanted for wanted in REPORTED if f"Rejected a request: {wanted}" not in log] == []
    assert log.count("Rejected a request: ") == len(REPORTED)
