"""What a tool answered, for a program that hands it to its model."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mcp_mirror.models import Buffer, Segments
from mcp_mirror.wire import join, open_object


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

    def __str__(self) -> str:
        return self.text


def read_reply(members: Mapping[str, Buffer | Segments], path: str | None = None) -> Reply:
    """The answer that the members of a result are.

    Args:
        members: The members, JSON text.
        path: The memory path under which the result was stored, if it was.
    """
    content = _parsed(members.get("content", b"[]"))
    texts = [_TEXTS.get(block.get("type"), _as_json)(block) for block in content]
    if not texts and "structuredContent" in members:
        structured = _joined(members["structuredContent"])
        opened = open_object(structured) or {}
        # What is no object is wrapped, for structured content must be one.
        texts = [str(opened["result"] if opened.keys() == {"result"} else structured, "utf-8")]
    is_error = _parsed(members.get("isError", b"false"))
    preview = None if path is None else _without_path(texts, path)
    return Reply("\n".join(texts), is_error, tuple(content), path, preview)


def _without_path(texts: Sequence[str], path: str) -> str:
    """The notice, which is the first text, without a first or last line that does little more than name the path."""
    lines = "".join(texts[:1]).splitlines()
    for end in (0, -1):
        if lines and path in lines[end] and len(lines[end]) - len(path) <= _NAMES_PATH:
            lines.pop(end)
    return "\n".join(lines)


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
