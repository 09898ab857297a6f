"""What a Python function returned or raised, as the result of a tool.

A value is `structuredContent`, written once; a text that repeats it goes beside it where it is small enough to be read.
Bytes and pictures are content blocks.
"""

import dataclasses
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from io import BytesIO
from itertools import chain
from typing import Any, Final

import mcp_types as types
import msgspec
from mcp.server.mcpserver import Audio, Image
from pydantic import BaseModel, PydanticUserError, TypeAdapter
from pydantic_core import PydanticSerializationError, to_jsonable_python

from mcp_mirror.core.capture import WRAPPER
from mcp_mirror.errors import MirrorError
from mcp_mirror.functions.dataframes import Written, form_of, is_scalar, scalar_of, write_data
from mcp_mirror.functions.reply import SCHEMA
from mcp_mirror.functions.result_types import BLOCKS, CONTENT, is_picture
from mcp_mirror.types import Buffer

OUTPUT_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"result": {}},
    "required": ["result"],
    WRAPPER: True,
}
"""Of every function: what it returns is the one member of the structured content, which must be an object."""

_SAID: Final = 1 << 20
"""Bytes of JSON up to which a text repeats a value, for who reads texts alone."""
_FEW: Final = 64
"""Items up to which a list of scalars is small."""
_ATOMS: Final = frozenset({str, int, float, bool, type(None)})

Result = Mapping[str, Buffer]
"""The members of a tool's result, JSON text."""


def result_of(value: object) -> Result:
    """The result that a returned value is.

    Args:
        value: Content blocks and results of the protocol are taken as they are. Bytes and pictures are blocks of their
            media type. Iterators are read to their end. Anything else is its JSON: dicts, lists, dataclasses, pydantic
            models, tables, arrays, dates and so on. NaN and infinity are null.

    Raises:
        MirrorError: It has no JSON; the message says of what type it is.
    """
    if isinstance(value, types.CallToolResult):
        said = value.model_dump(mode="json", by_alias=True, exclude_none=True)
        return {key: _written(member) for key, member in said.items()}
    value = _read_through(value)
    if (blocks := _blocks(value)) is not None:
        return {"content": _written(blocks)}
    written = _data(value)
    raw = written.raw if written else _written(value)
    meta = {"_meta": _written({SCHEMA: written.schema})} if written and written.schema.get("shape") != [] else {}
    content = _repeated(raw) if len(raw) <= _SAID else b"[]"
    return {"content": content, "structuredContent": b'{"result":%b}' % raw, **meta}


def is_small(value: object) -> bool:
    """Whether a value is written so fast that no thread is needed: few items, none of which has items."""
    if isinstance(value, dict):
        value = list(value.values()) if len(value) <= _FEW else None
    elif not isinstance(value, list | tuple):
        value = [value]
    if value is None or len(value) > _FEW:
        return False
    return all(type(part) in _ATOMS and not (isinstance(part, str) and len(part) > _SAID) for part in value)


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
    """The JSON of a Python value, as a function's arguments or results are written; bytes are base64.

    Raises:
        MirrorError: It has none.
    """
    value = _read_through(value)
    written = _data(value)
    return written.raw if written else _written(value)


def _read_through(value: object) -> object:
    """The items of an iterator, the bytes of a file in memory; any other value as it is."""
    if isinstance(value, BytesIO):
        return value.getvalue()
    return list(value) if isinstance(value, Iterator) else value


def media_of(value: object) -> bytes | None:
    """The content block, as JSON, of bytes or of a picture; None for any other value."""
    return _written(_block(value)) if _is_media(value) else None


def media_type_of(data: bytes) -> str:
    """The media type that the first bytes tell, else `application/octet-stream`."""
    head = data[:16]
    for start, at, rest, found in _MAGIC:
        if head.startswith(start) and head[at:].startswith(rest):
            return found
    is_mpeg = len(head) > 2 and head[0] == 0xFF and head[1] in _LAYER_3  # noqa: PLR2004  # two bytes, and one of rates
    return "audio/mpeg" if is_mpeg and head[2] >> 4 not in (0, 15) and head[2] & 12 != 12 else _UNKNOWN  # noqa: PLR2004


_MAGIC: Final = (
    (b"\x89PNG\r\n\x1a\n", 0, b"", "image/png"),
    (b"\xff\xd8\xff", 0, b"", "image/jpeg"),
    (b"GIF87a", 0, b"", "image/gif"),
    (b"GIF89a", 0, b"", "image/gif"),
    (b"RIFF", 8, b"WEBP", "image/webp"),
    (b"RIFF", 8, b"WAVE", "audio/wav"),
    (b"ID3", 0, b"", "audio/mpeg"),
    (b"%PDF-", 0, b"", "application/pdf"),
)
"""What a file begins with, what it has at an offset, and its media type."""
_LAYER_3: Final = (0xFA, 0xFB, 0xF2, 0xF3, 0xE2, 0xE3)
"""The second byte of a frame of MP3."""
_UNKNOWN: Final = "application/octet-stream"


def _data(value: object) -> Written | None:
    """A table or an array as JSON; None for any other value."""
    if (form := form_of(type(value))) is not None:
        return write_data(value, form, _written)
    if _is_buffer(value):
        view = memoryview(value)  # type: ignore[arg-type]  # it has the buffer protocol
        if view.format not in _BYTES:
            schema = {"type": type(value).__name__, "shape": list(view.shape or ()), "dtype": view.format}
            return Written(_written(view.tolist()), schema)
    return None


