"""What a tool answered, for a program that hands it to its model."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mcp_mirror.payload.json_rpc import join, open_object
from mcp_mirror.types import Buffer, Segments

SCHEMA: Final = "mcp-mirror/schema"
"""The member of a result's `_meta` that has the columns of a table, or the shape of an array, with their types."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer; `str` of it is its text."""

    text: str
    """For the model: the result where it is small, else a notice with its memory path; or what went wrong."""
    is_error: bool = False
    """The call failed, and the text says what to do."""
    content: tuple[Mapping[str, Any], ...] = ()
    """The content blocks of the protocol, pictures and recordings among them."""
    path: str | None = None
    """The memory path of the stored result. None: nothing was stored."""
    preview: str | None = None
    """What `text` says about the stored result, without the line that names the path. None: nothing was stored."""
    schema: Mapping[str, Any] | None = None
    """Of a table or an array that a function returned: its class, and its columns or its shape, with their types."""

    def __str__(self) -> str:
        return self.text


def read_reply(members: Mapping[str, Buffer | Segments], path: str | None = None, envelope: bytes = b"{}") -> Reply:
    """The answer that the members of a result are.

    Args:
        members: The members, JSON text.
        path: The memory path under which the result was stored, if it was.
        envelope: The members of the stored result beside its value, a JSON object.
    """
    content = _parsed(members.get("content", b"[]"))
    texts = [_TEXTS.get(block.get("type"), _as_json)(block) for block in content]
    if not texts and "structuredContent" in members:
        structured = _joined(members["structuredContent"])
        opened = open_object(structured) or {}
        # What is no object is wrapped, for structured content must be one.
        texts = [str(opened["result"] if opened.keys() == {"result"} else structured, "utf-8")]
    is_error = _parsed(members.get("isError", b"false"))
    text = "\n".join(texts)
    preview = None if path is None else _without_path(text, path)
    meta = _parsed(members.get("_meta", b"{}")) if path is None else json.loads(envelope).get("_meta", {})
    return Reply(text, is_error, tuple(content), path, preview, meta.get(SCHEMA))


def _without_path(text: str, path: str) -> str:
    """A text without the lines that do little more than name the path."""
    return "\n".join(line for line in text.splitlines() if not _only_names(line, path)).strip("\n")


def _only_names(line: str, path: str) -> bool:
    before, found, behind = line.partition(path)
    return bool(found) and not behind.startswith("/") and len(before) + len(behind) <= _NAMES_PATH


def _as_json(block: Mapping[str, Any]) -> str:
    return json.dumps(block, ensure_ascii=False)


def _media(block: Mapping[str, Any]) -> str:
    """A model that reads texts alone learns that there is something."""
    return f"({block['type']}: {block.get('mimeType', 'of no named type')})"


def _resource(block: Mapping[str, Any]) -> str:
    held = block["resource"]
    return str(held["text"]) if "text" in held else f"(file: {held.get('mimeType', 'of no named type')})"


_NAMES_PATH: Final = 40
"""Characters beside a path up to which a line only names it."""
_TEXTS: Final[Mapping[Any, Callable[[Mapping[str, Any]], str]]] = {
    "text": lambda block: str(block["text"]),
    "image": _media,
    "audio": _media,
    "resource": _resource,
}
"""What a model reads of each kind of block; of any other, such as a link, its JSON."""


def _parsed(member: Buffer | Segments) -> Any:
    return json.loads(_joined(member))


def _joined(member: Buffer | Segments) -> bytes:
    return join(member if isinstance(member, tuple) else (member,))
