"""Which value a result is, and what of it the model sees.

The table of DESIGN, "Values and paths": structured content is the value, else the text, else the content blocks. A
wrapper that says the same as the content is taken off. Text is dropped only where it repeats the value. Storing is done
elsewhere.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from mcp_mirror.core.content_comparison import BLOCKS, DIFFERS, ITEMS, SAME, UNKNOWN, compare_value, find_member
from mcp_mirror.core.media import Media, media_in
from mcp_mirror.core.notice import ErrorExcerpt
from mcp_mirror.core.preview import describe_media
from mcp_mirror.payload.json_rpc import array_of, join, object_of, open_array, open_object
from mcp_mirror.payload.json_spans import kind_at, members, text_end, text_pieces, text_start, trim
from mcp_mirror.settings.policies import CaptureMode
from mcp_mirror.types import Buffer, Draft, Kind, Segments

WRAPPER: Final = "x-fastmcp-wrap-result"
"""Output schema mark of a result that was wrapped only because structured content must be an object."""

PARTS: Final = "mcp-mirror/parts"
"""The envelope's member that says where the result's payload is, so that the result can be rebuilt.

`structuredContent`: `value`; or an object with one member KEY, which is the value (`value.member:KEY`), the text that
the value is parsed from (`value.text:KEY`), or the content blocks (`content.member:KEY`).

