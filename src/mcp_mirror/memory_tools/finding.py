"""From what a model writes as a memory path to the value, and a value brought back whole."""

import json
from typing import Final

import msgspec

from mcp_mirror.errors import ToolError
from mcp_mirror.memory_tools.own_tool import Call, Content, Memory
from mcp_mirror.models import Buffer
from mcp_mirror.notice import human_bytes
from mcp_mirror.paths import MemoryPath, noticed_bases, parse_path, unwrap
from mcp_mirror.recall import Recalled, recall, unknown_path
from mcp_mirror.spans import Miss, locate, members, trim

PATH: Final = "memory_path"
"""How every tool of ours names the argument that is one."""
CONTENTS: Final = (
    ("blob", ("data",)),
    ("blob", ("blob",)),
    ("blob", ("resource", "blob")),
    ("text", ("resource", "text")),
)
"""Where a content block keeps its base64 or its text, and what a resource calls that."""
_MEDIA_BYTES: Final = 5 << 20
"""Largest image or recording that is brought back: models take no larger ones."""
_LISTED_BYTES: Final = 1 << 20
"""Largest object whose keys are listed where it is too large to be answered."""


async def retrieve(call: Call) -> Content:
    """The value itself."""
    recalled = await bring_back(call.memory, call.namespace, call.given.text(PATH))
    if recalled.kind == "binary" and len(recalled.blob) <= _MEDIA_BYTES:
        return ((recalled.blob,),)
    return ((b'{"type":"text","text":', text_of(recalled), b"}"),)


async def bring_back(memory: Memory, namespace: str, text: str) -> Recalled:
    """A value that is small enough to be shown.

    Raises:
        ToolError: There is none under this path, or it is too large.
    """
    recalled = await find(memory, namespace, text)
    if len(recalled.blob) <= _MEDIA_BYTES and _is_media(recalled):
        return recalled
    tokens, budget = memory.estimate(recalled.blob), memory.mirror.answer_budget
    if tokens > budget:
        raise ToolError(
            f'"{recalled.path}" is {recalled.kind} of {human_bytes(len(recalled.blob))}, about {tokens:,} tokens; '
            f"answers are limited to {budget:,} (`answer_budget`). {_instead(recalled)}"
        )
    return recalled


def _is_media(recalled: Recalled) -> bool:
    """Whether it is no text to a model: tokens do not tell how large it is."""
    return recalled.kind == "binary" and isinstance(locate(recalled.blob, ("resource", "text")), Miss)


def text_of(recalled: Recalled) -> Buffer:
    """A value as a JSON string: a text as it is, anything else as its JSON."""
    return recalled.blob if recalled.kind == "text" else msgspec.json.encode(str(recalled.blob, "utf-8"))


async def find_given(call: Call) -> Recalled:
    """The value that a call names.

    Raises:
        ToolError: There is none under this path.
    """
    return await find(call.memory, call.namespace, call.given.text(PATH))


async def find(memory: Memory, namespace: str, text: str) -> Recalled:
    """The value under a path.

    Raises:
        ToolError: There is none; the message says what may have been meant.
    """
    path = read_path(text)
    recalled = await recall(memory.store, memory.scanner, namespace, path) if path else None
    if recalled is None:
        raise await unknown_path(memory.store, namespace, unwrap(text))
    return recalled


def read_path(text: str) -> MemoryPath | None:
    """A path as models write it: with something around it, or as a whole notice of ours."""
    if path := parse_path(unwrap(text)):
        return path
    bases = noticed_bases(text.strip())
    return MemoryPath(next(iter(bases))) if len(bases) == 1 else None


def _instead(recalled: Recalled) -> str:
    """What to do with a value that is too large to be answered."""
    if recalled.kind == "object" and len(recalled.blob) > _LISTED_BYTES:
        part = 'take a part (path + "/key"), or '
    elif recalled.kind == "object":
        keys = [member.key for member in members(recalled.blob, trim(recalled.blob))[:8]]
        parts = ", ".join(json.dumps(str(MemoryPath("", (key,))), ensure_ascii=False) for key in keys)
        part = f"take a part (path + one of {parts}), or "
    elif recalled.kind == "array":
        part = 'take one item (path + "/0"), or '
    else:
        part = ""
    return f"Pass the path to the tool that needs the value: {part}use the path itself as that tool's argument."
