"""Which value a result is, and what of it the model sees.

The table of DESIGN, "Values and paths": structured content wins, else the text blocks, else the blocks as they
are. Nothing is dropped that is not said twice; storing it is not done here.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from mcp_mirror.models import Buffer, Draft, Kind, Segments
from mcp_mirror.policies import CaptureMode
from mcp_mirror.spans import kind_at, members, trim
from mcp_mirror.wire import array_of, join, open_array, open_object

WRAPPER: Final = "x-fastmcp-wrap-result"
"""Output schema mark of a result that was wrapped only because structured content must be an object."""

_COMPARE_BYTES: Final = 1 << 20
"""Largest text that is compared by value with the structured content."""
_MEDIA_BYTES: Final = 1 << 19
"""Largest image, recording or resource that is passed through."""

Estimate = Callable[[Buffer], int]


@dataclass(frozen=True, slots=True)
class CaptureRules:
    """How one tool's results are treated. Budgets are estimated tokens."""

    mode: CaptureMode
    inline_budget: int
    error_budget: int
    wrapped: bool
    """The tool declares `x-fastmcp-wrap-result`."""


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


def capture(result: Mapping[str, Buffer], rules: CaptureRules, estimate: Estimate) -> Captured:
    """Decide what of a result stays inline and what is stored."""
    is_error = bytes(result.get("isError", b"false")) == b"true"
    blocks = tuple(_open_block(raw) for raw in open_array(result.get("content", b"[]")) or ())
    seen = sum(estimate(block.text or block.raw) for block in blocks if not _is_media(block))
    budget = rules.error_budget if is_error else rules.inline_budget
    structured = _structured(result, rules.wrapped)
    small = max(seen, estimate(structured) if structured is not None else 0) <= budget and not _heavy(blocks)
    if rules.mode == "never" or (small and is_error) or (structured is None and not blocks):
        return Captured(is_error=is_error)
    said, kind, whole = _content_value(blocks)
    blob = structured if structured is not None else said
    value = _draft(blob, kind if structured is None else None, estimate)
    is_dict = value.kind == "object" and not (structured is None and _is_media(blocks[0]))
    if small and rules.mode == "auto" and not is_dict:
        return Captured(is_error=is_error)
    repeats = structured is not None and _repeats(structured, blocks)
    companion = None if whole and (structured is None or repeats is True) else _companion(blocks, result, estimate)
    return Captured(
        value=value,
        companion=companion,
        named=companion is not None and repeats is False and bool(blocks),
        envelope=_envelope(result),
        shown=_readable(value) if value.tokens <= budget and not is_error else None,
        passed=tuple(block.raw for block in blocks if _passes(block)),
        is_error=is_error,
        head=_head(value) if is_error else None,
    )


def _open_block(raw: Buffer) -> _Block:
    opened = open_object(raw) or {}
    text = opened.get("text") if bytes(opened.get("type", b"")) == b'"text"' else None
    return _Block(raw, text, plain=text is not None and len(opened) == 2)  # noqa: PLR2004  # type and text


def _is_media(block: _Block) -> bool:
    """A block that models read by other means than as text, or not at all."""
    return block.text is None


def _heavy(blocks: tuple[_Block, ...]) -> bool:
    return any(_is_media(block) and len(block.raw) > _MEDIA_BYTES for block in blocks)


def _passes(block: _Block) -> bool:
    return _is_media(block) and len(block.raw) <= _MEDIA_BYTES


def _structured(result: Mapping[str, Buffer], wrapped: bool) -> Buffer | None:  # noqa: FBT001  # one call, by name there
    structured = result.get("structuredContent")
    if structured is None or bytes(structured) == b"null":
        return None
    opened = open_object(structured) if wrapped else None
    return opened["result"] if opened and opened.keys() == {"result"} else structured


def _content_value(blocks: tuple[_Block, ...]) -> tuple[Buffer, Kind | None, bool]:
    """The value that content blocks are, its kind where its text does not tell, and whether it says all they say."""
    plain = all(block.plain for block in blocks)
    if len(blocks) == 1:
        block = blocks[0]
        if block.text is None:
            return block.raw, _media_kind(block), True
        return _json_in(block.text) or block.text, None, plain
    parts: list[Buffer | Segments] = [block.raw if block.text is None else block.text for block in blocks]
    return join(array_of(parts)), None, plain or all(block.plain or block.text is None for block in blocks)


def _json_in(text: Buffer) -> Buffer | None:
    """The object or array that a JSON string spells, as the very text it was."""
    try:
        decoded = msgspec.json.decode(text, type=str).encode()
    except (msgspec.DecodeError, UnicodeError):
        return None
    if decoded.lstrip(b" \t\r\n")[:1] not in (b"{", b"["):
        return None
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


def _companion(blocks: tuple[_Block, ...], result: Mapping[str, Buffer], estimate: Estimate) -> Draft | None:
    """The content that the value does not hold: one text as that text, else the blocks as they came."""
    if not blocks:
        return None
    if len(blocks) == 1 and blocks[0].plain and blocks[0].text is not None:
        return _draft(_json_in(blocks[0].text) or blocks[0].text, None, estimate)
    return _draft(result["content"], None, estimate)


def _repeats(structured: Buffer, blocks: tuple[_Block, ...]) -> bool | None:
    """Whether the text says just what the structured content says; None past the bound of the comparison."""
    if not blocks:
        return True
    if len(blocks) > 1 or blocks[0].text is None:
        return False
    if bytes(structured) == bytes(blocks[0].text):
        return True
    if len(structured) > _COMPARE_BYTES or len(blocks[0].text) > 2 * _COMPARE_BYTES:
        return None
    try:
        text: str = msgspec.json.decode(blocks[0].text, type=str)
        value = json.loads(bytes(structured))
        return bool(text == value or json.loads(text) == value)
    except (ValueError, RecursionError):
        return False


def _envelope(result: Mapping[str, Buffer]) -> bytes:
    rest = {key: bytes(raw) for key, raw in result.items() if key not in ("content", "structuredContent")}
    return b"{" + b",".join(msgspec.json.encode(key) + b":" + raw for key, raw in rest.items()) + b"}"


def _readable(value: Draft) -> str | None:
    """The value as a model reads it: a text as its text, anything else as its JSON."""
    if value.kind == "binary":
        return None
    return msgspec.json.decode(value.blob, type=str) if value.kind == "text" else str(value.blob, "utf-8")


_HEAD_BYTES: Final = 1200


def _head(value: Draft) -> str:
    """The first kilobyte of an error, as text; a text is cut where its JSON string can be cut."""
    if value.kind != "text":
        return str(bytes(value.blob[:_HEAD_BYTES]), "utf-8", "ignore")
    for stop in range(_HEAD_BYTES, _HEAD_BYTES - 16, -1):
        try:
            return msgspec.json.decode(bytes(value.blob[:stop]) + b'"', type=str)
        except (msgspec.DecodeError, UnicodeError):
            continue
    return ""
