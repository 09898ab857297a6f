"""Tools that store a local file and write a value to a local file."""

import base64
import binascii
import codecs
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

import anyio.to_thread
import msgspec

from mcp_mirror.core.results.media import locate_content
from mcp_mirror.errors import ToolError
from mcp_mirror.memory.lookup_errors import quote_path
from mcp_mirror.memory.tools.lookup import find_argument
from mcp_mirror.memory.tools.roots import Roots, quote_name
from mcp_mirror.memory.tools.save import NewValue, save_and_reply
from mcp_mirror.memory.tools.tool import Content, ToolInput, build_text_content
from mcp_mirror.memory.value_lookup import FoundValue
from mcp_mirror.paths import MemoryPath
from mcp_mirror.payload.json_spans import trim
from mcp_mirror.query.texts import never, split_text
from mcp_mirror.settings.labels import FILES
from mcp_mirror.types import Buffer, Span

_PIECE_BYTES: Final = 3 << 18
"""Bytes that are read at once; a multiple of three, so that only the last piece has base64 padding."""
_QUANTUM: Final = 4
"""Characters of base64 that encode whole bytes."""


async def import_file(call: ToolInput) -> Content:
    """Store the text of a file, or its bytes as base64, and return the notice."""
    return await save_and_reply(call, NewValue(_read_as_json(call), source=FILES, most_shown=0, is_text=True))


def _read_as_json(call: ToolInput) -> Iterator[Buffer]:
    """Yield the file as the pieces of a JSON string."""
    name, max_bytes = call.arguments.text("file"), call.memory.services.limits.max_message_bytes
    with Roots(call.memory.tools.roots).open_file(name) as file:
        if (size := os.fstat(file).st_size) > max_bytes:
            raise ToolError(
                f"{quote_name(name)} has {size:,} bytes, more than the limit of {max_bytes:,} "
                "(`limits.max_message_bytes`). Give a smaller file."
            )
        is_text = not call.arguments.flag("base64") and _is_utf8(file)
        yield b'"'
        yield from _escape(file) if is_text else map(base64.b64encode, _read_pieces(file))
        yield b'"'


def _is_utf8(file: int) -> bool:
    """Whether a file is UTF-8 text without null bytes."""
    with suppress(UnicodeDecodeError):
        return all("\0" not in text for text in codecs.iterdecode(_read_pieces(file), "utf-8"))
    return False


def _escape(file: int) -> Iterator[bytes]:
    try:
        for text in codecs.iterdecode(_read_pieces(file), "utf-8"):
            yield msgspec.json.encode(text)[1:-1]
    except UnicodeDecodeError:
        raise ToolError("The file was changed while it was read. Try again.") from None


def _read_pieces(file: int) -> Iterator[bytes]:
    """Read the file from its beginning; only the last piece may be shorter than the others."""
    os.lseek(file, 0, os.SEEK_SET)
    with os.fdopen(os.dup(file), "rb") as opened:
        while piece := opened.read(_PIECE_BYTES):
            yield piece


async def export_file(call: ToolInput) -> Content:
    """Write a value to a file (see `encode_file`) and report its size."""
    found_value = await find_argument(call, FILES)
    name, overwrite = call.arguments.text("file"), call.arguments.flag("overwrite")
    pieces = encode_file(found_value, from_base64=call.arguments.flag("base64"))
    roots = Roots(call.memory.tools.roots)
    size = await anyio.to_thread.run_sync(lambda: roots.write(name, pieces, overwrite=overwrite))
    flows = call.memory.flows
    is_shown = flows.may_show(flows.read_labels(found_value.descriptor))
    return build_text_content(f"Written: {f'{size:,} bytes to ' if is_shown else ''}{quote_name(name)}.")


def encode_file(found_value: FoundValue, *, from_base64: bool) -> Iterator[bytes]:
    """Return a value as the bytes of a file: a text as UTF-8, a binary value decoded, other values as JSON text.

    ToolError if the text or the data is not base64, or the binary value has no data.
    """
    blob, span = found_value.blob, Span(0, len(found_value.blob))
    next_step = "Omit `base64` to write the value unchanged."
    if found_value.kind == "text":
        span = trim(blob)
    if found_value.kind == "binary":
        if (found := locate_content(blob)) is None:
            raise ToolError("This value has no data to write. Give the path of a part of it (path/key).")
        location, span = found
        from_base64 = location[-1] != "text"
        path = MemoryPath(found_value.path.base, (*found_value.path.tokens, *location))
        next_step = f"Give the path of its text: {quote_path(path)}."
    texts = (piece.data for piece in split_text(blob, span, never))
    return _decode_base64(texts, next_step) if from_base64 else texts


def _decode_base64(texts: Iterable[bytes], next_step: str) -> Iterator[bytes]:
    rest = b""
    try:
        for text in texts:
            whole = rest + b"".join(text.split())
            cut = len(whole) - len(whole) % _QUANTUM
            yield base64.b64decode(whole[:cut], validate=True)
            rest = whole[cut:]
        yield base64.b64decode(rest, validate=True)
    except binascii.Error:
        raise ToolError(f"The value is not valid base64. {next_step}") from None
