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
    "call_id", "tool_call_id", "tool_use_id", "toolCallId", "toolUseId", "signature",
    "thoughtSignature", "thought_signature", "thought", "state", "providerOptions", "providerMetadata", "annotations",
})  # fmt: skip
"""Members that no model reads as text: they are part of what a message or a call costs in any case."""
_JSON: Final = frozenset({"input", "args", "arguments", "response", "result", "json", "rawInput", "tools"})
"""Members whose value is read as the JSON text of it, or as it is if it is a text."""
_RESULTS: Final = frozenset({"content", "output"})
"""Members that hold blocks of a message, or whatever a tool gave, which is read as JSON text too."""
_JSON_OUTPUTS: Final = frozenset({"json", "error-json"})
"""Types of the AI SDK's outputs whose `value` is read as JSON text."""
_CALLS: Final = frozenset({
    "tool_calls", "function_call", "functionCall", "functionResponse", "function_call_output", "tool_use",
    "tool_result", "tool-call", "tool-result", "custom_tool_call", "custom_tool_call_output",
})  # fmt: skip
"""Types, or members, that are a call or its result."""
_IMAGES: Final = frozenset({
    "image", "image_url", "input_image", "image-data", "image-url", "image-file-id", "computer_screenshot",
    "image_generation_call",
})  # fmt: skip
_MEDIA: Final = frozenset({
    "input_audio", "audio", "file", "input_file", "document", "inlineData", "inline_data", "fileData", "file_data",
    "video", "media", "file-data", "file-url", "file-id",
})  # fmt: skip
_OUTPUTS: Final = _JSON_OUTPUTS | _IMAGES | _MEDIA | {
    "text", "input_text", "output_text", "content", "error-text", "execution-denied",
}  # fmt: skip
"""Types of what an `output` holds, if it is not a tool's own value."""
_PARTS: Final = _CALLS | _MEDIA | {"parts", "text"}
"""Members by which a part of a message is one where it has no type."""
IMAGE_TOKENS: Final = 4_800
"""Tokens of an image at most: Anthropic's figure for its largest, 2,576 pixels a side. Of OpenAI's models those of the
4o and 4.1 series take up to 3,814; gpt-4o-mini, which counts each tile of 512 pixels as 5,667, takes more."""
MEDIUM_TOKENS: Final = 6_400
"""Tokens of any other medium at least, where it is no text; if more, one for 4 characters of its data."""


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
    if name == "encrypted_content":  # what it says is not known, but how long it is
        yield len(_as_json(member)) // 4
        return
    if name in _MEDIA and isinstance(member, Mapping):
        yield from _medium(member)
        return
    if name in _CALLS:
        yield from [_CALL] * (len(member) if isinstance(member, list) else 1)
    if (name in _JSON and not isinstance(member, str)) or (name in _RESULTS and _is_value(name, member)):
        yield _as_json(member)
    else:
        yield from _parts(member)


def _is_value(name: str, member: Any) -> bool:
    """Whether this is what a tool gave as it is, and no block, or list of blocks, of a message."""
    if isinstance(member, Mapping):
        if name == "output":
            return member.get("type") not in _OUTPUTS
        return not isinstance(member.get("type"), str) and not _PARTS & member.keys()
    return isinstance(member, list) and any(isinstance(item, Mapping) and _is_value(name, item) for item in member)


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
