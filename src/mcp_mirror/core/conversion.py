"""Converts stored values to the JSON types that arguments accept.

A value that the argument accepts stays as it is, byte for byte. `_FORMS` is the table of the other conversions.
"""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from typing import Final

import msgspec

from mcp_mirror.core.amounts import quote_name
from mcp_mirror.core.results.media import find_embedded_text, locate_content, read_media
from mcp_mirror.core.texts.embedded_json import MAX_SEARCHED_BYTES, find_embedded_json
from mcp_mirror.errors import ToolError
from mcp_mirror.paths import MemoryPath
from mcp_mirror.payload.json_rpc import decode_as, is_json
from mcp_mirror.payload.json_spans import items, kind_at, trim
from mcp_mirror.payload.json_strings import text_start
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.types import Buffer, FileSpan, Kind, Location, Segments, Span

_HEAD_BYTES: Final = 1 << 12
"""Bytes of a text in which its first characters are looked for."""
_SHORT_BYTES: Final = 256
"""Bytes of a text that is decoded without a look at its first characters, in less time than that takes."""
_DIGITS: Final = "-0123456789"
_MAX_NAMED: Final = 200
"""Characters of a path or a location in an error message."""
_ORDER: Final = ("object", "array", "integer", "number", "boolean", "null", "string")
"""Target types by preference: structured forms first, text last."""
_MAX_BLOCKS: Final = 32
"""Content blocks among which media is looked for."""
_PIECE: Final = 1 << 20
"""Bytes of a value that are encoded at once."""
_NUMBER: Final = lazy_pattern(
    rb"-?(?P<whole>0|[1-9][0-9]*)(?:\.(?P<fraction>[0-9]+))?(?:[eE](?P<exponent>[+-]?[0-9]+))?"
)
_MAX_EXPONENT: Final = 18
"""Digits of an exponent above which no number is long enough to compensate it."""
_TYPES: Final[Mapping[Kind, frozenset[str]]] = {
    "object": frozenset({"object"}),
    "array": frozenset({"array"}),
    "text": frozenset({"string"}),
    "number": frozenset({"number"}),
    "boolean": frozenset({"boolean"}),
    "null": frozenset({"null"}),
    "binary": frozenset({"object"}),
}


class Resolved(msgspec.Struct, frozen=True):
    """A stored value, or a part of one."""

    path: MemoryPath
    blob: Buffer
    kind: Kind
    preview: bool = True
    """Notices may show parts of the value to a model."""
    file: FileSpan | None = None
    """The position in a file if the value is large and its store has files."""


Converter = Callable[[Resolved], Segments | None]


class MisfitError(ToolError):
    """The value of a memory path has no form that the argument accepts."""

    def __init__(self, value: Resolved, wanted: frozenset[str], location: Location) -> None:
        where = ".".join(str(token) for token in location)
        self.path = value.path
        self.location = location
        self.wanted = wanted
        """The JSON types that the argument accepts."""
        self.own = _types_of_value(value)
        """The JSON types of the value."""
        kind = "text" if value.kind == "binary" and find_embedded_text(value.blob) else value.kind
        self.cause = (
            f"Argument {quote_name(where, _MAX_NAMED)} expects {' or '.join(sorted(wanted))}, "
            f"but {quote_name(str(value.path), _MAX_NAMED)} is {kind}."
        )
        other = "a path below it" if value.kind in ("object", "array") else "another path"
        super().__init__(f"{self.cause} Pass {other} that fits, or a literal value.")


def coerce(value: Resolved, wanted: frozenset[str], location: Location) -> Segments:
    """Convert a value to a form that the argument accepts, unchanged if possible; ToolError if no form fits."""
    if not wanted or has_type(value, wanted):
        return (value.blob,)
    if (changed := convert(value, wanted)) is not None:
        return changed
    raise MisfitError(value, wanted, location)


def has_type(value: Resolved, wanted: frozenset[str]) -> bool:
    """Whether a value has one of the JSON types that an argument accepts."""
    return not wanted.isdisjoint(_types_of_value(value))


def fits(value: Resolved, wanted: frozenset[str]) -> bool:
    """Whether a value has a form of one of the JSON types that an argument accepts."""
    return has_type(value, wanted) or convert(value, wanted) is not None


def convert(value: Resolved, wanted: frozenset[str]) -> Segments | None:
    """Convert a value to the first accepted type in `_ORDER`; None if no form fits."""
    converters = (_FORMS.get((value.kind, target)) for target in _ORDER if target in wanted)
    forms = (converter(value) for converter in converters if converter is not None)
    return next((form for form in forms if form is not None), None)