_BYTES: Final = ("B", "b", "c")
"""Formats of buffers that are bytes."""


def _is_buffer(value: object) -> bool:
    try:
        memoryview(value).release()  # type: ignore[arg-type]  # that is the question
    except (TypeError, BufferError, ValueError):
        return False
    return True


def _is_media(value: object) -> bool:
    if is_picture(type(value)):
        return True
    return form_of(type(value)) is None and _is_buffer(value) and memoryview(value).format in _BYTES  # type: ignore[arg-type]


def _repeated(raw: bytes) -> bytes:
    """A text block with a value: a text as it is, anything else as its JSON."""
    return b'[{"type":"text","text":%b}]' % (raw if raw[:1] == b'"' else _written(raw.decode()))


def _blocks(value: object) -> list[Mapping[str, Any]] | None:
    """The content blocks that a value is: one, or a list in which there is any; None where it is data."""
    if isinstance(value, list | tuple):
        mixed = any(isinstance(part, CONTENT) or is_picture(type(part)) for part in value)
        return [_block(part) for part in value] if mixed else None
    return [_block(value)] if isinstance(value, CONTENT) or _is_media(value) else None


def _block(part: object) -> Mapping[str, Any]:
    if isinstance(part, Image):
        part = part.to_image_content()
    elif isinstance(part, Audio):
        part = part.to_audio_content()
    if isinstance(part, BaseModel) and isinstance(part, BLOCKS):
        return part.model_dump(mode="json", by_alias=True, exclude_none=True)
    if is_picture(type(part)):
        return _media_block(_png_of(part))
    if _is_media(part):
        return _media_block(memoryview(part).tobytes())  # type: ignore[arg-type]  # it has the buffer protocol
    return {"type": "text", "text": part if isinstance(part, str) else write_json(part).decode()}


def _media_block(data: bytes) -> Mapping[str, Any]:
    media_type, encoded = media_type_of(data), b64encode(data).decode()
    kind = media_type.partition("/")[0]
    if kind in ("image", "audio"):
        return {"type": kind, "data": encoded, "mimeType": media_type}
    uri = f"data:{media_type}"
    return {"type": "resource", "resource": {"uri": uri, "mimeType": media_type, "blob": encoded}}


def _png_of(picture: Any) -> bytes:
    file = BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def _written(value: object) -> bytes:
    try:
        return _ENCODER.encode(_named(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise MirrorError(
            f"A value of type {type(value).__name__} cannot be written as JSON: {error}. Turn it into dicts, lists, "
            "texts and numbers."
        ) from None


def _named(value: Any) -> Any:
    """A value with its named tuples as objects; the encoder would write them as arrays."""
    return _with_objects(value) if _has_named_tuple(value) else value


def _has_named_tuple(value: object) -> bool:
    """Whether there is a named tuple in a value, at any depth; level by level, since most values have none."""
    parts, seen = [value], set[int]()
    while not _ATOMS.issuperset(map(type, parts)):
        level = {id(part): part for part in parts if type(part) not in _ATOMS and id(part) not in seen}
        kinds = set(map(type, level.values()))
        if any(issubclass(kind, tuple) and hasattr(kind, "_fields") for kind in kinds):
            return True
        seen |= level.keys()
        parts = [part for kind in kinds for part in _parts_of(kind, level.values())]
    return False


def _parts_of(kind: type, values: Iterable[Any]) -> Iterable[Any]:
    """What is in those values that are of one class."""
    of_kind: list[Any] = [value for value in values if type(value) is kind]
    if issubclass(kind, dict):
        return chain.from_iterable(value.values() for value in of_kind)
    if issubclass(kind, list | tuple):
        return chain.from_iterable(of_kind)
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
        return (getattr(value, name, None) for value in of_kind for name in names)
    return ()


def _with_objects(value: Any) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: _with_objects(part) for name, part in zip(value._fields, value, strict=True)}
    if isinstance(value, list | tuple):
        return [_with_objects(part) for part in value]
    if isinstance(value, dict):
        return {key: _with_objects(part) for key, part in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.name[:1] != "_"]
        return {name: _with_objects(getattr(value, name)) for name in names if hasattr(value, name)}
    return value


def _plain(value: object) -> object:
    """What the encoder does not know itself, in types that it does."""
    if isinstance(value, BaseModel):
        return _named(value.model_dump(by_alias=True))
    if is_scalar(type(value)):
        return scalar_of(value)
    if (written := _data(value)) is not None:
        return msgspec.Raw(written.raw)
    if _is_buffer(value):
        return memoryview(value).tobytes()  # type: ignore[arg-type]  # it has the buffer protocol
    turn = next((turn for kinds, turn in _CONTAINERS if isinstance(value, kinds)), _dumped)
    return _named(turn(value))


_CONTAINERS: Final[tuple[tuple[Any, Callable[[Any], object]], ...]] = (
    (str, str.__str__),
    (Mapping, dict),
    ((Sequence, AbstractSet, Iterator), list),
)


def _dumped(value: object) -> object:
    """What pydantic makes of it: by what it is, else by how its class says that it is written."""
    try:
        return to_jsonable_python(value)
    except PydanticSerializationError as error:
        try:
            return TypeAdapter(type(value)).dump_python(value, mode="json")
        except PydanticUserError:
            raise error from None


_ENCODER: Final = msgspec.json.Encoder(enc_hook=_plain)


def _readable(text: str) -> str:
    """A text without what no JSON can hold, such as half of a surrogate pair."""
    return text.encode("utf-8", "replace").decode()
