"""Finds the tool that a call names, waits for its upstream while that starts, and answers `find_tools` calls."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from mcp_mirror.callers import OWN_UPSTREAM
from mcp_mirror.core.catalog import Catalog, CatalogEntry
from mcp_mirror.core.replies import ToolResult, build_content_reply, encode_text_block
from mcp_mirror.core.similar_names import find_nearest
from mcp_mirror.core.tool_index import IndexedTool, summarize_tool
from mcp_mirror.errors import RefusalReason, ToolError
from mcp_mirror.gateway.call import Call, find_refusal
from mcp_mirror.gateway.gateway import Gateway
from mcp_mirror.gateway.tool_search import FIND_TOOLS, complete_name, searchable_tools
from mcp_mirror.memory.tools.table import explain_unserved
from mcp_mirror.security.sanitize import as_json_string
from mcp_mirror.system.fair_threads import run_fairly
from mcp_mirror.system.slices import finish
from mcp_mirror.upstreams.registry import explain_missing

_SHOWN: Final = 5
"""Matches with their arguments and one line of description."""
_NAMED: Final = 10
"""Further matches of which only the name is returned."""
_MAX_UPSTREAMS: Final = 100
"""Upstreams that an answer names."""
_MAX_QUOTED: Final = 200
"""Bytes of a search or of a name that an answer quotes."""
_UNKNOWN: Final = frozenset((RefusalReason.UNKNOWN_TOOL, RefusalReason.INSUFFICIENT_SCOPE))
"""The caller's catalog does not have the name."""


async def route(gateway: Gateway, call: Call) -> tuple[CatalogEntry, Catalog]:
    """Return the tool that a call names, and the catalog that lists it: the current one after every wait.

    Raises:
        ToolError: The caller has no such tool, it is quarantined, or its upstream is not connected.
    """
    wait, caller, upstreams = call.config.mirror.startup_wait, call.channel.caller, gateway.upstreams
    entry, catalog = _find(gateway, call)
    if (listed := entry or call.catalog.entries.get(call.name)) is not None:
        if await upstreams.wait_for_attempt(listed.upstream, wait):
            entry, catalog = _find(gateway, call)
        if entry is None and (status := upstreams[listed.upstream].status).state != "ready":
            is_shown = status.detail and gateway.may_show(listed.upstream)
            detail = f": {status.detail}" if is_shown else "."
            raise ToolError(f"Upstream {listed.upstream!r} is {status.state}{detail} {status.advice}")
    if entry is None:  # its upstream may be starting, or may just have announced it
        await upstreams.wait_for_attempts(wait, caller)
        await upstreams.wait_for_changes(call.channel)
        entry, catalog = _find(gateway, call)
    if entry is None:  # its upstream may be available again
        await upstreams.connect_unlisted(caller)
        entry, catalog = _find(gateway, call)
    if entry is None:
        raise await run_fairly(call.namespace, _explain_unknown, gateway, call, catalog)
    call.trace.upstream = entry.upstream
    return entry, catalog


def _find(gateway: Gateway, call: Call) -> tuple[CatalogEntry | None, Catalog]:
    catalog = gateway.state.catalog_for(call.channel.caller)
    return find_entry(catalog, call), catalog


def _explain_unknown(gateway: Gateway, call: Call, catalog: Catalog) -> ToolError:
    """Return the error for a name that is not in the caller's catalog, with the nearest names."""
    elsewhere = ""
    if call.config.server.wraps:
        elsewhere = "`mcp-mirror memory` serves it: the user can add this command to the client as one more server."
    elif call.caller.upstream not in (None, OWN_UPSTREAM):
        elsewhere = "The endpoint `~memory` of this gateway serves it."
    unserved = explain_unserved(call.name, call.config.memory_tools, elsewhere)
    if unserved and not call.config.is_transparent:
        return ToolError(unserved, RefusalReason.UNKNOWN_TOOL)
    near = find_nearest(call.name, (*catalog.entries, *call.own_tools))
    source = FIND_TOOLS if FIND_TOOLS in call.own_tools else "tools/list"
    advice = f"Nearest are {', '.join(near)}." if near else f"Take a name from {source}."
    visible = gateway.upstreams.visible_to(call.caller)
    down = [one.policy.name for one in visible if one.status.state != "ready"]
    missing = f" Upstreams that are not connected now: {', '.join(down)}." if down else ""
    return ToolError(f"Unknown tool {call.name!r}. {advice}{missing}", find_refusal(call, catalog))


