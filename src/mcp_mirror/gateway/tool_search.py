"""Search of tools (`mirror.listing`): clients find a tool with `find_tools` and call it with `call_tool`.

A few memory tools stay listed; a search finds the others. A `call_tool` call becomes the call of the tool that it names
before it enters the pipeline, so that every stage and the audit log see that tool.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from mcp_mirror.core.catalog import Catalog
from mcp_mirror.errors import ToolError
from mcp_mirror.memory.tools.table import QUERY, RETRIEVE, RUN
from mcp_mirror.memory.tools.tool import Content, MemoryTool, ToolInput
from mcp_mirror.settings.policies import MirrorPolicy
from mcp_mirror.system.slices import Steps
from mcp_mirror.types import Buffer

FIND_TOOLS: Final = "find_tools"
CALL_TOOL: Final = "call_tool"


_LISTED: Final = frozenset((FIND_TOOLS, CALL_TOOL, RETRIEVE, "memory_read", "memory_grep"))
"""The gateway's own tools that clients see where they search for tools, beside one for questions about whole values."""


async def _reject_call(call: ToolInput) -> Content:
    """Reject a `call_tool` call that names `call_tool`: all others become calls of the tools that they name."""
    raise ToolError(f"{call.tool} cannot call itself. Call it with the name of a tool that {FIND_TOOLS} returned.")


SEARCH_TOOLS: Final[Mapping[str, MemoryTool]] = {
    tool.name: tool
    for tool in (
        MemoryTool(
            FIND_TOOLS,
            "Search the tools that are not listed. Returns the best matches: name, arguments, purpose.",
            {
                "query": {
                    "type": "string",
                    "description": "what the tool should do, in three different wordings separated by ';': "
                    "the action, the kind of thing, other usual terms",
                },
                "name": {"type": "string", "description": "instead: the full definition of one tool"},
            },
            (),
            _reject_call,  # the dispatcher answers it: a search needs the caller's catalog
        ),
        MemoryTool(
            CALL_TOOL,
            f"Call a tool by a name from {FIND_TOOLS}.",
            {"name": {"type": "string"}, "arguments": {"type": "object"}},
            ("name",),
            _reject_call,
            {},
        ),
    )
}


def search_tools(policy: MirrorPolicy) -> Mapping[str, MemoryTool]:
    """Return the tools for the search that the configuration needs, by name."""
    return {} if policy.listing == "full" else SEARCH_TOOLS


def searchable_tools(own_tools: Mapping[str, MemoryTool]) -> Mapping[str, MemoryTool]:
    """Return the gateway's own tools that only a search finds, by name."""
    listed = _list_own_tools(own_tools)
    return {name: tool for name, tool in own_tools.items() if name not in listed}


def _list_own_tools(own_tools: Mapping[str, MemoryTool]) -> Mapping[str, MemoryTool]:
    """Return the gateway's own tools that clients see where they search for the others."""
    listed = {*_LISTED, RUN if RUN in own_tools else QUERY}
    return {name: tool for name, tool in own_tools.items() if name in listed}


def unwrap_call(
    arguments: Buffer, own_tools: Mapping[str, MemoryTool], catalog: Catalog, suffix: str
) -> tuple[str, Buffer]:
    """Return the tool that a `call_tool` call names, and the arguments for it.

    A call without a usable name stays a `call_tool` call, which the pipeline answers with an error.
    """
    try:
        given = own_tools[CALL_TOOL].read_arguments(arguments)
    except ToolError:
        return CALL_TOOL, arguments
    named = complete_name(given.text("name"), own_tools, catalog, suffix)
    return named, given.json("arguments") if given.has("arguments") else b"{}"


def complete_name(name: str, own_tools: Collection[str], catalog: Catalog, suffix: str) -> str:
    """Return the name under which a tool is served: for its name at the upstream, the name of its twin.

    The tasks and documents that a model reads name the upstream's tool and not its twin. Views know no other name.
    """
    if name in catalog.entries or name in own_tools:
        return name
    if (suffixed := f"{name}{suffix}") in catalog.entries:
        return suffixed
    twins = [entry.name for entry in catalog.entries.values() if entry.is_twin and entry.tool == name]
    return twins[0] if len(twins) == 1 else name  # a twin has another name if not all clients accept the tool's


class ToolListing(msgspec.Struct, frozen=True):
    """The tools that one client sees in `tools/list`."""

    catalog: Catalog
    own_tools: Mapping[str, MemoryTool]
    is_search: bool
    """The client searches for the tools of the catalog that are not in this listing."""

    @property
    def adverts(self) -> list[Mapping[str, Any]]:
        """The definitions."""
        return [entry.advert for entry in self.catalog.entries.values()] + [
            tool.advert for tool in self.own_tools.values()
        ]


def choose_listing(policy: MirrorPolicy, catalog: Catalog, own_tools: Mapping[str, MemoryTool]) -> Steps[ToolListing]:
    """Return what a client sees, in steps of one tool."""
    is_search = policy.listing == "search"
    if policy.listing == "auto":
        is_search = (yield from catalog.count_tokens(policy.provider)) > policy.listing_budget
    if is_search:
        return ToolListing(catalog.always_listed, _list_own_tools(own_tools), is_search=True)
    listed = {name: tool for name, tool in own_tools.items() if name not in SEARCH_TOOLS}
    return ToolListing(catalog, listed, is_search=False)
