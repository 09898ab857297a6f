"""The upstream connections of clients, and their ends."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from http_sessions import HEADERS, META, open_session
from mcp import Client
from redis_process import free_port
from samples import sample
from tests.end_to_end.conftest import BOUND
from tests.end_to_end.servers import forgetful
from waiting import until

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Configured, Lines, Listening, OpenClient, OpenLines, Serve


SCRIPTED = Path(__file__).parents[1] / "helpers" / "scripted_upstream.py"


def handshakes(log: Path) -> int:
    return log.read_text().count(" initialize\n")


async def status(client: Client) -> list[dict[str, Any]]:
    contents = (await client.read_resource("mcp-mirror://upstreams")).contents
    upstreams: list[dict[str, Any]] = json.loads(contents[0].text)["upstreams"]  # type: ignore[union-attr]
    return upstreams


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("legacy", {"default": 3, "session": 3, "principal": 2, "shared": 1}),
        ("auto", {"default": 1, "principal": 2, "shared": 1}),
    ],
)
async def test_a_2025_upstream_has_dedicated_connections_by_its_scope(
    mode: Any, expected: dict[str, int], configured: Configured, serve: Serve, raw: Any, tmp_path: Path
) -> None:
    """The handshakes are the gateway's own, and those that the calls of two clients cause."""
    upstreams = {
        scope: raw("ok", "--log", str(tmp_path / scope), **({} if scope == "default" else {"scope": scope}))
        for scope in expected
    }
    async with serve(configured(upstreams)) as served, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Client(served.url, mode=mode)) for _ in range(2)]
        for client, scope, _ in product(clients, expected, range(2)):
            assert (await client.call_tool(f"{scope}_hear_mirrored", {})).is_error is not True
        assert {scope: handshakes(tmp_path / scope) for scope in expected} == expected
        assert {one["name"]: one.get("connections", 1) for one in await status(clients[0])} == expected


async def test_a_2026_server_that_refuses_one_handshake_is_not_down(
    configured: Configured, serve: Serve, tmp_path: Path
) -> None:
    new = {"command": sys.executable, "args": ["-S", "-E", str(SCRIPTED), "stdio", "2026-07-28", str(tmp_path / "log")]}
    async with serve(configured({"new": new})) as served:
        async with Client(served.url) as client:  # its own handshake tells the gateway which server this is
            await client.call_tool("echo_mirrored", {})
        async with Client(served.url, mode="legacy") as client:
            assert (await client.call_tool("echo_mirrored", {})).is_error is not True
            shown = (await status(client))[0]
            assert (shown["state"], shown.get("connections", 1)) == ("ready", 1)
        received = map(json.loads, (tmp_path / "log").read_text().splitlines())
        assert "initialize" in [message["method"] for message, *_ in received]
    assert b"is down" not in b"".join(served.stderr)


async def test_a_session_that_ends_closes_its_connections(configured: Configured, serve: Serve, raw: Any) -> None:
    async with serve(configured({"one": raw()})) as served, Client(served.url) as watching:
        async with Client(served.url, mode="legacy") as client:
            await client.call_tool("hear_mirrored", {})
            assert (await status(watching))[0]["connections"] == 2
        await until(lambda: status(watching), lambda found: "connections" not in found[0])


async def test_tools_that_a_session_caused_are_seen_only_by_it(configured: Configured, serve: Serve, raw: Any) -> None:
    async def names(client: Client) -> set[str]:
        return {tool.name for tool in (await client.list_tools(cache_mode="refresh")).tools}

    async with (
        serve(configured({"one": raw()})) as served,
        Client(served.url, mode="legacy") as growing,
        Client(served.url, mode="legacy") as other,
    ):
        await other.call_tool("hear_mirrored", {})
        await growing.call_tool("grow_mirrored", {"name": "sprout"})
        await until(lambda: names(growing), lambda found: "sprout_mirrored" in found)
        assert (await growing.call_tool("sprout_mirrored", {})).is_error is not True
        assert "sprout_mirrored" not in await names(other)
        assert "Unknown tool" in str((await other.call_tool("sprout_mirrored", {})).content)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_tools_on_a_principals_connection_are_seen_by_all_its_clients(
    *, mode: Any, configured: Configured, serve: Serve, raw: Any
) -> None:
    changed = asyncio.Event()

    async def note(message: Any) -> None:
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            changed.set()

    async with (
        serve(configured({"one": raw() | {"scope": "principal"}})) as served,
        Client(served.url, mode=mode) as growing,
        Client(served.url, mode=mode, message_handler=note) as other,
    ):
        await growing.call_tool("grow_mirrored", {"name": "sprout"})
        listed = (await other.list_tools(cache_mode="refresh")).tools
        assert "sprout_mirrored" in {tool.name for tool in listed}
        assert (await other.call_tool("sprout_mirrored", {})).is_error is not True
        if mode == "legacy":
            async with asyncio.timeout(BOUND):
                await changed.wait()


