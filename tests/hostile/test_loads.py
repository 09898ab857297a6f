"""Heavy load: floods of notifications, large results, errors and many clients do not delay other clients."""

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import pytest
from mcp import Client
from tests.end_to_end.conftest import Serve, Served
from tests.hostile.conftest import ROOT, Budget, Configured, connect_http, pinging

ATTACKER = ["-m", "tests.end_to_end.servers.hostile", "ok"]


def attacked(configured: Configured, raw: Any) -> Any:
    hostile = raw() | {"args": ATTACKER, "cwd": str(ROOT), "timeout": 60}
    return configured({"good": raw(), "hostile": hostile})


async def ask(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    return str(result.content[0].text)  # type: ignore[union-attr]


class Stage:
    """One client that attacks and one that is served beside it."""

    def __init__(self, served: Served, attacker: Client, other: Client) -> None:
        self.served, self.attacker, self.other = served, attacker, other

    async def greet(self) -> str:
        answer = await ask(self.other, "good_hear_mirrored", text="hello")
        assert "hello" in answer
        return answer


async def staged(stack: AsyncExitStack, serve: Serve, config: Any) -> Stage:
    served = await stack.enter_async_context(serve(config, "-v"))
    clients = [await stack.enter_async_context(connect_http(served.url)) for _ in range(2)]
    stage = Stage(served, *clients)
    await ask(stage.attacker, "done_mirrored")
    await stage.greet()
    return stage


@pytest.mark.slow
async def test_floods_of_notifications(configured: Configured, serve: Serve, raw: Any, budget: Budget) -> None:
    async with AsyncExitStack() as stack:
        stage = await staged(stack, serve, attacked(configured, raw))
        async with (
            budget(stage.served, "notifications of an upstream", "21,000 in one call") as row,
            pinging(stage.greet, row),
        ):
            assert await ask(stage.attacker, "flood_mirrored", times=3000) == "done"
            row.outcome = "the call is answered"


@pytest.mark.slow
async def test_large_results(configured: Configured, serve: Serve, raw: Any, budget: Budget) -> None:
    async with AsyncExitStack() as stack:
        stage = await staged(stack, serve, attacked(configured, raw))
        async with budget(stage.served, "large results", "4 of 16 MB at once") as row, pinging(stage.greet, row):
            calls = [ask(stage.attacker, "giant_mirrored", size=16_000_000) for _ in range(4)]
            assert all("text, 16 MB" in answer for answer in await asyncio.gather(*calls))
            row.outcome = "stored"


@pytest.mark.slow
async def test_many_errors(configured: Configured, serve: Serve, raw: Any, budget: Budget) -> None:
    async with AsyncExitStack() as stack:
        stage = await staged(stack, serve, attacked(configured, raw))
        async with (
            budget(stage.served, "errors of an upstream", "200 calls, 100 kB each") as row,
            pinging(stage.greet, row),
        ):
            failing = json.dumps({"isError": True, "content": [{"type": "text", "text": "x" * 100_000}]})
            for _ in range(20):
                calls = [stage.attacker.call_tool("good_say_mirrored", {"result": failing}) for _ in range(10)]
                assert all(one.is_error for one in await asyncio.gather(*calls))
            row.outcome = "shown in part"


@pytest.mark.slow
async def test_many_clients_at_once(configured: Configured, serve: Serve, raw: Any, budget: Budget) -> None:
    async with AsyncExitStack() as stack:
        stage = await staged(stack, serve, attacked(configured, raw))

        async def come_and_go() -> None:
            async with connect_http(stage.served.url) as client:
                for _ in range(3):
                    await ask(client, "done_mirrored")

        async with budget(stage.served, "clients at once", "40, 3 calls each") as row, pinging(stage.greet, row):
            await asyncio.gather(*(come_and_go() for _ in range(40)))
            row.outcome = "served"
