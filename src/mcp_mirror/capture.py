"""Which value a result is, and what of it the model sees.

The table of DESIGN, "Values and paths": structured content wins, else the text blocks, else the blocks as they
are. Nothing is dropped that is not said twice; storing it is not done here.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final

import msgspec

from mcp_mirror.models import Buffer, Draft, Kind, Segments
from mcp_mirror.policies import CaptureMode
from mcp_mirror.spans import kind_at, members, text_pieces, text_start, trim
from mcp_mirror.wire import array_of, join, object_of, open_array, open_object

WRAPPER: Final = "x-fastmcp-wrap-result"
"""Output schema mark of a result that was wrapped only because structured content must be an object."""

PARTS: Final = "mcp-mirror/parts"
"""The envelope's member that tells where the result's payload went, so that the result can be rebuilt.

`structuredContent`: `value`, or `value.result` where it was the only member of a wrapper. `content`: `value.text` or
`companion.text` (the text of its one block), `value.block` (its one block), `value.blocks` (an array: strings are
texts, objects other blocks), `companion.content` (the blocks as they came), `repeats` (one text that spells the
value), `repeats.items` (a text for each item of the value), `repeats.member:KEY` (one text, which is the value's
member of that key), `repeats.content:KEY` (the blocks, which are that member).
"""

_COMPARE_BYTES: Final = 1 << 20
"""Largest text that is compared by value with the structured content."""
_MEDIA_BYTES: Final = 1 << 19
"""Largest image, recording or file that is passed through."""
_LINK_BYTES: Final = 1 << 13
"""How much of other blocks, which models read as text, is passed through beside a notice."""
_TOKEN_BYTES: Final = 64
"""Bytes of a token past which a text is over a budget whatever an estimate says."""
_PEEK: Final = 1 << 12
"""Bytes of a text that tell whether it may be JSON: white space before a document is short."""
_HEAD_BYTES: Final = 1000
"""Bytes of an error that the model sees in place of it."""

Estimate = Callable[[Buffer], int]

Decode = Callable[[Buffer], Buffer]
"""The text that a JSON string spells, in UTF-8."""


def decode_text(literal: Buffer) -> Buffer:
    """A JSON string's text, in memory."""
    return b"".join(text_pieces(literal, trim(literal)))


@dataclass(frozen=True, slots=True)
class CaptureRules:
    """How one tool's results are treated. Budgets are estimated tokens."""

    mode: CaptureMode
    inline_budget: int
    error_budget: int
    wrapped: bool
    """The tool declares `x-fastmcp-wrap-result`."""
    passes: bool = True
    """Small images, recordings and other blocks may go on as they are; else all that is no text is stored."""
    preview: bool = True
    """The model may be shown something of it; else all is stored, whatever the mode."""


@dataclass(frozen=True, slots=True)
class Captured:
    """What becomes of a result."""

    value: Draft | None = None
    """To be stored; None: the result goes on as it came."""
    companion: Draft | None = None
    """What else the result said, to be stored beside the value."""
    named: bool = False
    """The companion says more than the value does: the model is told of it."""
    envelope: bytes = b"{}"
    """The result's other members."""
    shown: str | None = None
    """The value, small enough to be shown to the model as well."""
    passed: tuple[Buffer, ...] = ()
    """Content blocks that go on beside the notice."""
    is_error: bool = False
    head: str | None = None
    """The beginning of an error that is too large to be shown."""


@dataclass(frozen=True, slots=True)
class _Block:
    """One content block, opened."""

    raw: Buffer
    text: Buffer | None
    """The JSON string of a text block."""
    plain: bool
    """A text block that says nothing beside its text."""
    read: Buffer | None
    """What a model reads as text; None for an image, a recording or a file."""