@pytest.mark.parametrize("mode", ["legacy", "auto"])
@pytest.mark.parametrize("order", ["abc", "cba"])
async def test_a_client_sees_the_tools_of_its_connections_of_every_scope(
    *, mode: Any, order: str, configured: Configured, serve: Serve, raw: Any
) -> None:
    config = configured({"a": raw(scope="session"), "b": raw(scope="principal"), "c": raw()})
    async with serve(config) as served, Client(served.url, mode=mode) as client:
        for name in order:
            await client.call_tool(f"{name}_grow_mirrored", {"name": f"sprout_{name}"})
        listed = {tool.name for tool in (await client.list_tools(cache_mode="refresh")).tools}
        assert {"sprout_a_mirrored", "sprout_b_mirrored", "sprout_c_mirrored"} <= listed
        for name in order:
            assert (await client.call_tool(f"sprout_{name}_mirrored", {})).is_error is not True


async def test_tools_that_a_call_adds_are_in_the_next_list(open_client: OpenClient, raw: Any) -> None:
    async with open_client({"one": raw()}) as client:
        assert await client.text("grow_mirrored", {"name": "sprout"}) == "grown"
        listed = json.loads(await client.request("tools/list"))["result"]["tools"]
        assert "sprout_mirrored" in [tool["name"] for tool in listed]


async def test_a_tool_that_a_call_adds_can_be_called_at_once(open_client: OpenClient, raw: Any) -> None:
    async with open_client({"one": raw()}) as client:
        assert await client.text("grow_mirrored", {"name": "sprout"}) == "grown"
        assert "Unknown tool" not in await client.text("sprout_mirrored")


