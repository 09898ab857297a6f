"""The tools that make a new value: from an old one, or from what the model says. No value is ever changed itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from mcp_mirror.core.preview import human_bytes
from mcp_mirror.errors import ToolError
from mcp_mirror.memory.tools.lookup import find_given
from mcp_mirror.memory.tools.read import ask
from mcp_mirror.memory.tools.save import NewValue, keep
from mcp_mirror.memory.tools.tool import Arguments, Content, ToolInput, text_content
from mcp_mirror.query.edits import Merge, Patch, Pieces, Replace, joined
from mcp_mirror.query.select import explain_text, json_in_text, select
from mcp_mirror.security.sanitize import as_json_string
from mcp_mirror.types import Buffer, Span
from mcp_mirror.workers.queries import Query


@dataclass(frozen=True, slots=True)
class Select:
    """A JMESPath expression to be answered."""

    expression: str
    most: int

    def __call__(self, blob: Buffer, _: Callable[[], bool]) -> bytes:
        """Find the JSON text that the expression selects."""
        try:
            found = select(blob, self.expression)
        except ToolError as error:
            raise self._explained(blob, error) from None
        if found == b"null" and (inner := json_in_text(blob)) is not None:
            found = select(inner, self.expression)
        elif found == b"null" and (reason := explain_text(blob)):
            raise ToolError(f"null: the expression finds nothing. {reason}")
        if len(found) > self.most:
            raise ToolError(
                f"It finds {human_bytes(len(found))}; {human_bytes(self.most)} is the limit "
                "(`memory_tools.query_bytes`). Select less."
            )
        return found

    def _explained(self, blob: Buffer, error: ToolError) -> ToolError:
        """The error, and that the value is text, if it is and holds no JSON."""
        reason = explain_text(blob) if json_in_text(blob) is None else None
        return ToolError(f"{error} {reason}") if reason else error


async def query(call: ToolInput) -> Content:
    """What an expression finds: shown if it is small, else stored."""
    memory = call.memory
    found_value = await find_given(call)
    most = memory.tools.query_bytes
    if len(found_value.blob) > most:
        size, limit = human_bytes(len(found_value.blob)), human_bytes(most)
        raise ToolError(
            f"{as_json_string(str(found_value.path), 300)} has {size}; values up to {limit} can be queried "
            "(`memory_tools.query_bytes`). Take a path below it, or use memory_grep or memory_read."
        )
    wanted = Select(call.given.text("expression"), most)
    found = await memory.queries.run_in_worker(
        found_value.blob, found_value.file, wanted, memory.tools.timeout, call.namespace
    )
    if found == b"null":
        return text_content("null: the expression finds nothing.")
    if found[:1] != b"{" and len(found) <= _SHOWN and memory.estimate(found) <= memory.mirror.inline_budget:
        return text_content(msgspec.json.decode(found, type=str) if found[:1] == b'"' else found.decode())
    return await keep(call, NewValue((found,), (found_value,), preview=found_value.preview, size=len(found)))


_SHOWN: Final = 1 << 20
"""Bytes past which nothing is shown, whatever it would cost."""


async def edit(call: ToolInput) -> Content:
    """A new value from an old one."""
    change = _change(call.given)
    found_value = await find_given(call)
    if found_value.kind == "binary":
        raise ToolError("A binary value cannot be edited. Take a path below it, such as its text.")
    pieces = await ask(call, found_value, change)
    made = NewValue(joined(found_value.blob, pieces), (found_value,), preview=found_value.preview, size=_size(pieces))
    return await keep(call, made)


def _size(pieces: Pieces) -> int:
    return sum(piece.length if isinstance(piece, Span) else len(piece) for piece in pieces)


def _change(given: Arguments) -> Query[Pieces]:
    ways = [name for name in ("patch", "merge", "old_text") if given.has(name)]
    if len(ways) != 1:
        raise ToolError(
            "Give one of `patch` (JSON Patch), `merge` (merge patch), or `old_text` with `new_text` (exact text)."
        )
    if ways == ["patch"]:
        return Patch(given.json("patch"))
    if ways == ["merge"]:
        return Merge(given.json("merge"))
    if not given.text("old_text"):
        raise ToolError("`old_text` is empty. Give the text that is to be replaced, to the letter.")
    if not given.has("new_text"):
        raise ToolError("`old_text` needs `new_text`; it may be empty.")
    return Replace(given.text("old_text"), given.text("new_text"), given.flag("all"))


async def put(call: ToolInput) -> Content:
    """Store what the model says."""
    value = call.given.json("value")
    return await keep(call, NewValue((value,), is_shown=False, is_said=value[:1] == b'"', size=len(value)))
