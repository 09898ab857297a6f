"""Messages that go through files, errors that name limits, and limits of upstreams."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from notices import path_in
from removed_files import wait_until_left
from samples import sample
from tests.end_to_end.conftest import BOUND

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Configured, Listening, OpenClient, OpenLines, Serve

SPOOLED = {"spool_bytes": 1024}
RETRIEVE = "retrieve_final_answer_from_memory"


def result(**members: Any) -> str:
    return json.dumps({"content": [], **members})


def text(content: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": content}]


@pytest.mark.parametrize(
    "store", sample([{"kind": "memory"}, {"kind": "disk"}], {"kind": "disk"}.__eq__), ids=["memory", "disk"]
)
async def test_a_large_value_is_found_at_any_depth_and_handed_on(
    store: dict[str, Any], open_client: OpenClient, raw: Any
) -> None:
    rows = [[number, {"name": f"row {number}"}] for number in range(400_000)]
    value = json.dumps({"first": 1, "rows": rows, "last": [1.5]})
    assert len(value) > 12_000_000
    upstreams = {"raw": raw(overrides={"hear": {"capture": "never"}})}
    async with open_client(upstreams, store=store) as client:
        notice = await client.text("say_mirrored", {"result": f'{{"content":[],"structuredContent":{value}}}'})
        path = path_in(notice)
        for below, wanted in (
            ("rows/399999/1/name", "row 399999"),
            ("rows/7", '[7, {"name": "row 7"}]'),
            ("last/0", "1.5"),
        ):
            assert await client.text(RETRIEVE, {"memory_path": f"{path}/{below}"}) == wanted
        received = await client.text("hear_mirrored", {"x": f"{path}/rows/123456", "y": f"{path}/last"})
        assert '"x": [123456, {"name": "row 123456"}], "y": [1.5]' in received
        missing = await client.text(RETRIEVE, {"memory_path": f"{path}/rows/400000"})
        assert "items are 0 to 399999" in missing


@pytest.mark.slow
async def test_a_value_too_large_for_a_model_is_refused_with_the_next_step(open_client: OpenClient, raw: Any) -> None:
    image = {"type": "image", "mimeType": "image/png", "data": "iVBORw0K" * 700_000}
    wide = {f"column {number}": number for number in range(100_000)}
    async with open_client({"raw": raw()}) as client:
        for content, kind in (
            (result(content=[image]), "binary of 5.6 MB"),
            (result(content=text(json.dumps([wide]))), 'item (path + "/0")'),
            (result(content=[], structuredContent={"table": wide}), 'part (path + "/key")'),
        ):
            path = path_in(await client.text("say_mirrored", {"result": content})).split("\t")[0]
            refused = await client.text(RETRIEVE, {"memory_path": path})
            assert kind in refused
            assert "Pass the path to the tool that needs the value" in refused


async def test_an_embedded_text_beside_a_sentence_is_passed_as_its_text(
    open_client: OpenClient, raw: Any, tmp_path: Path
) -> None:
    file = {"uri": "repo://a.py", "mimeType": "text/x-python", "text": "print('a')\n" * 2000}
    block = {"type": "resource", "resource": file}
    schema = {"type": "object", "properties": {"text": {"type": "string"}, "block": {"type": "object"}}}
    tools = [{"name": "say", "inputSchema": {"type": "object"}}, {"name": "hear", "inputSchema": schema}]
    (tmp_path / "tools").write_text(json.dumps(tools), encoding="utf-8")
    upstream = raw("ok", "--tools", str(tmp_path / "tools"), overrides={"hear": {"capture": "never"}})
    async with open_client({"raw": upstream}) as client:
        path = path_in(await client.text("say_mirrored", {"result": result(content=[*text("downloaded"), block])}))
        assert path.endswith("/1")
        received = json.loads(await client.text("hear_mirrored", {"text": path, "block": path}))
        assert received["params"]["arguments"] == {"text": file["text"], "block": block}
        counted = {"inputs": {"t": path}, "sql": "SELECT count(*) AS n FROM t"}
        assert await client.text("memory_query", counted) == '[{"n":2000}]'
        window = {"memory_path": path, "by": "lines", "offset": -2}
        assert await client.text("memory_read", window) == "print('a')\nprint('a')"
        assert (await client.text("memory_read", {"memory_path": path})).startswith("print('a')\nprint('a')\n")
        assert (await client.text("memory_read", {"memory_path": path, "by": "keys"})).startswith('"/type"')
        assert (await client.text("memory_grep", {"memory_path": path, "pattern": "a", "limit": 1})).startswith("0:")
        change = {"memory_path": path, "old_text": "'a'", "new_text": "1", "all": True}
        edited = path_in(await client.text("memory_edit", change))
        received = json.loads(await client.text("hear_mirrored", {"text": edited}))
        assert received["params"]["arguments"] == {"text": "print(1)\n" * 2000}
        merged = await client.text("memory_edit", {"memory_path": path, "merge": {"type": "text"}})
        assert merged.startswith("A binary value cannot be edited.")


@pytest.mark.parametrize("kind", ["memory", "disk"])
async def test_no_file_but_of_what_lasts_is_left_when_the_gateway_has_ended(
    kind: str, open_client: OpenClient, raw: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "values"
    async with open_client({"raw": raw()}, store={"kind": kind, "path": str(folder)}, limits=SPOOLED) as client:
        for content in (text("x" * 500_000), text(json.dumps({"k": "x" * 500_000})), text("small")):
            await client.text("say_mirrored", {"result": result(content=content)})
        wait_until_left(folder, 500_000, 2)
    left = [path for path in folder.rglob("*") if path.is_file() and path.parent.name != "listings"]
    assert len([path for path in left if path.parent.name == "blobs"]) == (2 if kind == "disk" else 0)
    assert {path.name for path in left if path.parent.name != "blobs"} == (
        {"lock", "events.sqlite", "index.sqlite", "reserve"} if kind == "disk" else set()
    )


BROKEN = {
    '{"content":[}': "not valid JSON",
    '{"content":[],"x":NaN}': "not valid JSON",
    '{"content":[],"structuredContent":' + "[" * 10**6 + "]" * 10**6 + "}": "nested too deep",
    '{"content":5}': "not a tool result",
    result(structuredContent={"k" * 300: 1}): "limits.max_key_bytes",
}


@pytest.mark.parametrize("limits", sample([{}, SPOOLED], lambda limits: not limits), ids=["in memory", "in files"])
async def test_an_oversized_result_fails_by_name_and_the_next_is_served(
    limits: dict[str, int], open_client: OpenClient, raw: Any
) -> None:
    padding = " " * 2000
    async with open_client({"raw": raw()}, limits={"max_key_bytes": 200, **limits}) as client:
        for broken, message in BROKEN.items():
            answer = json.loads(await client.call("say_mirrored", json.dumps({"result": broken + padding})))["result"]
            assert answer["isError"] is True
            assert message in answer["content"][0]["text"]
            assert await client.text("say_mirrored", {"result": result(content=text("fine"))}) == "fine"


async def test_a_large_error_keeps_its_kind_whether_the_tools_or_the_protocols(
    open_client: OpenClient, raw: Any
) -> None:
    async with open_client({"raw": raw()}, limits=SPOOLED, mirror={"error_budget": 100}) as client:
        failed = result(content=text("no such row. " * 500), isError=True)
        answer = json.loads(await client.call("say_mirrored", json.dumps({"result": failed})))["result"]
        assert answer["isError"] is True
        assert "no such row" in answer["content"][0]["text"]
        assert "say-" in answer["content"][0]["text"]


async def test_an_oversized_message_fails_by_name_and_the_upstream_stays_usable(
    open_client: OpenClient, raw: Any
) -> None:
    async with open_client({"raw": raw()}, limits={"max_message_bytes": 200_000, "spool_bytes": 50_000}) as client:
        for size in (100_000, 190_000):
            notice = await client.text("hear_mirrored", {"pad": "x" * size})
            assert "This path " in notice
        twice = {"result": result(content=text("z" * 150_000), structuredContent={"more": "z" * 100_000})}
        refused = await client.request("tools/call", json.dumps({"name": "say_mirrored", "arguments": twice}))
        assert "limits.max_message_bytes" in json.loads(refused)["error"]["message"]
        stored = await client.text("say_mirrored", {"result": result(content=text("y" * 120_000))})
        path = path_in(stored)
        over = await client.text("hear_mirrored", {"one": path, "two": path})
        assert "`limits.max_message_bytes`" in over
        assert await client.text("say_mirrored", {"result": result(content=text("fine"))}) == "fine"


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_message_without_room_on_the_disk_fails_only_its_call(
    transport: str, configured: Configured, open_lines: OpenLines, listening: Listening, raw: Any, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    async with listening("raw_http.py") as port:
        lab = raw() if transport == "stdio" else {"url": f"http://127.0.0.1:{port}/mcp"}
        config = configured({"lab": lab}, limits={"spool_bytes": 4096}, store={"kind": "memory", "path": None})
        async with open_lines(config, env={**os.environ, "TMPDIR": str(scratch)}) as client:
            await client.greet()
            path = path_in(await client.text("hear_mirrored", {"pad": "x" * 3000}))
            shutil.rmtree(scratch)
            result_failed = await client.text("hear_mirrored", {"one": path, "two": path})
            request = json.dumps({"name": "hear_mirrored", "arguments": {"pad": "y" * 5000}})
            error = json.loads(await client.request("tools/call", request))["error"]
            assert error["code"] == -32603  # the client has made no mistake
            request_failed = error["message"]
            assert result_failed.startswith(
                "The gateway could not keep an answer of upstream 'lab' to 'hear'. A message"
            )
            for message in (result_failed, request_failed):
                assert "because temporary files cannot be written: No such file or directory" in message
            assert await client.text("say_mirrored", {"result": result(content=text("alive"))}) == "alive"
            scratch.mkdir()
            assert "This path " in await client.text("hear_mirrored", {"one": path, "two": path})
        assert b"Temporary files cannot be written in" in b"".join(client.stderr)


async def test_a_body_without_room_on_the_disk_gets_503(
    configured: Configured, serve: Serve, raw: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured({"lab": raw()}, limits={"spool_bytes": 4096}, store={"kind": "memory", "path": None})
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    async with serve(config) as served, httpx2.AsyncClient(timeout=BOUND) as http:
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        body = b'{"id":5,%b}' % (b" " * 5000)
        assert (await http.post(served.url, content=body, headers=headers)).status_code == 400
        shutil.rmtree(tmp_path / "scratch")
        response = await http.post(served.url, content=body, headers=headers)
    assert (response.status_code, response.json()["id"]) == (503, 5)
    assert "temporary files cannot be written" in response.json()["error"]["message"]


async def test_arguments_over_an_upstreams_limit_are_not_sent(open_client: OpenClient, raw: Any) -> None:
    async with open_client({"raw": raw(max_request_bytes=1000), "free": raw()}) as client:
        path = path_in(await client.text("free_hear_mirrored", {"pad": "x" * 5000}))
        refused = await client.text("raw_hear_mirrored", {"pad": path})
        assert "takes 1,000 (`max_request_bytes`)" in refused
        assert "'raw'" in refused
        assert await client.text("raw_say_mirrored", {"result": result(content=text("alive"))}) == "alive"


async def test_a_server_that_refuses_a_body_size_is_reported(
    configured: Configured, open_lines: OpenLines, listening: Listening, raw: Any
) -> None:
    async with listening("raw_http.py", "--max-body", "20000") as port:
        web = {"url": f"http://127.0.0.1:{port}/mcp", "max_request_bytes": "1GiB"}
        async with open_lines(configured({"web": web, "raw": raw()})) as client:
            await client.greet()
            path = path_in(await client.text("raw_hear_mirrored", {"pad": "x" * 50_000}))
            refused = await client.text("web_hear_mirrored", {"pad": path})
            assert "Upstream 'web' failed during 'hear'" in refused
            assert f"127.0.0.1:{port} answered with HTTP status 413 to a message of 50," in refused
            assert "`max_request_bytes`" in refused
            assert await client.text("web_say_mirrored", {"result": result(content=text("alive"))}) == "alive"
