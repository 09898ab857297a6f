"""Tools that store a new value: an edited copy, or a value of the model. Stored values never change."""

from typing import Final

import msgspec

from mcp_mirror.core.amounts import format_bytes
from mcp_mirror.core.resolve import Pointer, measure_substitution, substitute_pointers
from mcp_mirror.core.results.capture import PASS_THROUGH_TOKENS
from mcp_mirror.core.results.media import find_embedded_text
from mcp_mirror.core.texts.embedded_json import read_json_container
from mcp_mirror.errors import RefusalReason, ToolError
from mcp_mirror.memory.tools.lookup import find_argument, find_value, query_value
from mcp_mirror.memory.tools.save import NewValue, save_and_reply
from mcp_mirror.memory.tools.tool import Arguments, Content, ToolInput
from mcp_mirror.memory.value_lookup import FoundValue
from mcp_mirror.paths import cut_for_candidates, find_notice_bases, has_candidates, parse_wrapped_path, unwrap_result
from mcp_mirror.payload.json_rpc import contiguous
from mcp_mirror.query.edits import Merge, Patch, Pieces, Replace, join_pieces
from mcp_mirror.system.fair_threads import run_fairly
from mcp_mirror.system.slices import run_by_size
from mcp_mirror.types import Segments
from mcp_mirror.workers.query_jobs import Query

_EDIT_COST: Final = 16
"""How many times as long an edit takes as other queries: it may change every byte."""
MAX_INSERTED_BYTES: Final = 64 << 20
"""Bytes of all stored values together that an edit inserts."""
_EMPTY: Final = (b"{}", b"[]")
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
        patch = '`patch`, such as [{"op": "replace", "path": "/0/name", "value": "x"}], or '
        raise ToolError(
            f"`merge` changes members of an object, and {found_value.quoted_path} is "
            f"{found_value.kind}: it would be replaced. "
            f"Use {'' if found_value.kind == 'text' else patch}`old_text` with `new_text`."
        )
    sent = len(call.arguments.raw) + sum(len(value.blob) for value in used)
    cost = _EDIT_COST * (len(found_value.blob) + sent)
    if isinstance(change, Replace):
        cost = max(cost, change.bound_occurrences(len(found_value.blob)) * sent)
    pieces = await query_value(call, found_value, change, cost)
    size = max(pieces.size, _PIECE_COST * len(pieces))
    # The model knows what it changed, so it reads only a short copy again.
    edited = NewValue(
        join_pieces(found_value.blob, pieces), (found_value, *used), most_shown=PASS_THROUGH_TOKENS, size=size
    )
    return await save_and_reply(call, edited)


def _choose_way(arguments: Arguments) -> str:
    """Return the argument that describes the edit."""
    ways = [name for name in ("patch", "merge", "old_text") if arguments.has(name)]
    if len(ways) > 1:  # small models fill in every argument
        ways = [name for name in ways if name == "old_text" or arguments.json(name).strip() not in _EMPTY]
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
    is_text = way == "old_text"
    given = msgspec.json.encode(arguments.text("new_text")) if is_text else arguments.json(way)
    segments, used = await _resolve(call, given, is_patch=way == "patch")
    if (size := sum(len(value.blob) for value in used)) > MAX_INSERTED_BYTES:
        raise ToolError(
            f"The values that this edit inserts have {format_bytes(size)} together; an edit inserts up to "
            f"{format_bytes(MAX_INSERTED_BYTES)}. Insert parts of them (path/key)."
        )
    size += len(given)
    if is_text:
        new = await run_by_size(size, bytes, used[0].blob, principal=call.namespace) if used else given
        return Replace(arguments.text("old_text"), new, arguments.flag("all")), used
    joined = bytes(await run_by_size(size, contiguous, segments, principal=call.namespace))
    return Patch(joined) if way == "patch" else Merge(joined), used


async def _resolve(call: ToolInput, given: bytes, *, is_patch: bool = False) -> tuple[Segments, tuple[FoundValue, ...]]:
    """Replace the memory paths in an argument, JSON text, by the stored values, in pieces; return these values too.

    In a JSON Patch (`is_patch`), only `value` contains values.
    """
    memory = call.memory
    pointers = await memory.find_pointers(call.namespace, given)
    found = tuple(
        pointer
        for pointer in pointers
        if not is_patch or not isinstance(pointer, Pointer) or pointer.location[1:2] == ("value",)
    )
    values: dict[Pointer, FoundValue] = {}
    known: dict[str, FoundValue] = {}  # each map of a large value takes a file handle
    for pointer in found:
        if not isinstance(pointer, Pointer):
            continue
        try:
            if pointer.text not in known:
                known[pointer.text] = await find_value(memory, call.namespace, pointer.text, call.tool)
            values[pointer] = known[pointer.text]
        except ToolError as error:
            if pointer.is_known or error.reason is not RefusalReason.UNKNOWN_PATH:
                raise
    size = measure_substitution(found, values)
    replaced = await run_by_size(
        size, substitute_pointers, given, found, values, lambda _: frozenset(), principal=call.namespace
    )
    return replaced, tuple(values.values())


def _open_text(given: bytes) -> bytes:
    """Return the JSON of a text that is an object or array with paths, as it is stored; any other value as it is."""
    if given[:1] != b'"' or not any(map(has_candidates, cut_for_candidates(given))):
        return given
    text = msgspec.json.decode(given, type=str).strip()
    if parse_wrapped_path(unwrap_result(text)) or find_notice_bases(text):
        return given
    return read_json_container(text) or given


async def put(call: ToolInput) -> Content:
    """Store a value that the model wrote and return its notice."""
    given = call.arguments.json("value")
    opened = await run_by_size(len(given), _open_text, given, principal=call.namespace)
    segments, used = await _resolve(call, opened)
    is_text = bytes(next(filter(None, segments))[:1]) == b'"'
    size = sum(map(len, segments))
    return await save_and_reply(call, NewValue(segments, used, most_shown=0, is_text=is_text, size=size))
