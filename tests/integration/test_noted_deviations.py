"""Deviations from pins, which the gateway logs once."""

import tracemalloc
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mcp_mirror.core.catalog import Catalog
from mcp_mirror.gateway.call import RuntimeState
from mcp_mirror.gateway.gateway import Gateway
from mcp_mirror.security.flows import Flows
from mcp_mirror.security.pins import Pins
from mcp_mirror.server.change_notifier import ChangeNotifier
from mcp_mirror.server.sessions import Sessions
from mcp_mirror.settings.policies import Config
from mcp_mirror.settings.upstreams import StdioEndpoint, UpstreamPolicy
from mcp_mirror.upstreams.listing import Listing


@dataclass
class Upstream:
    """An upstream whose instructions are not in the lock file."""

    policy: UpstreamPolicy
    listing: Listing
    connections: tuple[()] = ()

    def listing_for(self, _owner: str | None, _principal: str | None) -> Listing:
        return self.listing


def test_common_deviations_are_logged_once_and_not_noted_for_each_owner(caplog: pytest.LogCaptureFixture) -> None:
    upstream = Upstream(UpstreamPolicy("up", StdioEndpoint("x")), Listing((), "Use me.", "2025-11-25", "up 1"))
    unused: Any = None
    state = RuntimeState(Config(), Pins(mode="warn"), Flows(), {}, unused, unused, catalog=Catalog({}, frozenset()))
    gateway = cast("Gateway", SimpleNamespace(upstreams=[upstream], state=state))
    notifier = ChangeNotifier(gateway, unused, unused, Sessions(1.0, lambda: 1.0, unused, 300.0, requires_auth=False))
    notifier.list_changed("tools", None, "up")
    tracemalloc.start()
    for number in range(2_000):
        notifier.list_changed("tools", f"owner {number}", "up")
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert caplog.text.count("not in the lock file") == 1
    assert grown < 200_000
