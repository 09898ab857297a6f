"""Converts the return value or exception of a Python function to a tool result.

A value is `structuredContent`, encoded once; small values also get a text block that repeats them. Bytes and images
are content blocks.
"""

import dataclasses
import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, ValuesView
from collections.abc import Set as AbstractSet
from io import BytesIO
from itertools import chain
from typing import Any, Final

import mcp_types as types
import msgspec
from mcp.server.mcpserver import Audio, Image
from pydantic import BaseModel, PydanticUserError, TypeAdapter
from pydantic_core import PydanticSerializationError, to_jsonable_python

from mcp_mirror.core.results.media import detect_media_type
from mcp_mirror.core.results.parsed_result import WRAPPER
from mcp_mirror.errors import MirrorError, ToolError
from mcp_mirror.functions.dataframes import EncodedData, convert_scalar, find_form, is_scalar, write_data
from mcp_mirror.functions.reply import SCHEMA, Reply
from mcp_mirror.functions.result_types import BLOCKS, CONTENT, is_pillow_image
from mcp_mirror.payload.json_strings import replace_half_pairs
from mcp_mirror.types import Buffer

OUTPUT_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"result": {}},
    "required": ["result"],
    WRAPPER: True,
}
"""The output schema of every function: the return value is the only member of the structured content."""

_MAX_REPEATED_BYTES: Final = 1 << 20
"""Bytes of JSON up to which a text block repeats the value, for clients that read only text."""
_MAX_SMALL_ITEMS: Final = 64
"""Maximum items of a small list of scalars."""
_ATOMS: Final = frozenset({str, int, float, bool, type(None)})
_ENCODED_VALUES: Final = frozenset({dict, list, tuple, set, frozenset})
_SETS: Final = (set, frozenset)

Result = Mapping[str, Buffer]
"""The members of a tool's result, JSON text."""


def convert_result(value: object) -> Result:
    """Convert a return value to a result.

    Content blocks, results of the protocol and replies of other tools remain unchanged. Bytes and images become blocks
    of their media type. Iterators are consumed. Any other value becomes JSON: dicts, lists, dataclasses, pydantic
    models, tables, arrays, dates and so on. NaN and infinity become null.

    Raises:
        MirrorError: The value cannot be encoded; the message names its type.
    """
    if isinstance(value, types.CallToolResult):
        members = value.model_dump(mode="json", by_alias=True, exclude_none=True)
        return {key: _encode(member) for key, member in members.items()}
    if isinstance(value, Reply):
        given = value.content or ({"type": "text", "text": value.text},)
        return {"content": _encode(given), "isError": _encode(value.is_error)}
    value = _consume(value)
    if (blocks := _build_content_blocks(value)) is not None:
        return {"content": _encode(blocks)}
    written = _encode_data(value)
    raw = written.raw if written else _encode(value)
    meta = {"_meta": _encode({SCHEMA: written.schema})} if written and written.schema.get("shape") != [] else {}
    content = b"[]"
    if len(raw) <= _MAX_REPEATED_BYTES:  # a text unchanged, any other value as JSON
        content = b'[{"type":"text","text":%b}]' % (raw if raw[:1] == b'"' else _encode(raw.decode()))
    return {"content": content, "structuredContent": b'{"result":%b}' % raw, **meta}


def is_small(value: object) -> bool:
    """Whether a value is encoded so fast that it needs no thread: few items without items of their own."""
    if isinstance(value, dict):
        value = list(value.values()) if len(value) <= _MAX_SMALL_ITEMS else None
    elif not isinstance(value, list | tuple):
        value = [value]
    if value is None or len(value) > _MAX_SMALL_ITEMS:
        return False
    return all(
        type(part) in _ATOMS and not (isinstance(part, str) and len(part) > _MAX_REPEATED_BYTES) for part in value
    )


def convert_failure(tool: str, error: BaseException) -> Result:
    """The result of a function that raised an exception: its class and message without a traceback.

    A `MirrorError` contributes only its message, which is written for a model; that of a `ToolError` is the whole text.
    Of a group, each exception is named. The text is a result, because it may quote the arguments: it has their flow
    labels, and a model that may not see them gets its path.
    """
    text = _read_message(error) if isinstance(error, ToolError) else f"{tool} failed: {_describe_error(error)}"
    # The text with parts replaced that JSON cannot contain, such as lone surrogates.
    return {
        "content": _encode([{"type": "text", "text": text.encode("utf-8", "replace").decode()}]),
        "isError": b"true",
    }


