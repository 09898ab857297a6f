"""The tools that bring a local file into memory, and a value into a file."""

import base64
import binascii
import codecs
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

import anyio.to_thread
import msgspec

from mcp_mirror.errors import ToolError
from mcp_mirror.memory.tools.lookup import CONTENTS, find_given
from mcp_mirror.memory.tools.roots import Roots
from mcp_mirror.memory.tools.save import NewValue, keep
from mcp_mirror.memory.tools.tool import Content, ToolInput, text_content
from mcp_mirror.memory.value_lookup import FoundValue
from mcp_mirror.payload.json_spans import Miss, locate, trim
from mcp_mirror.query.texts import is_text, pieces_of
from mcp_mirror.settings.labels import FILES
from mcp_mirror.types import Buffer, Span

_PIECE: Final = 3 << 18
"""Bytes that are read at once; a multiple of three, so that base64 is padded at its end alone."""
_QUANTUM: Final = 4
"""Characters of base64 that stand for whole bytes."""


async def import_file(call: ToolInput) -> Content:
    """A file's text, or its bytes as base64, as a value."""
    return await keep(call, NewValue(_literal(call), source=FILES, is_shown=False, is_said=True))


def _literal(call: ToolInput) -> Iterator[Buffer]:
    """The file as a JSON string."""
    name, most = call.given.text("file"), call.memory.limits.max_message_bytes
    with Roots(call.memory.tools.roots).reading(name) as file:
        if (size := os.fstat(file).st_size) > most:
            raise ToolError(f"{name!r} has {size:,} bytes; {most:,} is the limit (`limits.max_message_bytes`).")
        plain = not call.given.flag("base64") and _is_plain(file)
        yield b'"'
        yield from _spelled(file) if plain else map(base64.b64encode, _pieces(file))
        yield b'"'


def _is_plain(file: int) -> bool:
    """Whether a file is text: UTF-8 without a zero byte."""
    with suppress(UnicodeDecodeError):
        return all("\0" not in text for text in _texts(file))
    return False


def _spelled(file: int) -> Iterator[bytes]:
    try:
        for text in _texts(file):
            yield msgspec.json.encode(text)[1:-1]
    except UnicodeDecodeError:
        raise ToolError("The file was changed while it was read. Try again.") from None


def _texts(file: int) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    for piece in _pieces(file):
        yield decoder.decode(piece)
    yield decoder.decode(b"", final=True)


def _pieces(file: int) -> Iterator[bytes]:
    """The file from its beginning, each piece but the last of full size."""
    os.lseek(file, 0, os.SEEK_SET)
    with os.fdopen(os.dup(file), "rb") as opened:
        while piece := opened.read(_PIECE):
            yield piece


async def export_file(call: ToolInput) -> Content:
    """A value in a file: a text as it is, a binary value as its bytes, anything else as its JSON."""
    found_value = await find_given(call, FILES)
    name, overwrite = call.given.text("file"), call.given.flag("overwrite")
    pieces = bytes_of(found_value, from_base64=call.given.flag("base64"))
    roots = Roots(call.memory.tools.roots)
    size = await anyio.to_thread.run_sync(lambda: roots.write(name, pieces, overwrite=overwrite))
    return text_content(f"Written: {size:,} bytes to {name!r}.")


def bytes_of(found_value: FoundValue, *, from_base64: bool) -> Iterator[bytes]:
    """The bytes that a file is to hold: of a text its text, of media and files what they are, else the JSON text.

    Args:
        found_value: The value.
        from_base64: A text is base64 and is to be decoded.

    Raises:
        ToolError: It is not base64, or holds no bytes.
    """
    blob, span = found_value.blob, Span(0, len(found_value.blob))
    if found_value.kind == "text":
        span = trim(blob)
    if found_value.kind == "binary":
        member, span = _data(found_value)
        from_base64 = member == "blob"
    texts = (piece.data for piece in pieces_of(blob, span, _never))
    return _decoded(texts) if from_base64 else texts


def _data(found_value: FoundValue) -> tuple[str, Span]:
    for member, tokens in CONTENTS:
        place = locate(found_value.blob, tokens)
        if not isinstance(place, Miss) and is_text(found_value.blob, place):
            return member, place
    raise ToolError("This value holds no bytes. Give a path below it.")


def _decoded(texts: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    try:
        for text in texts:
            whole = rest + b"".join(text.split())
            cut = len(whole) - len(whole) % _QUANTUM
            yield base64.b64decode(whole[:cut], validate=True)
            rest = whole[cut:]
        yield base64.b64decode(rest, validate=True)
    except binascii.Error:
        raise ToolError("The value is no base64. Leave `base64` out to write it as it is.") from None


def _never() -> bool:
    return False
