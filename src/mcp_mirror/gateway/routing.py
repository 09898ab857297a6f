"""Finds the tool that a call names, and waits for its upstream while that starts or reconnects."""

from collections.abc import Callable
from dataclasses import dataclass

from mcp_mirror.core.catalog import Catalog, CatalogEntry
from mcp_mirror.errors import RefusalReason, ToolError
from mcp_mirror.gateway.call import Call, RuntimeState
from mcp_mirror.gateway.tool_search import FIND
from mcp_mirror.memory.tools.table import explain_unserved
from mcp_mirror.memory.value_lookup import find_nearest
from mcp_mirror.security.flows import Flows
from mcp_mirror.upstreams.registry import UpstreamRegistry


@dataclass(frozen=True, slots=True)
class Router:
    """Routes calls by the catalog that is current after every wait."""

    upstreams: UpstreamRegistry
    read_state: Callable[[], RuntimeState]
    """Returns the current state."""

    async def route(self, call: Call) -> tuple[CatalogEntry, Catalog]:
        """Return the tool that a call names, and the catalog that lists it.

        Raises:
            ToolError: The caller has no such tool, it is quarantined, or its upstream is not connected.
        """
        wait, caller, catalog = call.config.mirror.startup_wait, call.caller, call.catalog
        entry = find_entry(catalog, call)
        if entry is not None:
            await self.upstreams.settle_one(entry.upstream, wait)
            catalog, listed = self.read_state().catalog_for(caller), entry
            entry = find_entry(catalog, call)
            if entry is None and (error := self._explain_state(listed.upstream)):
                raise error
        if entry is None:  # its upstream may be starting
            await self.upstreams.settle(wait, caller)
            catalog = self.read_state().catalog_for(caller)
            entry = find_entry(catalog, call)
        if entry is None:  # its upstream may be available again
            await self.upstreams.connect_unlisted(caller)
            catalog = self.read_state().catalog_for(caller)
            entry = find_entry(catalog, call)
        if entry is None:
            raise self._explain_unknown(call, catalog)
        call.trace.upstream = entry.upstream
        return entry, catalog

    def check(self, call: Call) -> None:
        """Check the tool again after the caller's own connection was opened.

        Raises:
            ToolError: The tool is quarantined on that connection.
        """
        find_entry(self.read_state().catalog_for(call.caller), call)

    def _explain_state(self, upstream: str) -> ToolError | None:
        """Return why an upstream is not connected; None if it is."""
        status = self.upstreams[upstream].status
        if status.state == "ready":
            return None
        is_shown = status.detail and may_show_upstream(self.upstreams, self.read_state().flows, upstream)
        detail = f": {status.detail}" if is_shown else "."
        return ToolError(f"Upstream {upstream!r} is {status.state}{detail} Try again in a moment.")

    def _explain_unknown(self, call: Call, catalog: Catalog) -> ToolError:
        """Return the error for a name that is not in the caller's catalog, with the nearest names."""
        if not call.config.is_transparent and (unserved := explain_unserved(call.name, call.config.memory_tools)):
            return ToolError(unserved, RefusalReason.UNKNOWN_TOOL)
        near = find_nearest(call.name, (*catalog.entries, *call.own_tools))
        source = FIND if FIND in call.own_tools else "tools/list"
        advice = f"Nearest are {', '.join(near)}." if near else f"Take a name from {source}."
        down = [one.policy.name for one in self.upstreams.visible_to(call.caller) if one.status.state != "ready"]
        missing = f" Upstreams that are not connected now: {', '.join(down)}." if down else ""
        is_hidden = call.name in catalog.hidden_names
        reason = RefusalReason.INSUFFICIENT_SCOPE if is_hidden else RefusalReason.UNKNOWN_TOOL
        return ToolError(f"Unknown tool {call.name!r}. {advice}{missing}", reason)


def find_entry(catalog: Catalog, call: Call) -> CatalogEntry | None:
    """Return the entry of a call's tool; None if the catalog has none.

    Raises:
        ToolError: The tool is quarantined: its definition differs from the pinned one.
    """
    if finding := catalog.quarantined.get(call.name):
        call.trace.upstream = finding.change.upstream
        raise ToolError(finding.refusal, RefusalReason.QUARANTINED)
    return catalog.entries.get(call.name)


def may_show_upstream(upstreams: UpstreamRegistry, flows: Flows, upstream: str) -> bool:
    """Whether the model may see texts of an upstream that do not depend on a stored value."""
    return upstreams.may_show(upstream) and flows.may_show(flows.labels_of_result(upstream, flows.lowest))