def _types_of_value(value: Resolved) -> frozenset[str]:
    """The JSON Schema types of a value."""
    if value.kind == "number" and _is_integer(value.blob):
        return frozenset({"number", "integer"})
    return _TYPES[value.kind]


def _is_integer(text: Buffer) -> bool:
    """Whether a JSON number is an `integer` of JSON Schema, which counts its value: `1`, `1.0` and `1.5e1` are."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return False
    digits = match["whole"] + (match["fraction"] or b"")
    zeros = len(digits) - len(digits.rstrip(b"0"))
    exponent = match["exponent"] or b"0"
    if not digits.strip(b"0"):
        return True
    if len(exponent) > _MAX_EXPONENT:
        return not exponent.startswith(b"-")
    return zeros + int(exponent) >= len(match["fraction"] or b"")


def _convert_to_text(value: Resolved) -> Segments:
    """The JSON text as a string, encoded in pieces so that no lock is held for long."""
    pieces: list[bytes] = [b'"']
    position = 0
    while position < len(value.blob):
        end = min(position + _PIECE, len(value.blob))
        while end < len(value.blob) and value.blob[end] & 0xC0 == 0x80:  # noqa: PLR2004  # inside a UTF-8 sequence
            end -= 1
        pieces.append(msgspec.json.encode(str(value.blob[position:end], "utf-8"))[1:-1])
        position = end
    return (*pieces, b'"')


def _convert_array_to_text(value: Resolved) -> Segments | None:
    """The JSON text as a string; None for content blocks of which one is media, because the media itself is meant."""
    for item in islice(items(value.blob, trim(value.blob)), _MAX_BLOCKS):
        block = memoryview(value.blob)[item.start : item.stop]
        if kind_at(block, 0) == "object" and read_media(block):
            return None
    return _convert_to_text(value)


def _convert_binary_to_text(value: Resolved) -> Segments | None:
    """The base64 of an image, a recording or a resource; for a text resource its text."""
    found = locate_content(value.blob)
    return (memoryview(value.blob)[found[1].start : found[1].stop],) if found else None


def _parse_if(starts: str, matches: Callable[[bytes], bool], value: Resolved) -> Segments | None:
    """Parse a text as JSON whose bytes match. A longer text that begins with other characters is not decoded."""
    if (size := len(value.blob)) > _SHORT_BYTES:
        head = text_start(value.blob, Span(0, size), _HEAD_BYTES).strip()
        if head and head[0] not in starts:
            return None
    text = (decode_as(value.blob, str) or "").strip().encode()
    return (text,) if matches(text) and is_json(text) else None


def _parse_file(value: Resolved) -> Segments | None:
    """Parse the text of an embedded resource as an array."""
    span = find_embedded_text(value.blob)
    if span is None:
        return None
    text = memoryview(value.blob)[span.start : span.stop]
    return _parse_container("[", msgspec.structs.replace(value, blob=text, kind="text"))


def _parse_boolean(value: Resolved) -> Segments | None:
    """`true` or `false`, also as Python prints them: servers written in Python accept both."""
    if len(value.blob) > _HEAD_BYTES:
        return None
    text = text_start(value.blob, Span(0, len(value.blob)), _HEAD_BYTES).strip()
    return (text.lower().encode(),) if text in ("true", "false", "True", "False") else None


def _parse_container(first: str, value: Resolved) -> Segments | None:
    """Parse the text as the object or array that begins with `first`, or that makes up most of it below a heading.

    JSON lines are an array. Only a whole text is parsed at any size: a search in 100 MB would hold up the other calls.
    """
    whole = _parse_if(first, lambda text: text[:1] == first.encode(), value)
    if whole is not None or len(value.blob) > MAX_SEARCHED_BYTES:
        return whole
    found = find_embedded_json(value.blob, include_lines=True)
    is_most = found is not None and found[:1] == first.encode() and 2 * len(found) >= len(value.blob)
    return (found,) if found is not None and is_most else None


_FORMS: Final[Mapping[tuple[Kind, str], Converter]] = {
    ("object", "string"): _convert_to_text,
    ("array", "string"): _convert_array_to_text,
    ("number", "string"): _convert_to_text,
    ("boolean", "string"): _convert_to_text,
    ("binary", "string"): _convert_binary_to_text,
    ("binary", "array"): _parse_file,
    ("text", "object"): partial(_parse_container, "{"),
    ("text", "array"): partial(_parse_container, "["),
    ("text", "integer"): partial(_parse_if, _DIGITS, _is_integer),
    ("text", "number"): partial(_parse_if, _DIGITS, lambda text: _NUMBER.fullmatch(text) is not None),
    ("text", "boolean"): _parse_boolean,
    ("text", "null"): partial(_parse_if, "n", lambda text: text == b"null"),
}