def capture(
    result: Mapping[str, Buffer], rules: CaptureRules, estimate: Estimate, decode: Decode = decode_text
) -> Captured:
    """Decide what of a result stays inline and what is stored.

    Args:
        result: Its members, as they came.
        rules: How this tool's results are treated.
        estimate: Tells tokens.
        decode: Where the text of a string goes that is itself JSON.
    """
    rules = rules if rules.preview else replace(rules, mode="always", inline_budget=0, error_budget=0, passes=False)
    is_error = bytes(result.get("isError", b"false")) == b"true"
    blocks = tuple(_open_block(raw) for raw in open_array(result.get("content", b"[]")) or ())
    structured = _structured(result, rules.wrapped)
    if _stays(structured, blocks, rules, estimate, decode, is_error=is_error):
        return Captured(is_error=is_error)
    value = _content_value(blocks, estimate, decode) if structured is None else _draft(structured, None, estimate)
    said = "unknown"
    if structured is not None:
        said = _repeating_member(value, result.get("content", b"[]"), blocks) or _repeats(structured, _texts(blocks))
    place = _place_of(blocks, said, is_value=structured is None)
    # What merely may repeat the value is kept as it came: nobody is told of it.
    companion = _companion(place, blocks, result, estimate, decode if said == "differs" else _no_decode)
    passed = tuple(_passed(blocks)) if rules.passes else ()
    if not rules.preview:
        value, companion = _hidden(value), companion and _hidden(companion)
    unseen = len(passed) + len(_texts(blocks)) < len(blocks)
    return Captured(
        value=value,
        companion=companion,
        named=companion is not None and structured is not None and (unseen or said == "differs"),
        envelope=_envelope(result, place, structured),
        shown=_readable(value) if rules.preview and value.tokens <= rules.inline_budget and not is_error else None,
        passed=passed,
        is_error=is_error,
        head=_head(value) if is_error and rules.preview else None,
    )


def _stays(
    structured: Buffer | None,
    blocks: Sequence[_Block],
    rules: CaptureRules,
    estimate: Estimate,
    decode: Decode,
    *,
    is_error: bool,
) -> bool:
    """Whether a result goes on as it came, nothing of it being stored."""
    if rules.mode == "never" or (structured is None and not blocks):
        return True
    if not rules.preview or not (rules.passes or len(_texts(blocks)) == len(blocks)):
        return False
    budget = rules.error_budget if is_error else rules.inline_budget
    if not _is_small(structured, blocks, budget, estimate):
        return False
    return is_error or (rules.mode == "auto" and not _is_dict(structured, blocks, decode))


def _hidden(draft: Draft) -> Draft:
    return replace(draft, media_type=None, preview=False)


def _open_block(raw: Buffer) -> _Block:
    opened = open_object(raw) or {}
    kind = bytes(opened.get("type", b""))
    if kind == b'"text"' and bytes(opened.get("text", b"")[:1]) == b'"':
        return _Block(raw, opened["text"], plain=len(opened) == 2, read=opened["text"])  # noqa: PLR2004  # type and text
    is_file = "blob" in (open_object(opened.get("resource", b"null")) or {})
    return _Block(raw, None, plain=False, read=None if is_file or kind in _MEDIA else raw)


_MEDIA: Final = (b'"image"', b'"audio"')


def _texts(blocks: Sequence[_Block]) -> list[_Block]:
    return [block for block in blocks if block.text is not None]


def _passed(blocks: Sequence[_Block]) -> Iterator[Buffer]:
    """The blocks other than texts that are small enough to go on beside a notice."""
    room = _LINK_BYTES
    for block in blocks:
        if block.read is None and len(block.raw) <= _MEDIA_BYTES:
            yield block.raw
        elif block.read is not None and block.text is None and len(block.raw) <= room:
            room -= len(block.raw)
            yield block.raw


def _is_small(structured: Buffer | None, blocks: Sequence[_Block], budget: int, estimate: Estimate) -> bool:
    """Whether a model may see all of a result: the structured content and the blocks are each within the budget."""
    read = [block.read for block in blocks if block.read is not None]
    both = (read, [] if structured is None else [structured])
    if any(block.read is None and len(block.raw) > _MEDIA_BYTES for block in blocks):
        return False
    if any(sum(map(len, parts)) > budget * _TOKEN_BYTES for parts in both):
        return False
    return all(sum(map(estimate, parts)) <= budget for parts in both)


