"""The gateway forwards messages byte for byte.

Clients and upstreams are scripted where those of the SDK would change the bytes.
"""

from __future__ import annotations

import base64
import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from http_sessions import HEADERS, META
from notices import path_in
from tests.end_to_end.conftest import scripted_upstream

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Configured, Connect, Listening, OpenLines, Serve

INTEGER = "7" * 5000
ODD = (
    '{ "zeta" : 1.0,"alpha":1e400 ,"exp":1E+02,"big":'
    + INTEGER
    + ',"esc":"\\u0041\\/\\u00e9\\ud83d\\ude00 \\"q\\"","neg":-0,"nul":null}'
)
SMALL = f'{{"content":[{{"type":"text","text":"a\\u0041","vendor":{{"x":1.0}}}},{{"odd":{ODD}}}],"vendor":{ODD},"isError":false}}'  # noqa: E501
DICT = f'{{"content":[],"structuredContent":{{"whole":{ODD},"n":1.0}}}}'


@pytest.fixture(params=[{}, {"limits": {"spool_bytes": 1024}}], ids=["in memory", "in files"])
def sections(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The configuration for messages of more than a kilobyte: buffered in memory, or in files."""
    sections_of_case: dict[str, Any] = request.param
    return sections_of_case


def upstreams(capture: str = "auto") -> dict[str, Any]:
    mirror = {"inline_budget": 60_000, "capture": capture}
    return {"raw": scripted_upstream(overrides={"hear": {"capture": "never"}, "say": mirror})}


async def test_a_small_result_passes_unchanged_on_stdio(sections: dict[str, Any], shared_lines: Any) -> None:
    client = await shared_lines(upstreams("large"), **sections)
    line = (await client.call("say_mirrored", json.dumps({"result": SMALL}))).decode()
    for member in (
        '"content":[{"type":"text","text":"a\\u0041","vendor":{"x":1.0}},{"odd":' + ODD,
        f'"vendor":{ODD}',
    ):
        assert member in line


@pytest.mark.parametrize("rest", ["-", "x" * 20_000])
async def test_half_of_an_emoji_in_a_result_is_replaced(sections: dict[str, Any], shared_lines: Any, rest: str) -> None:
    """Servers in JavaScript cut texts within a pair of surrogates and send the half as an escape."""
    whole = "\\ud83d\\ude00 \\\\ud83d "
    result = f'{{"content":[{{"type":"text","text":"{whole}\\ud83d{rest}\\ude00"}}]}}'
    wanted = f"\U0001f600 \\ud83d \ufffd{rest}\ufffd"
    client = await shared_lines(upstreams("always"), **sections)
    path = path_in(await client.text("say_mirrored", {"result": result}))
    received = await client.text("hear_mirrored", {"x": path})
    assert json.loads(received)["params"]["arguments"]["x"] == wanted


async def test_rows_with_half_of_an_emoji_in_json_text_are_rows(sections: dict[str, Any], shared_lines: Any) -> None:
    """A text that is `JSON.stringify` of rows, one of which was cut within an emoji."""
    text = '[{"id":1,"title":"It works \\ud83d"},{"id":2,"title":"\\ud83d\\ude00"}]'
    result = json.dumps({"content": [{"type": "text", "text": text}]})
    client = await shared_lines(upstreams("always"), **sections)
    path = path_in(await client.text("say_mirrored", {"result": result}))
    titles = await client.text("memory_query", {"memory_path": path, "expression": "[].title"})
    assert json.loads(titles.splitlines()[0]) == ["It works \ufffd", "\U0001f600"]


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_null_arguments_are_those_of_a_call_without_arguments(
    configured: Configured, open_lines: OpenLines, raw: Any, version: str
) -> None:
    meta = {"_meta": META} if version in META.values() else {}
    async with open_lines(configured({"raw": raw()})) as client:
        if not meta:
            await client.greet()
        for given in ("{}", '{"arguments": null}', '{"arguments": {}}'):
            params = {"name": "hear_mirrored", **json.loads(given), **meta}
            result = json.loads(await client.request("tools/call", json.dumps(params)))["result"]
            assert json.loads(result["content"][0]["text"].split("\n")[0])["params"]["arguments"] == {}


async def test_a_small_result_passes_unchanged_over_http(
    sections: dict[str, Any], configured: Configured, serve: Serve
) -> None:
    async with serve(configured(upstreams("large"), **sections)) as served, httpx2.AsyncClient() as client:
        params = {"name": "say_mirrored", "arguments": {"result": SMALL}, "_meta": META}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        stamped = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "say_mirrored"}
        answer = await client.post(served.url, content=body, headers=HEADERS | stamped)
        assert answer.status_code == 200, answer.text
        assert f'{{"odd":{ODD}}}' in answer.text
        assert f'"vendor":{ODD}' in answer.text


async def test_arguments_and_pointers_reach_the_tool_as_they_were_written(
    sections: dict[str, Any], shared_lines: Any
) -> None:
    client = await shared_lines(upstreams(), **sections)
    received = await client.text("hear_mirrored", None)
    assert '"arguments":{}' in received
    received = json.loads(await client.call("hear_mirrored", f'{{"literal": {ODD}}}'))["result"]["content"][0]["text"]
    assert f'{{"literal": {ODD}}}' in received
    notice = await client.text("say_mirrored", {"result": DICT})
    path = path_in(notice)
    assert ODD in notice
    received = await client.text("hear_mirrored", {"a": path, "b": [f"{path}/whole", f"{path}/n"]})
    assert f'"a": {{"whole":{ODD},"n":1.0}}' in received
    assert f'"b": [{ODD}, 1.0]' in received
    assert await client.text("retrieve_final_answer_from_memory", {"memory_path": f"{path}/whole"}) == ODD
    assert await client.text("retrieve_final_answer_from_memory", {"memory_path": f"{path}/whole/big"}) == INTEGER


@pytest.mark.parametrize("more", ["", ',"structuredContent":{"result":%s}'], ids=["text", "text and object"])
async def test_a_text_that_is_a_json_string_arrives_as_it_is(
    sections: dict[str, Any], shared_lines: Any, more: str
) -> None:
    """Such a text may be the content of a file, which another tool writes."""
    text = json.dumps("# Caf\u00e9\n\n" + "- C:\\temp\\new\n" * 2000)
    sent = json.dumps(text)
    result = f'{{"content":[{{"type":"text","text":{sent}}}]{more and more % sent}}}'
    client = await shared_lines({"raw": scripted_upstream(overrides={"hear": {"capture": "never"}})}, **sections)
    notice = await client.text("say_mirrored", {"result": result})
    received = await client.text("hear_mirrored", {"x": path_in(notice)})
    assert json.loads(received)["params"]["arguments"]["x"] == text


STYLES = [("json", "identity"), ("json", "gzip"), ("json", "members"), ("json", "deflate"), ("json", "raw"),
          ("lf", "identity"), ("crlf", "gzip"), ("cr", "identity"), ("crlf", "identity")]  # fmt: skip


async def test_every_form_of_http_answer_is_lifted(
    sections: dict[str, Any], configured: Configured, open_lines: OpenLines, listening: Listening
) -> None:
    async with AsyncExitStack() as stack:
        upstreams: dict[str, Any] = {}
        for style, encoding in STYLES:
            port = await stack.enter_async_context(listening("raw_http.py", "--style", style, "--encoding", encoding))
            url = f"http://127.0.0.1:{port}/mcp"
            upstreams[f"{style}_{encoding}"] = {"url": url, "overrides": {"hear": {"capture": "never"}}}
        client = await stack.enter_async_context(
            open_lines(configured(upstreams, mirror={"inline_budget": 9000}, **sections))
        )
        await client.greet()
        for name in upstreams:
            notice = await client.text(f"{name}_say_mirrored", {"result": DICT})
            assert ODD in notice
            path = path_in(notice)
            assert f'{{"x": {ODD}}}' in await client.text(f"{name}_hear_mirrored", {"x": f"{path}/whole"})


async def test_a_header_is_computed_from_the_value_behind_a_pointer(
    configured: Configured, connect: Connect, listening: Listening, raw: Any
) -> None:
    async with listening("annotated.py") as port:
        config = configured({"annotated": {"url": f"http://127.0.0.1:{port}/mcp"}, "raw": raw()})
        async with connect(config) as client:
            produced = '{"content":[],"structuredContent":{"region":"Zürich, \\u00e9","more":[1]}}'
            stored = await client.call_tool("say_mirrored", {"result": produced})
            path = path_in(stored.content[0].text)  # type: ignore[union-attr]
            result = await client.call_tool("route_mirrored", {"region": f"{path}/region", "rest": path})
            received = result.content[0].text  # type: ignore[union-attr]
            assert result.is_error is not True, received
            encoded = base64.b64encode("Zürich, é".encode()).decode()
            assert received == f"header==?base64?{encoded}?= argument=Zürich, é"


async def test_long_integers_do_not_disturb_the_check_of_headers(
    configured: Configured, serve: Serve, listening: Listening
) -> None:
    async with listening("annotated.py") as port:
        config = configured({"one": {"url": f"http://127.0.0.1:{port}/mcp"}}, mirror={"expose_originals": True})
        stamped = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "route"}
        params = f'{{"name":"route","arguments":{{"region":"a","rest":{INTEGER}}},"_meta":{json.dumps(META)}}}'
        body = f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}'
        async with serve(config) as served, httpx2.AsyncClient() as client:
            answers = [
                await client.post(served.url, content=body, headers=HEADERS | stamped | {"mcp-param-region": region})
                for region in ("a", "b")
            ]
            matching, other = (json.loads(answer.text) for answer in answers)
            assert matching["error"]["message"] == "Parse error"  # the upstream's, which does not read such integers
            assert "Mcp-Param-Region header does not match" in other["error"]["message"]
