"""The view of `memory_list` for clients that show MCP Apps (SEP-1865): savings and lineage in an HTML resource.

The view gets its data from the `_meta` of the results of `memory_list`, which clients do not show to the model.
"""

import logging
import re
import time
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

import anyio.to_thread
import msgspec

from mcp_mirror.core.replies import ToolResult
from mcp_mirror.errors import MirrorError
from mcp_mirror.gateway.gateway import VIEW_URI, Gateway
from mcp_mirror.stores.event_log import DAY

_logger = logging.getLogger(__name__)

LIST_TOOL: Final = "memory_list"
"""The tool with the view."""
VIEW_TYPE: Final = "text/html;profile=mcp-app"
"""The media type of views (MCP Apps, 2026-01-26)."""
OVERVIEW: Final = "mcp-mirror/memory"
"""The member of `_meta` with the data: a JSON text."""

VIEW_RESOURCE: Final[Mapping[str, Any]] = {
    "uri": VIEW_URI,
    "name": "memory",
    "title": "Memory",
    "description": "Savings and lineage of the stored values, shown beside memory_list.",
    "mimeType": VIEW_TYPE,
}

_UI: Final = {"ui": {"resourceUri": VIEW_URI}}
_DAYS: Final = 7
_NODES: Final = 24
"""Nodes of the lineage, without neighbours."""
_ROWS: Final = 8
"""Rows of savings by tool."""
_MAX_BYTES: Final = 48_000
"""Bytes of the data; the SDK writes no larger `_meta`. A larger lineage is left out."""


def add_view(advert: dict[str, Any]) -> dict[str, Any]:
    """Return the definition of `memory_list` with its view; other definitions unchanged."""
    if advert["name"] != LIST_TOOL:
        return advert
    return {**advert, "_meta": {**advert.get("_meta", {}), **_UI}}


@cache
def read_view() -> str:
    """Return the HTML of the view, with its script and style in it."""
    folder = files("mcp_mirror.dashboard")
    page = folder.joinpath("view", "view.html").read_text(encoding="utf-8")
    layout = folder.joinpath("static", "layout.js").read_text(encoding="utf-8")
    script = folder.joinpath("view", "view.js").read_text(encoding="utf-8")
    return page.replace("/* script */", re.sub(r"^export ", "", layout, flags=re.MULTILINE) + script)


def build_content() -> bytes:
    """Return the contents of the `resources/read` result, JSON text."""
    content = {"uri": VIEW_URI, "mimeType": VIEW_TYPE, "text": read_view(), "_meta": {"ui": {"prefersBorder": True}}}
    return msgspec.json.encode([content])


async def add_overview(gateway: Gateway, namespace: str, reply: ToolResult) -> ToolResult:
    """Return a result of `memory_list` with the data of the view; unchanged for errors, and if the store fails."""
    if "isError" in reply:
        return reply
    try:
        overview = await _build_overview(gateway, namespace)
    except MirrorError as error:
        _logger.info("A view is shown without data. %s", error)
        return reply
    return {**reply, "_meta": msgspec.json.encode({OVERVIEW: overview})}


async def _build_overview(gateway: Gateway, namespace: str) -> str:
    # Only for clients with views.
    from mcp_mirror.dashboard.savings import Assumptions, build_savings, find_price, merge_prices  # noqa: PLC0415
    from mcp_mirror.observability.lineage import read_lineage  # noqa: PLC0415

    store, policy = gateway.services.writer.store, gateway.state.config.dashboard
    stats = await store.stats(namespace)
    sums = await store.events.sums(namespace, time.time() - _DAYS * DAY)
    assumed = Assumptions(find_price(merge_prices(policy.prices), ""))
    savings = await anyio.to_thread.run_sync(build_savings, {namespace: sums}, assumed)
    overview = {
        "values": stats.values,
        "bytes": stats.size,
        "days": _DAYS,
        "model": assumed.price.name,
        "total": {key: value for key, value in savings["total"].items() if key != "name"},
        "by_tool": [{key: row[key] for key in ("name", "calls", "kept_out")} for row in savings["by_tool"][:_ROWS]],
    }
    lineage = (await read_lineage(store, namespace, newest=_NODES)).to_json()
    whole = msgspec.json.encode({**overview, "lineage": lineage})
    return (whole if len(whole) <= _MAX_BYTES else msgspec.json.encode(overview)).decode()
