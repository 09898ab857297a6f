"""The direct path and the SDK's path give a client the same messages for the same request."""

import asyncio
import json
import re
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from http_sessions import HEADERS, META, open_session
from samples import sample
from tests.end_to_end.conftest import BOUND, SERVERS, Configured, Lines, Serve

OLD: Final = "2025-11-25"
NEW: Final = "2026-07-28"
CAPABILITIES: Final[dict[str, Any]] = {"elicitation": {"form": {}}}
ANSWER: Final = {"action": "accept", "content": {"name": "Ada"}}
ENVELOPE: Final = META | {
    "io.modelcontextprotocol/clientCapabilities": CAPABILITIES,
    "io.modelcontextprotocol/logLevel": "debug",
}
SDK_ONLY: Final = {"unknown": None}
"""A parameter with which a call takes the SDK's path, and which changes nothing else."""
PIXEL: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
TEXT: Final = [{"type": "text", "text": "it is warm today, 17 degrees"}]
PROGRESS: Final = {"method": "notifications/progress", "params": {"progressToken": "TOKEN", "progress": 1, "total": 2}}
MORE: Final = {"method": "notifications/progress", "params": {"progressToken": "TOKEN", "progress": 2, "total": None}}
LOG: Final = {"method": "notifications/message", "params": {"level": "info", "data": {"half": "way\n", "none": None}}}
FORM: Final = {
    "id": "q1",
    "method": "elicitation/create",
    "params": {"message": "Name?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}},
}
RESPONSES: Final[dict[str, Any]] = {
    "text": {"result": {"content": TEXT}},
    "tool_error": {"result": {"content": [{"type": "text", "text": "no such city"}], "isError": True}},
    "nothing": {"result": {"content": []}},
    "without_content": {"result": {"structuredContent": {"a": 1}}},
    "structured": {"result": {"content": TEXT, "structuredContent": {"degrees": 17.0, "big": 10**30}}},
    "media": {"result": {"content": [{"type": "image", "data": PIXEL, "mimeType": "image/png"}]}},
    "unknown_members": {"result": {"content": TEXT, "x-more": [1, None], "resultType": "complete", "ttlMs": 5}},
    "meta": {"result": {"content": TEXT, "_meta": {"a": None, "b": {"c": [1.0, None]}, "progressToken": 1}}},
    "server_info": {"result": {"content": TEXT, "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "x"}}}},
    "invalid_meta": {"result": {"content": TEXT, "_meta": [1]}},
    "large": {"result": {"content": [{"type": "text", "text": "many words " * 200_000}]}},
    "many": {"result": {"content": [], "structuredContent": {"rows": [{"a": n} for n in range(5000)]}}},
    "error": {"error": {"code": -32602, "message": "That is not a city", "data": {"near": ["Rome"]}}},
    "url_required": {"error": {"code": -32042, "message": "Open this", "data": {"elicitations": []}}},
    "messages": {"before": [PROGRESS, LOG, MORE],
                 "result": {"content": TEXT}},
    "question": {"before": [FORM], "result": {"content": TEXT}},
}  # fmt: skip
PING: Final = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
"""A request whose response comes after the end of the handshake."""
METAS: Final[dict[str, dict[str, Any]]] = {
    "no token": {},
    "token": {"progressToken": "p"},
    "number": {"progressToken": 7, "example.org/more": {"a": 1}},
    "invalid conversation": {"mcp-mirror/conversation": 5},
}


Exchange = Callable[[Mapping[str, Any]], Awaitable[list[Any]]]
"""Sends a tool call, or a request for the list of tools, and returns all messages up to its response."""


@pytest.fixture
def prepared(configured: Configured, tmp_path: Path) -> Path:
    """A configuration with the prepared upstream."""
    (tmp_path / "responses.json").write_text(json.dumps(RESPONSES))
    args = [str(SERVERS / "prepared.py"), str(tmp_path / "responses.json")]
    upstream = {"command": sys.executable, "args": args}
    return configured({"p": upstream}, limits={"spool_bytes": 1 << 20}, server={"answer_timeout": 5})


def method_of(params: Mapping[str, Any]) -> str:
    """Return the method of a request: a tool call if it names a tool, else a list of tools."""
    return "tools/call" if "name" in params else "tools/list"


async def exchange_lines(lines: Lines, params: Mapping[str, Any]) -> list[Any]:
    """Send a request over stdio and answer the gateway's requests."""
    lines.next_id += 1
    request = {"jsonrpc": "2.0", "id": lines.next_id, "method": method_of(params), "params": params}
    await lines.send(json.dumps(request))
    messages: list[Any] = []
    while not messages or "method" in messages[-1]:
        messages.append(json.loads(await lines.receive()))
        if "method" in messages[-1] and "id" in messages[-1]:
            await lines.send(json.dumps({"jsonrpc": "2.0", "id": messages[-1]["id"], "result": ANSWER}))
    return messages


@dataclass
class HttpClient:
    """A client by hand over HTTP."""

    http: httpx2.AsyncClient
    url: str
    headers: dict[str, str]
    media_types: list[str] = field(default_factory=list)

    async def exchange(self, params: Mapping[str, Any]) -> list[Any]:
        """Send a request and answer the gateway's requests."""
        call = {"jsonrpc": "2.0", "id": 5, "method": method_of(params), "params": params}
        routing = {"mcp-method": method_of(params)} | ({"mcp-name": params["name"]} if "name" in params else {})
        messages: list[Any] = []
        async with self.http.stream("POST", self.url, json=call, headers=self.headers | routing) as response:
            self.media_types.append(response.headers["content-type"])
            if response.headers["content-type"] == "application/json":
                await response.aread()
                return [{**response.json(), "status": response.status_code}]
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    messages.append(json.loads(line.removeprefix("data: ")))
                    await self.respond(messages[-1])
        return [*messages[:-1], {**messages[-1], "status": response.status_code}]

    async def respond(self, message: Any) -> None:
        """Answer a message of the gateway if it is a request."""
        if "method" in message and "id" in message:
            answer = {"jsonrpc": "2.0", "id": message["id"], "result": ANSWER}
            response = await self.http.post(self.url, json=answer, headers=self.headers)
            assert (response.status_code, response.content) == (202, b"")


def comparable(messages: list[Any]) -> list[str]:
    """Return messages, in the order of their members, without ids, memory paths and encrypted states."""
    of_call = [message for message in messages if not message.get("method", "").endswith("list_changed")]
    text = "\n".join(json.dumps({key: value for key, value in message.items() if key != "id"}) for message in of_call)
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", "UUID", text)
    return re.sub(r'"requestState": "[^"]+"', '"requestState": "STATE"', text).splitlines()


async def compare_paths(version: str, exchange: Exchange) -> None:
    """Make each request through both paths and compare the messages."""
    envelope = ENVELOPE if version == NEW else {}
    await exchange({"name": "text_mirrored", "_meta": envelope})  # through the SDK, in 2026-07-28
    for meta in METAS.values():
        listing = {"_meta": {**envelope, **meta}}
        by_sdk, direct = await exchange({**listing, **SDK_ONLY}), await exchange(listing)
        assert comparable(direct) == comparable(by_sdk)
        assert "text_mirrored" in {tool["name"] for tool in direct[-1]["result"]["tools"]}
    for tool in (*RESPONSES, "unlisted"):
        for name, meta in METAS.items():
            params = {"name": f"{tool}_mirrored", "arguments": {"a": 1}, "_meta": {**envelope, **meta}}
            by_sdk = await exchange({**params, **SDK_ONLY})
            direct = await exchange(params)
            assert comparable(direct) == comparable(by_sdk), (tool, name)
            assert direct[-1].keys() == by_sdk[-1].keys()
            if tool == "messages" and name == "token":
                assert len(comparable(direct)) == 4
            if tool == "question" and name == "token":
                assert (
                    (len(comparable(direct)) == 2)
                    if version == OLD
                    else (direct[-1]["result"]["resultType"] == "input_required")
                )


@pytest.mark.parametrize("version", [OLD, NEW])
async def test_both_paths_give_the_same_messages_on_stdio(
    version: str, prepared: Path, open_lines: Callable[..., Any]
) -> None:
    async with open_lines(prepared) as lines:
        if version == OLD:
            await lines.greet(**CAPABILITIES)
            await lines.request("tools/list")
        await compare_paths(version, partial(exchange_lines, lines))


@pytest.mark.parametrize("version", sample([OLD, NEW], NEW.__eq__))
async def test_both_paths_give_the_same_messages_over_http(version: str, prepared: Path, serve: Serve) -> None:
    async with serve(prepared) as served, httpx2.AsyncClient(timeout=BOUND) as http:
        headers = HEADERS | {"mcp-protocol-version": version}
        if version == OLD:
            headers |= await open_session(http, served.url, CAPABILITIES)
        client = HttpClient(http, served.url, headers)
        await compare_paths(version, client.exchange)
    by_sdk, direct = client.media_types[1::2], client.media_types[2::2]
    if version == OLD:  # where the media type shows the path
        assert set(by_sdk) == {"text/event-stream"}
        assert direct.count("text/event-stream") == 2 * (len(METAS) - 1)  # the calls with messages before the result


WRONG: Final[dict[str, Any]] = {
    "`arguments`: Input should be an object": {"name": "text_mirrored", "arguments": ["Oslo"]},
    "`name`: Input should be a valid string": {"name": 5},
    "`cursor`: Input should be a valid string": {"cursor": 5},
}
"""Parameters that the protocol does not have, by what their error says."""


@pytest.mark.parametrize("version", [OLD, NEW])
async def test_an_error_says_which_parameters_are_wrong(
    version: str, prepared: Path, open_lines: Callable[..., Any]
) -> None:
    async with open_lines(prepared) as lines:
        if version == OLD:
            await lines.greet()
        for cause, params in WRONG.items():
            *_, answer = await exchange_lines(lines, {**params, "_meta": ENVELOPE if version == NEW else {}})
            assert answer["error"]["code"] == -32602
            advice = "Correct the parameters and send the request again."
            assert answer["error"]["message"] == f"The request is not valid: {cause}. {advice}"


async def test_the_first_call_of_a_session_takes_the_direct_path(prepared: Path, serve: Serve) -> None:
    async with serve(prepared) as served, httpx2.AsyncClient(timeout=BOUND) as http:
        headers = HEADERS | await open_session(http, served.url, CAPABILITIES)
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}  # the response comes after the end of the handshake
        assert (await http.post(served.url, json=ping, headers=headers)).status_code == 200
        client = HttpClient(http, served.url, headers)
        await client.exchange({"name": "text_mirrored"})
        assert client.media_types == ["application/json"]


async def test_the_end_of_a_session_ends_its_direct_calls(prepared: Path, serve: Serve) -> None:
    async with serve(prepared) as served, httpx2.AsyncClient(timeout=BOUND) as http:
        headers = HEADERS | await open_session(http, served.url, CAPABILITIES)
        client = HttpClient(http, served.url, headers)
        await client.exchange({"name": "text_mirrored"})
        call = {"jsonrpc": "2.0", "id": 6, "method": "tools/call", "params": {"name": "question_mirrored"}}
        received = []
        async with http.stream("POST", served.url, json=call, headers=headers) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    received.append(json.loads(line.removeprefix("data: "))["method"])
                    assert (await http.delete(served.url, headers=headers)).status_code == 200
        assert received == ["elicitation/create"]


async def test_an_answer_reaches_the_server_after_the_end_of_its_call(
    prepared: Path, tmp_path: Path, serve: Serve
) -> None:
    tools = {"ask": {"unawaited": [FORM], "awaits": "nothing"}, "hear": {"awaits": FORM["id"]}}
    (tmp_path / "responses.json").write_text(json.dumps(tools))
    async with serve(prepared) as served, httpx2.AsyncClient(timeout=BOUND) as http:
        client = HttpClient(http, served.url, HEADERS | await open_session(http, served.url, CAPABILITIES))
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}  # the response comes after the end of the handshake
        assert (await http.post(served.url, json=ping, headers=client.headers)).status_code == 200
        call = {"jsonrpc": "2.0", "id": 6, "method": "tools/call", "params": {"name": "ask_mirrored"}}
        messages = []
        async with http.stream("POST", served.url, json=call, headers=client.headers) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    messages.append(json.loads(line.removeprefix("data: ")))
                if len(messages) == 1 and not line:
                    cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 6}}
                    assert (await http.post(served.url, json=cancelled, headers=client.headers)).status_code == 202
        assert [message.get("method") for message in messages] == ["elicitation/create", None]
        await client.respond(messages[0])
        (heard,) = await client.exchange({"name": "hear_mirrored"})
        text = heard["result"]["content"][0]["text"]
        assert json.dumps(ANSWER["content"]) in text


