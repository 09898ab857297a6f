"""Bodies of HTTP upstreams: decoded content encodings."""

import gzip
import zlib
from collections.abc import AsyncIterator
from contextlib import nullcontext

import httpx2
import pytest
from tests.load import measure_pause, slowness

from mcp_mirror.payload.content_encodings import Decompressor, decode_body, read_beginning


def inflate(data: bytes, size: int) -> bytes:
    decoder = Decompressor()
    return b"".join(piece for at in range(0, len(data), size) for piece in decoder.feed(data[at : at + size]))


BODY = bytes(range(256)) * 5000


REPETITIVE = bytes((1 << 18) + 100)
"""A body whose last bytes zlib keeps back when the first 256 KiB are decoded."""


def raw_deflate(body: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(body) + compressor.flush()


@pytest.mark.parametrize("size", [1, 2, 1000, 1 << 20])
@pytest.mark.parametrize(
    "encoded",
    [
        gzip.compress(BODY),
        gzip.compress(BODY[:70_000]) + gzip.compress(BODY[70_000:]),
        zlib.compress(BODY),
        raw_deflate(BODY),
    ],
    ids=["gzip", "two members", "deflate", "raw deflate"],
)
def test_every_encoding_is_decoded_for_any_chunk_size(encoded: bytes, size: int) -> None:
    assert inflate(encoded, size) == BODY


def test_a_decompression_bomb_is_decoded_in_small_pieces() -> None:
    assert max(map(len, Decompressor().feed(gzip.compress(bytes(50_000_000))))) <= 1 << 18


@pytest.mark.parametrize("encoded", [gzip.compress(REPETITIVE), zlib.compress(REPETITIVE), raw_deflate(REPETITIVE)])
def test_the_last_bytes_of_a_repetitive_body_are_decoded(encoded: bytes) -> None:
    assert inflate(encoded, 1 << 20) == REPETITIVE


@pytest.mark.alone
async def test_other_tasks_run_while_many_small_members_are_decoded() -> None:
    response = httpx2.Response(200, headers={"content-encoding": "gzip"}, content=gzip.compress(b"x") * 13_000)
    decoded: list[bytes] = []

    async def read() -> None:
        decoded.extend([piece async for piece in decode_body(response)])

    assert await measure_pause(read()) < 0.05 * slowness()
    assert b"".join(decoded) == b"x" * 13_000


@pytest.mark.parametrize("data", [b"\x1f\x8b not gzip at all", gzip.compress(BODY)[:100] + b"rot" * 50])
def test_a_body_that_does_not_match_its_encoding_is_an_error(data: bytes) -> None:
    with pytest.raises(httpx2.ReadError, match="content-encoding"):
        inflate(data, 10)


class Body(httpx2.AsyncByteStream):
    """A body that does not end by itself."""

    is_closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            yield b"not gzip"

    async def aclose(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("encoding", ["identity", "gzip", "br"])
async def test_a_response_is_closed_when_its_beginning_was_read_or_cannot_be(encoding: str) -> None:
    body = Body()
    response = httpx2.Response(401, headers={"content-encoding": encoding}, stream=body)
    with nullcontext() if encoding == "identity" else pytest.raises(httpx2.ReadError):
        assert await read_beginning(response, 12) == b"not gzipnot "
    assert body.is_closed
