"""The reply of a tool for a program that passes it to a model."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mcp_mirror.core.results.main_parts import MAX_FIELD_NAME
from mcp_mirror.payload.json_rpc import contiguous, open_object
from mcp_mirror.security.sanitize import strip_invisible
from mcp_mirror.types import Buffer, Segments

SCHEMA: Final = "mcp-mirror/schema"
"""The member of a result's `_meta` with the columns of a table or the shape of an array, with types."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply of a tool call. `str(reply)` returns its `text`, which is for the model.

    `path` is the memory path of the stored result, for `Mirror.read` or the argument of another call, and None if
    nothing was stored. `content` has the blocks of the result, with images; `is_error` is whether the call failed;
    `preview` and `schema` describe the stored result.
    """

    text: str
    """The text for the model: a small result itself, else a notice with its memory path, or an error message."""
    is_error: bool = False
    """Whether the call failed; the text then names the cause and the next step."""
    content: tuple[Mapping[str, Any], ...] = ()
    """The content blocks of the protocol, including images and recordings."""
    path: str | None = None
    """The memory path of the stored result. None: nothing was stored."""
    preview: str | None = None
    """The part of `text` about the stored result, without the line that names the path. None: nothing was stored."""
    schema: Mapping[str, Any] | None = None
    """For a table or an array that a function returned: its class, and its columns or shape, with types."""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class ScriptReply(Reply):
    """The reply of a script or an SQL query."""

    value: Any = None
    """The returned value as parsed JSON, also if the model sees only a notice of it. None: the call failed."""
    printed: str = ""
    """The text that the script printed, up to `code.output` characters."""


def read_reply(
    members: Mapping[str, Buffer | Segments], path: str | None = None, other_members: bytes = b"{}"
) -> Reply:
    """Build the reply from the members of a result, the path of the stored result, and its members beside the value."""
    content = [block for block in _parse_member(members.get("content", b"[]")) if isinstance(block, dict)]
    texts = [_write_block(block) for block in content]
    if not texts and "structuredContent" in members:
        texts = [_write_structured(contiguous(members["structuredContent"]))]
    text = "\n".join(texts)
    described = members if path is None else open_object(other_members) or {}
    return Reply(
        text,
        is_error="isError" in members and _parse_member(members["isError"]),
        content=tuple(content),
        path=path,
        preview=None if path is None else _without_path(text, path),
        schema=_read_schema(described["_meta"]) if "_meta" in described else None,
    )


def _write_structured(structured: Buffer) -> str:
    """Structured content as JSON text, without the object in which `results` wraps other values."""
    members = open_object(structured) or {}
    return str(members["result"] if members.keys() == {"result"} else structured, "utf-8")


def _read_schema(meta: Buffer | Segments) -> Mapping[str, Any] | None:
    """The schema of a table or an array in the `_meta` of a result; None without one."""
    members = open_object(contiguous(meta)) or {}
    return _parse_member(members[SCHEMA]) if SCHEMA in members else None


def _without_path(text: str, path: str) -> str:
    """The text without the lines that do little more than name the path."""
    kept: list[str] = []
    for line in text.splitlines():
        before, found, after = line.partition(path)
        if not found or after.startswith("/") or len(before) + len(after) > _MAX_AROUND_PATH:
            kept.append(line)
    return "\n".join(kept).strip("\n")


def _write_block(block: Mapping[str, Any]) -> str:
    """The text of a block for a model that reads only text: a placeholder for media; for any other block, JSON."""
    match block:
        case {"type": "text", "text": str(text)} | {"type": "resource", "resource": {"text": str(text)}}:
            return text
        case {"type": "image" | "audio" as kind}:
            return f"({kind}: {_name_media_type(block)})"
        case {"type": "resource", "resource": {} as resource}:
            return f"(file: {_name_media_type(resource)})"
    return json.dumps(block, ensure_ascii=False)


def _name_media_type(content: Mapping[str, Any]) -> str:
    return strip_invisible(str(content.get("mimeType", "of no named type")), MAX_FIELD_NAME)


_MAX_AROUND_PATH: Final = 40
"""Characters beside a path up to which a line only names the path."""


def _parse_member(member: Buffer | Segments) -> Any:
    return json.loads(bytes(contiguous(member)))