def _is_dict(structured: Buffer | None, blocks: Sequence[_Block], decode: Decode) -> bool:
    if structured is not None:
        return bytes(structured[:1]) == b"{"
    text = blocks[0].text if len(blocks) == 1 else None
    return text is not None and bytes(_json_in(text, decode) or b"").lstrip()[:1] == b"{"


def _structured(result: Mapping[str, Buffer], wrapped: bool) -> Buffer | None:  # noqa: FBT001  # one call, by name there
    structured = result.get("structuredContent")
    if structured is None or bytes(structured[:5]) == b"null":
        return None
    opened = open_object(structured) if wrapped else None
    return opened["result"] if opened and opened.keys() == {"result"} else structured


def _content_value(blocks: Sequence[_Block], estimate: Estimate, decode: Decode) -> Draft:
    """The value that content blocks are: one text or block as itself, several as an array of them."""
    if len(blocks) == 1:
        block = blocks[0]
        if block.text is None:
            return _draft(block.raw, _media_kind(block), estimate)
        return _draft(_json_in(block.text, decode) or block.text, None, estimate)
    parts: list[Buffer | Segments] = [block.raw if block.text is None else block.text for block in blocks]
    return _draft(join(array_of(parts)), None, estimate)


def _place_of(blocks: Sequence[_Block], said: str, *, is_value: bool) -> str | None:
    """Where the content blocks go, in the words of `PARTS`: nothing is dropped that is not said twice."""
    if not blocks:
        return None
    plain = all(block.plain for block in blocks)
    if not is_value:
        if said.startswith("repeats") and (plain or said.startswith("repeats.content:")):
            return said
        return "companion.text" if plain and len(blocks) == 1 else "companion.content"
    if len(blocks) == 1 and (plain or blocks[0].text is None):
        return "value.text" if plain else "value.block"
    faithful = all(block.plain or (block.text is None and bytes(block.raw[:1]) == b"{") for block in blocks)
    return "value.blocks" if faithful and len(blocks) > 1 else "companion.content"


def _companion(
    place: str | None, blocks: Sequence[_Block], result: Mapping[str, Buffer], estimate: Estimate, decode: Decode
) -> Draft | None:
    if place == "companion.text":
        return _content_value(blocks, estimate, decode)
    return _draft(result["content"], None, estimate) if place == "companion.content" else None


def _no_decode(_: Buffer) -> Buffer:
    return b""


def _json_in(text: Buffer, decode: Decode) -> Buffer | None:
    """The object or array that a JSON string spells, as the very text it was."""
    if text_start(text, trim(text), _PEEK).lstrip(" \t\r\n")[:1] not in ("{", "["):
        return None
    decoded = decode(text)
    return decoded if open_object(decoded) is not None or open_array(decoded) is not None else None


def _media_kind(block: _Block) -> Kind | None:
    opened = open_object(block.raw) or {}
    return "binary" if "data" in opened or "resource" in opened else None


def _media_type(blob: Buffer) -> str | None:
    opened = open_object(blob) or {}
    inner = open_object(opened.get("resource", b"null")) or opened
    raw = bytes(inner.get("mimeType", b"null"))
    return json.loads(raw) if raw[:1] == b'"' else None


def _draft(blob: Buffer, kind: Kind | None, estimate: Estimate) -> Draft:
    whole = trim(blob)
    kind = kind or kind_at(blob, whole.start)
    return Draft(
        blob,
        kind,
        estimate(blob),
        members(blob, whole) if kind in ("object", "binary") else (),
        _media_type(blob) if kind == "binary" else None,
    )


