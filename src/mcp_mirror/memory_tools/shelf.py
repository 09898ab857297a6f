"""The tools that tell which values there are, and forget one."""

from datetime import UTC, datetime
from typing import Final

from mcp_mirror.errors import ToolError
from mcp_mirror.memory_tools.finding import PATH, read_path
from mcp_mirror.memory_tools.own_tool import Call, Content, said
from mcp_mirror.models import Descriptor
from mcp_mirror.notice import human_bytes
from mcp_mirror.paths import label_of, unwrap
from mcp_mirror.recall import unknown_path

_PAGE: Final = 20


async def list_values(call: Call) -> Content:
    """The caller's own values, the newest first, a page at a time."""
    tool = call.given.text("tool")
    stored = await call.memory.store.list(call.namespace)
    wanted = [one for one in stored if not tool or tool in (one.provenance.tool, label_of(one.base))]
    begin = await _begin(call, [one.base for one in wanted])
    page = wanted[begin : begin + _PAGE]
    if not page:
        return said("Nothing more." if begin else _nothing(tool, stored))
    lines = [_line(one) for one in page]
    left = len(wanted) - begin - len(page)
    more = [f'... {left:,} more; next: after="{page[-1].base}"'] if left else []
    return said("\n".join((*lines, *more)))


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
    tools = sorted({one.provenance.tool for one in stored})[:_PAGE]
    return f"Nothing of {tool[:80]!r} is stored. There are values of {', '.join(tools)}."


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
    call.memory.keeper.on_kept()
    return said(f'Forgotten: "{path.base}".')