@pytest.mark.parametrize("more", [{}, SDK_ONLY], ids=["direct", "sdk"])
async def test_the_cancellation_of_a_request_comes_after_the_end_of_its_call(
    more: dict[str, Any], prepared: Path, tmp_path: Path, serve: Serve
) -> None:
    cancelled = {"method": "notifications/cancelled", "params": {"requestId": FORM["id"]}}
    tools = {"ask": {"unawaited": [FORM], "awaits": "nothing"}, "stop": {"before": [cancelled], "result": {}}}
    (tmp_path / "responses.json").write_text(json.dumps(tools))
    async with serve(prepared) as served, httpx2.AsyncClient(timeout=BOUND) as http:
        client = HttpClient(http, served.url, HEADERS | await open_session(http, served.url, CAPABILITIES))
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}  # the response comes after the end of the handshake
        assert (await http.post(served.url, json=ping, headers=client.headers)).status_code == 200
        call = {"jsonrpc": "2.0", "id": 6, "method": "tools/call", "params": {"name": "ask_mirrored", **more}}
        asked = None
        async with http.stream("POST", served.url, json=call, headers=client.headers) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: ") and "elicitation" in line:
                    asked = json.loads(line.removeprefix("data: "))["id"]
                    end = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 6}}
                    assert (await http.post(served.url, json=end, headers=client.headers)).status_code == 202
        async with http.stream("GET", served.url, headers=client.headers) as stream:
            await client.exchange({"name": "stop_mirrored"})
            async for line in stream.aiter_lines():
                if "notifications/cancelled" in line:
                    assert json.loads(line.removeprefix("data: "))["params"]["requestId"] == asked
                    break


