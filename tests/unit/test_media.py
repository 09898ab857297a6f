"""Media blocks, and the size of an image in pixels."""

import base64
import json
import struct
import time
from typing import Any

import pytest

from mcp_mirror.core.results.media import find_embedded_text, find_media, has_content, locate_content, read_media
from mcp_mirror.core.results.preview import describe_media

PNG = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 1280, 720) + b"\x08\x02\x00\x00\x00"
GIF = b"GIF89a" + struct.pack("<HH", 320, 200) + b"\x00" * 8
JPEG = (
    b"\xff\xd8"
     b"\xff\xe0\x00\x10" + b"\x00" * 14
    + b"\xff\xc4\x00\x04\x00\x00"
    + b"\xff\xc0\x00\x11\x08" + struct.pack(">HH", 600, 800) + b"\x00" * 20
)  # fmt: skip
LOSSY = b"RIFF\x00\x00\x00\x00WEBPVP8 " + b"\x00" * 10 + struct.pack("<HH", 640, 480) + b"\x00" * 4
LOSSLESS = b"RIFF\x00\x00\x00\x00WEBPVP8L" + b"\x00" * 4 + b"\x2f" + struct.pack("<I", 99 | 49 << 14) + b"\x00" * 4
EXTENDED = b"RIFF\x00\x00\x00\x00WEBPVP8X" + b"\x00" * 8 + b"\x0f\x00\x00" + b"\x1f\x00\x00" + b"\x00" * 4


def block(data: bytes, kind: str = "image", **more: Any) -> bytes:
    return json.dumps({"type": kind, "data": base64.b64encode(data).decode(), "mimeType": "image/x", **more}).encode()


@pytest.mark.parametrize(
    ("data", "pixels"),
    [
        (PNG, (1280, 720)),
        (GIF, (320, 200)),
        (JPEG, (800, 600)),
        (LOSSY, (640, 480)),
        (LOSSLESS, (100, 50)),
        (EXTENDED, (16, 32)),
        (b"RIFF\x00\x00\x00\x00WEBPALPH" + b"\x00" * 20, None),
        (b"\xff\xd8\xff\xe0\x00\x10" + b"\x00" * 14 + b"not a marker", None),
        (b"\x89PNG\r\n\x1a\n", (0, 0)),
        (b"plain", None),
        (b"", None),
    ],
)
def test_the_pixel_size_is_read_from_the_header(data: bytes, pixels: tuple[int, int] | None) -> None:
    media = read_media(block(data))
    assert media is not None
    assert media.pixels == pixels
    assert media.size == len(data)


def test_invalid_base64_has_no_pixel_size() -> None:
    media = read_media(b'{"type":"image","data":"=not base64=","mimeType":"image/png"}')
    assert media is not None
    assert media.pixels is None


@pytest.mark.parametrize(
    "raw",
    [
        b'{"type":"text","text":"image"}',
        b'{"type":"image","data":5}',
        b'{"type":"image"}',
        b'{"type":"resource","resource":{"uri":"u","text":"x"}}',
        b'{"type":"resource","resource":5}',
        b'{"kind":"image"}',
        b'["image"]',
        b"[]",
    ],
)
def test_other_blocks_are_not_media(raw: bytes) -> None:
    assert read_media(raw) is None


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'{"type":"resource","resource":{"uri":"u","text":"x"}}', True),
        (b'{"type":"resource","resource":{"uri":"u","blob":"eA=="}}', True),
        (b'{"type":"image","data":"eA=="}', True),
        (b'{"type":"resource","resource":{"uri":"u"}}', False),
        (b'{"type":"resource","resource":5}', False),
        (b'{"type":"image","resource":{"uri":"u","text":"x"}}', False),
        (b'{"kind":"resource","resource":{"uri":"u","text":"x"}}', False),
        (b'{"type":"resource","resource":{"uri":"u","blob":5,"text":"x"}}', True),
        (b'{"type":"resource","resource":{"uri":"u","text":5}}', False),
        (b'{"type":"resource"}', False),
        (b'{"text":"x"}', False),
    ],
)
def test_content_is_media_or_an_embedded_text(raw: bytes, expected: bool) -> None:  # noqa: FBT001  # a parameter
    assert has_content(raw) is expected


def test_an_embedded_file_is_media_that_models_do_not_see() -> None:
    raw = b'{"type":"resource","resource":{"uri":"u","blob":"aGVsbG8=","mimeType":"application/pdf"}}'
    media = read_media(raw)
    assert media is not None
    assert (media.is_file, media.media_type, media.size, bytes(media.encoded)) == (
        True,
        "application/pdf",
        5,
        b"aGVsbG8=",
    )
    assert describe_media(media) == "application/pdf, 5 B"


def test_a_picture_is_described_by_type_pixels_and_size() -> None:
    media = find_media({"type": b'"image"', "data": b'"' + base64.b64encode(PNG) + b'"', "mimeType": b"null"})
    assert media is not None
    assert describe_media(media) == f"file, 1280x720, {len(PNG)} B"


def test_a_type_behind_a_large_picture_is_found() -> None:
    raw = b'{"data":"' + b"A" * 100_000 + b'","mimeType":"image/png","type":"image"}'
    assert read_media(raw) is not None


@pytest.mark.parametrize("raw", [b'{"type":"image",%b}', b'{"type":"resource","resource":{"uri":"u",%b}}'])
def test_millions_of_other_members_of_a_block_are_skipped(raw: bytes) -> None:
    raw %= b",".join(b'"k%d":%d' % (at, at) for at in range(1_000_000))
    started = time.process_time()
    assert not has_content(raw)
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (b'{"type":"image","data":"QQ=="}', (("data",), b'"QQ=="')),
        (b'{"type":"resource","resource":{"uri":"a","blob":"QQ=="}}', (("resource", "blob"), b'"QQ=="')),
        (b'{"type":"resource","data":5,"resource":{"text":"a"}}', (("resource", "text"), b'"a"')),
        (b'{"type":"resource","resource":{"text":5}}', None),
        (b'{"type":"resource_link","uri":"a"}', None),
        (b'{"type":"resource","resource":["text"]}', None),
        (b'["resource"]', None),
    ],
)
def test_the_content_of_a_block_is_its_base64_or_its_text(block: bytes, expected: object) -> None:
    found = locate_content(block)
    assert (found and (found[0], block[found[1].start : found[1].stop])) == expected


def test_a_large_resource_is_read_in_pieces() -> None:
    text = "a line\\n" * 20_000
    block = f' {{"type":"resource","resource":{{"text":"{text}","uri":"u"}}}} '.encode()
    assert has_content(block)
    assert locate_content(block) == (("resource", "text"), find_embedded_text(block))
    assert (span := find_embedded_text(block)) is not None
    assert block[span.start : span.stop] == f'"{text}"'.encode()
    assert not has_content(f'["resource","{text}"]'.encode())


def test_the_text_of_an_object_with_many_members_is_found() -> None:
    more = ",".join(f'"k{at}":{at}' for at in range(100))
    block = f'{{"type":"resource",{more},"resource":{{"text":"x",{more}}}}}'.encode()
    assert (span := find_embedded_text(block)) is not None
    assert block[span.start : span.stop] == b'"x"'
