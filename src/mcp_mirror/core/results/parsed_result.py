"""Parses a tool result: its content blocks, the value that it has, and how it can be rebuilt from what is stored.

Structured content is the value, else the text, else the content blocks. A wrapper that repeats the content is removed.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from mcp_mirror.core.results.content_comparison import (
    BLOCKS,
    ITEMS,
    LEAVES,
    SAME,
    UNKNOWN,
    Nulls,
    compare_value,
    find_main_text,
    find_member,
    find_nulls,
    is_json_text,
)
from mcp_mirror.core.results.media import Media, find_media
from mcp_mirror.payload.json_rpc import object_of, open_object
from mcp_mirror.payload.scans import Scans
from mcp_mirror.types import Buffer, Draft

WRAPPER: Final = "x-fastmcp-wrap-result"
"""The mark in the output schema of a result that is wrapped only because structured content must be an object."""

PARTS: Final = "mcp-mirror/parts"
"""The one of the other members that locates the result's payload, so that the result can be rebuilt.

`structuredContent`: `value`; or an object with one member KEY, which is the value (`value.member:KEY`), the text from
which the value is parsed (`value.text:KEY`), or the content blocks (`content.member:KEY`); or the only content block
(`content.block`).

`content`: `value.text` or `companion.text` (the text of its one block), `value.block` (its one block), `value.texts`
(an array: strings are texts, other items are texts of JSON), `value.blocks` (an array: strings are texts, objects other
blocks; after a colon the items that are texts of JSON), `companion.content` (the original blocks), `repeats` (one text
that is the value or its JSON text), `repeats.items` (a text for each item of the value), `repeats.leaves` (a text for
each item that is neither an array nor null, also in inner arrays), `repeats.member:KEY` (one text, which repeats the
value's member of that key), `repeats.content:KEY` (the blocks, which are that member).

`nulls`: the members that are null in the blocks of the structured content and absent in `content`, for each block or
once for all; those of an inner object are in an object.
"""


class ParsedBlock(msgspec.Struct, frozen=True):
    """One parsed content block."""

    raw: Buffer
    text: Buffer | None
    """The JSON string of a text block."""
    is_plain: bool
    """A text block without members beside `type` and `text`."""
    media: Media | None
    """The image, recording or file in the block."""

    @property
    def is_shown_as_media(self) -> bool:
        """Whether clients show it to models as an image or recording instead of JSON."""
        return self.media is not None and not self.media.is_file


class ParsedResult(msgspec.Struct, frozen=True):
    """A parsed result."""

    blocks: tuple[ParsedBlock, ...]
    structured: Buffer | None = None
    """The whole structured content."""
    value: Buffer | None = None
    """The structured content or, for a wrapper, its only member. None: the content is the value."""
    wrapper: str | None = None
    """The key of that member."""
    relation: str = UNKNOWN
    """How the content relates to the value: a constant of `content_comparison`, `repeats.member:KEY` or
    `repeats.content:KEY`."""
    nulls: Sequence[Nulls] = ()
    """The members that are null in the blocks of the structured content, as in `PARTS`."""
    main_text_keys: tuple[str, ...] = ()
    """The keys of the text in the structured content that is most of it and is the content's only text."""

    @property
    def texts(self) -> list[Buffer]:
        """The JSON strings of the text blocks."""
        return [block.text for block in self.blocks if block.text is not None]

    @property
    def is_text(self) -> bool:
        """Whether the value is one text, which may be JSON text."""
        if self.value is None:
            return len(self.blocks) == 1 and self.blocks[0].text is not None
        return self.wrapper is not None and bytes(self.value[:1]) == b'"'


def parse_result(result: Mapping[str, Buffer], scans: Scans, *, is_wrapped: bool) -> ParsedResult:
    """Parse a result, JSON text by member.

    `is_wrapped`: the output schema marks structured content as a wrapper with one member.
    """
    content = result.get("content", b"[]")
    blocks = tuple(_parse_block(raw, scans) for raw in scans.open_array(content) or ())
    structured = result.get("structuredContent")
    if structured is None or bytes(structured[:5]) == b"null":
        return ParsedResult(blocks)
    parsed = ParsedResult(blocks, structured, structured)
    texts = parsed.texts
    members = scans.open_object(structured) or {}
    if len(members) == 1:
        (only,) = members.items()
        unwrapped = _unwrap(parsed, structured, only, content, scans, is_wrapped=is_wrapped)
        if unwrapped is not None:
            return unwrapped
    if len(texts) == 1 and is_json_text(texts[0], structured):  # then it cannot repeat a member
        return replace(parsed, relation=SAME)
    if len(blocks) == 1 and (nulls := find_nulls(structured, [blocks[0].raw], scans)):
        return replace(parsed, value=None, relation=BLOCKS, nulls=nulls)
    is_object = bytes(structured[:1]) == b"{"
    if is_object and blocks and (found := find_member(tuple(members.items()), texts, content)):
        key, relation = found
        relation = f"repeats.{'member' if relation == SAME else 'content'}:{key}"
    else:
        relation = compare_value(structured, texts, content)
    keys = find_main_text(structured, texts[0], scans) if len(texts) == 1 and relation != SAME else ()
    return replace(parsed, relation=relation, main_text_keys=keys)


def _unwrap(
    parsed: ParsedResult,
    structured: Buffer,
    only: tuple[str, Buffer],
    content: Buffer,
    scans: Scans,
    *,
    is_wrapped: bool,
) -> ParsedResult | None:
    """The result whose value is the only member of its structured content; None if this member is not all of it."""
    key, member = only
    relation = compare_value(member, parsed.texts, content)
    is_repeated = relation in (SAME, ITEMS, LEAVES)
    nulls: Sequence[Nulls] = ()
    if not is_repeated and relation != BLOCKS:
        nulls = find_nulls(member, [block.raw for block in parsed.blocks], scans)
    if relation == BLOCKS or nulls:
        return replace(parsed, value=None, wrapper=key, relation=BLOCKS, nulls=nulls)
    is_marked = is_wrapped and key == "result"
    if is_repeated or (is_marked and compare_value(structured, parsed.texts, content) != SAME):
        return replace(parsed, value=member, wrapper=key, relation=relation)
    return None


def _parse_block(raw: Buffer, scans: Scans) -> ParsedBlock:
    opened = scans.open_object(raw) or {}
    kind = bytes(opened.get("type", b"")[:16])
    if kind == b'"text"' and bytes(opened.get("text", b"")[:1]) == b'"':
        return ParsedBlock(raw, opened["text"], is_plain=len(opened) == 2, media=None)  # noqa: PLR2004  # type and text
    return ParsedBlock(raw, None, is_plain=False, media=find_media(opened))


def find_content_place(parsed: ParsedResult, json_texts: Collection[int]) -> str | None:
    """The place of the content blocks, as in `PARTS`. A block is dropped only if the value repeats it.

    `json_texts` has the indices of text blocks that are parsed JSON in a value of several blocks.
    """
    if not parsed.blocks:
        return None
    are_plain = all(block.is_plain for block in parsed.blocks)
    if parsed.value is not None:
        is_repeated = parsed.relation.startswith("repeats")
        if is_repeated and (are_plain or parsed.relation.startswith("repeats.content:")):
            return parsed.relation
        return "companion.text" if are_plain and len(parsed.blocks) == 1 else "companion.content"
    if len(parsed.blocks) == 1 and (are_plain or parsed.blocks[0].text is None):
        return "value.text" if are_plain else "value.block"
    # An array of texts and objects shows which of its items were text blocks.
    is_clear = all(block.is_plain or (block.text is None and bytes(block.raw[:1]) == b"{") for block in parsed.blocks)
    return _locate_items(parsed, json_texts) if is_clear and len(parsed.blocks) > 1 else "companion.content"


def _locate_items(parsed: ParsedResult, json_texts: Collection[int]) -> str:
    """The place of several blocks that are the items of the value, as in `PARTS`."""
    if len(parsed.texts) == len(parsed.blocks):
        return "value.texts"
    return f"value.blocks:{','.join(map(str, json_texts))}" if json_texts else "value.blocks"


def build_other_members(result: Mapping[str, Buffer], place: str | None, parsed: ParsedResult, value: Draft) -> bytes:
    """The members outside the value and its companion, and `PARTS`."""
    parts = {} if place is None else {"content": place}
    if parsed.wrapper is not None:
        parts["structuredContent"] = f"{_locate_wrapped(parsed, value)}:{parsed.wrapper}"
    elif parsed.structured is not None:
        parts["structuredContent"] = "value" if parsed.value is not None else "content.block"
    rest = {key: raw for key, raw in result.items() if key not in parts}
    located = {**parts, "nulls": parsed.nulls} if parsed.nulls else parts
    return b"".join(object_of({**rest, PARTS: msgspec.json.encode(located)}))


def _locate_wrapped(parsed: ParsedResult, value: Draft) -> str:
    """The place of the only member of a wrapper, as in `PARTS`."""
    if parsed.value is None:
        return "content.member"
    return "value.text" if parsed.is_text and value.kind != "text" else "value.member"


def find_unwrapped_key(other_members: bytes) -> str | None:
    """The key of the wrapper that `capture` removed from a value; None if it removed none."""
    parts = (open_object(other_members) or {}).get(PARTS)
    place: str = json.loads(bytes(parts)).get("structuredContent", "") if parts else ""
    kind, _, key = place.partition(":")
    return key if kind in ("value.member", "value.text", "content.member") else None
