"""Upstreams start concurrently; a listing waits for late ones, and changes are announced."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mcp_types as types
import pytest
from gateway_processes import forked_upstream
from mcp import Client
from redis_process import free_port
from samples import sample
from tests.end_to_end.conftest import BOUND

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.end_to_end.conftest import Configured, Connect, Listening, OpenClient, OpenLines, Run, Serve

SERVERS = Path(__file__).with_name("servers")


async def test_the_second_is_asked_before_the_first_has_answered(
    open_client: OpenClient, raw: Any, tmp_path: Path
) -> None:
    met = str(tmp_path / "met")
    async with open_client({"first": raw("ok", "--gate", met), "second": raw("ok", "--opens", met)}) as client:
        assert b"first_say_mirrored" in await client.request("tools/list")


async def test_a_listing_waits_at_most_for_the_startup_wait(
    configured: Configured, open_lines: OpenLines, run: Run, raw: Any, tmp_path: Path
) -> None:
    gate = tmp_path / "late"
    await run("check", "--config", str(configured({"quick": raw()})))  # a busy machine may start it too late
    config = configured({"late": raw("ok", "--gate", str(gate)), "quick": raw()}, mirror={"startup_wait": 0.5})
    async with open_lines(config) as client:
        assert "Server late is starting" in (await client.greet())["instructions"]
        listed = json.loads(await client.request("tools/list"))["result"]["tools"]
        assert listed[0]["name"] == "say_mirrored"
        gate.touch()
        line = b""
        while b"notifications/tools/list_changed" not in line:
            line = await client.receive()
        assert b"late_say_mirrored" in await client.request("tools/list")


async def test_instructions_name_missing_servers_before_those_of_others(
    configured: Configured, open_lines: OpenLines, run: Run, raw: Any, tmp_path: Path
) -> None:
    await run("check", "--config", str(configured({"chatty": raw()})))  # a busy machine may start it too late
    upstreams = {
        "chatty": raw(),
        "late": raw("ok", "--gate", str(tmp_path / "never")),
        "slow": raw("ok", "--gate", str(tmp_path / "never")),
        "broken": {"command": "/nonexistent"},
    }
    async with open_lines(configured(upstreams, mirror={"startup_wait": 0.5})) as client:
        found = (await client.greet())["instructions"]
        assert "Servers late, slow are starting: their tools may appear later." in found
        assert "Server broken is down: its tools cannot be called now." in found
        assert found.index("Servers late") < found.index("Server chatty")


async def test_a_wrapped_server_that_starts_late_is_named(
    configured: Configured, raw: Any, serve: Serve, tmp_path: Path
) -> None:
    late = raw("ok", "--gate", str(tmp_path / "never"))
    async with serve(configured({"late": late, "quick": raw()}, mirror={"startup_wait": 0.5})) as served:
        for name, is_named in (("late", True), ("quick", False)):
            async with Client(f"{served.url}/{name}") as client:
                found = client.instructions or ""
                assert ("Server late is starting: its tools may appear later." in found) == is_named


async def test_a_search_without_a_match_names_servers_that_are_missing(
    configured: Configured, open_lines: OpenLines, run: Run, raw: Any, tmp_path: Path
) -> None:
    await run("check", "--config", str(configured({"quick": raw()})))  # a busy machine may start it too late
    upstreams = {"late": raw("ok", "--gate", str(tmp_path / "never")), "quick": raw()}
    mirror = {"startup_wait": 0.5, "listing": "search"}
    async with open_lines(configured(upstreams, mirror=mirror)) as client:
        await client.greet()
        answer = await client.text("find_tools", {"query": "xyzzy"})
        assert answer.endswith("Server late is starting: its tools may appear later.")


async def test_a_list_without_a_late_server_is_not_cached(
    configured: Configured, connect: Connect, raw: Any, tmp_path: Path
) -> None:
    cached = forked_upstream(str(SERVERS / "cached.py"))
    late = raw("ok", "--gate", str(tmp_path / "never"))
    for upstreams, milliseconds in (({"cached": cached}, 60_000), ({"cached": cached, "late": late}, 0)):
        config = configured(upstreams, mirror={"startup_wait": 1})
        async with connect(config, "stdio", mode="auto") as client, asyncio.timeout(BOUND):
            listed = await client.list_tools(cache_mode="bypass")
            while "shout_mirrored" not in [one.name for one in listed.tools]:
                listed = await client.list_tools(cache_mode="bypass")
            assert listed.ttl_ms == milliseconds


@pytest.fixture
async def upstreams(listening: Listening, raw: Any, chemist: Any) -> AsyncIterator[dict[str, Any]]:
    """Upstreams of both protocol versions, of 2026-07-28 on both transports."""
    async with listening("chemist.py", "http") as port:
        yield {"2025": raw(), "2026 stdio": chemist, "2026 http": {"url": f"http://127.0.0.1:{port}/mcp"}}


CHANGES = [
    ("stdio", "legacy", "2025"), ("stdio", "auto", "2026 stdio"), ("stdio", "legacy", "2026 http"),
    ("http", "auto", "2025"), ("http", "legacy", "2026 stdio"), ("http", "auto", "2026 http"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("client_transport", "mode", "version"), sample(CHANGES, {CHANGES[0], CHANGES[1], CHANGES[5]}.__contains__)
)
async def test_a_change_of_an_upstreams_tools_is_followed_and_passed_on(
    *,
    client_transport: str,
    mode: str,
    version: str,
    configured: Configured,
    connect: Connect,
    upstreams: dict[str, Any],
) -> None:
    received = asyncio.Event()

    async def on_message(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            received.set()

    async with connect(
        configured({"one": upstreams[version]}), client_transport, mode=mode, message_handler=on_message
    ) as client:
        before = {tool.name for tool in (await client.list_tools()).tools}
        if mode == "legacy":
            await client.call_tool("grow_mirrored", {"name": "extra"})
            await asyncio.wait_for(received.wait(), BOUND)
        else:
            async with client.listen(tools_list_changed=True) as changes:
                await client.call_tool("grow_mirrored", {"name": "extra"})
                await asyncio.wait_for(anext(aiter(changes)), BOUND)
        after = {tool.name for tool in (await client.list_tools(cache_mode="bypass")).tools}
        assert after - before == {"extra_mirrored"}


async def test_an_announcement_stream_may_be_silent_beyond_request_timeouts(
    configured: Configured, open_lines: OpenLines, listening: Listening
) -> None:
    async with listening("raw_http.py", "--standing", "3") as port:
        config = configured({"raw": {"url": f"http://127.0.0.1:{port}/mcp", "timeout": 1}})
        async with open_lines(config) as client:
            await client.greet()
            while b"list_changed" not in await client.receive():
                pass
            assert b"new_mirrored" in await client.request("tools/list")


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_a_server_that_was_away_is_followed_again(
    transport: str, configured: Configured, open_lines: OpenLines, listening: Listening
) -> None:
    async with AsyncExitStack() as stack:
        async with listening("chemist.py", transport, str(free_port())) as port:
            path = {"http": {"url": f"http://127.0.0.1:{port}/mcp"},
                    "sse": {"url": f"http://127.0.0.1:{port}/sse", "transport": "sse"}}[transport]  # fmt: skip
            client = await stack.enter_async_context(open_lines(configured({"one": path})))
            await client.greet()
            assert "HI" in await client.text("shout_mirrored", {"text": "hi"})
        answer = await client.text("shout_mirrored", {"text": "hi"})
        assert "'one'" in answer
        await stack.enter_async_context(listening("chemist.py", transport, port))
        assert "HI" in await client.text("shout_mirrored", {"text": "hi"})
        assert "grown" in await client.text("grow_mirrored", {"name": "after"})
        while b"after_mirrored" not in await client.request("tools/list"):  # an earlier change may be announced first
            while b"list_changed" not in await client.receive():
                pass


async def test_a_storm_of_announcements_leads_to_one_listing_a_second(
    open_client: OpenClient, raw: Any, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with open_client({"raw": raw("ok", "--log", str(log))}) as client:
        began = time.monotonic()
        for _ in range(3):
            await client.text("storm_mirrored", {"times": 500})
        await client.text("grow_mirrored", {"name": "after"})
        while b"list_changed" not in await client.receive():
            pass
        listings = [line for line in log.read_text().splitlines() if line.endswith("tools/list")]
        assert len(listings) <= 1 + 2 + (time.monotonic() - began)  # at the start, at both ends, and one a second


async def test_a_call_that_comes_before_its_upstream_is_ready_waits_for_it(
    configured: Configured, open_lines: OpenLines, raw: Any, tmp_path: Path
) -> None:
    gate = tmp_path / "late"
    config = configured({"late": raw("ok", "--gate", str(gate))}, mirror={"startup_wait": 10})
    async with open_lines(config) as client:
        asyncio.get_running_loop().call_later(4, gate.touch)  # past the handshake's own wait
        await client.greet()
        assert "hello" in await client.text("hear_mirrored", {"text": "hello"})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "the configuration cannot be read"),
        ("upstreams: {raw: {comand: x}}", "did you mean 'command'?"),
        ("upstreams: {}\nstore: {kind: disk, path: /dev/null/store}", "The store in /dev/null/store failed"),
        (f"upstreams: {{}}\nstore: {{kind: disk, path: /tmp/{'x' * 300}}}", "File name too long"),
    ],
    ids=["no file", "unknown key", "unusable store", "name that is too long"],
)
async def test_a_client_reads_why_the_gateway_cannot_start(
    open_lines: OpenLines, tmp_path: Path, content: str | None, reason: str
) -> None:
    config = tmp_path / "mirror.yaml"
    if content is not None:
        config.write_text(content)
    async with open_lines(config) as client:
        assert reason in json.loads(await client.request("initialize"))["error"]["message"]
    assert client.process.returncode == 2
    assert reason.encode() in b"".join(client.stderr)


@pytest.mark.posix
@pytest.mark.parametrize(
    ("options", "sections", "message"),
    [
        (("--http", "ADDRESS"), {}, "Cannot serve on"),
        (("--http", "ADDRESS", "--workers", "2"), {"store": {"kind": "disk"}}, "Cannot serve on"),
        (("--http", "127.0.0.1:0", "--workers", "2"), {"store": {"kind": "memory"}}, "Set `store.kind`"),
        (("--http", "127.0.0.1:0"), {"server": {"metrics": "ADDRESS"}}, "Cannot serve `server.metrics` on"),
        (("--http", "localhost"), {}, "--http must be HOST:PORT"),
        ((), {"mirror": {"stages": ["absent:stage"]}}, "absent"),
    ],
)
async def test_the_error_that_ends_the_gateway_is_a_line_of_the_log(
    options: tuple[str, ...], sections: dict[str, Any], message: str, configured: Configured, run: Run, raw: Any
) -> None:
    if "--workers" in options and sys.platform != "linux":
        pytest.skip("several workers need Linux")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        settings = json.loads(json.dumps(sections).replace("ADDRESS", address))
        settings["server"] = {"log_format": "json", **settings.get("server", {})}
        config = configured({"raw": raw()}, **settings)
        given = [option.replace("ADDRESS", address) for option in options]
        ended = await run("serve", "--config", str(config), *given)
    assert ended.code == 2
    lines = [json.loads(line) for line in ended.err.splitlines()]
    assert message in lines[-1]["message"]
    assert lines[-1]["level"] == "error"
