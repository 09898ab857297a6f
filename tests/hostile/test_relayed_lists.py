"""Long lists of resources and templates delay no other client, neither listed nor searched for a URI."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import anyio.to_thread
import pytest
from tests.hostile.bystander import HttpClient, message_of
from tests.hostile.conftest import STATUS, connect_http, pinging
from tests.hostile.servers import resources
from tests.load import slowness

if TYPE_CHECKING:
    from tests.hostile.conftest import Budget
    from tests.walk.conftest import Configured, Serve


@pytest.mark.slow
@pytest.mark.parametrize("uri", ["file:///r/7", f"file:///t/{resources.COUNT - 1}/a", "file:///unlisted"])
async def test_long_lists_of_resources_do_not_delay_other_clients(
    configured: Configured, serve: Serve, budget: Budget, uri: str
) -> None:
    server = {"command": sys.executable, "args": [resources.__file__]}
    async with (
        serve(configured({"one": server, "two": server}), "-v") as served,
        connect_http(served.url) as client,
        connect_http(served.url) as other,
    ):
        await client.list_tools()
        async with (
            budget(served, "resources of two servers", f"{4 * resources.COUNT:,}", stall=0.05) as row,
            pinging(lambda: other.read_resource(STATUS), row),
        ):
            contents = (await client.read_resource(uri)).contents
            row.outcome = "read"
    assert contents[0].text == f"read {uri}"  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["resources/list", "resources/templates/list"])
async def test_a_response_with_long_lists_does_not_delay_other_clients(
    configured: Configured, serve: Serve, budget: Budget, method: str
) -> None:
    server = {"command": sys.executable, "args": [resources.__file__]}
    async with (
        serve(configured({"one": server, "two": server}), "-v") as served,
        connect_http(served.url) as other,
    ):
        await other.list_tools()
        async with (
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
    server = {"command": sys.executable, "args": [resources.__file__, "variables"]}
    uri = f"file:///v/{'a' * 3000}b"
    async with serve(configured({"one": server})) as served, connect_http(served.url) as client:
        await client.list_resource_templates()
        began = time.monotonic()
        contents = (await client.read_resource(uri)).contents
        assert time.monotonic() - began < 4 * slowness()
    assert contents[0].text == f"read {uri}"  # type: ignore[union-attr]
