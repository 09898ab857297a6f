"""The tools that tell which values there are, and forget one."""

from datetime import UTC, datetime
from typing import Final

from mcp_mirror.core.preview import human_bytes
from mcp_mirror.errors import ToolError
from mcp_mirror.memory.tools.lookup import PATH, read_path
from mcp_mirror.memory.tools.tool import Content, ToolInput, text_content
from mcp_mirror.memory.value_lookup import unknown_path
from mcp_mirror.paths import strip_wrapping, tool_label
from mcp_mirror.query.windows import Budget
from mcp_mirror.security.sanitize import as_json_string
from mcp_mirror.types import Descriptor, StoreStats

_PAGE: Final = 20
_LOST: Final = "`after` is the last path of the page before, to the letter. Leave it out for the first page."
_NAME: Final = 80
"""Bytes of a tool's name that are told."""
_FOOTER: Final = 300
"""Characters kept for what is said below the lines."""


async def list_values(call: ToolInput) -> Content:
    """The caller's own values, the newest first, a page at a time."""
    tool = call.given.text("tool")
    page = await _page(call, tool_label(tool) if tool else "")
    told = await call.memory.usage_counter.stats(call.namespace)
    if not page:
        return text_content("Nothing more." if call.given.has("after") else await _nothing(call, tool, told))
    lines = _fitting([_line(one) for one in page[:_PAGE]], call.memory.budget)
    more = []
    if len(page) > len(lines):
        is_all = not tool and not call.given.has("after")
        left = f"{told.values - len(lines):,} more" if is_all else "more"
        more = [f'... {left}; next: after="{page[len(lines) - 1].base}"']
    traffic = f"Sent {told.traffic.sent:,} tokens; kept out {told.traffic.kept_out:,} (1 : {told.traffic.ratio:,})."
    return text_content("\n".join((*lines, *more, traffic)))


async def _page(call: ToolInput, label: str) -> tuple[Descriptor, ...]:
    """A page, and the first value behind it where there is one."""
    path = read_path(call.given.text("after")) if call.given.has("after") else None
    if path is None and call.given.has("after"):
        raise ToolError(_LOST)
    try:
        after = path.base if path else None
        return await call.memory.store.list(call.namespace, after=after, label=label, limit=_PAGE + 1)
    except LookupError:
        raise ToolError(_LOST) from None


def _fitting(lines: list[str], budget: Budget) -> list[str]:
    """As many lines as may be shown at once, one at least, with room for what is said below them."""
    left = budget.without(_FOOTER)
    for at, line in enumerate(lines):
        if at and not left.admits(line):
            return lines[:at]
        left = left.after(line)
    return lines


async def _nothing(call: ToolInput, tool: str, told: StoreStats) -> str:
    if not told.values:
        return "Nothing is stored yet."
    labels = [as_json_string(one, _NAME) for one in sorted(await call.memory.store.labels(call.namespace))[:_PAGE]]
    return f"Nothing of {as_json_string(tool, _NAME)} is stored. There are values of {', '.join(labels)}."


def _line(one: Descriptor) -> str:
    stored = datetime.fromtimestamp(one.created, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f'"{one.base}" {one.kind}, {human_bytes(one.size)}, {stored}'


async def forget(call: ToolInput) -> Content:
    """Delete a value."""
    text = call.given.text(PATH)
    path = read_path(text)
    if path and path.tokens:
        raise ToolError(f'Only a whole value can be forgotten. Give "{path.base}".')
    if path is None or not await call.memory.store.delete(call.namespace, path.base):
        raise await unknown_path(call.memory.store, call.namespace, strip_wrapping(text))
    call.memory.writer.on_kept(call.namespace)
    return text_content(f'Forgotten: "{path.base}".')
