"""The bytes of values on their way: encrypted and cut for a server, decrypted and joined for a reader."""

import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Final

import anyio.to_thread

from mcp_mirror.errors import StoreError
from mcp_mirror.stores.base import cut_into_pieces
from mcp_mirror.stores.encryption import CHUNK, Envelope, RangeReader
from mcp_mirror.system.files import write_all
from mcp_mirror.system.mapped_files import map_file, unlink_large
from mcp_mirror.types import Buffer, Segments, Span

_SPOOLED: Final = 16 << 20
"""Bytes above which a value is read into a memory-mapped file."""


async def stream_pieces(blob: Segments, piece: int, size: int, envelope: Envelope | None) -> AsyncIterator[Buffer]:
    """The stored form of a value of `size` bytes, encrypted in a thread, or in clear without an envelope.

    Each piece has `piece` bytes of the value, a multiple of those that are encrypted together.
    """
    for number, part in enumerate(cut_into_pieces(blob, piece)):
        if envelope is None:
            yield part
        else:
            sealed = envelope.seal((part,), size, number * (piece // CHUNK))
            yield await anyio.to_thread.run_sync(b"".join, sealed)


def cut_span(span: Span, piece: int) -> Iterator[Span]:
    """The parts of a span between multiples of `piece` bytes."""
    start = span.start
    while start < span.stop:
        stop = min(start - start % piece + piece, span.stop)
        yield Span(start, stop - start)
        start = stop


async def assemble(
    parts: AsyncIterator[Buffer], size: int, wanted: Span, envelope: Envelope | None, folder: Callable[[], Path]
) -> Buffer:
    """Join the parts of a range of a value of `size` bytes; a large range is a map of a file without a name.

    The parts of an encrypted value, which has an envelope, are the encrypted chunks that contain the range. `folder`
    returns the folder for the file.
    """
    if envelope:
        reader = RangeReader(envelope, size, wanted)
        async for part in parts:
            await anyio.to_thread.run_sync(reader.add, part)
        return reader.take()
    if wanted.length <= _SPOOLED:
        read = [part async for part in parts]
        return read[0] if len(read) == 1 else b"".join(read)
    try:
        path = folder() / secrets.token_hex(16)
        try:
            with path.open("xb") as file:
                async for part in parts:
                    await anyio.to_thread.run_sync(write_all, file.fileno(), part)
            return map_file(path)
        finally:
            unlink_large(path)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise StoreError(f"A large value could not be read into a file: {reason}. Make room there.") from None