def _describe_error(error: BaseException) -> str:
    """The class and the message of an exception; of a group, those of its exceptions too."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    kind, message = type(error).__name__, _read_message(error)
    if isinstance(error, MirrorError):
        return message
    described = f"{kind}: {message}" if message else kind
    if isinstance(error, BaseExceptionGroup):
        return f"{described}: {'; '.join(map(_describe_error, error.exceptions))}"
    return described


def _read_message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failure:  # noqa: BLE001  # the exception's own code failed
        return f"(its message cannot be read: {type(failure).__name__})"


def write_json(value: object) -> bytes:
    """Encode a Python value as JSON, as for a function's arguments or results; bytes become base64.

    Raises:
        MirrorError: The value cannot be encoded.
    """
    value = _consume(value)
    written = _encode_data(value)
    return written.raw if written else _encode(value)


def encode_arguments(arguments: Mapping[str, Any] | str | bytes | None) -> bytes:
    """Encode the arguments of a call as the JSON text of an object; a text is the JSON that a model wrote.

    Raises:
        MirrorError: The arguments are not an object, or contain a value that cannot be encoded.
    """
    if isinstance(arguments, Mapping):
        try:
            return write_json(arguments)
        except MirrorError as error:
            return write_cut_texts(arguments, error)
    given: Any = arguments.encode("utf-8", "replace") if isinstance(arguments, str) else arguments
    if not isinstance(given, bytes | bytearray | None):  # the error names its JSON type
        given = write_json(given)
    raw = bytes(given or b"").strip()
    if raw in (b"", b"null"):  # a model calls a tool without arguments
        return b"{}"
    try:
        try:
            _MEMBERS.decode(raw)
        except msgspec.DecodeError:
            raw = replace_half_pairs(raw)
            _MEMBERS.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MirrorError(f"The arguments are not a JSON object: {error}. Correct them and call again.") from None
    return raw


def write_cut_texts(arguments: Mapping[str, Any], error: MirrorError) -> bytes:
    """Encode arguments with U+FFFD in place of half of a surrogate pair, which models write when they cut an emoji.

    Raises:
        MirrorError: The given error, if the arguments contain values other than JSON's types.
    """
    try:
        return replace_half_pairs(json.dumps(dict(arguments), allow_nan=False).encode())
    except (TypeError, ValueError, RecursionError):
        raise error from None


def _consume(value: object) -> object:
    """The items of an iterator or the bytes of a file in memory; any other value unchanged."""
    if isinstance(value, BytesIO):
        return value.getvalue()
    return list(value) if isinstance(value, Iterator) else value


def encode_media(value: object) -> bytes | None:
    """The content block, as JSON, of bytes or of an image; None for any other value."""
    return _encode(_build_content_block(value)) if _is_media(value) else None


def _encode_data(value: object) -> EncodedData | None:
    """A table or an array as JSON; None for any other value."""
    if type(value) in _ENCODED_VALUES:
        return None
    if (form := find_form(type(value))) is not None:
        return write_data(value, form, _encode)
    if (view := _view_buffer(value)) is not None and view.format not in _BYTE_FORMATS:
        schema = {"type": type(value).__name__, "shape": list(view.shape or ()), "dtype": view.format}
        return EncodedData(_encode(view.tolist()), schema)
    return None


_BYTE_FORMATS: Final = ("B", "b", "c")
"""Formats of buffers that contain bytes."""


def _view_buffer(value: Any) -> memoryview | None:
    """The memory of a value that supports the buffer protocol, or of a file in memory; None for any other value."""
    try:
        return memoryview(value.getvalue() if isinstance(value, BytesIO) else value)
    except (TypeError, BufferError, ValueError):
        return None


def _is_media(value: object) -> bool:
    if is_pillow_image(type(value)):
        return True
    view = _view_buffer(value) if find_form(type(value)) is None else None
    return view is not None and view.format in _BYTE_FORMATS


def _build_content_blocks(value: object) -> list[Mapping[str, Any]] | None:
    """The content blocks of a value: of a block or of a list with at least one; None for data."""
    if not isinstance(value, list | tuple):
        return [_build_content_block(value)] if isinstance(value, CONTENT) or _is_media(value) else None
    if any(isinstance(part, CONTENT) or is_pillow_image(type(part)) for part in value):
        return [_build_content_block(part) for part in value]
    return None


def _build_content_block(part: object) -> Mapping[str, Any]:
    if isinstance(part, Image):
        part = part.to_image_content()
    elif isinstance(part, Audio):
        part = part.to_audio_content()
    if isinstance(part, BaseModel) and isinstance(part, BLOCKS):
        return part.model_dump(mode="json", by_alias=True, exclude_none=True)
    if is_pillow_image(type(part)):
        picture: Any = part
        file = BytesIO()
        picture.save(file, "PNG")
        return _build_media_block(file.getvalue())
    if (view := _view_buffer(part)) is not None and _is_media(part):
        return _build_media_block(view.tobytes())
    return {"type": "text", "text": part if isinstance(part, str) else write_json(part).decode()}


def _build_media_block(data: bytes) -> Mapping[str, Any]:
    media_type, encoded = detect_media_type(data), b64encode(data).decode()
    kind = media_type.partition("/")[0]
    if kind in ("image", "audio"):
        return {"type": kind, "data": encoded, "mimeType": media_type}
    uri = f"data:{media_type}"
    return {"type": "resource", "resource": {"uri": uri, "mimeType": media_type, "blob": encoded}}


def _encode(value: object) -> bytes:
    try:
        return _ENCODER.encode(_convert_parts(value))
    except UnicodeEncodeError:
        raise MirrorError(
            f"A value of type {type(value).__name__} cannot be encoded as JSON: a text has half of a surrogate pair, "
            'as in names of files that are not UTF-8. Replace it: text.encode(errors="replace").decode().'
        ) from None
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else error
        raise MirrorError(
            f"A value of type {type(value).__name__} cannot be encoded as JSON: {reason}. Convert it to dicts, lists, "
            "texts and numbers."
        ) from None


def _convert_parts(value: Any) -> Any:
    """The value with its named tuples as objects, its sets as sorted lists, and replies of calls as their paths.

    The encoder would encode named tuples as arrays, and sets in the order of their hashes, which differs in each run.
    """
    return _convert_part(value) if _has_convertible(value) else value


def _has_convertible(value: object) -> bool:
    """Whether a value contains a named tuple, a set or a reply at any depth, checked level by level: most do not."""
    if type(value) is dict and _ATOMS.issuperset(map(type, value.values())):  # as most arguments are
        return False
    parts, seen = [value], set[int]()
    while not _ATOMS.issuperset(map(type, parts)):
        level = {id(part): part for part in parts if type(part) not in _ATOMS and id(part) not in seen}
        kinds = set(map(type, level.values()))
        if any(issubclass(kind, (*_SETS, Reply)) or _is_named_tuple(kind) for kind in kinds):
            return True
        seen.update(level)
        parts = [part for kind in kinds for part in _list_direct_parts(kind, level.values())]
    return False


def _is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def _list_direct_parts(kind: type, values: Iterable[Any]) -> Iterable[Any]:
    """The direct parts of those values that are instances of one class."""
    of_kind: list[Any] = [value for value in values if type(value) is kind]
    if issubclass(kind, dict):
        return chain.from_iterable(value.values() for value in of_kind)
    if issubclass(kind, list | tuple):
        return chain.from_iterable(of_kind)
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
        return (getattr(value, name, None) for value in of_kind for name in names)
    return ()


def _convert_part(value: Any) -> Any:
    if _is_named_tuple(type(value)):
        return {name: _convert_part(part) for name, part in zip(value._fields, value, strict=True)}
    if isinstance(value, Reply):
        return _pass_on(value)
    items = _sort(value) if isinstance(value, _SETS) else value
    if isinstance(items, list | tuple):
        return [_convert_part(part) for part in items]
    if isinstance(value, dict):
        return {key: _convert_part(part) for key, part in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: _convert_part(getattr(value, name)) for name in names if hasattr(value, name)}
    return value


def _pass_on(reply: Reply) -> str:
    """The path of the result of a reply, or its text if it was not stored."""
    if reply.is_error:
        raise ValueError(f"the call of a reply in it failed: {reply.text.removesuffix('.')}")
    return reply.path or reply.text


def _sort(items: Iterable[Any]) -> list[Any]:
    """The items of a set, sorted if their types have an order."""
    listed = list(items)
    try:
        return sorted(listed)
    except TypeError:
        return listed


_KEYS: Final[Mapping[object, str]] = {None: "null", True: "true", False: "false"}
"""The keys for which `json` writes these texts, and the encoder asks."""


def _convert_unknown(value: object) -> object:
    """Convert a value or a key of an unknown type to types that the encoder knows."""
    if value is None or isinstance(value, bool):
        return _KEYS[value]
    if type(value) in _ENCODED_VALUES:  # the encoder asks for these only as keys
        raise TypeError(f"a key is a {type(value).__name__}, and JSON's keys are texts")
    if isinstance(value, BaseModel):
        return _convert_parts(value.model_dump(by_alias=True))
    if is_scalar(type(value)):
        return convert_scalar(value)
    if (written := _encode_data(value)) is not None:  # a scalar may be a key
        return json.loads(written.raw) if written.schema.get("shape") == [] else msgspec.Raw(written.raw)
    if (view := _view_buffer(value)) is not None:
        return view.tobytes()
    turn = next((turn for kinds, turn in _CONTAINERS if isinstance(value, kinds)), _convert_by_pydantic)
    return _convert_parts(turn(value))


def _convert_sequence(value: Any) -> object:
    """A row of a database whose columns have names, such as `sqlite3.Row`, as an object; another sequence as a list."""
    kind = type(value)
    if hasattr(kind, "_fields"):  # SQLAlchemy
        names = list(value._fields)
    elif hasattr(kind, "keys"):
        names = value.keys()
    else:
        return list(value)
    named = dict(zip(names, value, strict=True))
    if len(named) < len(names):
        raise ValueError("two columns of a row have the same name")
    return named


_CONTAINERS: Final[tuple[tuple[Any, Callable[[Any], object]], ...]] = (
    (str, str.__str__),
    (Mapping, dict),
    ((tuple, AbstractSet, ValuesView, Iterator), list),
    (Sequence, _convert_sequence),
)


def _convert_by_pydantic(value: object) -> object:
    """Convert a value by pydantic: by its type, else by the serializer of its class."""
    try:
        return to_jsonable_python(value)
    except PydanticSerializationError as error:
        try:
            return TypeAdapter(type(value)).dump_python(value, mode="json")
        except PydanticUserError:
            raise error from None


_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENCODER: Final = msgspec.json.Encoder(enc_hook=_convert_unknown)
