"""Answers `find_tools` calls: the best matches of a search, or the definition of one tool."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import anyio.to_thread
import msgspec

from mcp_mirror.core.catalog import Catalog
from mcp_mirror.core.replies import Reply, build_content_reply, encode_text_block
from mcp_mirror.core.tool_summary import summarize_tool
from mcp_mirror.gateway.call import Call, RuntimeState
from mcp_mirror.gateway.routing import Router
from mcp_mirror.gateway.tool_search import FIND
from mcp_mirror.payload.floods import finish
from mcp_mirror.security.sanitize import as_json_string
from mcp_mirror.upstreams.registry import explain_missing

_SHOWN: Final = 5
"""Matches with their arguments and one line of description."""
_NAMED: Final = 10
"""Further matches of which only the name is returned."""
_MAX_UPSTREAMS: Final = 100
"""Upstreams that an answer names."""
_MAX_QUOTED: Final = 200
"""Bytes of a search that an answer quotes."""


@dataclass(frozen=True, slots=True)
class ToolFinder:
    """Answers `find_tools` calls."""

    router: Router
    read_state: Callable[[], RuntimeState]
    """Returns the current state."""

    async def find(self, call: Call) -> Reply:
        """Answer a call from the tools that its caller may use.

        Raises:
            ToolError: The arguments are invalid, or the named tool does not exist.
        """
        given = call.own_tools[FIND].read_arguments(call.arguments)
        if name := given.text("name").strip():
            return _build_reply(await self._define(call, name))
        await self.router.upstreams.settle_listings(call.config.mirror.startup_wait, call.caller)
        catalog = self.read_state().catalog_for(call.caller)
        query = given.text("query")
        found = await anyio.to_thread.run_sync(_search, catalog, query)
        if found:
            return _build_reply(_write_matches(catalog, found))
        missing = explain_missing(self.router.upstreams.visible_to(call.caller))
        overview = _write_overview(catalog, query)
        return _build_reply(f"{overview} {missing}" if missing else overview)

    async def _define(self, call: Call, name: str) -> str:
        """Return the definition of a tool as JSON text, with the input schema of its upstream."""
        if own := call.own_tools.get(name):
            definition = own.advert
        else:
            entry, _ = await self.router.route(replace(call, name=name))
            definition = {**entry.advert, "inputSchema": entry.schema}
        members = {key: definition[key] for key in ("name", "description", "inputSchema") if key in definition}
        return msgspec.json.encode(members).decode()


def _search(catalog: Catalog, query: str) -> list[str]:
    """Return the names of the matching tools. The first search of a catalog builds its index."""
    return finish(catalog.build_index()).search(query, _SHOWN + _NAMED)


def _write_matches(catalog: Catalog, found: Sequence[str]) -> str:
    entries = (catalog.entries[name] for name in found[:_SHOWN])
    lines = [summarize_tool(entry.name, entry.advert, entry.schema) for entry in entries]
    more = ", ".join(found[_SHOWN:])
    return "\n".join((*lines, f"Also: {more}") if more else lines)


def _write_overview(catalog: Catalog, query: str) -> str:
    """Return the servers of a catalog with the number of their tools, for a search without a match."""
    tools = Counter(entry.upstream for entry in catalog.entries.values())
    servers = ", ".join(f"{name} ({count})" for name, count in list(tools.items())[:_MAX_UPSTREAMS])
    missing = f"No tool matches {as_json_string(query, _MAX_QUOTED)}. Use other words. " if query.strip() else ""
    return f"{missing}Servers with tools: {servers or 'none'}."


def _build_reply(text: str) -> Reply:
    return build_content_reply(((encode_text_block(text),),))
