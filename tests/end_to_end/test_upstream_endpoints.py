"""Over HTTP one gateway also serves each upstream alone, under its own names and with the same memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import httpx2
import pytest
from http_sessions import HEADERS, HELLO
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from samples import sample

if TYPE_CHECKING:
    from pathlib import Path

    from tests.end_to_end.conftest import Configured, Serve

RETRIEVE = "retrieve_final_answer_from_memory"
LONG = "\n".join(f"line {number}: caf\u00e9" for number in range(400))
TOKENS = {"anna": "a" * 40, "bert": "b" * 40}


def text_of(result: Any) -> str:
    assert not result.is_error, result.content
    return str(result.content[0].text)


@asynccontextmanager
async def connect_as(name: str, url: str) -> AsyncIterator[Client]:
    async with (
        httpx2.AsyncClient(headers={"authorization": f"Bearer {TOKENS[name]}"}, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        yield client


def two_upstreams(raw: Any) -> dict[str, Any]:
    return {"first": raw("ok", "--name", "one", "--shelf"), "second": raw("ok", "--name", "two")}


@pytest.mark.parametrize("mode", sample(["legacy", "auto"], lambda mode: mode == "auto"))
async def test_an_endpoint_has_the_names_and_the_identity_of_its_upstream(
    raw: Any, configured: Configured, serve: Serve, mode: Any
) -> None:
    async with serve(configured(two_upstreams(raw), mirror={"capture": "large"})) as served:
        async with Client(f"{served.url}/first", mode=mode) as client:
            assert client.server_info is not None
            assert client.server_info.name == "one"
            assert (client.instructions or "").startswith("I am one.")
            for _ in range(2):
                names = [tool.name for tool in (await client.list_tools()).tools]
                assert {"say", "hear"} <= set(names)
                assert names[-2:] == [RETRIEVE, "memory_read"]
                assert not [name for name in names[:-2] if "mirrored" in name or name.startswith("memory_")]
            assert [str(one.uri) for one in (await client.list_resources()).resources] == ["raw://process"]
            result = json.dumps({"content": [{"type": "text", "text": LONG}]})
            path = text_of(await client.call_tool("say", {"result": result})).splitlines()[0].strip('"')
        async with Client(f"{served.url}/second", mode=mode) as client:
            assert client.server_info is not None
            assert client.server_info.name == "two"
            reply = text_of(await client.call_tool("hear", {"given": [path]}))
            at = reply.splitlines()[0].strip('"')
            argument = text_of(await client.call_tool(RETRIEVE, {"memory_path": f"{at}/params/arguments/given/0"}))
            assert argument == LONG
            unknown = await client.call_tool("memory_list", {})
            assert unknown.is_error
        async with Client(served.url, mode=mode) as client:
            assert client.server_info is not None
            assert client.server_info.name == "mcp-mirror"
            names = [tool.name for tool in (await client.list_tools()).tools]
            assert {"first_say_mirrored", "second_say_mirrored", "memory_list"} <= set(names)


async def test_a_value_is_not_a_resource_at_the_endpoint_of_an_upstream(
    raw: Any, configured: Configured, serve: Serve, tmp_path: Path
) -> None:
    shelf = raw("ok", "--shelf", "--log", str(tmp_path / "log"))
    config = configured({"first": shelf}, mirror={"capture": "large", "resource_links": True})
    async with serve(config) as served, Client(f"{served.url}/first") as client:
        result = json.dumps({"content": [{"type": "text", "text": LONG}]})
        reply = await client.call_tool("say", {"result": result})
        assert [block.type for block in reply.content] == ["text"]
        path = text_of(reply).splitlines()[0].strip('"')
        with pytest.raises(MCPError, match="Resource not found"):
            await client.read_resource(f"memory://{path}")
    assert "resources/read" not in (tmp_path / "log").read_text()


async def test_the_memory_has_an_endpoint_of_its_own(raw: Any, configured: Configured, serve: Serve) -> None:
    async with (
        serve(configured(two_upstreams(raw))) as served,
        Client(f"{served.url}/~memory") as client,
        Client(f"{served.url}/first") as first,
    ):
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert {RETRIEVE, "memory_put", "memory_list"} <= set(names)
        assert not [name for name in names if "say" in name]
        path = text_of(await client.call_tool("memory_put", {"value": "kept"})).split('"')[1]
        assert text_of(await first.call_tool(RETRIEVE, {"memory_path": path})) == "kept"
        assert f"memory://{path}" in [str(one.uri) for one in (await client.list_resources()).resources]


async def test_an_unknown_endpoint_is_not_found(raw: Any, configured: Configured, serve: Serve) -> None:
    async with serve(configured(two_upstreams(raw))) as served, httpx2.AsyncClient(headers=HEADERS) as http:
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        for path in ("/third", "/first/more", "/~other"):
            assert (await http.post(f"{served.url}{path}", json=ping)).status_code == 404
        assert (await http.post(f"{served.url}/first", json=ping, headers={"host": "evil.example"})).status_code == 421
        origin = {"origin": "https://evil.example"}
        assert (await http.post(f"{served.url}/first", json=ping, headers=origin)).status_code == 403


@pytest.mark.parametrize("path", ["/mcp", "/mcp/"])
async def test_an_endpoint_is_served_with_and_without_a_slash(
    raw: Any, configured: Configured, serve: Serve, path: str
) -> None:
    async with serve(configured(two_upstreams(raw), server={"path": path})) as served:
        base = served.url.removesuffix("/")
        for url, tool in ((base, "first_say_mirrored"), (f"{base}/", "first_say_mirrored"), (f"{base}/first/", "say")):
            async with httpx2.AsyncClient() as http:  # it follows no redirect
                answer = await http.post(url, content=HELLO, headers=HEADERS)
                assert answer.status_code == 200, url
            async with Client(url) as client:
                assert tool in [one.name for one in (await client.list_tools()).tools]
        async with httpx2.AsyncClient() as http:
            for unknown in (f"{base}/first/second", f"{base}//", served.url.replace("/mcp", "/tools/mcp")):
                answer = await http.post(unknown, content=HELLO, headers=HEADERS)
                assert (answer.status_code, f"The endpoint is {path}" in answer.text) == (404, True)


async def test_a_session_is_valid_only_at_the_endpoint_that_created_it(
    raw: Any, configured: Configured, serve: Serve
) -> None:
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "0"}}
    greeting = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    async with serve(configured(two_upstreams(raw))) as served, httpx2.AsyncClient(headers=HEADERS) as http:
        response = await http.post(f"{served.url}/first", json=greeting)
        session = {"mcp-session-id": response.headers["mcp-session-id"]}
        ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert (await http.post(f"{served.url}/first", json=ready, headers=session)).status_code == 202
        for elsewhere in ("", "/second", "/~memory"):
            url = f"{served.url}{elsewhere}"
            assert (await http.post(url, json=listing, headers=session)).status_code == 404
            assert (await http.delete(url, headers=session)).status_code == 404
        assert (await http.post(f"{served.url}/first", json=listing, headers=session)).status_code == 200
        assert (await http.delete(f"{served.url}/first", headers=session)).status_code == 200


async def test_an_endpoint_does_not_exist_for_principals_without_its_scope(
    raw: Any, configured: Configured, serve: Serve
) -> None:
    hashes = {name: "sha256:" + hashlib.sha256(token.encode()).hexdigest() for name, token in TOKENS.items()}
    tokens = {"anna": {"hash": hashes["anna"], "scopes": ["two"]}, "bert": {"hash": hashes["bert"], "scopes": []}}
    upstreams = two_upstreams(raw)
    upstreams["second"]["required_scopes"] = ["two"]
    async with serve(configured(upstreams, auth={"tokens": tokens})) as served:
        url = f"{served.url}/second"
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        async with httpx2.AsyncClient(headers=HEADERS) as http:
            assert (await http.post(url, json=ping)).status_code == 401
            bert = {"authorization": f"Bearer {TOKENS['bert']}"}
            assert (await http.post(url, json=ping, headers=bert)).status_code == 404
        async with connect_as("anna", url) as client:
            assert "say" in [tool.name for tool in (await client.list_tools()).tools]
            path = (
                text_of(
                    await client.call_tool("say", {"result": json.dumps({"content": [{"type": "text", "text": LONG}]})})
                )
                .splitlines()[0]
                .strip('"')
            )
        async with connect_as("bert", f"{served.url}/first") as client:
            stranger = await client.call_tool(RETRIEVE, {"memory_path": path})
            never = await client.call_tool(RETRIEVE, {"memory_path": f"say-{uuid4()}"})
            assert stranger.is_error
            assert never.is_error


async def test_a_new_tool_appears_only_at_the_endpoint_of_its_upstream(
    raw: Any, configured: Configured, serve: Serve
) -> None:
    async with (
        serve(configured(two_upstreams(raw))) as served,
        Client(f"{served.url}/first", mode="legacy") as first,
        Client(f"{served.url}/second", mode="legacy") as second,
    ):
        await second.list_tools()
        assert not (await first.call_tool("grow", {"name": "grown"})).is_error
        for _ in range(500):
            if "grown" in [tool.name for tool in (await first.list_tools()).tools]:
                break
        else:
            pytest.fail("The new tool is not listed.")
        assert "grown" not in [tool.name for tool in (await second.list_tools()).tools]
        assert not (await first.call_tool("grown", {})).is_error
