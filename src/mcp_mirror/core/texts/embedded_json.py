"""Finds the JSON in a text: after a heading, in a code block, several in a row, or as Python prints it."""

import re
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from mcp_mirror.core.texts.formats import FOOTER, PYTHON_LITERAL, find_format, is_heading, read_edges
from mcp_mirror.core.texts.python_literals import replace_nan, translate_python_literal
from mcp_mirror.payload.json_rpc import decode_as
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.types import Buffer, Span

MAX_SEARCHED_BYTES: Final = 1 << 20
"""Bytes of a text in which callers outside a worker process look for JSON."""
_HEAD: Final = 4000
"""Characters in which JSON after a heading begins."""
_CONTAINER: Final = lazy_pattern(r"^[ \t]*\"?[\[{]", re.MULTILINE)
"""The first line of an object or an array, also in a JSON string."""
_NEXT_CONTAINER: Final = lazy_pattern(r"\n[ \t]*[\[{]")
_NEXT_START: Final = lazy_pattern(r"\n(?=[\[{])")
"""The line end before the next of several objects and arrays."""
_LINES: Final = msgspec.json.Decoder(msgspec.Raw)
_MAX_QUOTED: Final = 1 << 26
"""Bytes of a text in a JSON string."""
_QUOTED: Final = b'"\\"'
"""The beginning of such a text as JSON."""
_MAX_STARTS: Final = 4
"""Lines that are tried as the beginning of JSON."""


def find_embedded_json(blob: Buffer, *, include_lines: bool = False) -> bytes | None:
    """The object or array in a JSON string: its whole text, or most of it after a heading; None for any other value.

    Lines may follow that contain no further object or array, such as the end of a code block. A list or dictionary as
    Python prints it, and JSON with NaN, count as an array or object.

    With `include_lines`, several objects and arrays, each of which begins a line, count as one array, as in JSON lines;
    also below a heading that ends with an empty line or a colon, and with a few lines below an empty one.
    """
    text: str | None = decode_as(blob, str)
    if text is None:
        return None
    text = text.removeprefix("\ufeff")  # the byte order mark of a file
    for match in islice(_CONTAINER.finditer(text, 0, _HEAD), _MAX_STARTS):
        rest = text[match.start() :]
        if (found := read_container(rest)) is not None:
            return found
        found, below = _split_container(rest)
        if found is not None:
            is_most = 2 * (len(rest) - len(below)) >= len(text)
            if _NEXT_CONTAINER.search(below) is None:
                return found if is_most else None
            return _read_rows(rest) if include_lines and is_heading(text[: match.start()]) else None
    return None


def find_quoted_text(blob: Buffer) -> bytes | None:
    """The text of a value, a JSON string, that is itself a JSON string of several lines; None for any other value.

    `JSON.stringify` and `json.dumps` write a text so. Larger values than `_MAX_QUOTED` are not decoded.
    """
    if len(blob) > _MAX_QUOTED or not bytes(blob[: len(_QUOTED)]).startswith(_QUOTED):
        return None
    text: str | None = decode_as(blob, str)
    bare = (text or "").strip().encode()
    inner: str | None = decode_as(bare, str)
    return bare if inner and "\n" in inner else None


class EmbeddedData(NamedTuple):
    """The object or array in a text, for an error that names the query in its place."""

    description: str
    """The text, as the error names it."""
    is_object: bool


def describe_embedded_data(blob: Buffer, span: Span) -> EmbeddedData | None:
    """Describe the JSON string at `span` if it contains an object or array.

    A text above `MAX_SEARCHED_BYTES` is judged by its beginning and its end.
    """
    edges = read_edges(blob, span)
    if find_format(edges) == PYTHON_LITERAL:
        return EmbeddedData("text, as Python prints it", edges.head.lstrip().startswith("{"))
    found = find_embedded_json(blob[span.start : span.stop]) if span.length <= MAX_SEARCHED_BYTES else None
    return EmbeddedData("text that contains JSON", found.startswith(b"{")) if found else None


def _split_container(text: str) -> tuple[bytes | None, str]:
    """The object or array in the first of several lines, or up to the line of its closing bracket, and the rest."""
    line, newline, _ = text.partition("\n")
    if not newline:
        return None, ""
    if (found := read_container(line)) is not None:
        return found, text[len(line) :]
    indent = line[: len(line) - len(line.lstrip(" \t"))]
    if (last := re.search(rf"\n{indent}[\]}}][ \t\r]*(?=\n|\Z)", text)) is None:
        return None, ""
    return read_container(text[: last.end()]), text[last.end() :]


def _read_rows(text: str) -> bytes | None:
    """The array of several objects and arrays, which a few lines may follow; None for any other text."""
    found = _read_several(text)
    if found is None and (footer := FOOTER.search(text)) and not _NEXT_CONTAINER.search(footer[0]):
        return _read_several(text[: footer.start()])
    return found


def _read_several(text: str) -> bytes | None:
    """The array of several objects and arrays, each of which begins a line; None for any other text."""
    parts = _NEXT_START.split(text.strip())
    values: list[bytes | None]
    try:  # JSON, in a third of the time
        values = [bytes(value) for value in _LINES.decode_lines(replace_nan(text).encode())]
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        values = [read_container(part) for part in parts]
    lines = sum(1 for line in text.split("\n") if line.strip())
    found = [value for value in values if value and value.startswith((b"{", b"["))]
    return b"[" + b",".join(found) + b"]" if len(found) == len(values) and len(values) in (lines, len(parts)) else None


def read_container(text: str) -> bytes | None:
    """A text that is an object or an array as JSON; None for any other text.

    It may be written as Python prints it, or as a JSON string, as `JSON.stringify` of a browser's result makes it.
    """
    if text.lstrip()[:2] in ('"[', '"{'):
        inner: str | None = decode_as(text.strip().encode("utf-8", "surrogatepass"), str)
        return read_json_container(inner or "")
    return read_json_container(text) or translate_python_literal(text)


def read_json_container(text: str) -> bytes | None:
    """A text that is a JSON object or array, without white space around it; None for any other text."""
    bare = text.strip()
    if not bare.startswith(("{", "[")):
        return None
    try:
        found = bare.encode()
        msgspec.json.decode(found, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    return found
