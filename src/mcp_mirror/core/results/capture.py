"""Decides which part of a result the model sees and which part is stored. Another module stores the value.

A text is dropped only if it repeats the value.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from mcp_mirror.core.results.captured import EXCERPT_BYTES, Captured, ErrorExcerpt, MediaPart
from mcp_mirror.core.results.content_comparison import DIFFERS, SAME
from mcp_mirror.core.results.drafts import ResultReader, build_companion, build_value, parse_json_text, parse_json_texts
from mcp_mirror.core.results.main_parts import quote_short_texts
from mcp_mirror.core.results.parsed_result import (
    ParsedBlock,
    ParsedResult,
    build_other_members,
    find_content_place,
    parse_result,
)
from mcp_mirror.core.results.preview import describe_media
from mcp_mirror.core.results.repeated_texts import OtherTexts, find_other_texts
from mcp_mirror.core.texts.edges import find_errors
from mcp_mirror.core.value_sizes import Estimate, count_value_tokens
from mcp_mirror.paths import escape_token
from mcp_mirror.payload.json_rpc import as_plain_text, open_object
from mcp_mirror.payload.json_spans import kind_at, trim
from mcp_mirror.payload.json_strings import MAY_BEGIN_JSON, text_end, text_start
from mcp_mirror.payload.scans import Scans
from mcp_mirror.security.sanitize import cut
from mcp_mirror.settings.upstreams import CaptureMode
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.types import Buffer, Draft

_MAX_ERROR_LINE: Final = 240
"""Bytes of the lines with an error that follow the beginning of a large error."""
_OMITTED: Final = "\n...\n"
PASS_THROUGH_TOKENS: Final = 300
"""Tokens below which a result that is not an object passes unchanged: a line with its path would cost 10 % or more."""

MAX_MEDIA_BYTES: Final = 5 << 20
"""Bytes of base64 of the images and recordings that one result shows; providers accept no larger images."""
_MAX_MEDIA: Final = 20
"""Images and recordings that one result shows; some providers refuse messages with more images."""
_MAX_OTHER_BYTES: Final = 1 << 13
"""Bytes of other blocks, which models read as text, beside a notice."""
_MAX_TOKEN_BYTES: Final = 64
"""Bytes per token above which a text is over a budget, whatever the estimate."""
_MAX_SHORT_BYTES: Final = 5
"""Bytes for each token of its budget up to which a result may be a short text."""
_MAX_TEXT_BYTES: Final = 8
"""Bytes for each token of its budget up to which a text is compared with structured content by its words."""
_MAX_REPETITIONS: Final = 8
"""How often structured content may repeat the words of a text that is one of its members."""
_MAX_SEARCHED_BYTES: Final = 1 << 20
"""Bytes of an error in which the inputs of its call are searched."""
_FILLED_OBJECT: Final = lazy_pattern(rb"\s*\{\s*+[^}]")
"""The beginning of an object with members; a model writes an empty one with fewer tokens than its path."""
_DATA: Final = lazy_pattern(r"([A-Za-z0-9+/=_-]{40})[A-Za-z0-9+/=_-]{216,}")
"""Base64 and the like in an error, such as one that repeats an argument; the group is what is shown of it."""
_NO_TEXTS: Final = OtherTexts(())

_BLOCKS: Final = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


class CaptureRules(msgspec.Struct, frozen=True):
    """How results of one tool are captured. Budgets are tokens, by the estimate that `capture` gets."""

    mode: CaptureMode
    inline_budget: int
    error_budget: int
    is_wrapped: bool
    """The output schema marks structured content as a wrapper with one member; see `WRAPPER`."""
    passes_unchanged: bool = True
    """Images, recordings and small other blocks may pass unchanged; otherwise everything except text is stored."""
    preview: bool = True
    """The model may see parts of the result; otherwise all of it is stored, in every mode."""
    inputs: tuple[tuple[str, str], ...] = ()
    """Texts that went into the call, after their paths: a large error that repeats one names its path instead."""

    def store_all(self) -> "CaptureRules":
        """The rules by which everything is stored, and the model sees only the notice."""
        return msgspec.structs.replace(self, mode="always", inline_budget=0, error_budget=0, passes_unchanged=False)


def capture(
    result: Mapping[str, Buffer],
    rules: CaptureRules,
    estimate: Estimate,
    scans: Scans | None = None,
) -> Captured:
    """Decide which parts of a result, JSON text by member, the model sees and which are stored.

    `estimate` returns the tokens of a text (UTF-8) or of JSON text. `scans` decides where decoded texts are kept.
    """
    if _is_short_text(result, rules, estimate):
        return Captured()
    reader = ResultReader(estimate, scans or Scans())
    rules = rules if rules.preview else rules.store_all()
    is_error = bytes(result.get("isError", b"false")) == b"true"
    parsed = parse_result(result, reader.scans, is_wrapped=rules.is_wrapped)
    is_empty = parsed.structured is None and not parsed.blocks
    if rules.mode == "never" or is_empty:
        return Captured(is_error=is_error)
    other_texts = _find_other_texts(parsed, rules)
    if _passes_unchanged(parsed, other_texts, rules, reader, is_error=is_error):
        return Captured(is_error=is_error)
    json_texts = parse_json_texts(parsed, reader)
    value = build_value(parsed, json_texts, reader)
    place = find_content_place(parsed, json_texts)
    companion = build_companion(place, parsed, result, reader)
    shown = None if is_error else _choose_text(parsed, value, rules, estimate, other_texts)
    has_other_texts = shown is not None  # if there are any
    if shown is None and other_texts.texts and not is_error:
        shown = _choose_text(parsed, value, rules, estimate, _NO_TEXTS)
    passed: tuple[Buffer, ...] = ()
    if rules.passes_unchanged:
        passed = tuple(_select_blocks_to_pass(parsed.blocks, is_all_shown=shown is not None))
    has_unseen_blocks = len(passed) + len(parsed.texts) < len(parsed.blocks)
    is_text_hidden = bool(other_texts.texts) and not has_other_texts and rules.preview and not is_error
    is_quoted = is_text_hidden and shown is None and not has_unseen_blocks
    # A path would cost too much beside a small companion that is shown whole.
    is_small = has_other_texts and companion is not None and companion.tokens < PASS_THROUGH_TOKENS
    has_more = has_unseen_blocks or (bool(other_texts.texts) and not is_small)
    is_beside = companion is not None and parsed.value is not None
    if not rules.preview:
        value, companion = _without_preview(value), companion and _without_preview(companion)
    return Captured(
        value=value,
        companion=companion,
        is_named=is_beside and has_more,
        is_text_hidden=is_text_hidden,
        is_paraphrased=has_other_texts and other_texts.are_paraphrase,
        main_text_keys=parsed.main_text_keys,
        quoted_texts=quote_short_texts(other_texts.texts, estimate) if is_quoted else (),
        other_members=build_other_members(result, place, parsed, value),
        shown=shown,
        passed=passed,
        other_blocks=_count_other_blocks(parsed.blocks, passed),
        in_order=_order_blocks(parsed, passed) if shown is not None else (),
        media=tuple(_list_media(parsed, passed)) if rules.passes_unchanged else (),
        has_media_beside=is_beside,
        is_error=is_error,
        error=_excerpt_error(parsed, value, other_texts, rules) if is_error and rules.preview else None,
    )


def _is_short_text(result: Mapping[str, Buffer], rules: CaptureRules, estimate: Estimate) -> bool:
    """Whether a result is one short text that is not JSON, as most small results are. Then it passes unchanged.

    All of this follows from the other functions, which take ten times as long.
    """
    content, budget = result.get("content", b""), min(rules.inline_budget, PASS_THROUGH_TOKENS - 1)
    if len(content) > budget * _MAX_SHORT_BYTES or rules.mode not in ("auto", "large") or not rules.preview:
        return False
    if "structuredContent" in result or result.get("isError", b"false") != b"false":
        return False
    try:
        (block,) = _BLOCKS.decode(content)
    except (ValueError, RecursionError):  # another number of blocks, or something else
        return False
    text = bytes(block.get("text", b""))
    is_text = bytes(block.get("type", b"")) == b'"text"' and text[:1] == b'"' and text[1:2] not in MAY_BEGIN_JSON
    return is_text and _are_within_budget((text,), budget, estimate)


def _find_other_texts(parsed: ParsedResult, rules: CaptureRules) -> OtherTexts:
    """The texts that say more than structured content or something else; none if the content is its main text."""
    if parsed.value is None or parsed.main_text_keys:
        return _NO_TEXTS
    most, size = rules.inline_budget * _MAX_TEXT_BYTES, sum(map(len, parsed.texts))
    if parsed.relation == DIFFERS:
        return find_other_texts(parsed.value, parsed.texts, most)
    is_compared = parsed.relation.startswith("repeats.member:") and len(parsed.value) <= size * _MAX_REPETITIONS
    are_paraphrase = is_compared and size <= most and find_other_texts(parsed.value, parsed.texts, most).are_paraphrase
    return OtherTexts((), are_paraphrase=are_paraphrase)


def _passes_unchanged(
    parsed: ParsedResult, other_texts: OtherTexts, rules: CaptureRules, reader: ResultReader, *, is_error: bool
) -> bool:
    """Whether a result passes unchanged, and nothing of it is stored."""
    if not rules.preview or not (rules.passes_unchanged or len(parsed.texts) == len(parsed.blocks)):
        return False
    has_media = any(block.media for block in parsed.blocks)  # a model cannot write media itself, so it needs a path
    if not is_error and (rules.mode == "always" or (rules.mode == "auto" and has_media)):
        return False
    budget = rules.error_budget if is_error else rules.inline_budget
    if rules.mode == "auto" and not is_error:
        budget = min(budget, PASS_THROUGH_TOKENS - 1)
    if not _fits_budget(parsed, budget, reader.estimate):
        return False
    return is_error or rules.mode == "large" or not _has_object_value(parsed, other_texts, reader)


def _fits_budget(parsed: ParsedResult, budget: int, estimate: Estimate) -> bool:
    """Whether a result fits a budget: its content and its structured content, since clients show either of the two."""
    media = [len(block.raw) for block in parsed.blocks if block.is_shown_as_media]
    if len(media) > _MAX_MEDIA or sum(media) > MAX_MEDIA_BYTES:
        return False
    readable = [
        block.raw if block.text is None else block.text for block in parsed.blocks if not block.is_shown_as_media
    ]
    structured = () if parsed.structured is None else (parsed.structured,)
    # The value's tokens are needed in any case, those of a text that repeats it only if the value fits.
    first, second = (structured, readable) if parsed.value is parsed.structured else (readable, structured)
    return _are_within_budget(first, budget, estimate) and _are_within_budget(second, budget, estimate)


def _are_within_budget(parts: Sequence[Buffer], budget: int, estimate: Estimate) -> bool:
    size = sum(map(len, parts))
    if size <= budget:  # a token has at least one byte
        return True
    if size > budget * _MAX_TOKEN_BYTES:
        return False
    for part in parts:
        budget -= count_value_tokens(part, estimate)
        if budget < 0:
            return False
    return True


def _has_object_value(parsed: ParsedResult, other_texts: OtherTexts, reader: ResultReader) -> bool:
    """Whether the value is an object, and the result not a text with a few facts about it."""
    if parsed.value is not None and not (parsed.is_text or parsed.main_text_keys):
        is_text = other_texts.are_paraphrase and all(
            bytes(raw[:1]) not in (b"{", b"[") for raw in (open_object(parsed.value) or {}).values()
        )
        return not is_text and _FILLED_OBJECT.match(parsed.value) is not None
    if not (parsed.is_text or parsed.main_text_keys):
        return False
    text = parsed.texts[0] if parsed.value is None or parsed.main_text_keys else parsed.value
    return _FILLED_OBJECT.match(parse_json_text(text, reader) or b"") is not None


def _choose_text(
    parsed: ParsedResult, value: Draft, rules: CaptureRules, estimate: Estimate, other_texts: OtherTexts
) -> str | None:
    """The texts of a result within the inline budget, as the model reads them; None for a larger result.

    The `other_texts` are shown beside the value, or in its place if they contain it.
    """
    only = parsed.blocks[0] if parsed.value is None and len(parsed.blocks) == 1 else None
    is_shown = only is not None and only.is_shown_as_media and len(only.raw) <= MAX_MEDIA_BYTES
    is_unseen = only is not None and only.media is not None and not is_shown
    if not rules.preview or is_unseen or not (rules.passes_unchanged or len(parsed.texts) == len(parsed.blocks)):
        return None
    others = tuple(block.raw for block in parsed.blocks if _is_other(block))
    if other_texts.are_paraphrase:
        texts = tuple(parsed.texts)
    elif other_texts.include_value:
        texts = other_texts.texts
    else:
        texts = (*other_texts.texts, *_choose_value_texts(parsed, value))
    if not _are_within_budget((*texts, *others), rules.inline_budget, estimate):
        return None
    return "\n".join(map(as_plain_text, texts))


def _choose_value_texts(parsed: ParsedResult, value: Draft) -> tuple[Buffer, ...]:
    """The texts or the JSON text of the value: the shortest of several with the same meaning."""
    if parsed.value is None or parsed.main_text_keys:
        return tuple(parsed.texts)
    if parsed.relation == SAME and not parsed.is_text:
        return (min(value.blob, parsed.texts[0], key=_estimate_text_length),)
    return (value.blob,)


def _estimate_text_length(json_text: Buffer) -> int:
    """The approximate bytes that a model reads: a string without its escapes."""
    return len(json_text) - (bytes(json_text).count(b"\\") if bytes(json_text[:1]) == b'"' else 0)


def _select_blocks_to_pass(blocks: Sequence[ParsedBlock], *, is_all_shown: bool) -> Iterator[Buffer]:
    """The blocks beside a notice: media up to a limit and small other blocks, but no files and no texts."""
    left, media_room, room = _MAX_MEDIA, MAX_MEDIA_BYTES, _MAX_OTHER_BYTES
    for block in blocks:
        if block.is_shown_as_media:
            if left and len(block.raw) <= media_room:
                left, media_room = left - 1, media_room - len(block.raw)
                yield block.raw
        elif _is_other(block) and (is_all_shown or len(block.raw) <= room):
            room -= len(block.raw)
            yield block.raw


def _count_other_blocks(blocks: Sequence[ParsedBlock], passed: Sequence[Buffer]) -> tuple[int, int]:
    shown = {id(raw) for raw in passed}
    are_passed = [id(block.raw) in shown for block in blocks if _is_other(block)]
    return sum(are_passed), len(are_passed)


def _is_other(block: ParsedBlock) -> bool:
    """Whether a block is a link or an embedded text."""
    return block.text is None and block.media is None


def _order_blocks(parsed: ParsedResult, passed: Sequence[Buffer]) -> tuple[Buffer, ...]:
    if parsed.value is not None or not (parsed.texts and passed):
        return ()
    shown = {id(raw) for raw in passed}
    return tuple(block.raw for block in parsed.blocks if block.text is not None or id(block.raw) in shown)


def _list_media(parsed: ParsedResult, passed: Sequence[Buffer]) -> Iterator[MediaPart]:
    """The images, recordings and files in the value or the companion, without the one that is the whole value."""
    shown = {id(raw) for raw in passed}
    repeated, _, key = parsed.relation.partition(":")
    above = f"/{escape_token(key)}" if repeated == "repeats.content" else ""
    is_listed = parsed.value is not None or len(parsed.blocks) > 1
    for at, block in enumerate(parsed.blocks):
        if block.media and (is_listed or block.media.is_file):
            item = f"{above}/{at}" if is_listed else ""
            pointer = f"{item}/resource/blob" if block.media.is_file else item
            is_hidden = block.is_shown_as_media and id(block.raw) not in shown
            yield MediaPart(pointer, describe_media(block.media), is_hidden)


def _without_preview(draft: Draft) -> Draft:
    return msgspec.structs.replace(draft, media_type=None, preview=False)


def _excerpt_error(parsed: ParsedResult, value: Draft, other_texts: OtherTexts, rules: CaptureRules) -> ErrorExcerpt:
    """The beginning and the end of an error, as text: of its texts, and of a value that differs from them.

    The first lines with an error between them follow the beginning. Data such as base64 is shortened.
    """
    parts: Sequence[Buffer] = (*other_texts.texts, value.blob)
    is_array = parsed.value is None and len(parsed.blocks) > 1 and parsed.texts  # the value is an array of them
    if is_array or parsed.main_text_keys:
        parts = parsed.texts
    if rules.inputs:
        parts = [_name_inputs(part, rules.inputs) for part in parts]
    is_whole = sum(map(len, parts)) <= 2 * EXCERPT_BYTES
    tail = "" if is_whole else "\n".join(reversed(list(_excerpt_parts(parts[::-1], is_end=True))))
    head = "\n".join(_excerpt_parts(parts, is_end=False))
    if tail and (lines := _find_hidden_error(parts, head + tail[-EXCERPT_BYTES // 2 :])):
        head = f"{cut(head, EXCERPT_BYTES - len(lines.encode()) - len(_OMITTED))}{_OMITTED}{lines}"
    return ErrorExcerpt(_DATA.sub(r"\1...", head), _DATA.sub(r"\1...", tail))


def _find_hidden_error(parts: Sequence[Buffer], shown: str) -> str:
    """What follows the first word for an error in the first text with one, such as a build; empty if it is shown."""
    for part in parts:
        whole = trim(part)
        if whole.length <= _MAX_SEARCHED_BYTES and kind_at(part, whole.start) == "text":
            errors = find_errors(text_start(part, whole, whole.length))
            if errors:
                return "" if errors.first in shown else cut(errors.text.rstrip(), _MAX_ERROR_LINE)
    return ""


def _name_inputs(part: Buffer, inputs: Sequence[tuple[str, str]]) -> Buffer:
    """Return a part with a path in place of each input that it repeats, as it is or quoted."""
    whole = trim(part)
    if whole.length > _MAX_SEARCHED_BYTES:
        return part
    is_text = kind_at(part, whole.start) == "text"
    text = text_start(part, whole, whole.length) if is_text else str(bytes(part), "utf-8", "ignore")
    for path, repeated in inputs:
        as_json = (json.dumps(repeated, ensure_ascii=is_ascii)[1:-1] for is_ascii in (True, False))
        for written in (repeated, repr(repeated)[1:-1], *as_json):
            text = text.replace(written, f"<the value of {path}>")
    return json.dumps(text).encode() if is_text else text.encode()


def _excerpt_parts(parts: Sequence[Buffer], *, is_end: bool) -> Iterator[str]:
    """The beginnings, or the ends, of the first parts while there is room."""
    room = EXCERPT_BYTES
    for part in parts:
        if room <= 0:
            return
        whole = trim(part)
        if kind_at(part, whole.start) == "text":
            yield (text_end if is_end else text_start)(part, whole, room)
        else:
            yield str(bytes(part[-room:] if is_end else part[:room]), "utf-8", "ignore")
        room -= len(part)
