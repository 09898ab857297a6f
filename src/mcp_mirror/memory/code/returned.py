"""Encodes the value that a script returned as JSON, within a limit. Pure.

A small value can contain one list many times, which would be written again each time, so its size is bounded first.
"""

import json
import math
import sys
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from functools import partial
from itertools import islice
from pathlib import PurePath
from typing import Any, Final

import msgspec

from mcp_mirror.core.amounts import format_bytes
from mcp_mirror.errors import ToolError

_ITEM_BYTES: Final = 16
"""Bytes that each item counts at least."""
_MAX_DEPTH: Final = 190
"""Levels of nesting; the sandbox parses no deeper JSON."""
_CONTAINERS: Final = (list, tuple, set, frozenset)
_PIECE: Final = 3 << 18
"""Bytes that are encoded at once: the encoders do not release the interpreter lock. Base64 encodes 3 bytes together."""
_PIECE_ITEMS: Final = _PIECE // _ITEM_BYTES


def encode_returned(value: object, limit: int) -> bytes:
    """Return a value from the sandbox as JSON text of at most `limit` bytes, each item counting 16 at least.

    Tuples and sets become arrays, dates and decimals texts, bytes base64, NaN null; if the value itself is NaN, it
    becomes a text, because null is read as no value.

    Raises:
        ToolError: The value is too large, nested too deeply, or contains something that JSON has no form for.
    """
    _check_size(value, limit)
    if isinstance(value, float) and not math.isfinite(value):
        return msgspec.json.encode(str(value))
    try:
        return _encode(value, partial(msgspec.json.encode, enc_hook=_convert_known))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return _encode_plain(value)


def _check_size(value: object, limit: int) -> None:
    """Add up the sizes of all items, level by level, and raise an error at the limit or for too many levels."""
    size, level, depth = 0, [value], 0
    while level:
        size += _ITEM_BYTES * len(level) + sum(len(one) for one in level if isinstance(one, str | bytes))
        if size > limit:
            raise ToolError(
                f"The script returned more than {format_bytes(limit)} (`code.values`; each item counts "
                f"{_ITEM_BYTES} bytes at least). Return less, such as a part or a summary."
            )
        if depth > _MAX_DEPTH:
            raise ToolError(f"The script returned a value with more than {_MAX_DEPTH} levels. Return a flatter value.")
        level = _list_items(level, limit // _ITEM_BYTES)
        depth += 1


def _list_items(level: Iterable[object], most: int) -> list[object]:
    """Return the items of all containers of a level, and stop soon after `most` of them."""
    items: list[object] = []
    for one in level:
        if isinstance(one, dict):
            items += one.keys()
            items += one.values()
        elif isinstance(one, _CONTAINERS):
            items += one
        elif (attributes := _read_attributes(one)) is not None:
            items += attributes.values()
        if len(items) > most:
            break
    return items


def _read_attributes(value: object) -> Mapping[str, Any] | None:
    """Return the attributes of an instance of a class of the script; None for other values."""
    attributes = getattr(value, "attributes", None)
    return attributes if type(value).__name__ == "MontyClassProxy" and isinstance(attributes, dict) else None


_Encode = Callable[[object], bytes]
_Add = Callable[[bytes], None]


def _encode(value: object, encode: _Encode) -> bytes:
    """Encode a value; a large one in pieces, because the encoders do not release the interpreter lock."""
    pieces: list[bytes] = []
    _add_pieces(value, encode, pieces.append)
    return b"".join(pieces)


def _add_pieces(value: Any, encode: _Encode, add: _Add) -> None:
    """Add the JSON text of a value."""
    if _fits([value]):
        add(encode([value])[1:-1])
        return
    attributes = _read_attributes(value)
    value = value if attributes is None else attributes
    if isinstance(value, str | bytes):
        add(b'"')
        for at in range(0, len(value), _PIECE):
            add(encode(value[at : at + _PIECE])[1:-1])
        add(b'"')
    elif isinstance(value, dict):
        mark = b"{"
        for members in _split(value.items()):
            add(mark)
            _add_members(members, encode, add)
            mark = b","
        add(b"}")
    else:
        mark = b"["
        for items in _split(value):
            add(mark)
            if len(items) > 1:
                add(encode(items)[1:-1])
            else:
                _add_pieces(items[0], encode, add)
            mark = b","
        add(b"]")


def _add_members(members: Sequence[tuple[Any, Any]], encode: _Encode, add: _Add) -> None:
    """Add members of an object: several small ones, or one of any size."""
    if len(members) > 1:
        add(encode(dict(members))[1:-1])
        return
    key, value = members[0]
    if isinstance(key, str):
        _add_pieces(key, encode, add)
    else:
        add(encode({key: None})[len("{") : -len(":null}")])
    add(b":")
    _add_pieces(value, encode, add)


def _split(items: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield the items in lists that have the size of a piece at most, or one item."""
    source = iter(items)
    while batch := list(islice(source, _PIECE_ITEMS)):
        yield from _halve(batch)


def _halve(items: list[Any]) -> Iterator[list[Any]]:
    """Yield the halves of items that are too large, and their halves."""
    if len(items) == 1 or _fits(items):
        yield items
    else:
        half = len(items) // 2
        yield from _halve(items[:half])
        yield from _halve(items[half:])


def _fits(items: list[Any]) -> bool:
    """Whether items have the size of a piece at most."""
    try:
        _check_size(items, _PIECE)
    except ToolError:
        return False
    return True


def _convert_known(value: object) -> object:
    if (attributes := _read_attributes(value)) is not None:
        return attributes
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(type(value).__name__)


def _encode_plain(value: object) -> bytes:
    def encode(plain: object) -> bytes:
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")

    try:
        return _encode(_to_plain(value), encode)
    except ValueError:
        raise ToolError(
            f"The script returned an integer with more than {sys.get_int_max_str_digits():,} digits. Return a smaller "
            "number, such as its logarithm or a remainder."
        ) from None


def _to_plain(value: Any) -> Any:
    """Return a value in types that `json` encodes: for integers over 64 bits, and for keys of any type."""
    if isinstance(value, dict):
        return {_to_key(one): _to_plain(item) for one, item in value.items()}
    if isinstance(value, _CONTAINERS):
        return [_to_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, date | time | timedelta | Decimal | PurePath):
        return str(value)
    return b64encode(value).decode() if isinstance(value, bytes) else _convert_object(value)


def _to_key(key: object) -> str:
    plain = _to_plain(key)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _convert_object(value: object) -> Any:
    try:
        return _to_plain(_convert_known(value))
    except TypeError as error:
        raise ToolError(
            f"The script returned a {error}, which JSON has no form for. Return dicts, lists, texts and numbers."
        ) from None
