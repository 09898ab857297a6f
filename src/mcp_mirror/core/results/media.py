"""Recognizes images, recordings and files in content blocks: media type, size and location of their base64.

Media are the blocks `ImageContent`, `AudioContent` and `EmbeddedResource` with a `blob` (MCP 2026-07-28). Another
module decides what a model is shown.
"""

import binascii
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

import msgspec

from mcp_mirror.payload.json_rpc import decode_as
from mcp_mirror.payload.json_spans import kind_at, members, members_with_offsets, spans_by_key, trim
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.types import Buffer, Location, Span

_SHOWN_TYPES: Final = (b'"image"', b'"audio"')
_RESOURCE: Final = b'"resource"'
_MEDIA_TYPES: Final = (*_SHOWN_TYPES, _RESOURCE)
_BASE64_EDGE: Final = 64
"""Bytes at each end of a text that decide whether it is base64."""
_EDGE_BYTES: Final = 1 << 12
"""Bytes at each end of a block that are searched for its type: only the base64 of a block is long."""
_HEAD_CHARACTERS: Final = 1 << 16
"""Characters of base64 that are decoded to find the pixel size: a JPEG may begin with a thumbnail."""


_DATA_URI: Final = lazy_pattern(rb"data:([\w.+-]{1,60}/[\w.+-]{1,60})(?:;[\w.=-]{1,60}){0,3};base64,")
_IS_BASE64: Final = lazy_pattern(rb"[A-Za-z0-9+/]+={0,2}")


class _ContentMembers(msgspec.Struct, frozen=True):
    """The members of a content block or of its resource. Any others, perhaps millions, are skipped."""

    type: msgspec.Raw = msgspec.Raw(b"")
    data: msgspec.Raw = msgspec.Raw(b"")
    mimeType: msgspec.Raw = msgspec.Raw(b"")  # noqa: N815  # the name of MCP
    resource: msgspec.Raw = msgspec.Raw(b"")
    blob: msgspec.Raw = msgspec.Raw(b"")
    text: msgspec.Raw = msgspec.Raw(b"")


_CONTENT: Final = msgspec.json.Decoder(_ContentMembers)
_MAX_MEMBERS: Final = 64
"""Members of an object above which it is parsed at once: a content block has fewer, with large texts."""
_PARSED: Final = 1 << 16
"""Bytes of a content block that is parsed at once, which is faster if it is small."""


