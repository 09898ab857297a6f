"""Decoding of HTTP response bodies (gzip, deflate) in pieces of bounded size."""

import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import anyio.lowlevel
import httpx2

from mcp_mirror.settings.policies import WirePolicy

_CHUNK: Final = 1 << 18
_SLICE: Final = 1 << 14
"""Bytes that are decoded together: each member of gzip copies the rest of them."""
_PIECES_AT_ONCE: Final = 64
"""Pieces after which other tasks run: received bytes may contain many small members."""
MAX_ERROR_BYTES: Final = 1 << 16
"""Bytes of an error response of an upstream that are read."""

_LIMITS: Final = WirePolicy()
_ENCODINGS: Final = frozenset({"", "identity", "gzip", "x-gzip", "deflate"})
_BODY_HEADERS: Final = frozenset({b"content-length", b"content-encoding", b"transfer-encoding"})


async def read_beginning(response: httpx2.Response, size: int) -> bytes:
    """Read and decode the first `size` bytes of a body, and close the response without reading the rest.

    Raises:
        BodyError: The body does not match its encoding.
    """
    body = b""
    try:
        async for chunk in decode_body(response):
            body = (body + chunk)[:size]
            if len(body) == size:
                break
    finally:
        await response.aclose()
    return body


def replace_body(response: httpx2.Response, **new: Any) -> httpx2.Response:
    """Return a response with the status and headers of another, and a decoded body: `content` or `stream` in `new`."""
    kept = [(name, value) for name, value in response.headers.raw if name.lower() not in _BODY_HEADERS]
    return httpx2.Response(response.status_code, headers=kept, **new)


class BodyError(httpx2.ReadError):
    """A body that cannot be decoded. The message contains no text of the server."""


async def decode_body(response: httpx2.Response, limits: WirePolicy = _LIMITS) -> AsyncIterator[bytes]:
    """The body without its content encoding.

    Raises:
        BodyError: The body does not match its encoding, or inflates beyond `limits.max_inflation`.
    """
    assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101  # an async transport's response
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in _ENCODINGS:
        raise BodyError("the body has a content encoding that the gateway did not ask for")
    inflate = None if encoding in ("identity", "") else Decompressor()
    received = decoded = pieces = 0
    async for chunk in response.stream:
        received += len(chunk)
        for data in (chunk,) if inflate is None else inflate.feed(chunk):
            decoded += len(data)
            pieces += 1
            if not pieces % _PIECES_AT_ONCE:
                await anyio.lowlevel.checkpoint()
            if decoded > max(limits.spool_bytes, received * limits.max_inflation):
                raise BodyError(
                    f"the body inflates to more than {limits.max_inflation} times its size (`limits.max_inflation`)"
                )
            if data:
                yield data


class Decompressor:
    """Decodes gzip with one or several members, and deflate with its header or, as some servers send it, without."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(zlib.MAX_WBITS | 32)
        self._head = b""
        self._begun = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Decode the next bytes, in pieces of bounded size."""
        for at in range(0, len(data), _SLICE):
            yield from self._feed(data[at : at + _SLICE])

    def _feed(self, data: bytes) -> Iterator[bytes]:
        if not self._begun:
            self._head, data = b"", self._head + data
            if len(data) < 2:  # noqa: PLR2004  # bytes of a header
                self._head = data
                return
            self._begin(data)
        piece = b""
        while data or len(piece) == _CHUNK:  # after a full piece, more of it may be decoded already
            try:
                piece = self._inner.decompress(data, _CHUNK)
            except zlib.error:
                raise BodyError("the body does not match its content-encoding") from None
            yield piece
            data = self._inner.unconsumed_tail or self._inner.unused_data
            if self._inner.eof and data:
                self._inner = zlib.decompressobj(zlib.MAX_WBITS | 32)

    def _begin(self, data: bytes) -> None:
        self._begun = True
        try:
            zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(data[:2])
        except zlib.error:
            self._inner = zlib.decompressobj(-zlib.MAX_WBITS)
