"""What a Python function returned or raised, as the result of a tool.

A value is `structuredContent`, written once; a text that repeats it goes beside it where it is small enough to be read.
"""

from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Final, get_args

import mcp_types as types
import msgspec
from mcp.server.mcpserver import Audio, Image
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from mcp_mirror.capture import WRAPPER
from mcp_mirror.errors import MirrorError
from mcp_mirror.models import Buffer

OUTPUT_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"result": {}},
    "required": ["result"],
    WRAPPER: True,
}
"""Of every function: what it returns is the one member of the structured content, which must be an object."""

_SAID: Final = 1 << 20
"""Bytes of JSON up to which a text repeats a value, for who reads texts alone."""
_BLOCKS: Final = get_args(types.ContentBlock)

Result = Mapping[str, Buffer]
"""The members of a tool's result, JSON text."""


def result_of(value: object) -> Result:
    """The result that a returned value is.

    Args:
        value: Content blocks and results of the protocol are taken as they are, bytes as their base64, anything else
            as its JSON: dicts, lists, dataclasses, pydantic models, dates and so on. What is no number in JSON (NaN,
            infinity) is null.

    Raises:
        MirrorError: It has no JSON; the message says of what type it is.
    """
    if isinstance(value, types.CallToolResult):
        said = value.model_dump(mode="json", by_alias=True, exclude_none=True)
        return {key: _written(member) for key, member in said.items()}
    if (blocks := _blocks(value)) is not None:
        return {"content": _written(blocks)}
    raw = _written(_told(value))
    return {"content": _repeated(raw) if len(raw) <= _SAID else b"[]", "structuredContent": b'{"result":%b}' % raw}


def failure_of(tool: str, error: BaseException) -> Result:
    """The result of a function that raised: the kind and the words of what it raised, and nothing of where.

    An error of ours is told in its own words alone, which are written for a model.
    """
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    kind, said = type(error).__name__, str(error)
    words = said if isinstance(error, MirrorError) else f"{kind}: {said}" if said else kind
    told = f"{tool} failed: {words}"
    return {"content": _written([{"type": "text", "text": _readable(told)}]), "isError": b"true"}


def write_json(value: object) -> bytes:
    """The JSON of a Python value, as a function's arguments or results are written.

    Raises:
        MirrorError: It has none.
    """
    return _written(_told(value))


def _repeated(raw: bytes) -> bytes:
    """A text block with a value: a text as it is, anything else as its JSON."""
    return b'[{"type":"text","text":%b}]' % (raw if raw[:1] == b'"' else _written(raw.decode()))


def _told(value: object) -> object:
    return b64encode(value).decode() if isinstance(value, bytes | bytearray | memoryview) else value


def _blocks(value: object) -> list[Mapping[str, Any]] | None:
    """The content blocks that a value is: one, or a list in which there is any; None where it is data."""
    if isinstance(value, list | tuple):
        mixed = any(isinstance(part, (*_BLOCKS, Image, Audio)) for part in value)
        return [_block(part) for part in value] if mixed else None
    return [_block(value)] if isinstance(value, (*_BLOCKS, Image, Audio)) else None


def _block(part: object) -> Mapping[str, Any]:
    if isinstance(part, Image):
        part = part.to_image_content()
    elif isinstance(part, Audio):
        part = part.to_audio_content()
    if isinstance(part, BaseModel) and isinstance(part, _BLOCKS):
        return part.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {"type": "text", "text": part if isinstance(part, str) else write_json(part).decode()}


def _written(value: object) -> bytes:
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise MirrorError(
            f"A value of type {type(value).__name__} cannot be written as JSON: {error}. Turn it into dicts, lists, "
            "texts and numbers."
        ) from None


def _plain(value: object) -> object:
    """What the encoder does not know itself, in types that it does."""
    return value.model_dump(by_alias=True) if isinstance(value, BaseModel) else to_jsonable_python(value)


_ENCODER: Final = msgspec.json.Encoder(enc_hook=_plain)


def _readable(text: str) -> str:
    """A text without what no JSON can hold, such as half of a surrogate pair."""
    return text.encode("utf-8", "replace").decode()
