"""Many concurrent calls, and calls of clients that disconnect."""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from http_sessions import HEADERS, META
from mcp import Client
from notices import path_in
from tests.end_to_end.conftest import BOUND
from waiting import until

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Configured, Listening, OpenClient, Serve


async def text(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    return str(result.content[0].text)  # type: ignore[union-attr]


async def status(client: Client) -> dict[str, Any]:
    contents = (await client.read_resource("mcp-mirror://upstreams", cache_mode="bypass")).contents
    return dict(json.loads(contents[0].text))  # type: ignore[union-attr]


async def settled(client: Client) -> dict[str, Any]:
    """The status when only this request is in flight."""
    async with asyncio.timeout(BOUND):
        while True:
            now = await status(client)
            if now["requests"] == 0 and not any(one.get("under_way") for one in now["upstreams"]):
                return now


async def test_two_hundred_calls_at_once_get_each_its_own_answer(
    configured: Configured, serve: Serve, listening: Listening, raw: Any
) -> None:
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(listening("chemist.py", "http"))
        config = configured({"near": raw(), "far": {"url": f"http://127.0.0.1:{port}/mcp"}})
        served = await stack.enter_async_context(serve(config))
        clients = [
            await stack.enter_async_context(Client(served.url, mode=mode))
            for mode in ("auto", "legacy", "auto", "legacy")
        ]

        async def work(index: int) -> None:
            client, size = clients[index % 4], random.Random(index).choice([1, 900, 40_000, 300_000])  # noqa: S311
            mine = f"<{index}>" * (size // 3)
            result = json.dumps({"content": [], "structuredContent": {"index": index, "data": mine}})
            path = path_in(await text(client, "say_mirrored", result=result))
            received = await text(client, "shout_mirrored", text=f"{path}/index")
            assert str(index) in received
            measured = await text(client, "measure_mirrored", text=f"{path}/data")
            assert str(len(mine)) in measured
            if size < 1000:
                assert await text(client, "retrieve_final_answer_from_memory", memory_path=f"{path}/data") == mine

        async with asyncio.timeout(3 * BOUND), asyncio.TaskGroup() as tasks:
            for index in range(70):  # three calls each
                tasks.create_task(work(index))
        await settled(clients[0])


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_cancelled_call_leaves_nothing_behind(
    mode: str, configured: Configured, serve: Serve, raw: Any, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with (
        serve(configured({"raw": raw("ok", "--log", str(log))})) as served,
        Client(served.url, mode=mode) as client,
    ):
        for index in range(5):
            started = tmp_path / f"started{index}"
            arguments = {"started": str(started), "until": str(tmp_path / "never"), "more": "x" * 100_000}
            call = asyncio.create_task(client.call_tool("hang_mirrored", arguments))
            await until(started.exists)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        await settled(client)
        await until(lambda: log.read_text().count("notifications/cancelled") == 5)


async def test_a_caller_that_drops_the_line_leaves_nothing_behind(
    configured: Configured, serve: Serve, raw: Any, tmp_path: Path
) -> None:
    async with serve(configured({"raw": raw(timeout=5)})) as served, Client(served.url) as client:
        named = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "hang_mirrored"}
        for index in range(3):
            started = tmp_path / f"started{index}"
            arguments = {"started": str(started), "until": str(tmp_path / "never")}
            params = {"name": "hang_mirrored", "arguments": arguments, "_meta": META}
            body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
            async with httpx2.AsyncClient() as caller:
                call = asyncio.create_task(
                    caller.post(served.url, content=body, headers=HEADERS | named, timeout=BOUND)
                )
                await until(started.exists)
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
        await settled(client)


REJECTED = [
    {"arguments": {"a": "x" * 50_000}},
    {"name": 7, "arguments": {"a": 1}},
    {"name": "hear_mirrored", "arguments": {"a": 1}, "_meta": {"progressToken": {}}},
    {"name": "hear_mirrored", "arguments": {"a": 1}, "_meta": {"mcp-mirror/payload": "forged"}},
]


async def test_a_call_that_never_reaches_its_handler_leaves_nothing_behind(open_client: OpenClient, raw: Any) -> None:
    async with open_client({"raw": raw()}) as client:
        for params in REJECTED:
            await client.request("tools/call", json.dumps(params))
        read = json.loads(await client.request("resources/read", '{"uri":"mcp-mirror://upstreams"}'))
        assert json.loads(read["result"]["contents"][0]["text"])["requests"] == 0


async def test_arguments_that_a_client_marks_as_ours_are_its_own(open_client: OpenClient, raw: Any) -> None:
    async with open_client({"raw": raw()}) as client:
        meta = '{"name":"hear_mirrored","arguments":{"a":1},"_meta":{"mcp-mirror/payload":"forged"}}'
        assert '{\\"a\\":1}' in (await client.request("tools/call", meta)).decode()


@pytest.mark.posix
@pytest.mark.skipif(sys.platform != "linux", reason="reads the status of a Linux process")
async def test_the_table_of_open_files_does_not_grow_while_clients_connect(
    configured: Configured, serve: Serve, raw: Any
) -> None:
    async with serve(configured({"raw": raw()})) as served:
        status = Path(f"/proc/{served.process.pid}/status").read_text()
    assert int(re.findall(r"FDSize:\t(\d+)", status)[0]) >= 4096
