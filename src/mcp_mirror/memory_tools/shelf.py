"""The tools that tell which values there are, and forget one."""

from datetime import UTC, datetime
from typing import Final

from mcp_mirror.errors import ToolError
from mcp_mirror.memory_tools.finding import PATH, read_path
from mcp_mirror.memory_tools.own_tool import Call, Content, said
from mcp_mirror.models import Descriptor
from mcp_mirror.notice import human_bytes
from mcp_mirror.paths import label_of, unwrap
from mcp_mirror.query.windows import Budget
from mcp_mirror.recall import unknown_path
from mcp_mirror.visible import quoted

_PAGE: Final = 20
_NAME: Final = 80
"""Bytes of a tool's name that are told."""
_FOOTER: Final = 300
"""Characters kept for what is said below the lines."""


async def list_values(call: Call) -> Content:
    """The caller's own values, the newest first, a page at a time."""
    tool = call.given.text("tool")
    stored = await call.memory.store.list(call.namespace)
    wanted = [one for one in stored if not tool or tool in (one.provenance.tool, label_of(one.base))]
    begin = await _begin(call, [one.base for one in wanted])
    page = wanted[begin : begin + _PAGE]
    if not page:
        return said("Nothing more." if begin else _nothing(tool, stored))
    lines = _fitting([_line(one) for one in page], call.memory.budget)
    left = len(wanted) - begin - len(lines)
    more = [f'... {left:,} more; next: after="{page[len(lines) - 1].base}"'] if left else []
    return said("\n".join((*lines, *more, await _traffic(call))))


def _fitting(lines: list[str], budget: Budget) -> list[str]:
    """As many lines as may be shown at once, one at least, with room for what is said below them."""
    left = budget.without(_FOOTER)
    for at, line in enumerate(lines):
        if at and not left.admits(line):
            return lines[:at]
        left = left.after(line)
    return lines


async def _traffic(call: Call) -> str:
    """What the answers until now have cost, and what they have not."""
    told = (await call.memory.tally.stats(call.namespace)).traffic
    return f"Sent {told.sent:,} tokens; kept out {told.kept_out:,} (1 : {told.ratio:,})."


async def _begin(call: Call, bases: list[str]) -> int:
    if not call.given.has("after"):
        return 0
    path = read_path(call.given.text("after"))
    if path is None or path.base not in bases:
        raise ToolError("`after` is the last path of the page before, to the letter. Leave it out for the first page.")
    return bases.index(path.base) + 1


def _nothing(tool: str, stored: tuple[Descriptor, ...]) -> str:
    if not stored:
        return "Nothing is stored yet."
    tools = [quoted(one, _NAME) for one in sorted({one.provenance.tool for one in stored})[:_PAGE]]
    return f"Nothing of {quoted(tool, _NAME)} is stored. There are values of {', '.join(tools)}."


def _line(one: Descriptor) -> str:
    stored = datetime.fromtimestamp(one.created, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f'"{one.base}" {one.kind}, {human_bytes(one.size)}, {stored}'


async def forget(call: Call) -> Content:
    """Delete a value."""
    text = call.given.text(PATH)
    path = read_path(text)
    if path and path.tokens:
        raise ToolError(f'Only a whole value can be forgotten. Give "{path.base}".')
    if path is None or not await call.memory.store.delete(call.namespace, path.base):
        raise await unknown_path(call.memory.store, call.namespace, unwrap(text))
    call.memory.keeper.on_kept(call.namespace)
    return said(f'Forgotten: "{path.base}".')
