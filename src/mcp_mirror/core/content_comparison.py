"""Whether the content blocks of a tool result say the same as its structured content, or as one member of it.

Servers send `structuredContent` and repeat it as text for older clients (MCP, "Structured Content"). Many wrap a text
into an object with one member, such as `{"result": "..."}` or `{"content": "..."}`, since structured content must be an
object. Values are compared to the digit: two numbers are equal only if their decimals are.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import zip_longest
from typing import Any, Final

import msgspec

from mcp_mirror.payload.json_spans import text_pieces, trim
from mcp_mirror.types import Buffer

COMPARED_BYTES: Final = 1 << 20
"""Largest JSON text that is parsed to compare it; equal bytes and equal texts are found at any size."""

_COMPACTED_BYTES: Final = 1 << 24
"""Largest JSON text that is compared without the white space between its tokens: about 2 ms per MiB."""

_COMPARED_MEMBERS: Final = 1_000
_MEMBERS: Final = 32
_STARTS: Final = ("{", "[")
"""What the JSON text of a member begins with. Scalars do not count: `true` may be said of anything."""

SAME: Final = "repeats"
"""One text is the JSON text of the value, or the string that the value is."""
ITEMS: Final = "repeats.items"
"""There is one text for each item of the value."""
BLOCKS: Final = "repeats.blocks"
"""The content blocks themselves are the value."""
DIFFERS: Final = "differs"
UNKNOWN: Final = "unknown"
"""Too large to compare, or there is nothing to compare."""


def compare_value(value: Buffer, texts: Sequence[Buffer], content: Buffer) -> str:
    """How content blocks relate to a JSON value.

    Args:
        value: The JSON text of the value.
        texts: The JSON string of each text block, where all blocks are texts; else empty.
        content: The JSON text of all blocks.

    Returns:
        `SAME`, `ITEMS`, `BLOCKS`, `DIFFERS` or `UNKNOWN`.
    """
    if _is_same(value, content) and bytes(value[:1]) == b"[" and len(value) > len("[]"):
        return BLOCKS
    if not texts:
        return UNKNOWN
    try:
        if len(texts) == 1 and (_is_same_text(texts[0], value) or _is_same_string(texts[0], value)):
            return SAME
        if len(value) > COMPARED_BYTES or sum(map(len, texts)) > 2 * COMPARED_BYTES:
            return SAME if len(texts) == 1 and _is_same_but_for_space(texts[0], value) else UNKNOWN
        return _compare(_parsed(bytes(value)), [msgspec.json.decode(text, type=str) for text in texts])
    except (ValueError, ArithmeticError, RecursionError, msgspec.MsgspecError):
        return DIFFERS


def find_member(
    members: Sequence[tuple[str, Buffer]], texts: Sequence[Buffer], content: Buffer
) -> tuple[str, str] | None:
    """The first member of an object that the content merely repeats: its key, and `SAME` or `BLOCKS`.

    The first 1,000 members are compared by their bytes, the first 32 by value too.
    """
    for key, value in members[:_COMPARED_MEMBERS]:
        if len(texts) == 1 and _is_same(value, texts[0]):
            return key, SAME
        if _is_same(value, content) and bytes(value[:1]) == b"[":
            return key, BLOCKS
    first = members[:_MEMBERS]
    if len(texts) != 1 or len(texts[0]) > COMPARED_BYTES or sum(len(value) for _, value in first) > COMPARED_BYTES:
        return None
    try:
        text = msgspec.json.decode(texts[0], type=str)
        wanted = [text, _parsed(text)] if text[:1] in _STARTS else [text]
        found = next((key for key, value in first if _parsed(bytes(value)) in wanted), None)
    except (ValueError, ArithmeticError, RecursionError, msgspec.MsgspecError):
        return None
    return None if found is None else (found, SAME)


def _compare(value: Any, texts: Sequence[str]) -> str:
    if len(texts) == 1 and _spells(texts[0], value):
        return SAME
    is_list = isinstance(value, list) and len(value) == len(texts)
    return ITEMS if is_list and all(map(_spells, texts, value)) else DIFFERS


def _is_same(one: Buffer, other: Buffer) -> bool:
    """Whether two buffers hold the same bytes; compared in pieces, so that neither is copied whole."""
    pieces = range(0, len(one), COMPARED_BYTES)
    return len(one) == len(other) and all(
        bytes(one[at : at + COMPARED_BYTES]) == bytes(other[at : at + COMPARED_BYTES]) for at in pieces
    )


def _is_same_text(literal: Buffer, value: Buffer) -> bool:
    """Whether a text is the JSON text of a value, to the byte; decoded only as far as they agree."""
    if bytes(value[:1]) == b'"':
        return False
    position = 0
    for piece in text_pieces(literal, trim(literal)):
        if bytes(value[position : position + len(piece)]) != piece:
            return False
        position += len(piece)
    return position == len(value)


def _is_same_but_for_space(literal: Buffer, value: Buffer) -> bool:
    """Whether a text is the JSON text of a value, however both are indented."""
    if bytes(value[:1]) == b'"' or max(len(literal), len(value)) > _COMPACTED_BYTES:
        return False
    text = msgspec.json.decode(literal, type=str)
    return text[:1] in _STARTS and _compact(text.encode()) == _compact(bytes(value))


def _compact(json_text: bytes) -> bytes:
    """JSON text without the white space between its tokens."""
    return msgspec.json.format(json_text, indent=-1)


def _is_same_string(literal: Buffer, value: Buffer) -> bool:
    """Whether two JSON strings are the same text, however it is escaped."""
    if bytes(value[:1]) != b'"':
        return False
    if _is_same(literal, value):
        return True
    pieces = (_bytes_of(text_pieces(one, trim(one))) for one in (literal, value))
    return all(one == other for one, other in zip_longest(*pieces))


def _bytes_of(pieces: Iterable[bytes], size: int = 1 << 20) -> Iterator[bytes]:
    """The same bytes in pieces of one size, so that two sequences of pieces can be compared."""
    known = b""
    for piece in pieces:
        known += piece
        while len(known) >= size:
            yield known[:size]
            known = known[size:]
    if known:
        yield known


def _spells(text: str, value: Any) -> bool:
    """Whether a text is what a server writes for a value: a string as it is, anything else as JSON."""
    return text == value if isinstance(value, str) else bool(_parsed(text) == value)


def _parsed(text: str | bytes) -> Any:
    """A JSON text so that equal means the same: numbers to the last digit, and never equal to a truth value."""
    return json.loads(text, parse_int=_number, parse_float=_number)


def _number(digits: str) -> tuple[str, Decimal]:
    return "number", Decimal(digits)
