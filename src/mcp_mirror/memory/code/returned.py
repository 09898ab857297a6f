"""Encodes the value that a script returned as JSON, within a limit. Pure.

A small value can contain one list many times, which would be written again each time, so its size is bounded first.
"""

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import PurePath
from typing import Any, Final

import msgspec

from mcp_mirror.core.amounts import format_bytes
from mcp_mirror.errors import ToolError
from mcp_mirror.payload.json_bounds import has_more_values, is_deeper

_ITEM_BYTES: Final = 16
"""Bytes that each item counts at least."""
_MAX_DEPTH: Final = 190
"""Levels of nesting; the sandbox parses no deeper JSON."""
_CONTAINERS: Final = (list, tuple, set, frozenset)
_PIECE: Final = 3 << 18
"""Bytes that are encoded at once: a multiple of three, because base64 encodes three bytes together."""
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
        try:
            return b"".join(_write(value))
        except (TypeError, ValueError):
            return b"".join(_write(_to_plain(value)))
    except TypeError as error:
        raise ToolError(
            f"The script returned a {error}, which JSON has no form for. Return dicts, lists, texts and numbers."
        ) from None
    except ValueError:
        raise ToolError(
            f"The script returned an integer with more than {sys.get_int_max_str_digits():,} digits. Return a smaller "
            "number, such as its logarithm or a remainder."
        ) from None


def check_encoded(text: bytes, limit: int) -> bytes:
    """Return a value that the sandbox has encoded as JSON text; ToolError as for `encode_returned`."""
    if len(text) > limit or has_more_values(text, limit // _ITEM_BYTES):
        raise _build_size_error(limit)
    if is_deeper(text, _MAX_DEPTH):
        raise _build_depth_error()
    return text


def _check_size(value: object, limit: int) -> None:
    """Raise an error for a value over the limit, or with too many levels."""
    for depth, size in enumerate(_measure(value, limit)):
        if size > limit:
            raise _build_size_error(limit)
        if depth > _MAX_DEPTH:
            raise _build_depth_error()


def _build_size_error(limit: int) -> ToolError:
    return ToolError(
        f"The script returned more than {format_bytes(limit)} (`code.values`; each item counts {_ITEM_BYTES} bytes at "
        "least). Return less, such as a part or a summary."
    )


def _build_depth_error() -> ToolError:
    return ToolError(f"The script returned a value with more than {_MAX_DEPTH} levels. Return a flatter value.")


def _measure(value: object, limit: int) -> Iterator[int]:
    """Yield the size of all items down to each level of nesting, until it exceeds the limit."""
    size, level = 0, [value]
    while level and size <= limit:
        size += _ITEM_BYTES * len(level) + sum(len(item) for item in level if isinstance(item, str | bytes))
        yield size
        items: list[object] = []
        for container in level:
            if isinstance(container, dict):
                items += container.keys()
                items += container.values()
            elif isinstance(container, _CONTAINERS):
                items += container
            elif (attributes := _read_attributes(container)) is not None:
                items += attributes.values()
            if len(items) > limit // _ITEM_BYTES:
                break
        level = items


def _read_attributes(value: object) -> Mapping[str, Any] | None:
    """Return the attributes of an instance of a class of the script; None for other values."""
    attributes = getattr(value, "attributes", None)
    return attributes if type(value).__name__ == "MontyClassProxy" and isinstance(attributes, dict) else None


def _convert(value: object) -> object:
    """Return a value that the encoder does not know in types that it knows."""
    if (attributes := _read_attributes(value)) is not None:
        return attributes
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(type(value).__name__)


_encode_at_once: Final = msgspec.json.Encoder(enc_hook=_convert).encode


def _write(value: Any) -> Iterator[bytes]:
    """Yield the JSON text of a value; a large one in pieces: the encoder does not release the interpreter lock."""
    if _fits([value]):
        yield _encode_at_once(value)
        return
    attributes = _read_attributes(value)
    value = value if attributes is None else attributes
    if isinstance(value, str | bytes):
        yield b'"'
        for at in range(0, len(value), _PIECE):
            yield _encode_at_once(value[at : at + _PIECE])[1:-1]
        yield b'"'
    elif isinstance(value, dict):
        for number, members in enumerate(_split(value.items())):
            yield b"," if number else b"{"
            yield from _write_members(members)
        yield b"}"
    else:
        for number, items in enumerate(_split(value)):
            yield b"," if number else b"["
            if len(items) > 1:
                yield _encode_at_once(items)[1:-1]
            else:
                yield from _write(items[0])
        yield b"]"


def _write_members(members: Sequence[tuple[Any, Any]]) -> Iterator[bytes]:
    """Yield members of an object: several small ones, or one of any size."""
    if len(members) > 1:
        yield _encode_at_once(dict(members))[1:-1]
        return
    key, value = members[0]
    if isinstance(key, str):
        yield from _write(key)
    else:
        yield _encode_at_once({key: None})[len("{") : -len(":null}")]
    yield b":"
    yield from _write(value)


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
    return all(size <= _PIECE for size in _measure(items, _PIECE))


def _to_plain(value: object) -> Any:
    """Return a value with texts as keys, and without halves of surrogate pairs."""
    if (attributes := _read_attributes(value)) is not None:
        value = attributes
    if isinstance(value, dict):
        return {_to_key(key): _to_plain(item) for key, item in value.items()}
    if isinstance(value, _CONTAINERS):
        return [_to_plain(item) for item in value]
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _to_key(key: object) -> str:
    """Return a text as it is, any other key as its JSON text, such as `[1, 2]`."""
    encoded = msgspec.json.format(_encode_at_once(_to_plain(key)), indent=0)
    return msgspec.json.decode(encoded, type=str) if encoded.startswith(b'"') else encoded.decode()
