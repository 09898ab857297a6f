"""The results that clients get: a notice and what passes beside it, a path alone, or an error in words.

What a result came to was decided before; what of it fits a conversation is decided elsewhere.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from mcp_mirror.core.budgets import count_media_tokens
from mcp_mirror.core.capture import Captured
from mcp_mirror.core.result_processing import ProcessedResult
from mcp_mirror.paths import SCHEME
from mcp_mirror.payload.json_rpc import array_of
from mcp_mirror.security.sanitize import sanitize_ends
from mcp_mirror.types import Buffer, Draft, Segments, media_type_of

Reply = Mapping[str, Buffer | Segments]
"""The members of a `tools/call` result, JSON text."""

MAX_ERROR_BYTES: Final = 8_000
"""Bytes of an error in words of ours."""

EMPTY_ERROR: Final[Reply] = {"content": b"[]", "isError": b"true"}
"""The error that costs nothing."""


def build_reply(digest: ProcessedResult, linked: str | None) -> Reply:
    """The notice and the blocks that pass beside it, or the result as it came.

    Args:
        digest: What the result came to.
        linked: The base of the value, where a link to it is to follow.
    """
    if digest.captured.value is None:
        return digest.members
    passed = [(block,) for block in digest.captured.passed]
    links = [(_link_block(linked, digest.captured.value),)] if linked else []
    notice = ((text_block(digest.notice),),)
    blocks = (*passed, *notice) if digest.captured.shown == "" else (*notice, *passed)  # below what is shown whole
    return _marked(digest.captured, content_reply((*blocks, *links)))


def build_path_reply(digest: ProcessedResult, base: str) -> Reply:
    """The path of a value alone."""
    return _marked(digest.captured, content_reply(((text_block(f"{base}\n"),),)))


def count_hidden_tokens(captured: Captured) -> int:
    """Estimated tokens that a stored result would have cost a model; 0 for one that is shown."""
    if captured.value is None or captured.shown is not None:
        return 0
    drafts = (captured.value, captured.companion if captured.named else None)
    return sum(count_media_tokens(len(one.blob)) if one.kind == "binary" else one.tokens for one in drafts if one)


def count_reply_bytes(reply: Reply) -> int:
    """Bytes of an answer."""
    return sum(sum(map(len, part)) if isinstance(part, tuple) else len(part) for part in reply.values())


def text_block(text: str) -> bytes:
    """A text content block."""
    return msgspec.json.encode({"type": "text", "text": text})


def error_reply(message: str) -> Reply:
    """A tool error that the model reads. Whatever strangers' words are in it, it is bounded, and nothing is hidden."""
    return {"content": array_of([text_block(sanitize_ends(message, MAX_ERROR_BYTES))]), "isError": b"true"}


def refusal_result(message: str) -> Mapping[str, Buffer]:
    """A JSON-RPC error of an upstream as a tool error that is not bounded yet."""
    return {"content": b"[%b]" % text_block(message), "isError": b"true"}


def content_reply(blocks: Iterable[Segments]) -> Reply:
    """Content blocks, JSON text."""
    return {"content": array_of(blocks)}


def _marked(captured: Captured, reply: Reply) -> Reply:
    return {**reply, "isError": b"true"} if captured.is_error else reply


def _link_block(base: str, value: Draft) -> bytes:
    """A stored value as a resource that a client can show to a person."""
    link = {"type": "resource_link", "uri": f"{SCHEME}{base}", "name": base, "size": len(value.blob)}
    return msgspec.json.encode({**link, "mimeType": media_type_of(value.kind, value.media_type)})
