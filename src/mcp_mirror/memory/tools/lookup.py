"""From what a model writes as a memory path to the value, and a value brought back whole."""

from typing import Final

import msgspec

from mcp_mirror.core.preview import human_bytes
from mcp_mirror.errors import ToolError
from mcp_mirror.memory.tools.tool import Content, Memory, ToolInput
from mcp_mirror.memory.value_lookup import FoundValue, recall, unknown_path
from mcp_mirror.observability.audit import AuditRecord, Event
from mcp_mirror.paths import MemoryPath, bases_in_notice, parse_path, strip_wrapping
from mcp_mirror.payload.json_spans import Miss, locate, members, trim
from mcp_mirror.security.flows import labels_as_text
from mcp_mirror.security.sanitize import as_json_string
from mcp_mirror.settings.labels import MODEL
from mcp_mirror.types import Buffer, Descriptor, JsonToken

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
_PATH: Final = 300
_KEY: Final = 80
"""Bytes of a key that are told."""
_LISTED_BYTES: Final = 1 << 20
"""Largest object whose keys are listed where it is too large to be answered."""


async def retrieve(call: ToolInput) -> Content:
    """The value itself."""
    found_value = await bring_back(call.memory, call.namespace, call.given.text(PATH), call.tool)
    if found_value.kind == "binary" and len(found_value.blob) <= _MEDIA_BYTES:
        return ((found_value.blob,),)
    return ((b'{"type":"text","text":', text_of(found_value), b"}"),)


async def bring_back(memory: Memory, namespace: str, text: str, tool: str) -> FoundValue:
    """A value that is small enough to be shown.

    Args:
        memory: Where it is.
        namespace: Whose it is.
        text: Its path, as it was written.
        tool: For what it is shown.

    Raises:
        ToolError: There is none under this path, or it is too large.
    """
    found_value = await find(memory, namespace, text, tool)
    if len(found_value.blob) <= _MEDIA_BYTES and _is_media(found_value):
        return found_value
    tokens, budget = memory.estimate(found_value.blob), memory.mirror.answer_budget
    if tokens > budget:
        raise ToolError(
            f"{as_json_string(str(found_value.path), _PATH)} is {found_value.kind} of "
            f"{human_bytes(len(found_value.blob))}, about {tokens:,} tokens; "
            f"answers are limited to {budget:,} (`answer_budget`). {_instead(found_value)}"
        )
    return found_value


def _is_media(found_value: FoundValue) -> bool:
    """Whether it is no text to a model: tokens do not tell how large it is."""
    return found_value.kind == "binary" and isinstance(locate(found_value.blob, ("resource", "text")), Miss)


def text_of(found_value: FoundValue) -> Buffer:
    """A value as a JSON string: a text as it is, anything else as its JSON."""
    return found_value.blob if found_value.kind == "text" else msgspec.json.encode(str(found_value.blob, "utf-8"))


async def find_given(call: ToolInput, to: str = MODEL) -> FoundValue:
    """The value that a call names.

    Raises:
        ToolError: There is none under this path, or it may not go to that place.
    """
    return await find(call.memory, call.namespace, call.given.text(PATH), call.tool, to)


async def find(memory: Memory, namespace: str, text: str, tool: str, to: str | None = MODEL) -> FoundValue:
    """The value under a path.

    Args:
        memory: Where it is.
        namespace: Whose it is.
        text: Its path, as it was written.
        tool: What it is read for.
        to: The place that it goes to; None: the program that asks, which no policy binds.

    Raises:
        FlowError: It may not go there; nothing of it was read.
        ToolError: There is none; the message says what may have been meant.
    """
    path = read_path(text)
    known = await memory.store.describe(namespace, path.base) if path else None
    if path and known and to:
        memory.guard(namespace, tool).admit({path.base: known}, to)
    labels = memory.flows.labels_of(known) if isinstance(known, Descriptor) else None
    tells = labels is None or to in (None, MODEL) or memory.flows.may_show(labels)
    found_value = (
        await recall(memory.store, memory.scanner, namespace, path, known, tells=tells) if path and known else None
    )
    size = len(found_value.blob) if found_value else 0
    event: Event = "read" if found_value else "refusal"
    outcome = "ok" if found_value else "unknown path"
    told = {} if labels is None else labels_as_text(labels)
    memory.audit.write(AuditRecord(event, namespace, tool, outcome, str(path) if path else None, told, size))
    if found_value is None:
        raise await unknown_path(memory.store, namespace, strip_wrapping(text))
    return found_value


def read_path(text: str) -> MemoryPath | None:
    """A path as models write it: with something around it, or as a whole notice of ours."""
    if path := parse_path(strip_wrapping(text)):
        return path
    bases = bases_in_notice(text.strip())
    return MemoryPath(next(iter(bases))) if len(bases) == 1 else None


def _instead(found_value: FoundValue) -> str:
    """What to do with a value that is too large to be answered."""
    if found_value.kind == "object" and len(found_value.blob) > _LISTED_BYTES:
        part = 'take a part (path + "/key"), or '
    elif found_value.kind == "object":
        listed = members(found_value.blob, trim(found_value.blob))[:8]
        keys: list[JsonToken] = [one.key if found_value.preview else at for at, one in enumerate(listed)]
        parts = ", ".join(as_json_string(str(MemoryPath("", (key,))), _KEY) for key in keys)
        part = f"take a part (path + one of {parts}), or "
    elif found_value.kind == "array":
        part = 'take one item (path + "/0"), or '
    else:
        part = ""
    return f"Pass the path to the tool that needs the value: {part}use the path itself as that tool's argument."
