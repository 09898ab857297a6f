"""Stored values as resources: a person can attach one in a client."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from mcp import Client, MCPError
from mcp.client.subscriptions import ResourcesListChanged
from mcp_types import INVALID_PARAMS
from samples import sample
from tests.end_to_end.conftest import BOUND, scripted_upstream

if TYPE_CHECKING:
    from pathlib import Path

    from tests.end_to_end.conftest import Configured, Connect, Lines, OpenClient, OpenLines

LONG = "a line of text\n" * 2000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(shared_client: Any) -> Client:
    client: Client = await shared_client({"raw": scripted_upstream()})
    return client


def stored(client: Lines, result: dict[str, Any]) -> Any:
    return client.call("say_mirrored", json.dumps({"result": json.dumps(result)}))


async def uris(client: Client) -> list[str]:
    found: list[str] = []
    page = await client.list_resources(cache_mode="refresh")
    while True:
        found += [str(resource.uri) for resource in page.resources if str(resource.uri).startswith("memory://")]
        if page.next_cursor is None:
            return found
        page = await client.list_resources(cursor=page.next_cursor)


@pytest.mark.parametrize("mode", sample(["legacy", "auto"], lambda mode: mode == "auto"))
async def test_stored_values_are_listed_page_by_page_and_read(
    mode: Any, configured: Configured, connect: Connect, raw: Any
) -> None:
    async with connect(configured({"raw": raw()}), mode=mode) as client:
        templates = (await client.list_resource_templates()).resource_templates
        assert "memory://{+path}" in [template.uri_template for template in templates]
        for number in range(120):
            result = {"content": [], "structuredContent": {"number": number, "a/b": {"c d": ["x", number]}}}
            await client.call_tool("say_mirrored", {"result": json.dumps(result)})
        listed = await uris(client)
        assert len(listed) == len(set(listed)) == 120
        newest = listed[0]
        content = (await client.read_resource(newest)).contents[0]
        assert content.mime_type == "application/json"
        assert json.loads(content.text)["number"] == 119  # type: ignore[union-attr]
        part = (await client.read_resource(f"{newest}/a~1b/c%20d/1")).contents[0]
        assert part.text == "119"  # type: ignore[union-attr]


async def test_a_resource_that_no_upstream_has_is_an_error_of_all(
    configured: Configured, connect: Connect, raw: Any
) -> None:
    shelf = raw("ok", "--shelf", "--lacks", "resources/read")
    async with connect(configured({"one": shelf, "two": shelf})) as client:
        with pytest.raises(
            MCPError, match=r"^Resource not found: files://a\. .*'one' refused.*'two' refused"
        ) as caught:
            await client.read_resource("files://a")
        assert caught.value.error.code == INVALID_PARAMS
    async with connect(configured({"one": shelf})) as client:
        with pytest.raises(MCPError, match=r"^no "):
            await client.read_resource("files://a")


@pytest.mark.posix
async def test_an_unlisted_resource_is_read_while_another_upstream_is_down(
    configured: Configured, connect: Connect, raw: Any, tmp_path: Path
) -> None:
    program = tmp_path / "python"
    program.symlink_to(sys.executable)
    broken = {**raw("ok", "--shelf"), "command": str(program)}
    lacking = raw("ok", "--shelf", "--lacks", "resources/read")
    async with connect(configured({"broken": broken, "other": raw("ok", "--shelf")})) as client:
        await client.list_resources()
        program.unlink()
        await client.call_tool("broken_die_mirrored", {})
        assert (await client.read_resource("files://a")).contents[0].uri == "raw://process"
    program.symlink_to(sys.executable)
    async with connect(configured({"broken": broken, "other": lacking})) as client:
        await client.list_resources()
        program.unlink()
        await client.call_tool("broken_die_mirrored", {})
        with pytest.raises(MCPError, match="'broken'") as caught:  # it may have the resource
            await client.read_resource("files://a")
        assert "not found" not in str(caught.value)


async def test_an_upstream_with_resources_may_have_no_list_of_templates(
    configured: Configured, connect: Connect, raw: Any
) -> None:
    """Servers on the low-level SDK have a handler for each list, and often none for this one."""
    async with connect(configured({"raw": raw("ok", "--shelf", "--lacks", "resources/templates/list")})) as client:
        templates = (await client.list_resource_templates()).resource_templates
        assert [template.uri_template for template in templates] == ["memory://{+path}"]


@pytest.mark.parametrize("mode", sample(["legacy", "auto"], lambda mode: mode == "legacy"))
async def test_an_unknown_cursor_is_refused(mode: Any, configured: Configured, connect: Connect, raw: Any) -> None:
    async with connect(configured({"raw": raw("ok", "--shelf")}), mode=mode) as client:
        for show in (
            client.list_tools,
            client.list_resources,
            client.list_resource_templates,
            client.list_prompts,
        ):
            with pytest.raises(MCPError, match="List again without a cursor") as refused:
                await show(cursor="made up")
            assert refused.value.error.code == INVALID_PARAMS


@pytest.mark.parametrize("number", [1, 2])
async def test_an_upstreams_own_memory_resources_are_read(
    number: int, configured: Configured, connect: Connect, raw: Any
) -> None:
    ours = "memory://say-2b4f9a30-6d1e-4c55-8f0a-0123456789ab"
    listed = ["memory://knowledge-graph", ours]
    shelf = raw("ok", "--shelf", *(part for uri in listed for part in ("--uri", uri)))
    others = {f"other{at}": raw("ok", "--shelf") for at in range(1, number)}
    async with connect(configured({"graph": shelf, **others})) as client:
        found = [str(one.uri) for one in (await client.list_resources(cache_mode="refresh")).resources]
        assert found[:2] == ["memory://knowledge-graph", f"graph+{ours}"]
        for uri in found[:2]:
            assert (await client.read_resource(uri)).contents[0].text == "of raw"  # type: ignore[union-attr]
        with pytest.raises(MCPError, match="No value is stored"):
            await client.read_resource(ours)


async def test_reads_that_fail_name_the_reason(client: Client) -> None:
    result = {"content": [{"type": "text", "text": LONG}]}
    await client.call_tool("say_mirrored", {"result": json.dumps(result)})
    uri, *_ = await uris(client)
    with pytest.raises(MCPError, match="no key"):
        await client.read_resource(f"{uri}/nothing")
    with pytest.raises(MCPError, match="No value is stored"):
        await client.read_resource(uri.replace("say", "hear"))
    with pytest.raises(MCPError):
        await client.read_resource("mcp-mirror://nothing")


async def test_a_picture_comes_back_as_its_bytes(client: Client) -> None:
    data = base64.b64encode(b"\x89PNG" * 200_000).decode()
    result = {"content": [{"type": "image", "data": data, "mimeType": "image/png"}]}
    await client.call_tool("say_mirrored", {"result": json.dumps(result)})
    uri, *_ = await uris(client)
    content = (await client.read_resource(uri)).contents[0]
    assert content.mime_type == "image/png"
    assert content.blob == data  # type: ignore[union-attr]


async def test_a_new_value_is_announced(configured: Configured, connect: Connect, raw: Any) -> None:
    result = json.dumps({"content": [], "structuredContent": {"a": 1}})
    async with (
        connect(configured({"raw": raw()})) as client,
        client.listen(resources_list_changed=True) as changes,
        asyncio.timeout(BOUND),
    ):
        await client.call_tool("say_mirrored", {"result": result})
        assert isinstance(await anext(aiter(changes)), ResourcesListChanged)


async def test_a_key_among_very_many_is_found(client: Client) -> None:
    wide = {f"k{number}": number for number in range(12_000)}
    result = {"content": [], "structuredContent": wide}
    await client.call_tool("say_mirrored", {"result": json.dumps(result)})
    uri, *_ = await uris(client)
    assert (await client.read_resource(f"{uri}/k11999")).contents[0].text == "11999"  # type: ignore[union-attr]
    with pytest.raises(MCPError, match="no key"):
        await client.read_resource(f"{uri}/k12000")


async def test_a_notice_has_a_resource_link_if_configured(open_client: OpenClient, raw: Any) -> None:
    result = {"content": [{"type": "text", "text": LONG}]}
    async with open_client({"raw": raw()}, mirror={"resource_links": True}) as client:
        notice, link = json.loads(await stored(client, result))["result"]["content"]
        path, sentence, *_ = notice["text"].splitlines()
        assert sentence.startswith("This path ")
        assert link["type"] == "resource_link"
        assert link["uri"] == "memory://" + path.strip('"')
        assert link["mimeType"] == "text/plain"
        small = json.loads(await stored(client, {"content": [{"type": "text", "text": "small"}]}))["result"]["content"]
        assert [block["type"] for block in small] == ["text"]


async def test_a_transparent_gateway_has_nothing_of_its_own(
    configured: Configured, open_lines: OpenLines, raw: Any
) -> None:
    async with open_lines(configured({"raw": raw()}, mirror={"suffix": "", "capture": "never"})) as client:
        greeting = await client.greet()
        assert "resources" not in greeting["capabilities"]
        assert greeting["instructions"].startswith("Server raw: I am raw.")
        tools = json.loads(await client.request("tools/list"))["result"]["tools"]
        assert [tool["name"] for tool in tools][:2] == ["say", "hear"]
        assert all("memory" not in json.dumps(tool) for tool in tools)
        call = '{"name":"say","arguments":{"result":"{\\"content\\":[],\\"structuredContent\\":{\\"a\\":1e400}}"}}'
        assert b'"structuredContent":{"a":1e400}' in await client.request("tools/call", call)
        unknown = json.loads(await client.request("tools/call", '{"name":"retrieve_final_answer_from_memory"}'))
        assert unknown["result"]["isError"] is True


async def test_no_upstream_learns_a_path_from_a_request_about_a_value(
    open_client: OpenClient, raw: Any, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with open_client({"shelf": raw("ok", "--shelf", "--log", str(log))}) as client:
        notice = json.loads(await stored(client, {"content": [{"type": "text", "text": LONG}]}))["result"]["content"][0]
        path = notice["text"].splitlines()[0].strip('"')
        for method in ("resources/subscribe", "resources/unsubscribe"):
            answer = await client.request(method, json.dumps({"uri": f"memory://{path}"}))
            assert json.loads(answer)["result"] == {}
        for uri in ("memory://{+path}", f"memory://{path}"):
            params = {"ref": {"type": "ref/resource", "uri": uri}, "argument": {"name": "path", "value": path[:9]}}
            completed = json.loads(await client.request("completion/complete", json.dumps(params)))
            assert completed["result"]["completion"]["values"] == []
    methods = log.read_text()
    assert "subscribe" not in methods
    assert "completion/complete" not in methods


async def test_a_link_is_read_from_the_upstream_whose_result_has_it(open_client: OpenClient, raw: Any) -> None:
    shelf = raw("ok", "--shelf")  # it answers for every URI
    async with open_client({"first": shelf, "second": shelf}) as client:
        listed = json.loads(await client.request("resources/list"))["result"]["resources"]
        process = {one["uri"].partition("+")[0]: one["name"] for one in listed if one["uri"].endswith("raw://process")}
        for name, expected in (("first", process["raw://process"]), ("second", process["second"])):
            link = {"type": "resource_link", "uri": "doc://1", "name": "a document"}
            await client.call(f"{name}_say_mirrored", json.dumps({"result": json.dumps({"content": [link, link]})}))
            read = json.loads(await client.request("resources/read", '{"uri":"doc://1"}'))["result"]["contents"]
            assert read[0]["text"] == expected