`content`: `value.text` or `companion.text` (the text of its one block), `value.block` (its one block), `value.blocks`
(an array: strings are texts, objects other blocks), `companion.content` (the blocks as they came), `repeats` (one text
that spells the value), `repeats.items` (a text for each item of the value), `repeats.member:KEY` (one text, which
spells the value's member of that key), `repeats.content:KEY` (the blocks, which are that member).
"""

PASS_THROUGH_TOKENS: Final = 300
"""Tokens below which a result that is not an object passes as it came: naming its path would cost a tenth and more."""

_MEDIA_BYTES: Final = 5 << 20
"""Base64 of images and recordings that one result shows: providers take no larger images."""
_LINK_BYTES: Final = 1 << 13
"""How much of other blocks, which models read as text, passes beside a notice."""
_TOKEN_BYTES: Final = 64
"""Bytes of a token past which a text is over a budget whatever an estimate says."""
_DECODED_BYTES: Final = 1 << 20
"""Bytes up to which a text is counted as it is read; a longer one as it is written, which costs little more."""
_PEEK: Final = 1 << 12
"""Bytes of a text that tell whether it may be JSON: white space before a document is short."""
_HEAD_BYTES: Final = 1000
"""Bytes of the beginning and of the end of an error that the model sees in place of it."""

Estimate = Callable[[Buffer], int]

Decode = Callable[[Buffer], Buffer]
"""The text that a JSON string spells, in UTF-8."""


def decode_text(literal: Buffer) -> Buffer:
    """A JSON string's text, in memory."""
    return b"".join(text_pieces(literal, trim(literal)))


def unwrapped_key(envelope: bytes) -> str | None:
    """The key of the wrapper that was taken off a value; None where there was none.

    Args:
        envelope: What is stored with the value.
    """
    parts = (open_object(envelope) or {}).get(PARTS)
    place: str = json.loads(bytes(parts)).get("structuredContent", "") if parts else ""
    kind, _, key = place.partition(":")
    return key if kind in ("value.member", "value.text", "content.member") else None


@dataclass(frozen=True, slots=True)
class CaptureRules:
    """How one tool's results are treated. Budgets are tokens, expected ones or bounds by the estimate that is given."""

    mode: CaptureMode
    inline_budget: int
    error_budget: int
    wrapped: bool
    """The output schema says that the structured content is a wrapper with one member."""
    passes: bool = True
    """Images, recordings and small other blocks may pass as they are; else all that is not text is stored."""
    preview: bool = True
    """The model may be shown something of it; else all is stored, whatever the mode."""


@dataclass(frozen=True, slots=True)
class Captured:
    """What becomes of a result."""

    value: Draft | None = None
    """To be stored; None: the result passes as it came."""
    companion: Draft | None = None
    """What else the result said, to be stored beside the value."""
    named: bool = False
    """The companion says more than the value does: the notice names it."""
    envelope: bytes = b"{}"
    """The result's other members."""
    shown: str | None = None
    """What the model reads of a result within the inline budget."""
    passed: tuple[Buffer, ...] = ()
    """Content blocks that go on beside the notice."""
    in_order: tuple[Buffer, ...] = ()
    """All blocks of a result that is shown, as they came, where texts and other blocks are mixed."""
    media: tuple[tuple[str, str], ...] = ()
    """Each image, recording and file: its JSON Pointer, in the companion if the content is there, and what it is."""
    is_error: bool = False
    error: ErrorExcerpt | None = None
    """Of an error that is too large to be shown."""


@dataclass(frozen=True, slots=True)
class _Block:
    """One content block, opened."""

    raw: Buffer
    text: Buffer | None
    """The JSON string of a text block."""
    plain: bool
    """A text block that says nothing beside its text."""
    media: Media | None
    """The image, recording or file that it is."""

    @property
    def is_shown_as_media(self) -> bool:
        """Whether models see it as a picture or hear it, instead of reading its JSON."""
        return self.media is not None and not self.media.is_file


@dataclass(frozen=True, slots=True)
class _Result:
    """A result, with what its payload is."""

    blocks: tuple[_Block, ...]
    structured: Buffer | None
    """The whole structured content."""
    value: Buffer | None
    """The structured content or, of a wrapper, its one member. None: the content is the value."""
    wrapper: str | None
    """The key of that member."""
    said: str
    """How the content relates to the value: a word of `agreement`, or `repeats.member:KEY`, `repeats.content:KEY`."""

    @property
    def texts(self) -> list[Buffer]:
        """The JSON string of each text block."""
        return [block.text for block in self.blocks if block.text is not None]

    @property
    def is_repeated(self) -> bool:
        """Whether the content says nothing that the value does not say."""
        return self.said.startswith("repeats")

    @property
    def is_text(self) -> bool:
        """Whether the value is one text, which may spell JSON."""
        if self.value is None:
            return len(self.blocks) == 1 and self.blocks[0].text is not None
        return self.wrapper is not None and bytes(self.value[:1]) == b'"'


def capture(
    result: Mapping[str, Buffer], rules: CaptureRules, estimate: Estimate, decode: Decode = decode_text
) -> Captured:
    """Decide what of a result is shown and what is stored.

    Args:
        result: Its members, as they came.
        rules: How this tool's results are treated.
        estimate: Tokens of a text (UTF-8) or of JSON text.
        decode: Where the text of a string goes that is itself JSON.
    """
    rules = rules if rules.preview else replace(rules, mode="always", inline_budget=0, error_budget=0, passes=False)
    is_error = bytes(result.get("isError", b"false")) == b"true"
    read = _read(result, rules)
    if rules.mode == "never" or (read.structured is None and not read.blocks):
        return Captured(is_error=is_error)
    if _passes_untouched(read, rules, estimate, decode, is_error=is_error):
        return Captured(is_error=is_error)
    value = _value_of(read, estimate, decode)
    place = _place_of(read)
    companion = _companion(place, read, result, estimate, decode if read.said == DIFFERS else _no_decode)
    differs = companion is not None and read.said == DIFFERS
    whole = None if is_error else _shown(read, value, rules, estimate, beside=tuple(read.texts) if differs else ())
    shown = whole if is_error or whole is not None else _shown(read, value, rules, estimate)
    passed = tuple(_passed(read.blocks, is_all_shown=shown is not None)) if rules.passes else ()
    unseen = len(passed) + len(read.texts) < len(read.blocks)
    if not rules.preview:
        value, companion = _hidden(value), companion and _hidden(companion)
    is_short = whole is not None and companion is not None and companion.tokens < PASS_THROUGH_TOKENS
    return Captured(
        value=value,
        companion=companion,
        named=companion is not None and read.value is not None and (unseen or (differs and not is_short)),
        envelope=_envelope(result, place, read, value),
        shown=shown,
        passed=passed,
        in_order=_in_order(read, passed) if shown is not None else (),
        media=tuple(_named_media(read.blocks, place)) if rules.passes else (),
        is_error=is_error,
        error=_excerpt(value) if is_error and rules.preview else None,
    )


def _read(result: Mapping[str, Buffer], rules: CaptureRules) -> _Result:
    content = result.get("content", b"[]")
    blocks = tuple(_open_block(raw) for raw in open_array(content) or ())
    structured = result.get("structuredContent")
    if structured is None or bytes(structured[:5]) == b"null":
        return _Result(blocks, None, None, None, UNKNOWN)
    are_texts = bool(blocks) and all(block.text is not None for block in blocks)
    texts = [block.text for block in blocks if block.text is not None] if are_texts else []
    opened = open_object(structured) or {}
    if len(opened) == 1:
        ((key, member),) = opened.items()
        said = compare_value(member, texts, content)
        if said == BLOCKS:
            return _Result(blocks, structured, None, key, said)
        is_wrapper = said in (SAME, ITEMS)
        if is_wrapper or (rules.wrapped and key == "result" and compare_value(structured, texts, content) != SAME):
            return _Result(blocks, structured, member, key, said)
    if bytes(structured[:1]) == b"{" and blocks and (found := find_member(tuple(opened.items()), texts, content)):
        key, said = found
        return _Result(blocks, structured, structured, None, f"repeats.{'member' if said == SAME else 'content'}:{key}")
    return _Result(blocks, structured, structured, None, compare_value(structured, texts, content))


def _open_block(raw: Buffer) -> _Block:
    opened = open_object(raw) or {}
    kind = bytes(opened.get("type", b"")[:16])
    if kind == b'"text"' and bytes(opened.get("text", b"")[:1]) == b'"':
        return _Block(raw, opened["text"], plain=len(opened) == 2, media=None)  # noqa: PLR2004  # type and text
    return _Block(raw, None, plain=False, media=media_in(opened))


def _passes_untouched(
    read: _Result, rules: CaptureRules, estimate: Estimate, decode: Decode, *, is_error: bool
) -> bool:
    """Whether a result passes as it came, and nothing of it is stored."""
    if not rules.preview or not (rules.passes or len(read.texts) == len(read.blocks)):
        return False
    has_media = any(block.media for block in read.blocks)  # a model cannot retype it, so it needs a path
    if not is_error and (rules.mode == "always" or (rules.mode == "auto" and has_media)):
        return False
    budget = rules.error_budget if is_error else rules.inline_budget
    if rules.mode == "auto" and not is_error:
        budget = min(budget, PASS_THROUGH_TOKENS - 1)
    if not _is_within(read, budget, estimate):
        return False
    return is_error or rules.mode == "large" or not _is_object(read, decode)


def _is_within(read: _Result, budget: int, estimate: Estimate) -> bool:
    """Whether all that a model may read of a result is within a budget: clients show the content, or the structured."""
    if sum(len(block.raw) for block in read.blocks if block.is_shown_as_media) > _MEDIA_BYTES:
        return False
    words = [block.raw if block.text is None else block.text for block in read.blocks if not block.is_shown_as_media]
    both = (words, [] if read.structured is None else [read.structured])
    return all(_fits(parts, budget, estimate) for parts in both)


def _fits(parts: Sequence[Buffer], budget: int, estimate: Estimate) -> bool:
    size = sum(map(len, parts))
    if size <= budget:  # a token has at least one byte
        return True
    if size > budget * _TOKEN_BYTES:
        return False
    return sum(_tokens_of(part, estimate) for part in parts) <= budget


def _tokens_of(json_text: Buffer, estimate: Estimate) -> int:
    """Tokens of a value as a model reads it: of a string its text."""
    if bytes(json_text[:1]) != b'"' or len(json_text) > _DECODED_BYTES:
        return estimate(json_text)
    text = _text(json_text).encode("utf-8", "replace")
    return estimate(text) if text else 0


def _is_object(read: _Result, decode: Decode) -> bool:
    if read.value is not None and not read.is_text:
        return bytes(read.value[:1]) == b"{"
    text = read.value if read.value is not None else read.texts[0] if read.is_text else None
    return text is not None and bytes(_json_in(text, decode) or b"").lstrip()[:1] == b"{"


def _value_of(read: _Result, estimate: Estimate, decode: Decode) -> Draft:
    """The value: structured content, the one text or block, or an array of several blocks."""
    if read.value is not None:
        spelled = _json_in(read.value, decode) if read.is_text else None
        return _draft(spelled or read.value, None, estimate)
    if len(read.blocks) == 1:
        block = read.blocks[0]
        if block.text is None:
            return _draft(block.raw, "binary" if block.media or _is_resource(block) else None, estimate)
        return _draft(_json_in(block.text, decode) or block.text, None, estimate)
    parts: list[Buffer | Segments] = [block.raw if block.text is None else block.text for block in read.blocks]
    return _draft(join(array_of(parts)), None, estimate)


def _is_resource(block: _Block) -> bool:
    return "resource" in (open_object(block.raw) or {})


def _draft(blob: Buffer, kind: Kind | None, estimate: Estimate) -> Draft:
    whole = trim(blob)
    kind = kind or kind_at(blob, whole.start)
    return Draft(
        blob,
        kind,
        _tokens_of(blob, estimate),
        members(blob, whole) if kind in ("object", "binary") else (),
        _media_type(blob) if kind == "binary" else None,
    )


def _media_type(blob: Buffer) -> str | None:
    opened = open_object(blob) or {}
    inner = open_object(opened.get("resource", b"null")) or opened
    raw = bytes(inner.get("mimeType", b"null"))
    return json.loads(raw) if raw[:1] == b'"' else None


def _json_in(text: Buffer, decode: Decode) -> Buffer | None:
    """The object or array that a JSON string spells, as the very text it was."""
    if text_start(text, trim(text), _PEEK).lstrip(" \t\r\n")[:1] not in ("{", "["):
        return None
    decoded = decode(text)
    return decoded if open_object(decoded) is not None or open_array(decoded) is not None else None


def _no_decode(_: Buffer) -> Buffer:
    return b""


def _place_of(read: _Result) -> str | None:
    """Where the content blocks go, in the words of `PARTS`: a block is dropped only where the value repeats it."""
    if not read.blocks:
        return None
    plain = all(block.plain for block in read.blocks)
    if read.value is not None:
        if read.is_repeated and (plain or read.said.startswith("repeats.content:")):
            return read.said
        return "companion.text" if plain and len(read.blocks) == 1 else "companion.content"
    if len(read.blocks) == 1 and (plain or read.blocks[0].text is None):
        return "value.text" if plain else "value.block"
    faithful = all(block.plain or (block.text is None and bytes(block.raw[:1]) == b"{") for block in read.blocks)
    return "value.blocks" if faithful and len(read.blocks) > 1 else "companion.content"


def _companion(
    place: str | None, read: _Result, result: Mapping[str, Buffer], estimate: Estimate, decode: Decode
) -> Draft | None:
    if place == "companion.text":
        text = read.texts[0]
        return _draft(_json_in(text, decode) or text, None, estimate)
    return _draft(result["content"], None, estimate) if place == "companion.content" else None


def _envelope(result: Mapping[str, Buffer], place: str | None, read: _Result, value: Draft) -> bytes:
    """The members that the value and its companion do not hold, and where the others went."""
    parts = {} if place is None else {"content": place}
    if read.structured is not None and read.wrapper is None:
        parts["structuredContent"] = "value"
    elif read.wrapper is not None:
        holder = "content.member" if read.value is None else "value.member"
        holder = "value.text" if read.is_text and read.value is not None and value.kind != "text" else holder
        parts["structuredContent"] = f"{holder}:{read.wrapper}"
    rest = {key: raw for key, raw in result.items() if key not in parts}
    return join(object_of({**rest, PARTS: msgspec.json.encode(parts)}))


def _shown(
    read: _Result, value: Draft, rules: CaptureRules, estimate: Estimate, beside: Sequence[Buffer] = ()
) -> str | None:
    """The texts that the model reads of a result within the inline budget; None of a larger result.

    Args:
        read: The result.
        value: The value that it is.
        rules: How it is treated.
        estimate: Tokens of a text.
        beside: Texts that say more than the value does.
    """
    only = read.blocks[0] if read.value is None and len(read.blocks) == 1 else None
    is_unseen = only is not None and only.media is not None and not _may_be_shown(only)
    if not rules.preview or is_unseen or not (rules.passes or len(read.texts) == len(read.blocks)):
        return None
    others = tuple(block.raw for block in read.blocks if block.text is None and block.media is None)
    texts = (*beside, *_texts_to_show(read, value))
    if not _fits((*texts, *others), rules.inline_budget, estimate):
        return None
    return "\n".join(_text(part) if bytes(part[:1]) == b'"' else str(part, "utf-8") for part in texts)


def _texts_to_show(read: _Result, value: Draft) -> tuple[Buffer, ...]:
    """The texts, or the JSON text, that say the value: the shortest where several say the same."""
    if read.value is None:
        return tuple(read.texts)
    if read.said == SAME and not read.is_text:
        return (min(value.blob, read.texts[0], key=_length),)
    return (read.value if read.is_text else value.blob,)


def _length(json_text: Buffer) -> int:
    """About the bytes that a model reads: a string is read without its escapes."""
    return len(json_text) - (bytes(json_text).count(b"\\") if bytes(json_text[:1]) == b'"' else 0)


def _passed(blocks: Sequence[_Block], *, is_all_shown: bool) -> Iterator[Buffer]:
    """The blocks that go on beside a notice: media up to a bound and small other blocks, but no files and no texts."""
    media_room, room = _MEDIA_BYTES, _LINK_BYTES
    for block in blocks:
        if block.is_shown_as_media:
            if _may_be_shown(block, media_room):
                media_room -= len(block.raw)
                yield block.raw
        elif block.text is None and block.media is None and (is_all_shown or len(block.raw) <= room):
            room -= len(block.raw)
            yield block.raw


def _in_order(read: _Result, passed: Sequence[Buffer]) -> tuple[Buffer, ...]:
    if read.value is not None or not (read.texts and passed):
        return ()
    shown = {id(raw) for raw in passed}
    return tuple(block.raw for block in read.blocks if block.text is not None or id(block.raw) in shown)


def _may_be_shown(block: _Block, room: int = _MEDIA_BYTES) -> bool:
    return block.is_shown_as_media and len(block.raw) <= room


def _named_media(blocks: Sequence[_Block], place: str | None) -> Iterator[tuple[str, str]]:
    """Each image, recording and file: its path below the value or the companion, and what it is."""
    is_listed = len(blocks) > 1 or place == "companion.content"
    for at, block in enumerate(blocks):
        if block.media and (is_listed or block.media.is_file):
            item = f"/{at}" if is_listed else ""
            yield f"{item}{'/resource/blob' if block.media.is_file else ''}", describe_media(block.media)


def _hidden(draft: Draft) -> Draft:
    return replace(draft, media_type=None, preview=False)


def _text(literal: Buffer) -> str:
    return msgspec.json.decode(literal, type=str)


def _excerpt(value: Draft) -> ErrorExcerpt:
    """The beginning and the end of an error, as text."""
    if value.kind != "text":
        ends = (value.blob[:_HEAD_BYTES], value.blob[-_HEAD_BYTES // 2 :] if len(value.blob) > 2 * _HEAD_BYTES else b"")
        return ErrorExcerpt(*(str(bytes(end), "utf-8", "ignore") for end in ends))
    whole = trim(value.blob)
    head = text_start(value.blob, whole, _HEAD_BYTES)
    return ErrorExcerpt(head, text_end(value.blob, whole, _HEAD_BYTES) if whole.length > 2 * _HEAD_BYTES else "")
