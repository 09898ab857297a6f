"""Our own tools, a table: each reads or changes the caller's memory and never calls an upstream."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from mcp_mirror.errors import ToolError
from mcp_mirror.models import Buffer, Segments
from mcp_mirror.notice import human_bytes
from mcp_mirror.paths import MemoryPath, noticed_bases, parse_path, unwrap
from mcp_mirror.policies import MirrorPolicy
from mcp_mirror.recall import Recalled, recall, unknown_path
from mcp_mirror.scanner import Scanner
from mcp_mirror.spans import Miss, locate, members, trim
from mcp_mirror.stores.base import Store

Content = tuple[Segments, ...]
"""Content blocks of an answer, JSON text."""

_MEDIA_BYTES: Final = 5 << 20
"""Largest image or recording that is brought back: models take no larger ones."""
_LISTED_BYTES: Final = 1 << 20
"""Largest object whose keys are listed where it is too large to be answered."""
_ANY_SIZE: Final = {"anthropic/maxResultSizeChars": 500_000}
"""Lifts a client's own limit on results: ours is `answer_budget`."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What our own tools work on."""

    store: Store
    policy: MirrorPolicy
    estimate: Callable[[Buffer], int]
    scanner: Scanner


@dataclass(frozen=True, slots=True)
class OwnTool:
    """One of our own tools."""

    name: str
    description: str
    arguments: Mapping[str, str]
    """Each argument, all of them text, with what it is."""
    run: Callable[[Memory, str, Mapping[str, str]], Awaitable[Content]] = field(repr=False)

    @property
    def advert(self) -> dict[str, Any]:
        """The tool as clients see it."""
        properties = {name: {"type": "string", "description": said} for name, said in self.arguments.items()}
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": {"type": "object", "properties": properties, "required": list(properties)},
            "annotations": {"readOnlyHint": True, "openWorldHint": False},
            "_meta": dict(_ANY_SIZE),
        }

    def read_arguments(self, arguments: Buffer) -> Mapping[str, str]:
        """The arguments of a call, checked.

        Raises:
            ToolError: One is missing, unknown or no text.
        """
        try:
            given = msgspec.json.decode(arguments, type=dict[str, str])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            given = {}
        if given.keys() != self.arguments.keys():
            wanted = ", ".join(f"{name!r} ({said})" for name, said in self.arguments.items())
            raise ToolError(f"{self.name} takes {wanted}, as text, and nothing else.")
        return given


async def _retrieve(memory: Memory, namespace: str, arguments: Mapping[str, str]) -> Content:
    recalled = await bring_back(memory, namespace, arguments["memory_path"])
    if recalled.kind == "binary" and len(recalled.blob) <= _MEDIA_BYTES:
        return ((recalled.blob,),)
    return ((b'{"type":"text","text":', text_of(recalled), b"}"),)


async def bring_back(memory: Memory, namespace: str, text: str) -> Recalled:
    """A value that is small enough to be shown.

    Raises:
        ToolError: There is none under this path, or it is too large.
    """
    recalled = await _find(memory, namespace, text)
    if len(recalled.blob) <= _MEDIA_BYTES and _is_media(recalled):
        return recalled
    tokens, budget = memory.estimate(recalled.blob), memory.policy.answer_budget
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


async def _find(memory: Memory, namespace: str, text: str) -> Recalled:
    path = _read_path(text)
    recalled = await recall(memory.store, memory.scanner, namespace, path) if path else None
    if recalled is None:
        raise await unknown_path(memory.store, namespace, unwrap(text))
    return recalled


def _read_path(text: str) -> MemoryPath | None:
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


RETRIEVE: Final = "retrieve_final_answer_from_memory"

OWN_TOOLS: Final[Mapping[str, OwnTool]] = {
    tool.name: tool
    for tool in (
        OwnTool(
            RETRIEVE,
            "Get the value stored under a memory path, to answer the user with it. "
            "To hand a value to another tool, give that tool the path instead.",
            {"memory_path": "a memory path, to the letter"},
            _retrieve,
        ),
    )
}
