"""Every limit, through a real gateway: an error names an exceeded limit, and other calls continue."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx2
from notices import path_in
from tests.end_to_end.conftest import BOUND
from tests.end_to_end.servers import forgetful
from waiting import until

from mcp_mirror.app import open_application
from mcp_mirror.callers import LOCAL, Caller, NullChannel
from mcp_mirror.config import load_config
from mcp_mirror.errors import MirrorError

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Configured, Lines, Listening, OpenClient, OpenLines, Run, Serve, Served

JSON = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
GREETING = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "hand", "version": "0"}}


def message(method: str, params: Any, identity: int = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": identity, "method": method, "params": params}


async def begin(http: httpx2.AsyncClient, url: str) -> httpx2.Response:
    return await http.post(url, json=message("initialize", GREETING), headers=JSON)


async def hanging(client: Lines, tool: str, folder: Path, number: int) -> Path:
    """A call that is under way until the file `until` is there; gives the file that tells that it is."""
    started = folder / f"started-{number}"
    arguments = {"started": str(started), "until": str(folder / "until")}
    await client.send(json.dumps(message("tools/call", {"name": tool, "arguments": arguments}, 1000 + number)))
    return started


async def cancel(client: Lines, identity: int) -> None:
    params = {"requestId": identity}
    await client.send(json.dumps({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}))


async def test_calls_over_a_limit_wait_in_turn_or_get_a_retry_time(
    open_client: OpenClient, raw: Any, tmp_path: Path
) -> None:
    limits, audit = {"calls_per_upstream": 2, "queued_calls": 1}, tmp_path / "audit.jsonl"
    async with open_client(
        {"slow": raw("ok", "--shelf"), "other": raw()}, limits=limits, audit={"path": str(audit)}
    ) as client:
        for number in range(2):
            await until((await hanging(client, "slow_hang_mirrored", tmp_path, number)).exists)
        third = await hanging(client, "slow_hang_mirrored", tmp_path, 2)
        answer = await client.text("slow_hear_mirrored")
        assert "'slow' is busy: `limits.calls_per_upstream` (2) calls are running" in answer
        assert "`limits.queued_calls` (1) calls wait already. Try again in 1 s." in answer
        assert "hello" in await client.text("other_hear_mirrored", {"text": "hello"})
        refused = json.loads(await client.request("resources/read", '{"uri":"raw://process"}'))["error"]
        assert ("`limits.queued_calls` (1)" in refused["message"], refused["data"]) == (True, {"retryAfter": 1})
        assert not third.exists()
        (tmp_path / "until").touch()
        answered = {json.loads(await client.receive())["id"] for _ in range(3)}
        assert answered == {1000, 1001, 1002}
        assert third.exists()
    records = [json.loads(line) for line in audit.read_text().splitlines()]
    refusals = [(one["tool"], one["outcome"]) for one in records if one["event"] == "refusal"]
    assert refusals == [("slow_hear_mirrored", "busy"), ("resources/read", "busy")]


async def test_cancelled_calls_keep_their_places_at_a_serial_server(open_client: OpenClient, tmp_path: Path) -> None:
    log, gate = tmp_path / "log", tmp_path / "gate"
    serial = {"command": sys.executable, "args": ["-S", str(Path(forgetful.__file__).with_name("slow.py")), str(log)]}
    async with open_client({"serial": serial}, limits={"calls_per_upstream": 2, "queued_calls": 1}) as client:
        for number in (1, 2):
            params = {"name": "work_mirrored", "arguments": {"gate": str(gate)}}
            await client.send(json.dumps(message("tools/call", params, 1000 + number)))
        await until(log.exists)
        for number in (1, 2):
            await cancel(client, 1000 + number)
        await client.send(json.dumps(message("tools/call", {"name": "work_mirrored", "arguments": {}}, 1003)))
        assert "`limits.calls_per_upstream` (2) calls are running" in await client.text("work_mirrored")
        gate.touch()
        assert json.loads(await client.receive())["id"] == 1003
        assert await client.text("work_mirrored") == "done"


async def test_cancelled_calls_without_an_answer_free_their_places(
    open_client: OpenClient, raw: Any, tmp_path: Path
) -> None:
    async with open_client({"up": raw()}, limits={"calls_per_upstream": 1}) as client:
        for number in range(3):
            await until((await hanging(client, "hang_mirrored", tmp_path, number)).exists)
            await cancel(client, 1000 + number)
        assert "fine" in await client.text("hear_mirrored", {"text": "fine"})


async def test_one_principals_calls_are_bounded_at_once_and_a_minute(
    open_client: OpenClient, raw: Any, tmp_path: Path
) -> None:
    limits: dict[str, Any] = {"calls_per_principal": 1, "queued_calls": 1, "queue_timeout": 0.1}
    async with open_client({"slow": raw()}, limits=limits) as client:
        await until((await hanging(client, "hang_mirrored", tmp_path, 0)).exists)
        answer = await client.text("hear_mirrored")
        assert "The principal of this client is busy: `limits.calls_per_principal` (1)" in answer
        assert "`limits.queue_timeout`" in answer
        refused = json.loads(await client.request("tools/list"))["error"]
        assert (refused["data"], "`limits.queue_timeout`" in refused["message"]) == ({"retryAfter": 1}, True)
        (tmp_path / "until").touch()
        assert json.loads(await client.receive())["id"] == 1000
        assert "fine" in await client.text("hear_mirrored", {"text": "fine"})


async def test_paths_depth_and_message_size_of_a_call_are_limited(open_client: OpenClient, raw: Any) -> None:
    limits = {"max_pointers": 2, "max_depth": 20, "max_envelope_bytes": 2000, "calls_per_minute": 9}
    async with open_client({"up": raw()}, limits=limits) as client:
        stored = json.dumps({"content": [], "structuredContent": {"a": 1}})
        path = path_in(await client.text("say_mirrored", {"result": stored}))
        assert "1" in await client.text("hear_mirrored", {"text": [path, path]})
        assert "`limits.max_pointers`" in await client.text("hear_mirrored", {"text": [path] * 3})
        deep = await client.call("hear_mirrored", f'{{"text":{"[" * 30}{"]" * 30}}}')
        assert "`limits.max_depth`" in json.loads(deep)["error"]["message"]
        result = f'{{"content":[],"structuredContent":{{"a":{"[" * 30}{"]" * 30}}}}}'
        assert "`limits.max_depth`" in await client.text("say_mirrored", {"result": result})
        wide = json.loads(await client.request("tools/list", json.dumps({"_meta": {"x": "y" * 3000}})))
        assert "`limits.max_envelope_bytes`" in wide["error"]["message"]
        assert "3.04 kB" in await client.text("hear_mirrored", {"text": "y" * 3000})
        answers = [await client.text("hear_mirrored") for _ in range(20)]  # more than time gives back
        assert any("`limits.calls_per_minute` (9) calls in a minute. Try again in " in answer for answer in answers)


PLAIN = {"type": "object"}
LISTED: dict[str, tuple[list[Any], str]] = {
    "many": ([{"name": f"many{index}"} for index in range(4)], "`limits.max_tools` (3)"),
    "big": ([{"name": "big0"}, {"name": "big1", "description": "x" * 2000}], "`limits.max_tool_bytes` is 1,000"),
    "long": ([{"name": "long0"}, {"name": "x" * 31}], "`limits.max_name_bytes` (30)"),
    "deep": ([{"name": "deep0"}, {"name": "deep1", "a": [[[[[[[[[[]]]]]]]]]]}], "`limits.max_schema_depth` (9)"),
    "wide": ([{"name": "wide0"}, {"name": "wide1", "a": "x" * 9000}], "`limits.max_listing_bytes` (9,000)"),
}


async def test_the_listing_of_an_upstream_is_bounded(
    configured: Configured, run: Run, raw: Any, tmp_path: Path
) -> None:
    limits = {"max_tools": 3, "max_tool_bytes": 1000, "max_name_bytes": 30, "max_schema_depth": 9}
    upstreams: dict[str, Any] = {"pages": raw("loop")}
    for name, (tools, _) in LISTED.items():
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps([{"inputSchema": PLAIN, **one} for one in tools]))
        upstreams[name] = raw("ok", "--tools", str(file))
    checked = await run("check", "--config", str(configured(upstreams, limits={**limits, "max_listing_bytes": 9000})))
    for name, (_, expected) in LISTED.items():
        assert [line for line in checked.err.splitlines() if f"'{name}'" in line and expected in line]
        assert f"{name}0_mirrored" in checked.out
        assert name == "many" or f"{name}1" not in checked.out
    assert "many3" not in checked.out
    assert "'pages' lists more tools than `limits.max_listing_pages` (1,000) allows" in checked.err
    assert checked.code == 1


async def test_a_decompression_bomb_fails_only_its_call(
    configured: Configured, open_lines: OpenLines, listening: Listening
) -> None:
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(listening("raw_http.py", "--encoding", "gzip"))
        limits = {"max_inflation": 50, "spool_bytes": "64KiB"}
        config = configured({"web": {"url": f"http://127.0.0.1:{port}/mcp"}}, limits=limits)
        client = await stack.enter_async_context(open_lines(config))
        await client.greet()
        bomb = json.dumps({"content": [{"type": "text", "text": "a" * 3_000_000}]})
        assert "50 times its size (`limits.max_inflation`)" in await client.text("say_mirrored", {"result": bomb})
        assert "fine" in await client.text("hear_mirrored", {"text": "fine"})


async def test_sessions_and_open_requests_of_one_principal_are_bounded(
    configured: Configured, serve: Serve, raw: Any
) -> None:
    limits = {"sessions_per_principal": 2, "requests_per_principal": 3}
    async with serve(configured({"up": raw()}, limits=limits)) as served, httpx2.AsyncClient(timeout=BOUND) as http:
        names = [(await begin(http, served.url)).headers["mcp-session-id"] for _ in range(2)]
        refused = await begin(http, served.url)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 0
        assert "`limits.sessions_per_principal` (2)" in refused.json()["error"]["message"]
        ended = await http.delete(served.url, headers={**JSON, "mcp-session-id": names.pop()})
        assert ended.is_success
        names.append((await begin(http, served.url)).headers["mcp-session-id"])
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(BOUND):
                # Some can be refused: the request before them has its answer, but may not be over.
                while (over := await begin(http, served.url)).json()["error"]["message"].count("sessions"):
                    await stack.enter_async_context(_unfinished(served))
            assert over.status_code == 429
            assert "`limits.requests_per_principal` (3)" in over.json()["error"]["message"]


async def test_open_requests_over_stdio_are_bounded(
    configured: Configured, open_lines: OpenLines, raw: Any, tmp_path: Path
) -> None:
    config = configured({"up": raw()}, limits={"requests_per_principal": 2})
    arguments = {"started": str(tmp_path / "started"), "until": str(tmp_path / "gate")}
    async with open_lines(config) as client:
        await client.greet()
        for number in ("first", "second"):
            params = {"name": "hang_mirrored", "arguments": arguments}
            await client.send(json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}))
        for method in ("tools/call", "tools/list", "ping"):
            refused = json.loads(await client.request(method, '{"name":"hear_mirrored"}'))
            assert "`limits.requests_per_principal` (2)" in refused["error"]["message"]
        (tmp_path / "gate").touch()
        assert {json.loads(await client.receive())["id"] for _ in range(2)} == {"first", "second"}
        assert "fine" in await client.text("hear_mirrored", {"text": "fine"})


async def test_concurrent_requests_begin_no_more_sessions_than_the_limit(
    configured: Configured, serve: Serve, raw: Any
) -> None:
    config = configured({"up": raw()}, limits={"sessions_per_principal": 2})
    async with serve(config) as served, httpx2.AsyncClient(timeout=BOUND) as http:
        for _ in range(3):
            answers = await asyncio.gather(*(begin(http, served.url) for _ in range(8)))
            assert sorted(one.status_code for one in answers) == [200] * 2 + [429] * 6
            names = [one.headers["mcp-session-id"] for one in answers if one.is_success]
            for name in names:
                assert (await http.delete(served.url, headers={**JSON, "mcp-session-id": name})).is_success


async def test_concurrent_requests_begin_no_more_subscriptions_than_the_limit(
    configured: Configured, tmp_path: Path
) -> None:
    server = {"command": sys.executable, "args": [forgetful.__file__, str(tmp_path / "log")]}
    config = load_config(configured({"shelf": server}, limits={"subscriptions_per_principal": 2}), {})
    channel = NullChannel(Caller(LOCAL))
    async with open_application(config) as application, asyncio.timeout(BOUND):
        await application.upstreams.wait_for_attempts(BOUND)
        subscriptions = application.server.handlers.subscriptions

        async def subscribe(name: str) -> str:
            try:
                await subscriptions.subscribe(channel, "note:one", name, lambda _uri, _params: None)
            except MirrorError as error:
                return str(error)
            return ""

        (tmp_path / "log").write_text("forgotten")
        assert "not found" in await subscribe("refused 1")
        assert "not found" in await subscribe("refused 2")
        (tmp_path / "log").write_text("")
        for _ in range(3):
            names = [f"reader {number}" for number in range(6)]
            answers = await asyncio.gather(*map(subscribe, names))
            assert answers.count("") == 2
            assert sum("2 resource subscriptions" in answer for answer in answers) == 4
            for name in names:
                await subscriptions.unsubscribe(channel, "note:one", name)


class _unfinished:  # noqa: N801  # used as a function
    """A request whose body does not come."""

    def __init__(self, served: Served) -> None:
        self._address = urlsplit(served.url)

    async def __aenter__(self) -> asyncio.StreamReader:
        host, port = self._address.hostname, self._address.port
        assert host is not None
        self.reader, self.writer = await asyncio.open_connection(host, port)
        head = f"POST {self._address.path} HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\n"
        self.writer.write(
            f"{head}accept: application/json, text/event-stream\r\ncontent-length: 100\r\n\r\n{{".encode()
        )
        await self.writer.drain()
        return self.reader

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()


async def test_a_body_that_does_not_come_and_one_that_is_encoded_are_refused(
    configured: Configured, serve: Serve, raw: Any
) -> None:
    limits = {"body_timeout": 1, "header_timeout": 300, "max_header_bytes": "2KiB"}
    async with serve(configured({"up": raw()}, limits=limits)) as served, httpx2.AsyncClient(timeout=BOUND) as http:
        async with _unfinished(served) as reader:
            answer = await asyncio.wait_for(reader.read(), BOUND)  # at the end of the connection
        assert b"`limits.body_timeout`" in answer
        assert answer.startswith(b"HTTP/1.1 408")
        encoded = await http.post(served.url, content=b"x", headers={**JSON, "content-encoding": "gzip"})
        assert (encoded.status_code, "content-encoding" in encoded.text) == (415, True)
        assert (await http.get(served.url, headers={"x": "y" * 9000})).status_code == 431
        assert (await begin(http, served.url)).is_success
