"""Tools that store a new value: an edited copy, or a value of the model. Stored values never change."""

from typing import Final

import msgspec

from mcp_mirror.core.conversion import Resolved
from mcp_mirror.core.media import find_embedded_text
from mcp_mirror.core.resolve import Pointer, find_pointers, substitute_pointers
from mcp_mirror.errors import RefusalReason, ToolError
from mcp_mirror.memory.tools.lookup import encode_json_string, find_argument, find_value
from mcp_mirror.memory.tools.read import query_value
from mcp_mirror.memory.tools.save import NewValue, save_and_reply
from mcp_mirror.memory.tools.tool import Arguments, Content, ToolInput
from mcp_mirror.memory.value_lookup import FoundValue
from mcp_mirror.query.edits import Merge, Patch, Pieces, Replace, join_pieces
from mcp_mirror.system.fair_threads import run_fairly
from mcp_mirror.workers.queries import THREAD_BYTES
from mcp_mirror.workers.query_jobs import Query

_EDIT_COST: Final = 16
"""How many times as long an edit takes as other queries: it may change every byte."""
_MAX_SENT_BYTES: Final = 1 << 20
"""Bytes of the largest edit that is sent to a worker process; the event loop copies it several times."""
_PIECE_COST: Final = 64
"""Bytes that are written as fast as one piece of an edit."""


async def edit(call: ToolInput) -> Content:
    """Store an edited copy of a value and return its notice."""
    way = _choose_way(call.arguments)
    change, used = await _read_change(call, way)
    found_value = await find_argument(call)
    is_editable = found_value.kind != "binary" or (
        isinstance(change, Replace)
        and await run_fairly(call.namespace, find_embedded_text, found_value.blob) is not None
    )
    if not is_editable:
        raise ToolError("A binary value cannot be edited. Edit a part of it, such as its text (path/key).")
    if isinstance(change, Merge) and found_value.kind != "object":
        raise ToolError(
            f"`merge` changes members of an object, and {found_value.quoted_path} is "
            f"{found_value.kind}: it would be replaced. Use `patch`, such as "
            '[{"op": "replace", "path": "/0/name", "value": "x"}], or `old_text` with `new_text`.'
        )
    sent = len(call.arguments.raw)
    cost = _EDIT_COST * (len(found_value.blob) + sent)
    if sent > _MAX_SENT_BYTES:
        cost = min(cost, THREAD_BYTES)
    pieces = await query_value(call, found_value, change, cost)
    size = max(pieces.size, _PIECE_COST * len(pieces))
    inputs = (found_value, *used)
    preview = all(one.preview for one in inputs)
    copy = NewValue(join_pieces(found_value.blob, pieces), inputs, preview=preview, size=size)
    return await save_and_reply(call, copy)


def _choose_way(arguments: Arguments) -> str:
    """Return the argument that describes the edit.

    Raises:
        ToolError: They describe none or several, or `old_text` without `new_text`.
    """
    ways = [name for name in ("patch", "merge", "old_text") if arguments.has(name)]
    if not ways and arguments.text("new_text"):
        raise ToolError("`old_text` is empty or missing. Give the exact text to replace.")
    if len(ways) != 1:
        raise ToolError(
            "Give one of `patch` (JSON Patch), `merge` (merge patch), or `old_text` with `new_text` (exact text)."
        )
    if ways == ["old_text"] and not arguments.has("new_text"):
        raise ToolError("`old_text` needs `new_text`; it may be empty.")
    return ways[0]


async def _read_change(call: ToolInput, way: str) -> tuple[Query[Pieces], tuple[FoundValue, ...]]:
    """Return the edit, and the stored values that became parts of it."""
    arguments = call.arguments
    if way == "old_text":
        text, used = await _resolve(call, msgspec.json.encode(arguments.text("new_text")))
        new = msgspec.json.decode(encode_json_string(used[0]) if used else text, type=str)
        return Replace(arguments.text("old_text"), new, arguments.flag("all")), used
    given, used = await _resolve(call, arguments.json(way), is_patch=way == "patch")
    return Patch(given) if way == "patch" else Merge(given), used


async def _resolve(call: ToolInput, given: bytes, *, is_patch: bool = False) -> tuple[bytes, tuple[FoundValue, ...]]:
    """Replace the memory paths in an argument, JSON text, by the stored values; return these too.

    Args:
        call: The call.
        given: The argument.
        is_patch: It is a JSON Patch, in which only `value` contains values.

    Raises:
        FlowError: The flow policy hides a value from the model.
        ToolError: A path has no value.
    """
    found = tuple(
        one
        for one in find_pointers(given, call.memory.path_labels)
        if not is_patch or not isinstance(one, Pointer) or one.location[1:2] == ("value",)
    )
    values: dict[Pointer, FoundValue] = {}
    for pointer in found:
        if not isinstance(pointer, Pointer):
            continue
        try:
            values[pointer] = await find_value(call.memory, call.namespace, pointer.text, call.tool)
        except ToolError as error:
            if pointer.is_known or error.reason is not RefusalReason.UNKNOWN_PATH:
                raise
    resolved = {
        pointer: Resolved(str(one.path), one.blob, one.kind, one.preview, one.file) for pointer, one in values.items()
    }
    return b"".join(substitute_pointers(given, found, resolved, lambda _: frozenset())), tuple(values.values())


async def put(call: ToolInput) -> Content:
    """Store a value that the model wrote and return its notice."""
    value, used = await _resolve(call, call.arguments.json("value"))
    preview = all(one.preview for one in used)
    is_text = value[:1] == b'"'
    new = NewValue((value,), used, preview=preview, may_inline=False, is_text=is_text, size=len(value))
    return await save_and_reply(call, new)
