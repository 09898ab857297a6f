"""Compares the content blocks of a tool result with its structured content or with one member of it.

Servers send `structuredContent` and repeat it as text for older clients (MCP, "Structured Content"). Many wrap a text
into an object with one member, such as `{"result": "..."}` or `{"content": "..."}`, since structured content must be an
object. Numbers are equal only if their decimals are.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import partial
from itertools import zip_longest
from typing import Any, Final

import msgspec

from mcp_mirror.payload.json_spans import are_equal, trim
from mcp_mirror.payload.json_strings import text_pieces
from mcp_mirror.payload.scans import Scans
from mcp_mirror.types import Buffer

COMPARED_BYTES: Final = 1 << 20
"""Bytes of the largest JSON text that is parsed for a comparison; equal bytes and texts are found at any size."""

_MAX_COMPACTED_BYTES: Final = 1 << 24
"""Bytes of the largest JSON text that is compared without white space: about 2 ms per MiB."""

_MAX_EXPANSION: Final = 16
"""How many times as long as its text a JSON value can be: an escaped letter is six times as long."""

_MAX_NESTING: Final = 3
"""Levels of objects in which a text is searched."""
_MAX_MEMBERS_BY_BYTES: Final = 1_000
_MAX_MEMBERS_BY_VALUE: Final = 32
_MAX_NULL_BYTES: Final = 256
"""Bytes of the members of one block that are null."""
_MAX_DIFFERENT_NULLS: Final = 100
"""Blocks of a result whose members that are null are not those of the first block."""
_CONTAINER_STARTS: Final = ("{", "[")
"""First characters of a member's JSON text. Scalars do not count: `true` may occur anywhere."""

_LARGE_STARTS: Final = (b'"', b"{", b"[")
"""First characters of texts, objects and arrays."""

SAME: Final = "repeats"
"""One text equals the value or its JSON text."""
ITEMS: Final = "repeats.items"
"""There is one text for each item of the value."""
LEAVES: Final = "repeats.leaves"
"""There is one text for each item that is not an array, at any depth of arrays; an item that is null has none."""
BLOCKS: Final = "repeats.blocks"
"""The content blocks are the value."""
DIFFERS: Final = "differs"
UNKNOWN: Final = "unknown"
"""The value is too large to compare, or there is nothing to compare."""


def compare_value(value: Buffer, texts: Sequence[Buffer], content: Buffer) -> str:
    """How content blocks, and the texts (JSON strings) among them, relate to a value: a constant of this module."""
    if are_equal(value, content) and bytes(value[:1]) == b"[" and len(value) > len("[]"):
        return BLOCKS
    if not texts:
        return UNKNOWN
    size = sum(map(len, texts))
    try:
        if len(texts) == 1 and (is_json_text(texts[0], value) or _are_equal_strings(texts[0], value)):
            return SAME
        if len(value) > COMPARED_BYTES or size > 2 * COMPARED_BYTES:
            return _compare_large(value, texts, size)
        return _compare(parse_exact(bytes(value)), [msgspec.json.decode(text, type=str) for text in texts])
    except (ValueError, ArithmeticError, RecursionError):
        return DIFFERS


def is_json_text(literal: Buffer, value: Buffer) -> bool:
    """Whether a text is the JSON text of a value, and of a small one also with other white space.

    Numbers and strings that are written in another way are not recognized. This takes a fourth of the time of parsing.
    """
    if _is_json_text_of(literal, value):
        return True
    if max(len(literal), len(value)) > COMPARED_BYTES:
        return False
    with suppress(msgspec.DecodeError, RecursionError):
        return _is_json_text_of_any_spacing(literal, value)
    return False


def find_member(
    members: Sequence[tuple[str, Buffer]], texts: Sequence[Buffer], content: Buffer
) -> tuple[str, str] | None:
    """The first member of an object that the content only repeats: its key, and `SAME` or `BLOCKS`.

    The first 1,000 members are compared by their bytes, the first 32 also by value.
    """
    for key, value in members[:_MAX_MEMBERS_BY_BYTES]:
        if len(texts) == 1 and are_equal(value, texts[0]):
            return key, SAME
        if are_equal(value, content) and bytes(value[:1]) == b"[":
            return key, BLOCKS
    first = members[:_MAX_MEMBERS_BY_VALUE]
    if len(texts) != 1 or len(texts[0]) > COMPARED_BYTES or sum(len(value) for _, value in first) > COMPARED_BYTES:
        return None
    try:
        text = msgspec.json.decode(texts[0], type=str)
        wanted = [text, parse_exact(text)] if text.lstrip()[:1] in _CONTAINER_STARTS else [text]
        found = next((key for key, value in first if parse_exact(bytes(value)) in wanted), None)
    except (ValueError, ArithmeticError, RecursionError):
        return None
    return None if found is None else (found, SAME)


def find_main_text(value: Buffer, text: Buffer, scans: Scans) -> tuple[str, ...]:
    """The keys of the text, in an object or in objects of it, that is most of a value and equals `text`, a JSON string.

    Numbers and the like beside the text do not count. Returns nothing without such a text, and if it is empty.
    """
    keys: tuple[str, ...] = ()
    while bytes(value[:1]) == b"{" and len(keys) < _MAX_NESTING:
        opened = scans.open_object(value) or {}
        sizes = {key: len(raw) for key, raw in opened.items() if bytes(raw[:1]) in _LARGE_STARTS}
        main = max(sizes, key=lambda key: sizes[key], default=None)
        if main is None or 2 * sizes[main] < sum(sizes.values()):
            return ()
        keys, value = (*keys, main), opened[main]
    is_empty = len(text) == len('""')
    return keys if not is_empty and _are_equal_strings(text, value) else ()