@pytest.mark.parametrize("more", [{}, SDK_ONLY], ids=["direct", "sdk"])
async def test_a_server_request_is_not_about_a_call_whose_client_is_gone(
    more: dict[str, Any], prepared: Path, tmp_path: Path, serve: Serve
) -> None:
    tools = {"wait": {"before": [PROGRESS], "awaits": "nothing"}, "question": RESPONSES["question"]}
    (tmp_path / "responses.json").write_text(json.dumps(tools))
    async with serve(prepared) as served, httpx2.AsyncClient(timeout=BOUND) as http:
        client = HttpClient(http, served.url, HEADERS | await open_session(http, served.url, CAPABILITIES))
        assert (await http.post(served.url, json=PING, headers=client.headers)).status_code == 200
        params = {"name": "wait_mirrored", "_meta": {"progressToken": 1}, **more}
        call = {"jsonrpc": "2.0", "id": 6, "method": "tools/call", "params": params}
        async with http.stream("POST", served.url, json=call, headers=client.headers) as response:
            async for line in response.aiter_lines():
                if "notifications/progress" in line:
                    break
        messages = await client.exchange({"name": "question_mirrored"})
        assert [message.get("method") for message in messages] == ["elicitation/create", None]
        assert messages[-1]["result"]["content"] == TEXT
        await http.delete(served.url, headers=client.headers)  # ends the call, for which a shutdown would wait


