"""What a tool answered, for a program that hands it to its model."""

import json
from collections.abc import Callable, Mapping
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

    def __str__(self) -> str:
        return self.text


def read_reply(members: Mapping[str, Buffer | Segments]) -> Reply:
    """The answer that the members of a result are."""
    content = _parsed(members.get("content", b"[]"))
    texts = [_TEXTS.get(block.get("type"), _as_json)(block) for block in content]
    if not texts and "structuredContent" in members:
        structured = _joined(members["structuredContent"])
        opened = open_object(structured) or {}
        # What is no object is wrapped, for structured content must be one.
        texts = [str(opened["result"] if opened.keys() == {"result"} else structured, "utf-8")]
    return Reply("\n".join(texts), _parsed(members.get("isError", b"false")), tuple(content))


def _as_json(block: Mapping[str, Any]) -> str:
    return json.dumps(block, ensure_ascii=False)


def _media(block: Mapping[str, Any]) -> str:
    """A model that reads texts alone learns that there is something."""
    return f"({block['type']}: {block.get('mimeType', 'of no named type')})"


def _resource(block: Mapping[str, Any]) -> str:
    held = block["resource"]
    return str(held["text"]) if "text" in held else f"(file: {held.get('mimeType', 'of no named type')})"


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
