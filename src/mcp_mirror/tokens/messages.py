"""What of a chat message a model reads, in the formats of the providers and of the Vercel AI SDK.

OpenAI chat and Responses items, Anthropic, Gemini (`parts`) and AI SDK messages differ in the names of their members
alone: every text in a message is read, whatever it lies in, but for members that only say which message or call it is.
"""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Message = Mapping[str, Any]

_UNREAD: Final = frozenset({
    "type", "id", "role", "status", "object", "index", "model", "cache_control", "citations", "logprobs",
    "call_id", "tool_call_id", "tool_use_id", "toolCallId", "toolUseId", "signature", "encrypted_content",
    "thoughtSignature", "thought_signature", "thought", "state", "providerOptions", "providerMetadata", "annotations",
})  # fmt: skip
"""Members that no model reads as text: they are part of what a message or a call costs in any case."""
_JSON: Final = frozenset({"input", "args", "arguments", "response", "json", "rawInput"})
"""Members whose value is read as the JSON text of it, or as it is if it is a text."""
_JSON_OUTPUTS: Final = frozenset({"json", "error-json"})
"""Types of the AI SDK's outputs whose `value` is read as JSON text."""
_CALLS: Final = frozenset({
    "tool_calls", "function_call", "functionCall", "functionResponse", "function_call_output", "tool_use",
    "tool_result", "tool-call", "tool-result", "custom_tool_call", "custom_tool_call_output",
})  # fmt: skip
"""Types, or members, that are a call or its result."""
_IMAGES: Final = frozenset({"image", "image_url", "input_image"})
_MEDIA: Final = frozenset({
    "input_audio", "audio", "file", "input_file", "document", "inlineData", "inline_data", "fileData", "file_data",
    "video", "media",
})  # fmt: skip
IMAGE_TOKENS: Final = 1_600
"""Tokens of an image at most: of 1,568 x 1,568 pixels at (width x height) / 750, which Anthropic's guide to vision
states with the size that larger images are scaled to; OpenAI's guide has 85 + 8 tiles x 170 = 1,445 for the largest."""
MEDIUM_TOKENS: Final = 6_400
"""Tokens of any other medium at least, where it is no text: four images; if more, one for 4 characters of its data."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a model reads of one message: its texts, how many calls and results are in it, and media in tokens."""

    texts: tuple[str, ...]
    calls: int
    media: int


def read_message(message: Message) -> Reading:
    """All of one message."""
    texts: list[str] = []
    calls = media = 0
    for part in _parts(message):
        if isinstance(part, str):
            texts.append(part)
        elif part == _CALL:
            calls += 1
        else:
            media += part
    return Reading(tuple(texts), calls, media)


_CALL: Final = 0
"""Among the parts of a message: here is a call or a result."""


def _parts(value: Any) -> Iterator[str | int]:
    """Texts as they are, a call as `_CALL`, a medium as its tokens."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _members(value)
    elif isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        for item in value:
            yield from _parts(item)
    elif value is not None and not isinstance(value, bool):
        yield str(value) if isinstance(value, int | float) else _as_json(value)


def _members(value: Mapping[str, Any]) -> Iterator[str | int]:
    kind = value.get("type")
    if kind in _IMAGES:
        yield IMAGE_TOKENS
    elif kind in _MEDIA:
        yield from _medium(value)
    elif kind in _JSON_OUTPUTS and "value" in value:
        yield _as_json(value["value"])
    else:
        if kind in _CALLS or (isinstance(kind, str) and kind.startswith("tool-")):
            yield _CALL
        for name, member in value.items():
            yield from _member(name, member)


def _member(name: str, member: Any) -> Iterator[str | int]:
    if name in _UNREAD or member is None:
        return
    if name in _MEDIA and isinstance(member, Mapping):
        yield from _medium(member)
        return
    if name in _CALLS:
        yield from [_CALL] * (len(member) if isinstance(member, list) else 1)
    if name in _JSON and not isinstance(member, str):
        yield _as_json(member)
    else:
        yield from _parts(member)


def _medium(value: Any) -> Iterator[str | int]:
    """A medium by its data; a document that is a text is read as one."""
    whole = _as_json(value)
    source = value.get("source") if isinstance(value, Mapping) else None
    if isinstance(source, Mapping) and source.get("type") in {"text", "content"}:
        yield from _parts({name: member for name, member in value.items() if name != "type"})
    else:
        is_image = isinstance(value, Mapping) and any(
            str(value.get(name, "")).startswith("image/")
            for name in ("mimeType", "mime_type", "mediaType", "media_type")
        )
        yield IMAGE_TOKENS if is_image else max(MEDIUM_TOKENS, len(whole) // 4)


def _as_json(value: Any) -> str:
    """The JSON text of a value; bytes stand as base64, what JSON has no form for as its `str`."""
    return json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> str:
    is_binary = isinstance(value, bytes | bytearray | memoryview)
    return base64.b64encode(value).decode() if is_binary else str(value)