async def test_a_disconnect_is_noticed_after_another_request_there(
    prepared: Path, tmp_path: Path, serve: Serve
) -> None:
    tools = {"wait": {"before": [PROGRESS], "awaits": "nothing"}, "question": RESPONSES["question"]}
    (tmp_path / "responses.json").write_text(json.dumps(tools))
    async with serve(prepared) as served, httpx2.AsyncClient(timeout=BOUND) as http:
        client = HttpClient(http, served.url, HEADERS | await open_session(http, served.url, CAPABILITIES))
        assert (await http.post(served.url, json=PING, headers=client.headers)).status_code == 200
        call = {**PING, "method": "tools/call", "params": {"name": "wait_mirrored", "_meta": {"progressToken": 1}}}
        where = httpx2.URL(served.url)
        reader, writer = await asyncio.open_connection(where.host, where.port)
        list_resources = {**PING, "method": "resources/list"}  # by the SDK's path, which ends after the response
        requests = (
            http.build_request("POST", where, json=one, headers=client.headers) for one in (list_resources, call)
        )
        writer.writelines(write_request(one) for one in requests)  # the second begins as soon as the first is answered
        async with asyncio.timeout(BOUND):
            await reader.readuntil(b"notifications/progress")
        writer.close()
        await writer.wait_closed()
        messages = await client.exchange({"name": "question_mirrored"})
        assert [message.get("method") for message in messages] == ["elicitation/create", None]
        await http.delete(served.url, headers=client.headers)


