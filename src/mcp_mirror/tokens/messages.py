"""Finds the parts of a chat message that a model reads, in the formats of the providers and of the Vercel AI SDK.

OpenAI chat and Responses items, Anthropic, Gemini (`parts`) and AI SDK messages differ only in the names of their
members: every text in a message is read at any depth, except members that identify the message or call.
"""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

Message = Mapping[str, Any]

_UNREAD_MEMBERS: Final = frozenset({
    "type", "id", "role", "status", "object", "index", "model", "cache_control", "citations", "logprobs",
    "call_id", "tool_call_id", "tool_use_id", "toolCallId", "toolUseId", "signature",
    "thoughtSignature", "thought_signature", "thought", "state", "providerOptions", "providerMetadata", "annotations",
})  # fmt: skip
"""Members that no model reads as text; the fixed cost of a message or call includes them."""
_JSON_MEMBERS: Final = frozenset({"input", "args", "arguments", "response", "result", "json", "rawInput", "tools"})
"""Members whose value is read as its JSON text, or unchanged if it is a text."""
_RESULT_MEMBERS: Final = frozenset({"content", "output"})
"""Members with blocks of a message or with a tool's own value, which is read as JSON text."""
_JSON_OUTPUTS: Final = frozenset({"json", "error-json"})
"""Types of the AI SDK's outputs whose `value` is read as JSON text."""
_CALL_NAMES: Final = frozenset({
    "tool_calls", "function_call", "functionCall", "functionResponse", "function_call_output", "tool_use",
    "tool_result", "tool-call", "tool-result", "custom_tool_call", "custom_tool_call_output",
})  # fmt: skip
"""Types or members that mark a call or its result."""
_IMAGE_TYPES: Final = frozenset({
    "image", "image_url", "input_image", "image-data", "image-url", "image-file-id", "computer_screenshot",
    "image_generation_call",
})  # fmt: skip
_MEDIA_NAMES: Final = frozenset({
    "input_audio", "audio", "file", "input_file", "document", "inlineData", "inline_data", "fileData", "file_data",
    "video", "media", "file-data", "file-url", "file-id",
})  # fmt: skip
_OUTPUT_TYPES: Final = _JSON_OUTPUTS | _IMAGE_TYPES | _MEDIA_NAMES | {
    "text", "input_text", "output_text", "content", "error-text", "execution-denied",
}  # fmt: skip
"""Types of the contents of `output` that are not a tool's own value."""
_PART_MEMBERS: Final = _CALL_NAMES | _MEDIA_NAMES | {"parts", "text"}
"""Members that mark a part of a message without a type."""
IMAGE_TOKENS: Final = 4_800
"""Maximum tokens of an image: Anthropic's figure for its largest, 2,576 pixels a side. OpenAI's 4o and 4.1 models take
up to 3,814; gpt-4o-mini, which counts each tile of 512 pixels as 5,667, takes more."""
MEDIUM_TOKENS: Final = 6_400
"""Minimum tokens of any other medium that is not a text; one per 4 characters of its data if that is more."""


CALL_PART: Final = 0
"""Marks a call or a result among the parts of a message."""


def read_parts(value: Any) -> Iterator[str | int]:
    """Yield what a model reads of a message: texts, `CALL_PART` for each call or result, tokens of each medium."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _read_members(value)
    elif isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        for item in value:
            yield from read_parts(item)
    elif value is not None and not isinstance(value, bool):
        yield str(value) if isinstance(value, int | float) else _encode_json(value)


def _read_members(value: Mapping[str, Any]) -> Iterator[str | int]:
    named = value.get("type")
    kind = named if isinstance(named, str) else ""
    if kind in _IMAGE_TYPES:
        yield IMAGE_TOKENS
    elif kind in _MEDIA_NAMES:
        yield from _read_medium(value)
    elif kind in _JSON_OUTPUTS and "value" in value:
        yield _encode_json(value["value"])
    else:
        if kind in _CALL_NAMES or kind.startswith("tool-"):
            yield CALL_PART
        for name, member in value.items():
            yield from _read_member(name, member)


def _read_member(name: str, member: Any) -> Iterator[str | int]:
    if name in _UNREAD_MEMBERS or member is None:
        return
    if name == "encrypted_content":  # only its length is known
        yield len(_encode_json(member)) // 4
        return
    if name in _MEDIA_NAMES and isinstance(member, Mapping):
        yield from _read_medium(member)
        return
    if name in _CALL_NAMES:
        yield from [CALL_PART] * (len(member) if isinstance(member, list) else 1)
    if (name in _JSON_MEMBERS and not isinstance(member, str)) or (
        name in _RESULT_MEMBERS and _is_tool_value(name, member)
    ):
        yield _encode_json(member)
    else:
        yield from read_parts(member)


def _is_tool_value(name: str, member: Any) -> bool:
    """Whether a member is a tool's own value rather than a block, or list of blocks, of a message."""
    if isinstance(member, Mapping):
        if name == "output":
            return member.get("type") not in _OUTPUT_TYPES
        return not isinstance(member.get("type"), str) and not _PART_MEMBERS & member.keys()
    return isinstance(member, list) and any(isinstance(item, Mapping) and _is_tool_value(name, item) for item in member)


def _read_medium(value: Mapping[str, Any]) -> Iterator[str | int]:
    """The tokens of a medium; a document that is a text is read as one."""
    source = value.get("source")
    if isinstance(source, Mapping) and source.get("type") in {"text", "content"}:
        yield from read_parts({name: member for name, member in value.items() if name != "type"})
    else:
        named = ("mimeType", "mime_type", "mediaType", "media_type")
        is_image = any(str(value.get(name, "")).startswith("image/") for name in named)
        yield IMAGE_TOKENS if is_image else max(MEDIUM_TOKENS, len(_encode_json(value)) // 4)


def _encode_json(value: Any) -> str:
    """The JSON text of a value; bytes as base64, other types by `str`."""
    return json.dumps(value, ensure_ascii=False, default=_encode_plain)


def _encode_plain(value: Any) -> str:
    is_binary = isinstance(value, bytes | bytearray | memoryview)
    return base64.b64encode(value).decode() if is_binary else str(value)