@pytest.mark.parametrize("style", ["json", "lf"])
async def test_a_server_gets_the_end_of_its_session(
    style: str, configured: Configured, open_lines: OpenLines, listening: Listening, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with listening("raw_http.py", "--style", style, "--log", str(log)) as port:
        async with open_lines(configured({"one": {"url": f"http://127.0.0.1:{port}/mcp"}})) as client:
            await client.greet()
            await client.call("hear_mirrored")
        await until(lambda: "DELETE" in log.read_text())
        assert log.read_text().count("DELETE") == 1


@pytest.mark.parametrize("style", ["json", "lf"])
async def test_an_error_that_mentions_a_session_does_not_end_the_session(
    style: str, configured: Configured, open_lines: OpenLines, listening: Listening, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with listening("raw_http.py", "--style", style, "--log", str(log)) as port:
        async with open_lines(configured({"one": {"url": f"http://127.0.0.1:{port}/mcp"}})) as client:
            await client.greet()
            assert "Paid, but" in await client.text("deny_mirrored")
            assert "hear" in await client.text("hear_mirrored")
        assert log.read_text().count("tools/call") == 2
        assert log.read_text().count("initialize\n") == 1


async def test_calls_in_a_session_that_the_server_ended_use_a_new_one(
    configured: Configured, open_lines: OpenLines, listening: Listening, tmp_path: Path
) -> None:
    log, rounds, calls = tmp_path / "log", 7, 5
    async with (
        listening("raw_http.py", "--log", str(log)) as port,
        open_lines(configured({"one": {"url": f"http://127.0.0.1:{port}/mcp"}})) as client,
    ):
        await client.greet()
        for _ in range(rounds):  # more than failures in a row that open the circuit breaker
            await client.text("forget_mirrored")
            params = {"name": "say_mirrored", "arguments": {"result": '{"content":[{"type":"text","text":"ok"}]}'}}
            for number in range(calls):
                call = {"jsonrpc": "2.0", "id": f"call {number}", "method": "tools/call", "params": params}
                await client.send(json.dumps(call))
            texts = list[str]()
            while len(texts) < calls:
                if str((message := json.loads(await client.receive())).get("id")).startswith("call"):
                    texts.append(message["result"]["content"][0]["text"])
            assert texts == ["ok"] * calls
        assert log.read_text().count("initialize\n") == 1 + rounds
    assert b"is down" not in b"".join(client.stderr)


@pytest.mark.parametrize("style", ["json", "lf"])
async def test_a_call_that_runs_in_an_ended_session_ends_beside_the_new_one(
    style: str, configured: Configured, open_lines: OpenLines, listening: Listening, tmp_path: Path
) -> None:
    log, gates = tmp_path / "log", [(tmp_path / f"started-{n}", tmp_path / f"until-{n}") for n in range(2)]
    async with (
        listening("raw_http.py", "--style", style, "--log", str(log)) as port,
        open_lines(configured({"one": {"url": f"http://127.0.0.1:{port}/mcp"}})) as client,
    ):
        await client.greet()
        for number, (started, until_exists) in enumerate(gates):
            arguments = {"started": str(started), "until": str(until_exists)}
            call = {"name": "hang_mirrored", "arguments": arguments}
            message = {"jsonrpc": "2.0", "id": f"hang {number}", "method": "tools/call", "params": call}
            await client.send(json.dumps(message))
            await until(started.exists)
            await client.text("forget_mirrored")
            assert "hear" in await client.text("hear_mirrored")  # in a new session
        assert log.read_text().count("initialize\n") == 1 + len(gates)
        for number, (_, until_exists) in enumerate(gates):
            until_exists.touch()
            async with asyncio.timeout(BOUND):
                while (answer := json.loads(await client.receive())).get("id") != f"hang {number}":
                    pass
            assert "hang" in answer["result"]["content"][0]["text"], answer
    assert b"is down" not in b"".join(client.stderr)


async def call_and_answer_roots(client: Lines, tool: str, roots: list[dict[str, str]], bound: float) -> str:
    """Call a tool, answer its server's request for roots, and return the text of the result."""
    await client.greet(roots={})
    call = {"jsonrpc": "2.0", "id": "call", "method": "tools/call", "params": {"name": tool}}
    await client.send(json.dumps(call))
    async with asyncio.timeout(bound):
        while (message := json.loads(await client.receive())).get("id") != "call":
            if message.get("method") == "roots/list":
                await client.send(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {"roots": roots}}))
    return str(message["result"]["content"][0]["text"])


async def test_a_call_whose_answer_comes_after_its_session_fails(
    configured: Configured, open_lines: OpenLines, listening: Listening
) -> None:
    async with (
        listening("raw_http.py", "--style", "lf") as port,
        open_lines(configured({"one": {"url": f"http://127.0.0.1:{port}/mcp"}})) as client,
    ):
        text = await call_and_answer_roots(client, "ask_mirrored", [], BOUND)
        assert "'one' closed the connection during 'ask'; it may have had effects: check them" in text
        assert "hear" in await client.text("hear_mirrored")  # in a new session


async def test_a_call_fails_at_once_whose_server_refuses_an_answer(
    configured: Configured, open_lines: OpenLines, listening: Listening
) -> None:
    large = [{"uri": f"file:///{'x' * 6000}"}]
    async with (
        listening("raw_http.py", "--max-body", "5000") as port,
        open_lines(configured({"one": {"url": f"http://127.0.0.1:{port}/mcp"}})) as client,
    ):
        bound = BOUND / 3  # less than the timeout of the call
        text = await call_and_answer_roots(client, "request_mirrored", large, bound)
    assert "answered with HTTP status 413 to a message of" in text


