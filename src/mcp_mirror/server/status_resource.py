"""The status resource: how the upstreams, the open requests and the event loop are."""

from typing import Any, Final

from mcp_mirror.callers import Caller
from mcp_mirror.gateway.gateway import STATUS_URI, Gateway
from mcp_mirror.settings.upstreams import UpstreamPolicy
from mcp_mirror.system.event_loop import find_stalls
from mcp_mirror.upstreams.listing import Listing
from mcp_mirror.upstreams.registry import Upstream

STATUS: Final = {
    "uri": STATUS_URI,
    "name": "upstreams",
    "title": "Upstream servers",
    "description": "How each upstream server is: state, protocol version, tools, problems.",
    "mimeType": "application/json",
}
"""The resource in lists of resources."""


def build_status(gateway: Gateway, caller: Caller, open_requests: int) -> dict[str, Any]:
    """Return the content of the status resource: upstreams, open requests, audit counts, event loop stalls."""
    counts, stalls = gateway.audit.counts, find_stalls()
    upstreams = [
        _build_upstream_status(upstream, caller, may_show=gateway.may_show(upstream.policy.name))
        for upstream in gateway.upstreams.visible_to(caller)
    ]
    status: dict[str, Any] = {"upstreams": upstreams, "requests": open_requests}
    if counts:
        status["audit"] = counts
    if stalls:
        status["event_loop"] = stalls.as_json()
    return status


def _build_upstream_status(upstream: Upstream, caller: Caller, *, may_show: bool) -> dict[str, Any]:
    """Return the state of an upstream, without the upstream's own texts unless `may_show`."""
    listing, policy = upstream.listing, upstream.policy
    status: dict[str, Any] = {"name": policy.name, "state": upstream.status.state, "under_way": upstream.inflight_count}
    if listing is not None:
        if may_show:
            status["server"] = listing.server
        status["protocol_version"] = listing.protocol_version
        status["tools"] = _count_tools(listing, policy, caller)
        if listing.is_stale:
            status["stale"] = True
    # Without previews the detail contains no texts of the upstream.
    if upstream.status.detail and (may_show or not policy.preview):
        status["detail"] = upstream.status.detail
    if listing and listing.problems:
        status["problems"] = listing.problems
    if len(upstream.connections) > 1:
        status["connections"] = len(upstream.connections)
    return status


def _count_tools(listing: Listing, policy: UpstreamPolicy, caller: Caller) -> int:
    """Return how many tools of an upstream the caller may call; the globs of the policy are matched if they decide."""
    if caller.scopes is None or not policy.is_scoped:
        return len(listing.tools)
    return sum(caller.has_scopes(policy.scopes_of(str(tool.get("name")))) for tool in listing.tools)
