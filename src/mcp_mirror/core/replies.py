"""Builds results for clients: a notice and the blocks beside it, a path, or an error message; counts their tokens.

Other modules decide what is stored and what fits a context window.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from mcp_mirror.core.results.captured import Captured
from mcp_mirror.core.results.processing import ProcessedResult
from mcp_mirror.core.value_sizes import Estimate, count_value_tokens
from mcp_mirror.paths import SCHEME
from mcp_mirror.payload.json_rpc import array_of, contiguous, open_array, open_object
from mcp_mirror.security.sanitize import sanitize_ends
from mcp_mirror.tokens import IMAGE_TOKENS
from mcp_mirror.types import Buffer, Draft, Segments, media_type_of

ToolResult = Mapping[str, Buffer | Segments]
"""The members of a `tools/call` result, each JSON text: `bytes`, a `memoryview`, or a tuple of both, its parts."""

MAX_ERROR_BYTES: Final = 8_000
"""Bytes of an error message of the gateway."""

EMPTY_ERROR: Final[ToolResult] = {"content": b"[]", "isError": b"true"}
"""An error without text, which costs no tokens."""
_BYTES_PER_MEDIA_TOKEN: Final = 64
"""Bytes of base64 for each token of a recording: 32 tokens a second (Gemini) at 12 kbit/s, a low bit rate."""
_MEDIA_TYPES: Final = frozenset({b'"image"', b'"audio"'})


def build_reply(processed: ProcessedResult, linked: str | None) -> ToolResult:
    """The notice of a stored result, and the blocks beside it: with a resource link to the base `linked`, if any."""
    passed = [(block,) for block in processed.captured.passed]
    value = processed.captured.value
    links = [(_link_block(linked, value),)] if linked and value else []
    notice = (encode_text_block(processed.notice),)
    is_last = processed.captured.shown == ""  # it follows a result that is shown whole
    blocks = (*passed, notice) if is_last else (notice, *passed)
    return _with_error_flag(processed.captured, build_content_reply((*blocks, *links)))


def build_path_reply(processed: ProcessedResult, base: str) -> ToolResult:
    """A result that contains only the path of a value."""
    return _with_error_flag(processed.captured, build_content_reply(((encode_text_block(f"{base}\n"),),)))


def count_hidden_tokens(captured: Captured) -> int:
    """Estimated tokens that a stored result would have cost a model; 0 for a result that is shown."""
    if captured.value is None or captured.shown is not None:
        return 0
    drafts = (captured.value, captured.companion if captured.is_named else None)
    return sum(
        count_media_tokens(len(draft.blob)) if draft.kind == "binary" else draft.tokens for draft in drafts if draft
    )


def count_reply_bytes(reply: ToolResult) -> int:
    """Bytes of a result."""
    size = 0
    for part in reply.values():
        size += sum(map(len, part)) if isinstance(part, tuple) else len(part)
    return size


def read_texts(reply: ToolResult) -> str:
    """The texts of a result's content blocks, a line each."""
    blocks = msgspec.json.decode(contiguous(reply.get("content", b"[]")), type=list[dict[str, Any]])
    return "\n".join(str(block["text"]) for block in blocks if "text" in block)


def encode_text_block(text: str) -> bytes:
    """A text content block as JSON text."""
    return msgspec.json.encode({"type": "text", "text": text})


def append_text(reply: ToolResult, text: str) -> ToolResult:
    """A result with one more text block."""
    blocks = open_array(contiguous(reply.get("content", b"[]"))) or ()
    return {**reply, "content": array_of((*((block,) for block in blocks), (encode_text_block(text),)))}


def build_error_reply(message: str) -> ToolResult:
    """A tool error for the model: the message is bounded and sanitized, since it may quote an upstream."""
    return {"content": array_of([encode_text_block(sanitize_ends(message, MAX_ERROR_BYTES))]), "isError": b"true"}


def build_refusal_result(message: str) -> Mapping[str, Buffer]:
    """A JSON-RPC error of an upstream as a tool error without a size limit."""
    return {"content": b"[%b]" % encode_text_block(message), "isError": b"true"}


def build_content_reply(blocks: Iterable[Segments]) -> ToolResult:
    """A result with these content blocks, JSON text."""
    return {"content": array_of(blocks)}


def _with_error_flag(captured: Captured, reply: ToolResult) -> ToolResult:
    return {**reply, "isError": b"true"} if captured.is_error else reply


def _link_block(base: str, value: Draft) -> bytes:
    """A resource link to a stored value, which clients can show to the user."""
    size = {} if value.kind == "binary" else {"size": value.shown_size}  # the size of media is not known
    link = {"type": "resource_link", "uri": f"{SCHEME}{base}", "name": base, **size}
    return msgspec.json.encode({**link, "mimeType": media_type_of(value.kind, value.media_type)})


def count_result_tokens(members: Mapping[str, Buffer | Segments], estimate: Estimate, shown: str = "") -> int:
    """Tokens that a model reads of a result: of its content or its structured content, the larger number.

    Clients show either of the two. An input-required result has neither and costs nothing. `shown` is a part of a text
    block that is counted on its own, because `estimate` remembers its tokens.
    """
    structured = contiguous(members.get("structuredContent", b""))
    blocks = open_array(contiguous(members.get("content", b"[]"))) or ()
    content = sum(_count_block_tokens(raw, estimate, shown) for raw in blocks)
    return max(estimate(structured) if structured else 0, content)


def count_media_tokens(size: int) -> int:
    """Tokens that an image, a recording or a file of this many bytes of base64 costs at most."""
    return max(IMAGE_TOKENS, size // _BYTES_PER_MEDIA_TOKEN)


def _count_block_tokens(raw: Buffer, estimate: Estimate, shown: str) -> int:
    block = open_object(raw) or {}
    kind, literal = bytes(block.get("type", b"")), block.get("text", b"")
    if kind == b'"text"' and bytes(literal[:1]) == b'"':
        above, found, below = msgspec.json.decode(literal, type=str).partition(shown) if shown else ("", "", "")
        if found:
            return sum(estimate(part.encode()) for part in (found, above, below) if part)
        return count_value_tokens(literal, estimate)
    is_file = "blob" in (open_object(block.get("resource", b"null")) or {})
    return count_media_tokens(len(raw)) if is_file or kind in _MEDIA_TYPES else estimate(raw)