def write_request(request: httpx2.Request) -> bytes:
    head = b"".join(b"%b: %b\r\n" % header for header in request.headers.raw)
    return b"POST %b HTTP/1.1\r\n%b\r\n%b" % (request.url.raw_path, head, request.content)


async def test_a_2026_request_does_not_end_the_session_that_it_names(prepared: Path, serve: Serve) -> None:
    async with serve(prepared) as served, httpx2.AsyncClient(timeout=BOUND) as http:
        session = await open_session(http, served.url, CAPABILITIES)
        for method in ("POST", "DELETE"):
            request = {"jsonrpc": "2.0", "id": 1, "method": "no/method", "params": {"_meta": ENVELOPE}}
            headers = HEADERS | session | {"mcp-protocol-version": NEW, "mcp-method": "no/method"}
            answer = await http.request(method, served.url, json=request, headers=headers)
            assert answer.status_code == (404 if method == "POST" else 405)
        messages = await HttpClient(http, served.url, HEADERS | session).exchange({"name": "text_mirrored"})
        assert messages[-1]["result"]["content"] == TEXT


@pytest.mark.slow
async def test_a_large_message_costs_no_more_while_a_direct_call_is_open(prepared: Path, serve: Serve) -> None:
    params = {"name": "unknown", "arguments": {"numbers": [n / 2 for n in range(700_000)]}}
    large = json.dumps({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": params})
    async with serve(prepared) as served, httpx2.AsyncClient(timeout=BOUND) as http:
        headers = HEADERS | await open_session(http, served.url, CAPABILITIES)
        client = HttpClient(http, served.url, headers)

        async def time_large_message() -> float:
            began = time.perf_counter()
            answer = await http.post(served.url, content=large, headers=headers)
            assert (answer.status_code, "unknown" in answer.text) == (200, True)
            return time.perf_counter() - began

        await client.exchange({"name": "text_mirrored"})
        alone = min([await time_large_message() for _ in range(3)])
        call = {"jsonrpc": "2.0", "id": 6, "method": "tools/call", "params": {"name": "question_mirrored"}}
        async with http.stream("POST", served.url, json=call, headers=headers) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: ") and "elicitation/create" in line:
                    beside = min([await time_large_message() for _ in range(3)])
                    await client.respond(json.loads(line.removeprefix("data: ")))
        assert beside < 3 * alone, (beside, alone)