Nulls = Mapping[str, Any]
"""The members of an object that are null: `None`, or in an inner object its `Nulls`."""


def find_nulls(value: Buffer, blocks: Sequence[Buffer], scans: Scans) -> Sequence[Nulls]:
    """The members that are null in the items of an array and that the content blocks, which equal them, do not have.

    Version 1 of the Python SDK dumps blocks as structured content with all members that they can have. `value` is the
    array, or the only item.

    Returns:
        The members of each block, or once those of all blocks; empty if the value is not the blocks.
    """
    size = sum(map(len, blocks))
    if not size <= len(value) <= size + len(blocks) * _MAX_NULL_BYTES:
        return ()
    written = (scans.open_array(value) or ()) if bytes(value[:1]) == b"[" else (value,)
    if len(written) != len(blocks):
        return ()
    found = [_find_nulls(item, block, scans, depth=1) for item, block in zip(written, blocks, strict=True)]
    nulls = [of_block for of_block in found if of_block is not None]
    if len(nulls) < len(found):
        return ()
    if all(of_block == nulls[0] for of_block in nulls):
        return nulls[:1]
    return nulls if len(nulls) <= _MAX_DIFFERENT_NULLS else ()


def _find_nulls(written: Buffer, block: Buffer, scans: Scans, *, depth: int) -> Nulls | None:
    members, others = scans.open_object(written), scans.open_object(block)
    if members is None or others is None or not others.keys() <= members.keys():
        return None
    nulls: dict[str, Nulls | None] = {}
    for key, raw in members.items():
        if key not in others:
            if bytes(raw) != b"null":
                return None
            nulls[key] = None
        elif not are_equal(raw, others[key]):
            if not depth or not (inner := _find_nulls(raw, others[key], scans, depth=depth - 1)):
                return None
            nulls[key] = inner
    return nulls


def _compare_large(value: Buffer, texts: Sequence[Buffer], size: int) -> str:
    if size * _MAX_EXPANSION < len(value):
        return DIFFERS
    return SAME if len(texts) == 1 and _is_json_text_of_any_spacing(texts[0], value) else UNKNOWN


def _compare(value: Any, texts: Sequence[str]) -> str:
    if len(texts) == 1 and _is_text_of(texts[0], value):
        return SAME
    if not isinstance(value, list):
        return DIFFERS
    if _are_texts_of(texts, value):
        return ITEMS
    return LEAVES if _are_texts_of(texts, _find_leaves(value)) else DIFFERS


def _are_texts_of(texts: Sequence[str], items: Sequence[Any]) -> bool:
    with suppress(ValueError, ArithmeticError):  # a text is not JSON
        return len(texts) == len(items) and all(map(_is_text_of, texts, items))
    return False


def _find_leaves(value: Sequence[Any]) -> Sequence[Any]:
    """The items that are neither arrays nor null, also those of inner arrays, in their order.

    Version 1 of the Python SDK writes a text for each of them.
    """
    leaves: list[Any] = []
    pending: list[Any] = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, list):
            pending += reversed(item)
        elif item is not None:
            leaves.append(item)
    return leaves


def _is_json_text_of(literal: Buffer, value: Buffer) -> bool:
    """Whether a text is exactly the JSON text of a value; decoded only as far as they agree."""
    if bytes(value[:1]) == b'"':
        return False
    position = 0
    for piece in text_pieces(literal, trim(literal)):
        if bytes(value[position : position + len(piece)]) != piece:
            return False
        position += len(piece)
    return position == len(value)


def _is_json_text_of_any_spacing(literal: Buffer, value: Buffer) -> bool:
    """Whether a text is the JSON text of a value, with any white space."""
    if bytes(value[:1]) == b'"' or max(len(literal), len(value)) > _MAX_COMPACTED_BYTES:
        return False
    text = msgspec.json.decode(literal, type=str)
    compact = partial(msgspec.json.format, indent=-1)
    return text[:1] in _CONTAINER_STARTS and bool(compact(text.encode()) == compact(bytes(value)))


def _are_equal_strings(literal: Buffer, value: Buffer) -> bool:
    """Whether two JSON strings are the same text, with any escapes."""
    if bytes(value[:1]) != b'"':
        return False
    if are_equal(literal, value):
        return True
    pieces = (_split_evenly(text_pieces(string, trim(string))) for string in (literal, value))
    return all(piece == other for piece, other in zip_longest(*pieces))


def _split_evenly(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces of equal size, so that two sequences of pieces can be compared."""
    known = b""
    for piece in pieces:
        known += piece
        while len(known) >= COMPARED_BYTES:
            yield known[:COMPARED_BYTES]
            known = known[COMPARED_BYTES:]
    if known:
        yield known


def _is_text_of(text: str, value: Any) -> bool:
    """Whether a text equals a value as servers write it: a string unchanged, any other value as JSON."""
    return text == value if isinstance(value, str) else bool(parse_exact(text) == value)


def parse_exact(text: str | bytes) -> Any:
    """Parse JSON for comparison: numbers keep all digits and never equal a boolean.

    Raises:
        ArithmeticError: An exponent is larger than `Decimal` supports.
        ValueError: The text is not JSON.
    """
    return _EXACT.decode(text if isinstance(text, str) else str(text, "utf-8"))


def _parse_number(digits: str) -> tuple[str, Decimal]:
    return "number", Decimal(digits)


_EXACT: Final = json.JSONDecoder(parse_int=_parse_number, parse_float=_parse_number)
