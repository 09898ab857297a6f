"""Values of a program: encodes arguments and values to store, and decodes stored values."""

import json
from base64 import b64decode
from collections.abc import Mapping
from typing import Any

import msgspec

from mcp_mirror.core.media import locate_content
from mcp_mirror.errors import MirrorError
from mcp_mirror.functions.results import encode_media, write_json
from mcp_mirror.memory.tools.save import NewValue
from mcp_mirror.memory.value_lookup import FoundValue


def build_value(value: object) -> NewValue:
    """Return a value of the program as a value to store; see `Mirror.put`."""
    media = encode_media(value)
    raw = write_json(value) if media is None else media
    return NewValue((raw,), is_content=media is not None, size=len(raw))


def encode_arguments(arguments: Mapping[str, Any] | str | bytes | None) -> bytes:
    """Return the arguments of a call as a JSON object.

    Raises:
        MirrorError: They are not a JSON object.
    """
    if isinstance(arguments, Mapping):
        return write_json(arguments)
    raw: Any = arguments.encode("utf-8", "replace") if isinstance(arguments, str) else arguments
    if not isinstance(raw, bytes | bytearray | None):  # the error names its JSON type
        raw = write_json(raw)
    raw = raw or b""
    try:
        msgspec.json.decode(raw.strip() or b"{}", type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MirrorError(f"The arguments are not a JSON object: {error}. Correct them and call again.") from None
    return raw.strip() or b"{}"


def to_python(value: FoundValue) -> Any:
    """Return the parsed JSON of a value; for media, the bytes or text of its content."""
    found = locate_content(value.blob) if value.kind == "binary" else None
    if found is None:
        return json.loads(bytes(value.blob))
    location, span = found
    content = json.loads(bytes(value.blob[span.start : span.stop]))
    return content if location[-1] == "text" else b64decode(content)
