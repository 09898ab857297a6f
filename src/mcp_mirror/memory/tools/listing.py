"""Tools that list the stored values and delete one."""

from typing import Final

from mcp_mirror.core.amounts import format_bytes, format_time
from mcp_mirror.errors import ToolError
from mcp_mirror.memory.lookup_errors import UnknownPathError, quote_path
from mcp_mirror.memory.tools.lookup import PATH, read_path
from mcp_mirror.memory.tools.tool import Content, ToolInput, build_text_content
from mcp_mirror.paths import strip_wrapping, tool_slug
from mcp_mirror.security.flows import Flows
from mcp_mirror.security.sanitize import as_json_string
from mcp_mirror.types import Descriptor

_PAGE: Final = 20
_INVALID_AFTER: Final = "`after` must be exactly the last path of the previous page. Omit it for the first page."
_NAME_BYTES: Final = 80
"""Bytes of a tool's name that an answer quotes."""
_FOOTER: Final = 300
"""Characters reserved for the text below the list."""


async def list_values(call: ToolInput) -> Content:
    """Return a page of the caller's values, the newest first."""
    tool, flows = call.arguments.text("tool"), call.memory.flows
    page = await _read_page(call, tool_slug(tool) if tool else "")
    stats = await call.memory.services.usage_counter.stats(call.namespace)
    if not page and call.arguments.has("after"):
        return build_text_content("Nothing more.")
    if not page and not stats.values:
        return build_text_content("Nothing is stored yet.")
    if not page:
        slugs = sorted(await call.memory.store.slugs(call.namespace))[:_PAGE]
        wanted, *known = (as_json_string(name, _NAME_BYTES) for name in (tool, *slugs))
        return build_text_content(f"No value of {wanted} is stored. There are values of {', '.join(known)}.")
    lines = call.memory.budget.without(_FOOTER).select(_format_line(descriptor, flows) for descriptor in page[:_PAGE])
    if len(page) > len(lines):
        is_all = not tool and not call.arguments.has("after")
        left = f"{stats.values - len(lines):,} more" if is_all else "more"
        lines.append(f'... {left}; next: after="{page[len(lines) - 1].base}"')
    if not flows.can_hide:  # the tokens kept out reveal the sizes of hidden values
        traffic = stats.traffic
        lines.append(f"Sent {traffic.sent:,} tokens; kept out {traffic.kept_out:,} (1 : {traffic.ratio:,}).")
    return build_text_content("\n".join(lines))


async def _read_page(call: ToolInput, slug: str) -> tuple[Descriptor, ...]:
    """The values of a page, and one more if there is a next page."""
    after = None
    if call.arguments.has("after"):
        if (path := read_path(call.arguments.text("after"))) is None:
            raise ToolError(_INVALID_AFTER)
        after = path.base
    try:
        return await call.memory.store.list(call.namespace, after=after, slug=slug, limit=_PAGE + 1)
    except LookupError:
        raise ToolError(_INVALID_AFTER) from None


def _format_line(descriptor: Descriptor, flows: Flows) -> str:
    """A value as one line. A script that reads hidden values chooses the kind and size of what it returns."""
    is_shown = flows.may_show(flows.read_labels(descriptor))
    facts = f"{descriptor.kind}, {format_bytes(descriptor.shown_size)}" if is_shown else "hidden"
    return f'"{descriptor.base}" {facts}, {format_time(descriptor.created)}'


async def forget(call: ToolInput) -> Content:
    """Delete a value; ToolError if the path has none, or names a part of one."""
    text = call.arguments.text(PATH)
    path = read_path(text)
    if path and path.tokens:
        raise ToolError(f'Only a whole value can be deleted. Give "{path.base}".')
    if path is None:
        raise await call.memory.unknown_path_error(call.namespace, strip_wrapping(text))
    if not await call.memory.store.delete(call.namespace, path.base):  # no other path: the next call might delete it
        raise UnknownPathError(
            f"No value is stored under {quote_path(path)}, so nothing was deleted. It was deleted or evicted before or "
            "has expired, or the path is not exact."
        )
    call.memory.services.writer.on_change(call.namespace)
    return build_text_content(f'Forgotten: "{path.base}".')