class Media(msgspec.Struct, frozen=True):
    """One media block."""

    media_type: str | None
    encoded: Buffer
    """The base64 without quotes."""
    is_file: bool
    """The block is an embedded resource; models do not see its base64."""

    @property
    def size(self) -> int:
        """Decoded bytes."""
        padding = bytes(self.encoded[-2:]).count(b"=")
        return max(len(self.encoded) * 3 // 4 - padding, 0)

    @property
    def pixels(self) -> tuple[int, int] | None:
        """Width and height of a PNG, JPEG, GIF or WebP image; None for anything else."""
        head = bytes(self.encoded[: min(_HEAD_CHARACTERS, len(self.encoded)) & ~3])
        try:
            return _read_pixels(binascii.a2b_base64(head))
        except (ValueError, IndexError):
            return None


def read_media(block: Buffer) -> Media | None:
    """The media in a content block, JSON text; None for any other block."""
    return find_media(_open_block(block))


def find_base64(blob: Buffer, span: Span) -> Media | None:
    """The file in a JSON string at `span` that is a data URI or base64; None for any other text.

    Base64 without a media type counts if it begins as the files do that `detect_media_type` knows.
    """
    view = memoryview(blob)[span.start + 1 : span.stop - 1]
    uri = _DATA_URI.match(view[:_EDGE_BYTES])
    encoded = view[uri.end() :] if uri else view
    edges = bytes(encoded[:_BASE64_EDGE]), bytes(encoded[-_BASE64_EDGE:])
    if len(encoded) < _BASE64_EDGE or not all(map(_IS_BASE64.fullmatch, edges)):
        return None
    found = str(uri[1], "ascii") if uri else detect_media_type(binascii.a2b_base64(edges[0]))
    return None if found == _DEFAULT_MEDIA_TYPE and not uri else Media(found, encoded, is_file=True)


def has_content(block: Buffer) -> bool:
    """Whether an object, JSON text, is a content block with media or with an embedded text."""
    opened = _open_block(block)
    if find_media(opened) is not None:
        return True
    return opened.get("type") == _RESOURCE and _open(opened.get("resource", b"")).get("text", b"")[:1] == b'"'


def find_embedded_text(blob: Buffer, span: Span | None = None) -> Span | None:
    """The text of the embedded resource at `span`, a JSON string; None for any other value."""
    block = trim(blob, span)
    outer = _find_members(blob, block) if _may_be((_RESOURCE,), blob, block) else {}
    kind, resource = outer.get("type"), outer.get("resource")
    if kind is None or resource is None or bytes(blob[kind.start : kind.stop]) != _RESOURCE:
        return None
    found = _find_content(blob, _find_members(blob, resource), ("blob", "text"))
    return found[1] if found and found[0] == ("text",) else None


def locate_content(block: Buffer) -> tuple[Location, Span] | None:
    """The location and the span of the base64 or the text in a content block, a JSON string; None without any.

    A text is the member `text`; all others are base64.
    """
    outer = _find_members(block, trim(block))
    if found := _find_content(block, outer, ("data", "blob")):
        return found
    inner = _find_members(block, outer["resource"]) if "resource" in outer else {}
    found = _find_content(block, inner, ("blob", "text"))
    return (("resource", *found[0]), found[1]) if found else None


def _find_content(blob: Buffer, known: Mapping[str, Span], keys: Sequence[str]) -> tuple[Location, Span] | None:
    """The first of these members that is a JSON string."""
    found = (((key,), known[key]) for key in keys if key in known)
    return next((one for one in found if kind_at(blob, one[1].start) == "text"), None)


def _find_members(blob: Buffer, span: Span) -> Mapping[str, Span]:
    """The members of the object at a span; empty for any other value."""
    if kind_at(blob, span.start) != "object":
        return {}
    found = _find_few_members(blob, span)
    return spans_by_key(members(blob, span)) if found is None else found


def _find_few_members(blob: Buffer, span: Span) -> Mapping[str, Span] | None:
    """The members of the object at a span; None if it has more than content blocks have.

    They are found in pieces. A parser would keep the interpreter locked for a tenth of a second for 200 MB of base64.
    """
    found = [member for _, member in islice(members_with_offsets(blob, span), _MAX_MEMBERS + 1)]
    return spans_by_key(found) if len(found) <= _MAX_MEMBERS else None


def _may_be(kinds: tuple[bytes, ...], blob: Buffer, span: Span) -> bool:
    """Whether one of these types is near an end of a content block, so that the block is worth a scan."""
    head_stop, tail_start = min(span.start + _EDGE_BYTES, span.stop), max(span.stop - _EDGE_BYTES, span.start)
    edges = bytes(blob[span.start : head_stop]) + bytes(blob[tail_start : span.stop])
    return any(kind in edges for kind in kinds)


def _open_block(block: Buffer) -> Mapping[str, Buffer]:
    """The members of a content block; empty if it has neither media nor an embedded text."""
    return _open(block) if _may_be(_MEDIA_TYPES, block, Span(0, len(block))) else {}


def _open(text: Buffer) -> Mapping[str, Buffer]:
    """The members of an object that content blocks and their resources have; empty for any other text."""
    try:
        is_long = len(text) > _PARSED and kind_at(text, (whole := trim(text)).start) == "object"
        if is_long and (found := _find_few_members(text, whole)) is not None:
            view = memoryview(text)
            return {key: view[span.start : span.stop] for key, span in found.items()}
        opened = _CONTENT.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return {}
    return {name: view for name, raw in msgspec.structs.asdict(opened).items() if (view := memoryview(raw))}


def find_media(block: Mapping[str, Buffer]) -> Media | None:
    """The media in a parsed content block; None for any other block."""
    kind = bytes(block.get("type", b"")[:16])
    if kind in _SHOWN_TYPES:
        holder, encoded = block, block.get("data", b"")
    elif kind == _RESOURCE:
        holder = _open(block.get("resource", b""))
        encoded = holder.get("blob", b"")
    else:
        return None
    if bytes(encoded[:1]) != b'"':
        return None
    return Media(decode_as(holder.get("mimeType"), str), encoded[1:-1], is_file=kind == _RESOURCE)


def detect_media_type(data: bytes) -> str:
    """The media type by the first bytes, else `application/octet-stream`."""
    head = data[:16]
    for start, at, rest, found in _MAGIC:
        if head.startswith(start) and head[at:].startswith(rest):
            return found
    is_frame = len(head) > 2 and head[0] == 0xFF and head[1] in _MP3_SECOND_BYTES  # noqa: PLR2004  # sync and rates
    is_mpeg = is_frame and head[2] >> 4 not in (0, 15) and head[2] & 12 != 12  # noqa: PLR2004  # valid rates
    return "audio/mpeg" if is_mpeg else _DEFAULT_MEDIA_TYPE


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
"""First bytes of a file, further bytes at an offset, and the media type."""
_MP3_SECOND_BYTES: Final = (0xFA, 0xFB, 0xF2, 0xF3, 0xE2, 0xE3)
"""The second byte of an MP3 frame."""
_DEFAULT_MEDIA_TYPE: Final = "application/octet-stream"


def _read_pixels(data: bytes) -> tuple[int, int] | None:
    """The pixel size in an image's header.

    Sources: PNG (RFC 2083, 11.2.2), GIF89a (section 18), JPEG (ITU T.81, B.2.2), WebP (RFC 9649, 2.5 to 2.7).
    """
    match detect_media_type(data):
        case "image/png":
            return int.from_bytes(data[16:20]), int.from_bytes(data[20:24])
        case "image/gif":
            return int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
        case "image/jpeg":
            return _read_jpeg_pixels(data)
        case "image/webp":
            return _read_webp_pixels(data)
    return None


def _read_jpeg_pixels(data: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 < len(data) and data[at] == 0xFF:  # noqa: PLR2004  # the first byte of every marker
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # noqa: PLR2004  # the start-of-frame markers
            return int.from_bytes(data[at + 7 : at + 9]), int.from_bytes(data[at + 5 : at + 7])
        at += 2 + int.from_bytes(data[at + 2 : at + 4])
    return None


def _read_webp_pixels(data: bytes) -> tuple[int, int] | None:
    match data[12:16]:
        case b"VP8 ":
            return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF
        case b"VP8L":
            bits = int.from_bytes(data[21:25], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    return None