async def test_a_new_session_is_opened_when_the_event_stream_is_lost(
    configured: Configured, open_lines: OpenLines, listening: Listening, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with (
        listening("raw_http.py", "--standing", "0.2", "--silent", "--log", str(log)) as port,
        open_lines(configured({"one": {"url": f"http://127.0.0.1:{port}/mcp"}})) as client,
    ):
        await client.greet()
        await client.text("forget_mirrored")
        await until(lambda: log.read_text().count("initialize\n") == 2)  # without a call
        assert "hear" in await client.text("hear_mirrored")


async def test_a_server_may_ask_on_its_event_stream_from_the_first_request_on(
    configured: Configured, open_lines: OpenLines, listening: Listening, tmp_path: Path
) -> None:
    """Servers of the TypeScript SDK drop what they send on the stream of a session before it is open."""
    log = tmp_path / "log"
    async with (
        listening("raw_http.py", "--standing", "60", "--late", "0.3", "--log", str(log)) as port,
        open_lines(configured({"one": {"url": f"http://127.0.0.1:{port}/mcp"}})) as client,
    ):
        await client.greet()
        await client.text("hear_mirrored")
    requests = log.read_text().splitlines()
    assert requests.index("a stream is open") < requests.index("tools/list"), requests


async def test_a_server_whose_event_stream_does_not_begin_is_used_without(
    configured: Configured, open_lines: OpenLines, listening: Listening
) -> None:
    async with (
        listening("raw_http.py", "--standing", "60", "--late", "60") as port,
        open_lines(configured({"one": {"url": f"http://127.0.0.1:{port}/mcp"}})) as client,
    ):
        await client.greet()
        assert "hello" in await client.text("hear_mirrored", {"text": "hello"})


async def read_status(client: Lines, meta: dict[str, Any]) -> dict[str, Any]:
    """Return the state of the only upstream."""
    params = {"uri": "mcp-mirror://upstreams", "_meta": meta}
    result = json.loads(await client.request("resources/read", json.dumps(params)))["result"]
    upstream: dict[str, Any] = json.loads(result["contents"][0]["text"])["upstreams"][0]
    return upstream


@pytest.mark.parametrize("version", sample(["2025-11-25", "2026-07-28"], lambda version: version == "2025-11-25"))
async def test_a_server_whose_event_stream_cannot_be_opened_is_down(
    configured: Configured, open_lines: OpenLines, listening: Listening, serve: Serve, raw: Any, version: str
) -> None:
    meta = META if version == "2026-07-28" else {}
    options = str(free_port()), "--standing", "0.2", "--silent"
    async with AsyncExitStack() as server:
        if meta:
            url = (await server.enter_async_context(serve(configured({"raw": raw("ok")})))).url
        else:
            port = await server.enter_async_context(listening("raw_http.py", *options))
            url = f"http://127.0.0.1:{port}/mcp"
        async with open_lines(configured({"one": {"url": url}})) as client:
            if not meta:
                await client.greet()
            ready = await read_status(client, meta)
            assert (ready["state"], ready["protocol_version"]) == ("ready", version)
            await server.aclose()

            async def is_down() -> bool:
                upstream = await read_status(client, meta)
                return upstream["state"] == "down" and "nothing listens there" in upstream["detail"]

            await until(is_down)
            if not meta:
                await server.enter_async_context(listening("raw_http.py", *options))
                await until(lambda: read_status(client, meta), lambda found: found["state"] == "ready")


async def test_an_event_stream_that_breaks_off_again_and_again_is_opened_again(
    configured: Configured, open_lines: OpenLines, listening: Listening, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with (
        listening("raw_http.py", "--standing", "0.1", "--silent", "--broken", "--log", str(log)) as port,
        open_lines(configured({"one": {"url": f"http://127.0.0.1:{port}/mcp"}})) as client,
    ):
        await client.greet()
        await client.text("hear_mirrored")
        await until(lambda: log.read_text().count("GET\n") >= 4)


@pytest.mark.parametrize("status", sample([409, 502], lambda status: status == 409))
async def test_an_event_stream_that_is_refused_for_now_is_opened_later(
    configured: Configured, open_lines: OpenLines, listening: Listening, tmp_path: Path, status: int
) -> None:
    log = tmp_path / "log"
    options = "--standing", "0.1", "--silent", "--busy", str(status), "--log", str(log)
    async with (
        listening("raw_http.py", *options) as port,
        open_lines(configured({"one": {"url": f"http://127.0.0.1:{port}/mcp"}})) as client,
    ):
        await client.greet()
        await client.text("hear_mirrored")
        await until(lambda: log.read_text().count("GET\n") >= 4)
        assert log.read_text().count("initialize\n") == 1


async def test_a_server_that_starts_late_serves_later_requests(
    configured: Configured, open_lines: OpenLines, raw: Any, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    config = configured({"late": raw("ok", "--gate", str(gate))}, mirror={"startup_wait": 0.2})
    async with open_lines(config) as client:
        offered = (await client.greet())["capabilities"]
        assert {"prompts", "completions", "logging", "resources"} <= offered.keys()
        assert offered["resources"]["subscribe"] is True
        assert json.loads(await client.request("prompts/list"))["result"]["prompts"] == []
        gate.touch()
        await until(lambda: client.request("tools/list"), lambda found: b"say_mirrored" in found)
        assert json.loads(await client.request("prompts/list"))["result"]["prompts"] == []


async def test_changed_roots_are_announced_to_the_server(open_client: OpenClient, raw: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with open_client({"one": raw("ok", "--log", str(log))}) as client:
        await client.call("hear_mirrored")
        await client.send('{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}')
        await until(lambda: "notifications/roots/list_changed" in log.read_text())


async def test_changed_roots_are_announced_although_one_server_hangs(
    open_client: OpenClient, raw: Any, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with open_client({"deaf": raw("deaf"), "other": raw("ok", "--log", str(log))}) as client:
        await client.call("other_hear_mirrored")
        large = {"name": "deaf_hear_mirrored", "arguments": {"text": "x" * 3_000_000}}
        await client.send(json.dumps({"jsonrpc": "2.0", "id": 90, "method": "tools/call", "params": large}))
        await client.call("other_hear_mirrored")
        await client.send('{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}')
        await until(lambda: "notifications/roots/list_changed" in log.read_text())


@pytest.mark.parametrize("is_equal", [True, False])
async def test_a_session_is_notified_of_resources_only_if_they_differ(
    *, is_equal: bool, configured: Configured, serve: Serve, raw: Any, tmp_path: Path
) -> None:
    log, received = tmp_path / "log", list[str]()

    async def note(message: Any) -> None:
        received.append(getattr(message, "method", ""))

    shelf = raw("ok", "--shelf", "--log", str(log), *(("--uri", "raw://same") if is_equal else ()))
    async with (
        serve(configured({"one": shelf})) as served,
        Client(served.url, mode="legacy", message_handler=note) as client,
    ):
        await client.list_resources()
        await client.call_tool("say_mirrored", {"result": '{"content":[]}'})  # opens its own connection
        await until(lambda: log.read_text().count("resources/list\n") == 2)
        await client.call_tool("grow_mirrored", {"name": "sprout"})
        await until(lambda: "notifications/tools/list_changed" in received)
        assert ("notifications/resources/list_changed" in received) is not is_equal


async def test_a_session_that_has_listed_no_resources_costs_no_listing_of_them(
    configured: Configured, serve: Serve, raw: Any, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    config = configured({"one": raw("ok", "--shelf", "--log", str(log))})
    async with serve(config) as served, Client(served.url, mode="legacy") as client:
        await client.call_tool("hear_mirrored", {})
    assert "resources/list" not in log.read_text()


async def test_resources_listed_before_their_server_has_started_are_announced(
    open_client: OpenClient, raw: Any, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    late = raw("ok", "--shelf", "--uri", "raw://late", "--gate", str(gate))
    async with open_client({"late": late}, mirror={"startup_wait": 0.2}) as client:
        assert b"raw://late" not in await client.request("resources/list")
        gate.touch()
        while b"notifications/resources/list_changed" not in await client.receive():
            pass
        assert b"raw://late" in await client.request("resources/list")


async def test_ended_sessions_unsubscribe_from_a_shared_upstream(
    serve: Serve, configured: Configured, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    server = {"command": sys.executable, "args": [forgetful.__file__, str(log)], "scope": "shared"}
    subscribe = {"jsonrpc": "2.0", "id": 2, "method": "resources/subscribe", "params": {"uri": "note:one"}}
    async with serve(configured({"shelf": server})) as served, httpx2.AsyncClient(timeout=BOUND) as http:
        sessions = [await open_session(http, served.url) for _ in range(2)]
        for session in sessions:
            assert (await http.post(served.url, json=subscribe, headers=HEADERS | session)).status_code == 200
        assert (await http.delete(served.url, headers=sessions[0])).status_code == 200
        assert (await http.post(served.url, json=subscribe, headers=HEADERS | sessions[1])).status_code == 200
        assert log.read_text() == "subscribe\n"
        assert (await http.delete(served.url, headers=sessions[1])).status_code == 200
        await until(lambda: log.read_text() == "subscribe\nended\n")
