"""Long lists of resources and templates delay no other client, neither listed nor searched for a URI."""

from __future__ import annotations

import sys
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import pytest
from tests.hostile.bystander import HttpClient, message_of
from tests.hostile.conftest import STATUS, connect_http, pinging
from tests.hostile.servers import resources
from tests.load import slowness

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mcp import Client
    from tests.end_to_end.conftest import Configured, Serve, Served
    from tests.hostile.conftest import Budget


def describe_server(*arguments: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-S", resources.__file__, *arguments]}


@asynccontextmanager
async def serving(configured: Configured, serve: Serve) -> AsyncIterator[tuple[Served, Client]]:
    """Serve two upstreams with long lists; yield the gateway and a client that has listed its tools."""
    config = configured({"one": describe_server(), "two": describe_server()})
    async with serve(config, "-v") as served, connect_http(served.url) as other:
        await other.list_tools()
        yield served, other


@pytest.mark.alone
@pytest.mark.parametrize("uri", ["file:///r/7", f"file:///t/{resources.COUNT - 1}/a", "file:///unlisted"])
async def test_long_lists_of_resources_do_not_delay_other_clients(
    configured: Configured, serve: Serve, budget: Budget, uri: str
) -> None:
    async with (
        serving(configured, serve) as (served, other),
        connect_http(served.url) as client,
        budget(served, "resources of two servers", f"{4 * resources.COUNT:,}", stall=0.05) as row,
        pinging(lambda: other.read_resource(STATUS), row),
    ):
        contents = (await client.read_resource(uri)).contents
        row.outcome = "read"
    assert contents[0].text == f"read {uri}"  # type: ignore[union-attr]


@pytest.mark.alone
@pytest.mark.parametrize("method", ["resources/list", "resources/templates/list"])
async def test_a_response_with_long_lists_does_not_delay_other_clients(
    configured: Configured, serve: Serve, budget: Budget, method: str
) -> None:
    async with (
        serving(configured, serve) as (served, other),
        budget(served, method, f"{2 * resources.COUNT:,}", stall=0.05) as row,
        pinging(lambda: other.read_resource(STATUS), row),
    ):
        with HttpClient(served.url) as client:
            answer = await anyio.to_thread.run_sync(client.send, method, b"{")
        row.outcome = "listed"
    (items,) = [value for value in message_of(answer)["result"].values() if isinstance(value, list)]
    assert len(items) >= 2 * resources.COUNT


@pytest.mark.slow
async def test_templates_that_take_long_to_compare_do_not_delay_a_read(configured: Configured, serve: Serve) -> None:
    uri = f"file:///v/{'a' * 3000}b"
    async with serve(configured({"one": describe_server("variables")})) as served, connect_http(served.url) as client:
        await client.list_resource_templates()
        began = time.monotonic()
        contents = (await client.read_resource(uri)).contents
        assert time.monotonic() - began < 4 * slowness()
    assert contents[0].text == f"read {uri}"  # type: ignore[union-attr]


async def test_a_template_of_all_uris_takes_none_of_a_longer_one(configured: Configured, serve: Serve) -> None:
    servers = {"greedy": describe_server("{+uri}"), "notes": describe_server("notes://{id}")}
    async with serve(configured(servers)) as served, connect_http(served.url) as client:
        for uri, template in (("notes://1", "notes://{id}"), ("other://1", "{+uri}")):
            contents = (await client.read_resource(uri)).contents
            assert contents[0].text == f"read {uri} by {template}"  # type: ignore[union-attr]
