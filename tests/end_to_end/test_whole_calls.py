"""One workflow through the whole gateway: on all transports of clients and upstreams, in both protocol versions."""

from __future__ import annotations

import json
import os
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
from mcp import Client
from notices import path_in
from samples import sample

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Configured, Connect, Listening

UPSTREAMS = ("stdio", "http", "sse")
MATRIX = [
    (client_transport, mode, transport)
    for client_transport in ("stdio", "http")
    for mode in ("legacy", "auto")
    for transport in UPSTREAMS[:2]
    if "ALL_COMBINATIONS" in os.environ or (client_transport, mode, transport).count("http") % 2 == (mode == "auto")
] + [("http", "auto", "sse")]  # fmt: skip
SAMPLE = {("stdio", "legacy", "stdio"), ("stdio", "auto", "http"), ("http", "auto", "sse")}
"""Combinations of `make test`: each transport and each protocol version."""


async def text(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error is not True, result
    return str(result.content[0].text)  # type: ignore[union-attr]


@pytest.mark.parametrize(("client_transport", "mode", "transport"), sample(MATRIX, SAMPLE.__contains__))
async def test_a_result_is_stored_and_passed_on_by_path(
    *,
    client_transport: str,
    mode: str,
    transport: str,
    configured: Configured,
    connect: Connect,
    listening: Listening,
    chemist: Any,
) -> None:
    async with AsyncExitStack() as stack:
        maker = chemist
        if transport != "stdio":
            port = await stack.enter_async_context(listening("chemist.py", transport))
            maker = {"url": f"http://127.0.0.1:{port}/mcp"}
            if transport == "sse":
                maker = {"url": f"http://127.0.0.1:{port}/sse", "transport": "sse"}
        config = configured({"maker": maker | {"tools": {"allow": ["make_grid"]}},
                             "user": chemist | {"tools": {"deny": ["make_grid"]}}})  # fmt: skip
        client = await stack.enter_async_context(connect(config, client_transport, mode=mode))
        listed = [tool.name for tool in (await client.list_tools()).tools]
        assert listed[0] == "make_grid_mirrored"
        assert "retrieve_final_answer_from_memory" in listed
        notice = await text(client, "make_grid_mirrored", size=12)
        path = path_in(notice)
        assert "array[12x12x12]" in notice
        assert len(notice) < 2000
        made = await client.call_tool("make_grid_mirrored", {"size": 12})
        assert made.structured_content is None
        # a key of it, to a tool of another upstream; structured and small, so shown as it is
        total = await client.call_tool("total_mirrored", {"grid": f"{path}/grid"})
        assert str(12**3 * 17.0) in str(total.content)
        # several, nested ones too
        combined = await text(
            client, "combine_mirrored", first=path, second=path, options={"keep": [f"{path}/meta/shape", 1]}
        )
        assert "grid+grid+{'keep': [[12, 12, 12], 1]}" in combined
        # below a key, with the escapes of RFC 6901
        assert "DEEP" in await text(client, "shout_mirrored", text=f"{path}/meta/a~1b/~0")
        # an object to a text argument goes as its JSON
        shape = json.dumps([12, 12, 12], separators=(",", ":"))
        brought = await text(client, "retrieve_final_answer_from_memory", memory_path=f"{path}/meta/shape")
        assert brought.replace(" ", "").replace("\n", "") == shape
        assert path.upper() in await text(client, "shout_mirrored", text=f"literal:{path}")


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_long_text_goes_by_its_path_and_comes_back_whole(
    mode: str, configured: Configured, connect: Connect, chemist: Any
) -> None:
    async with connect(configured({"one": chemist}), mode=mode) as client:
        path = path_in(await text(client, "write_mirrored", length=20_000))
        result = await client.call_tool("measure_mirrored", {"text": path})
        assert "20000" in str(result.content)
        assert await text(client, "retrieve_final_answer_from_memory", memory_path=path) == "word " * 4000
