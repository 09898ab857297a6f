"""Tools that store a new value: an edited copy, or a value of the model. Stored values never change."""

from typing import Final

from mcp_mirror.core.media import find_embedded_text
from mcp_mirror.errors import ToolError
from mcp_mirror.memory.tools.lookup import find_argument
from mcp_mirror.memory.tools.read import run_query
from mcp_mirror.memory.tools.save import NewValue, save_and_reply
from mcp_mirror.memory.tools.tool import Arguments, Content, ToolInput
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
    change = _read_change(call.arguments)
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
    pieces = await run_query(call, found_value, change, cost)
    size = max(pieces.size, _PIECE_COST * len(pieces))
    copy = NewValue(join_pieces(found_value.blob, pieces), (found_value,), preview=found_value.preview, size=size)
    return await save_and_reply(call, copy)


def _read_change(arguments: Arguments) -> Query[Pieces]:
    """The edit that the arguments describe.

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
    if ways == ["patch"]:
        return Patch(arguments.json("patch"))
    if ways == ["merge"]:
        return Merge(arguments.json("merge"))
    if not arguments.has("new_text"):
        raise ToolError("`old_text` needs `new_text`; it may be empty.")
    return Replace(arguments.text("old_text"), arguments.text("new_text"), arguments.flag("all"))


async def put(call: ToolInput) -> Content:
    """Store a value that the model wrote and return its notice."""
    value = call.arguments.json("value")
    return await save_and_reply(call, NewValue((value,), may_inline=False, is_text=value[:1] == b'"', size=len(value)))