def find_entry(catalog: Catalog, call: Call) -> CatalogEntry | None:
    """Return the entry of a call's tool; None if the catalog has none.

    Raises:
        ToolError: The tool is quarantined: its definition differs from the pinned one.
    """
    if finding := catalog.quarantined.get(call.name):
        call.trace.upstream = finding.change.upstream
        raise ToolError(finding.refusal, RefusalReason.QUARANTINED)
    return catalog.entries.get(call.name)


async def find_tools(gateway: Gateway, call: Call) -> ToolResult:
    """Answer a `find_tools` call from the tools that its caller may use.

    Models send a name that they invented beside a query. The answer has the matches of the query then.

    Raises:
        ToolError: The arguments are invalid, or the call has no query and the named tool does not exist.
    """
    given = call.own_tools[FIND_TOOLS].read_arguments(call.arguments)
    name, query = given.text("name").strip(), given.text("query")
    if name:
        try:
            return _build_reply(await _define_tool(gateway, call, name))
        except ToolError as error:
            if not query.strip() or error.reason not in _UNKNOWN:
                raise
    upstreams = gateway.upstreams
    await upstreams.wait_for_listings(call.config.mirror.startup_wait, call.caller)
    catalog = gateway.state.catalog_for(call.caller)
    own_tools = searchable_tools(call.own_tools)
    found = await run_fairly(call.namespace, _search, catalog, own_tools, query)
    unknown = f"No tool has the name {as_json_string(name, _MAX_QUOTED)}." if name else ""
    if found:
        heading = f"{unknown} Tools that match the query:\n" if unknown else ""
        tools: Mapping[str, IndexedTool] = {**catalog.entries, **own_tools}
        return _build_reply(heading + await run_fairly(call.namespace, _write_matches, tools, found))
    missing = explain_missing(upstreams.visible_to(call.caller), call.caller)
    return _build_reply(" ".join(text for text in (unknown, _write_overview(catalog, query), missing) if text))


async def _define_tool(gateway: Gateway, call: Call, name: str) -> str:
    """Return the definition of a tool as JSON text, with the input schema of its upstream."""
    policy, catalog = call.config.mirror, call.catalog
    if name not in catalog.entries and name not in call.own_tools:  # it may lack the suffix
        await gateway.upstreams.wait_for_listings(policy.startup_wait, call.caller)
        catalog = gateway.state.catalog_for(call.caller)
    name = complete_name(name, call.own_tools, catalog, policy.suffix)
    if own := call.own_tools.get(name):
        definition = own.advert
    else:
        entry, _ = await route(gateway, replace(call, name=name))
        definition = {**entry.advert, "inputSchema": entry.schema}
    members = {key: definition[key] for key in ("name", "description", "inputSchema") if key in definition}
    return msgspec.json.encode(members).decode()


def _search(catalog: Catalog, own_tools: Mapping[str, IndexedTool], query: str) -> list[str]:
    """Return the names of the matching tools. The first search of a catalog builds its index."""
    return finish(catalog.build_index(own_tools)).search(query, _SHOWN + _NAMED)


def _write_matches(tools: Mapping[str, IndexedTool], found: Sequence[str]) -> str:
    shown = (tools[name] for name in found[:_SHOWN])
    lines = [summarize_tool(tool.name, tool.advert, tool.schema) for tool in shown]
    more = ", ".join(found[_SHOWN:])
    return "\n".join((*lines, f"Also: {more}") if more else lines)


def _write_overview(catalog: Catalog, query: str) -> str:
    """Return the servers of a catalog with the number of their tools, for a search without a match."""
    tools = Counter(entry.upstream for entry in catalog.entries.values())
    servers = ", ".join(f"{name} ({count})" for name, count in list(tools.items())[:_MAX_UPSTREAMS])
    missing = f"No tool matches {as_json_string(query, _MAX_QUOTED)}. Use other words. " if query.strip() else ""
    return f"{missing}Servers with tools: {servers or 'none'}."


def _build_reply(text: str) -> ToolResult:
    return build_content_reply(((encode_text_block(text),),))
