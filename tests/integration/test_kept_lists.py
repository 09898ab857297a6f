"""The last lists of upstreams that are down, which keep the names of other upstreams' items."""

import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest

from mcp_mirror.callers import Caller, ClientChannel, NullChannel
from mcp_mirror.errors import UpstreamError
from mcp_mirror.gateway import relay as relay_module
from mcp_mirror.gateway.gateway import Gateway
from mcp_mirror.gateway.linked_resources import LinkedResources
from mcp_mirror.gateway.relay import Relay
from mcp_mirror.payload.json_rpc import array_of
from mcp_mirror.upstreams.listing import PagedList


@dataclass
class Policy:
    name: str


@dataclass
class Upstream:
    """An upstream with one resource, whose text is of some size."""

    policy: Policy
    size: int = 100
    readers: frozenset[str] | None = None
    """The namespaces to which the resource `x://shared` is listed, instead of one of its own to all."""
    is_down: bool = field(default=False, init=False)
    listing: object = field(default=(), init=False)
    """It has connected."""

    def offers(self, _capability: str, _detail: str = "") -> bool:
        return True

    def listing_connection(self, _channel: object) -> "Upstream":
        return self

    async def connection_for_lists(self, channel: object) -> "Upstream":
        return self.listing_connection(channel)

    async def list_all(self, _method: str, _member: str, channel: ClientChannel) -> PagedList:
        if self.is_down:
            raise UpstreamError("down")
        if self.readers is not None and channel.caller.namespace not in self.readers:
            return PagedList([], [(None, None)], size=0)
        name = self.policy.name if self.readers is None else "shared"
        item = json.dumps({"uri": f"x://{name}", "text": "x" * self.size}).encode()
        return PagedList([item], [(None, None)], size=len(item))


class Upstreams:
    def __init__(self, *upstreams: Upstream) -> None:
        self.upstreams = upstreams

    def visible_to(self, _caller: Caller) -> tuple[Upstream, ...]:
        return self.upstreams


def relay_of(*upstreams: Upstream) -> Relay:
    gateway = SimpleNamespace(
        upstreams=Upstreams(*upstreams),
        may_show=lambda _upstream: True,
        owns_uri=lambda _uri: False,
        linked_resources=LinkedResources(),
    )
    return Relay(cast("Gateway", gateway))


async def list_uris(relay: Relay, namespace: str) -> list[str]:
    listed = await relay.list_all("resources", NullChannel(Caller(namespace)))
    return [item["uri"] for item in json.loads(b"".join(array_of(listed.items)))]


@pytest.mark.parametrize(
    ("size", "limits"),
    [(100, {"_MAX_KEPT_PAGES": 20}), (10_000, {"_MAX_KEPT_BYTES": 100_000})],
)
async def test_the_lists_of_the_latest_callers_are_kept(
    size: int, limits: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, limit in limits.items():
        monkeypatch.setattr(relay_module, name, limit)
    failing = Upstream(Policy("failing"), size)
    relay = relay_of(failing, Upstream(Policy("other"), 10))
    for number in range(100):
        assert await list_uris(relay, f"caller {number}") == ["x://failing", "x://other"]
    failing.is_down = True
    assert await list_uris(relay, "caller 99") == ["x://failing", "x://other"]
    assert await list_uris(relay, "caller 98") == ["x://failing", "x://other"]
    assert await list_uris(relay, "caller 0") == ["x://other"]


async def find_upstream(relay: Relay, namespace: str) -> str:
    return (await relay.find_resource("x://shared", NullChannel(Caller(namespace)))).upstream


async def test_a_uri_goes_to_the_upstream_that_lists_it_to_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "_MAX_KEPT_LISTS", 8)
    of_callers = [
        Upstream(Policy(f"of {parity}"), readers=frozenset(f"caller {number}" for number in range(parity, 20, 2)))
        for parity in (0, 1)
    ]
    relay = relay_of(*of_callers)
    for _ in range(2):
        for number in range(20):
            assert await find_upstream(relay, f"caller {number}") == f"of {number % 2}"
    await list_uris(relay, "caller 0")
    assert await find_upstream(relay, "caller 19") == "of 1"


async def test_a_merged_list_over_the_limit_is_kept_for_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "_MAX_KEPT_NAMES", 0)
    relay = relay_of(Upstream(Policy("a"), readers=frozenset()), Upstream(Policy("shared")))
    for namespace in ("me", "you", "me"):
        await list_uris(relay, namespace)
        assert await find_upstream(relay, namespace) == "shared"
