"""Builds the values that are stored of a result: the value, and the rest of the content as its companion."""

from collections.abc import Mapping
from typing import Final

import msgspec

from mcp_mirror.core.results.content_comparison import DIFFERS
from mcp_mirror.core.results.parsed_result import ParsedBlock, ParsedResult
from mcp_mirror.core.value_sizes import Estimate, count_value_tokens, size_text
from mcp_mirror.payload.json_rpc import array_of, decode_as, open_object
from mcp_mirror.payload.json_spans import kind_at, trim
from mcp_mirror.payload.json_strings import may_be_json, text_pieces
from mcp_mirror.payload.scans import Scans
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.types import Buffer, Draft, Kind, Segments

_MAX_DECODED_BYTES: Final = 1 << 20
"""Bytes up to which a text is decoded in memory to find JSON in it."""
_MEDIA_TYPE: Final = lazy_pattern(r"[ -~]{1,255}")
"""The media type of a value: others, with invisible characters or of any length, would be in each list of values."""


class ResultReader(msgspec.Struct, frozen=True):
    """Reads the texts of one result."""

    estimate: Estimate
    scans: Scans


def parse_json_texts(parsed: ParsedResult, reader: ResultReader) -> dict[int, Buffer]:
    """The text blocks that are an object or array, by index, if the value is an array of several blocks.

    Text with white space around its JSON remains text, because a path of an item delivers the item without it.
    """
    if parsed.value is not None or len(parsed.blocks) == 1:
        return {}
    json_texts: dict[int, Buffer] = {}
    for at, block in enumerate(parsed.blocks):
        if block.text is None:
            continue
        is_small = len(block.text) <= _MAX_DECODED_BYTES  # `scans` may write a file for each text
        json_text = parse_json_text(block.text, reader, in_memory=is_small)
        if json_text is not None and trim(json_text).length == len(json_text):
            json_texts[at] = json_text
    return json_texts


def build_value(parsed: ParsedResult, json_texts: Mapping[int, Buffer], reader: ResultReader) -> Draft:
    """The value: structured content, the only block, or an array of several blocks.

    A text that is an object or array becomes this JSON, in several blocks if it is one of `json_texts`: the blocks
    `Two rows:` and `[1, 2]` become `["Two rows:", [1, 2]]`.
    """
    if parsed.value is not None:
        json_text = parse_json_text(parsed.value, reader) if parsed.is_text else None
        return _build_draft(json_text or parsed.value, None, reader)
    if len(parsed.blocks) == 1:
        return _build_block_value(parsed.blocks[0], reader)
    items: list[Buffer | Segments] = [
        json_texts.get(at, block.raw if block.text is None else block.text) for at, block in enumerate(parsed.blocks)
    ]
    return _build_draft(b"".join(array_of(items)), None, reader)


def _build_block_value(block: ParsedBlock, reader: ResultReader) -> Draft:
    if block.text is not None:
        return _build_draft(parse_json_text(block.text, reader) or block.text, None, reader)
    is_binary = block.media or "resource" in (open_object(block.raw) or {})
    return _build_draft(block.raw, "binary" if is_binary else None, reader)


def _build_draft(blob: Buffer, kind: Kind | None, reader: ResultReader) -> Draft:
    whole = trim(blob)
    kind = kind or kind_at(blob, whole.start)
    return Draft(
        blob,
        kind,
        count_value_tokens(blob, reader.estimate),
        reader.scans.members(blob, whole) if kind in ("object", "binary") else (),
        _read_media_type(blob) if kind == "binary" else None,
        array=reader.scans.index_array(blob),
        text=size_text(blob, whole) if kind == "text" else None,
    )


def _read_media_type(blob: Buffer) -> str | None:
    opened = open_object(blob) or {}
    inner = open_object(opened.get("resource", b"null")) or opened
    media_type: str | None = decode_as(inner.get("mimeType"), str)
    return media_type if media_type and _MEDIA_TYPE.fullmatch(media_type) else None


def parse_json_text(text: Buffer, reader: ResultReader, *, in_memory: bool = False) -> Buffer | None:
    """The object or array in a JSON string as its exact text; None for any other string."""
    if not may_be_json(text, trim(text)):
        return None
    decoded = b"".join(text_pieces(text, trim(text))) if in_memory else reader.scans.decode(text)
    return decoded if reader.scans.is_container(decoded) else None


def build_companion(
    place: str | None, parsed: ParsedResult, result: Mapping[str, Buffer], reader: ResultReader
) -> Draft | None:
    """The content that the value does not repeat, as the place of the content says; None without such content."""
    if place == "companion.text":
        text = parsed.texts[0]
        # Only a text that differs from the value can be JSON text of its own.
        json_text = parse_json_text(text, reader) if parsed.relation == DIFFERS else None
        return _build_draft(json_text or text, None, reader)
    return _build_draft(result["content"], None, reader) if place == "companion.content" else None
