"""Tools that store a new value: a query result, an edited copy, or a value of the model. Stored values never change."""

from collections.abc import Callable
from typing import Final

import msgspec

from mcp_mirror.core.amounts import format_bytes
from mcp_mirror.core.embedded_json import find_embedded_json
from mcp_mirror.core.media import find_embedded_text
from mcp_mirror.core.value_sizes import count_tokens
from mcp_mirror.errors import ToolError
from mcp_mirror.memory.tools.lookup import find_argument
from mcp_mirror.memory.tools.read import run_query
from mcp_mirror.memory.tools.save import NewValue, save_and_reply
from mcp_mirror.memory.tools.tool import Arguments, Content, Memory, ToolInput, build_text_content
from mcp_mirror.memory.value_lookup import FoundValue
from mcp_mirror.payload.json_rpc import as_plain_text
from mcp_mirror.query.edits import Merge, Patch, Pieces, Replace, join_pieces
from mcp_mirror.query.select import READ_TEXT, explain_table, explain_text, select
from mcp_mirror.system.fair_threads import run_fairly
from mcp_mirror.types import Buffer
from mcp_mirror.workers.queries import THREAD_BYTES
from mcp_mirror.workers.query_jobs import Query

_EDIT_COST: Final = 16
"""How many times as long an edit takes as other queries: it may change every byte."""
_MAX_SENT_BYTES: Final = 1 << 20
"""Bytes of the largest edit that is sent to a worker process; the event loop copies it several times."""
_PIECE_COST: Final = 64
"""Bytes that are written as fast as one piece of an edit."""
_SQL_ADVICE: Final = (
    'Give one SELECT as `sql`, such as SELECT count(*) FROM t, with `inputs` {{"t": {path}}}, in place of `expression`.'
)
_SCRIPT_ADVICE: Final = (
    'Use memory_run with `inputs` {{"t": {path}}}, where t is the text, or memory_grep or memory_read.'
)
_MAX_SHOWN_BYTES: Final = 1 << 20
"""Results above this size are stored without an estimate of their tokens."""


class Select(msgspec.Struct, frozen=True):
    """Runs a JMESPath expression on a value."""

    expression: str
    max_bytes: int
    """Maximum size of the result."""
    table_advice: str = READ_TEXT
    """A sentence that names what reads the rows of a text."""

    def __call__(self, blob: Buffer, _: Callable[[], bool]) -> bytes:
        """Return the result as JSON text. A text that contains JSON is queried as that JSON.

        Raises:
            ToolError: The expression is invalid or has no result on a text, the text is a table, or the result is too
                large.
        """
        inner = find_embedded_json(blob)
        found = self._select_from(blob) if inner is None else select(inner, self.expression)
        if len(found) > self.max_bytes:
            raise ToolError(
                f"The result has {format_bytes(len(found))}, more than the limit of {format_bytes(self.max_bytes)} "
                "(`memory_tools.query_bytes`). Select less."
            )
        return found

    def _select_from(self, blob: Buffer) -> bytes:
        """Return the result on a value; if a text has none, the error says that the value is text.

        Of a table, such as CSV, each result is one of its characters, as `length(@)`, and not of its rows.
        """
        if reason := explain_table(blob, self.table_advice):
            raise ToolError(reason)
        try:
            found = select(blob, self.expression)
        except ToolError as error:
            reason = explain_text(blob)
            raise ToolError(f"{error} {reason}" if reason else str(error)) from None
        if found == b"null" and (reason := explain_text(blob)):
            raise ToolError(f"null: the expression finds nothing. {reason}")
        return found


async def query(call: ToolInput) -> Content:
    """Return the result of an expression if it is small; store it otherwise."""
    memory = call.memory
    found_value = await find_argument(call)
    max_bytes = memory.tools.query_bytes
    if len(found_value.blob) > max_bytes:
        size, limit = format_bytes(len(found_value.blob)), format_bytes(max_bytes)
        raise ToolError(
            f"{found_value.quoted_path} has {size}; only values up to {limit} can be queried "
            "(`memory_tools.query_bytes`). Query a part of it (path/key), or use memory_grep or memory_read."
        )
    selection = Select(call.arguments.text("expression"), max_bytes, _advise_on_table(memory, found_value))
    async with memory.queries.run_in_worker(
        found_value.blob, found_value.file, selection, memory.tools.timeout, call.namespace
    ) as found:
        if found == b"null":
            return build_text_content("null: the expression finds nothing.")
        if _is_short(memory, found):
            return build_text_content(as_plain_text(found))
        new = NewValue((found,), (found_value,), preview=found_value.preview, size=len(found))
        return await save_and_reply(call, new)


def _advise_on_table(memory: Memory, found_value: FoundValue) -> str:
    """Return a sentence that names what reads the rows of a text, of the tools that the gateway serves."""
    if memory.sql is not None:
        return _SQL_ADVICE.format(path=found_value.quoted_path)
    if memory.has_sandbox and memory.tools.admits("memory_run"):
        return _SCRIPT_ADVICE.format(path=found_value.quoted_path)
    return READ_TEXT


def _is_short(memory: Memory, found: Buffer) -> bool:
    """Whether the model sees a result instead of its notice."""
    is_small = found[:1] != b"{" and len(found) <= _MAX_SHOWN_BYTES
    return is_small and count_tokens(found, memory.estimate) <= memory.mirror.inline_budget


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
