"""Raster images in stored values: recognized by their bytes, never by the media type that an upstream declared."""

import base64
import binascii
from typing import Final

from mcp_mirror.core.media import read_media
from mcp_mirror.types import Buffer

MAX_IMAGE_BYTES: Final = 20 << 20
"""The largest image that the page shows, decoded."""


def find_raster_type(data: bytes) -> str | None:
    """Return the media type of a raster image by its first bytes; None for anything else, such as SVG."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return "image/gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return None


def peek_raster_type(block: Buffer) -> str | None:
    """Return the media type of the image in a content block; None if it has none or is too large."""
    media = read_media(block)
    if media is None or media.size > MAX_IMAGE_BYTES:
        return None
    try:
        return find_raster_type(binascii.a2b_base64(bytes(media.encoded[:32])))
    except binascii.Error:
        return None


def decode_image(block: Buffer) -> tuple[str, bytes] | None:
    """Return the media type and the bytes of the image in a content block; None without a raster image."""
    media_type, media = peek_raster_type(block), read_media(block)
    if media is None or media_type is None:
        return None
    try:
        return media_type, base64.b64decode(bytes(media.encoded), validate=True)
    except binascii.Error:
        return None