def _repeating_member(value: Draft, content: Buffer, blocks: Sequence[_Block]) -> str | None:
    """The member of an object that the content merely repeats to the byte, in the words of `PARTS`."""
    text = blocks[0].text if len(blocks) == 1 and blocks[0].plain else None
    for key, span in value.members if blocks else ():
        member = memoryview(value.blob)[span.start : span.stop]
        if text is not None and _is_same(member, text):
            return f"repeats.member:{key}"
        if _is_same(member, content):
            return f"repeats.content:{key}"
    return None


def _is_same(one: Buffer, other: Buffer) -> bool:
    """Whether two buffers hold the same bytes; compared in pieces, so that neither is copied whole."""
    pieces = range(0, len(one), _COMPARE_BYTES)
    return len(one) == len(other) and all(
        bytes(one[at : at + _COMPARE_BYTES]) == bytes(other[at : at + _COMPARE_BYTES]) for at in pieces
    )


def _repeats(structured: Buffer, blocks: Sequence[_Block]) -> str:
    """Whether the texts say just what the structured content says: as `PARTS` has it, or `differs` or `unknown`.

    Equal bytes are equal whatever their size; beyond that values are compared, up to a bound.
    """
    literals = [block.text or b"" for block in blocks]
    if len(literals) == 1 and _is_same_text(literals[0], structured):
        return "repeats"
    if not literals or len(structured) > _COMPARE_BYTES or sum(map(len, literals)) > 2 * _COMPARE_BYTES:
        return "unknown"
    texts: list[str] = [msgspec.json.decode(literal, type=str) for literal in literals]
    try:
        value = _parsed(bytes(structured))
        if len(texts) == 1 and isinstance(value, dict) and texts[0] in value.values():
            return f"repeats.member:{next(key for key, part in value.items() if part == texts[0])}"
        if len(texts) == 1 and _spells(texts[0], value):
            return "repeats"
        is_list = isinstance(value, list) and len(value) == len(texts)
        return "repeats.items" if is_list and all(map(_spells, texts, value)) else "differs"
    except (ValueError, ArithmeticError, RecursionError):
        return "differs"


def _is_same_text(literal: Buffer, structured: Buffer) -> bool:
    """Whether a text is the structured content's own JSON, to the byte; decoded no further than they agree."""
    if bytes(structured[:1]) == b'"':
        return False
    position = 0
    for piece in text_pieces(literal, trim(literal)):
        if bytes(structured[position : position + len(piece)]) != piece:
            return False
        position += len(piece)
    return position == len(structured)


def _spells(text: str, value: Any) -> bool:
    """Whether a text is what a server writes for a value: a string as it is, anything else as JSON."""
    return text == value if isinstance(value, str) else bool(_parsed(text) == value)


def _parsed(text: str | bytes) -> Any:
    """A JSON text so that equal means the same: numbers to the last digit, and never a truth value."""
    return json.loads(text, parse_int=_number, parse_float=_number)


def _number(digits: str) -> tuple[str, Decimal]:
    return "number", Decimal(digits)


def _envelope(result: Mapping[str, Buffer], place: str | None, structured: Buffer | None) -> bytes:
    """The members that the value and its companion do not hold, and where the others went."""
    parts = {} if place is None else {"content": place}
    if structured is not None:
        whole = len(structured) == len(result["structuredContent"])
        parts["structuredContent"] = "value" if whole else "value.result"
    rest = {key: raw for key, raw in result.items() if key not in parts}
    return join(object_of({**rest, PARTS: msgspec.json.encode(parts)}))


def _readable(value: Draft) -> str | None:
    """The value as a model reads it: a text as its text, anything else as its JSON."""
    if value.kind == "binary":
        return None
    return msgspec.json.decode(value.blob, type=str) if value.kind == "text" else str(value.blob, "utf-8")


def _head(value: Draft) -> str:
    """The beginning of an error, as text."""
    if value.kind == "text":
        return text_start(value.blob, trim(value.blob), _HEAD_BYTES)
    return str(bytes(value.blob[:_HEAD_BYTES]), "utf-8", "ignore")
