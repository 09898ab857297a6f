"""The audit log of a real gateway: one line per call, read and refusal, without values."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from gateway_processes import forked_upstream
from mcp import Client, MCPError
from notices import path_in
from tests.end_to_end.conftest import BOUND
from waiting import until

from mcp_mirror import Mirror
from mcp_mirror.gateway.contents import ContentCapture

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Configured, Lines, OpenClient, OpenLines, Serve

NOTES = forked_upstream(str(Path(__file__).parents[1] / "relay" / "upstream.py"), "stdio", "2026-07-28")
"""A server with resources and prompts."""
COMPLETION = '{"ref":{"type":"ref/prompt","name":"greet"},"argument":{"name":"who","value":"A"}}'
COMPLETED = [("call", "completion/complete", "begun"), ("call", "completion/complete", "ok")]
NO_PROMPT = [("call", "prompts/get", "begun"), ("call", "prompts/get", "error")]
UNKNOWN = "say-11111111-1111-4111-8111-111111111111"
LARGE_RESULT = {"result": json.dumps({"structuredContent": {"key-c4nary": "value-c4nary " * 999}, "content": []})}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def read_audit(path: Path) -> list[tuple[str, str, str]]:
    return [(one["event"], one.get("tool", ""), one["outcome"]) for one in lines(path)]


async def lost(client: Lines) -> int:
    answer = json.loads(await client.request("resources/read", '{"uri":"mcp-mirror://upstreams"}'))
    count: int = json.loads(answer["result"]["contents"][0]["text"])["audit"]["lost"]
    return count


async def test_calls_reads_and_refusals_are_recorded_without_values(
    open_client: OpenClient, raw: Any, tmp_path: Path
) -> None:
    path = tmp_path / "audit.jsonl"
    async with open_client({"one": raw()}, audit={"path": "audit.jsonl", "key": "k" * 32}) as client:
        stored = path_in(await client.text("say_mirrored", LARGE_RESULT))
        await client.text("memory_read", {"memory_path": f"{stored}/key-c4nary"})
        await client.request("resources/read", json.dumps({"uri": f"memory://{stored}"}))
        await client.text("hear_mirrored", {"c4nary": UNKNOWN})
        await client.text("retrieve_final_answer_from_memory", {"memory_path": UNKNOWN})
        await client.text("memory_read", {"memory_path": f"{stored}/no-key"})
        await client.text("hear_mirrored", {"c4nary": f"{stored}/no-key"})
        await client.text("c4nary", {"c4nary": 1})
        await client.text("refuse_mirrored", {"c4nary": 1})
    assert read_audit(path) == [
        ("call", "say_mirrored", "stored"),
        ("read", "memory_read", "ok"),
        ("call", "memory_read", "ok"),
        ("read", "resources/read", "ok"),
        ("refusal", "hear_mirrored", "unknown path"),
        ("refusal", "retrieve_final_answer_from_memory", "unknown path"),
        ("refusal", "retrieve_final_answer_from_memory", "unknown path"),
        ("refusal", "memory_read", "unknown path"),
        ("refusal", "memory_read", "unknown path"),
        ("refusal", "hear_mirrored", "unknown path"),
        ("refusal", "(unknown)", "unknown tool"),
        ("call", "refuse_mirrored", "error"),
    ]
    made, read, read_call, resource, *_ = lines(path)
    assert {one["principal"] for one in lines(path)} == {"local"}
    assert (made["upstream"], read["path"].split("/")[0], resource["path"]) == ("one", made["path"], made["path"])
    assert read["correlation"] == read_call["correlation"] != made["correlation"]
    assert read["bytes"] > 10_000 > read_call["bytes"] > 0
    assert made["milliseconds"] > 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", made["time"])
    assert not [hidden for hidden in ("c4nary", stored, stored[-36:]) if hidden in path.read_text()]


@pytest.mark.posix
async def test_rejected_http_requests_are_recorded(
    configured: Configured, serve: Serve, raw: Any, tmp_path: Path
) -> None:
    path = tmp_path / "audit.jsonl"
    limits = {"max_message_bytes": "64KiB", "spool_bytes": "4KiB", "max_envelope_bytes": "4KiB"}
    config = configured({"up": raw()}, audit={"path": str(path)}, limits=limits)
    async with serve(config) as served, httpx2.AsyncClient(timeout=BOUND) as http:

        async def status(content: bytes, **headers: str) -> int:
            all_headers = {
                "content-type": "application/json",
                "accept": "application/json, text/event-stream",
                **headers,
            }
            return (await http.post(served.url, content=content, headers=all_headers)).status_code

        assert await status(b"{" * 70_000) == 413
        assert await status(b"c4nary") == 400
        assert await status(b"{}", **{"content-encoding": "gzip"}) == 415
        assert await status(b"{}", origin="https://c4nary.example") == 403
        assert await status(b"{}", host="c4nary.example") == 421
    refused = ["message too large", "malformed message", "encoded body", "foreign origin", "foreign host"]
    assert read_audit(path) == [("refusal", "", outcome) for outcome in refused]
    assert "c4nary" not in path.read_text()


@pytest.mark.posix
@pytest.mark.parametrize("is_usable", [True, False])
async def test_a_hangup_reopens_the_audit_file_with_any_configuration(
    configured: Configured, open_lines: OpenLines, raw: Any, tmp_path: Path, *, is_usable: bool
) -> None:
    path, old = tmp_path / "audit.jsonl", tmp_path / "audit.1"
    config = configured({"one": raw()}, audit={"path": str(path)})
    async with open_lines(config) as client:
        await client.greet()
        await client.text("hear_mirrored")
        await until(path.read_text)
        path.rename(old)
        if not is_usable:
            config.write_text("{")
        client.process.send_signal(signal.SIGHUP)
        await until(path.exists)
        await client.text("memory_list")
    assert (read_audit(old), read_audit(path)) == (
        [("call", "hear_mirrored", "stored")],
        [("call", "memory_list", "ok")],
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full device")
@pytest.mark.parametrize("required", [False, True])
async def test_a_call_without_an_audit_record_is_made_unless_audit_is_required(
    open_client: OpenClient, raw: Any, tmp_path: Path, *, required: bool
) -> None:
    upstream = raw("ok", "--log", str(tmp_path / "log"))
    async with open_client({"one": upstream}, audit={"path": "/dev/full", "required": required}) as client:
        answer = await client.text("hear_mirrored")
        await until(lambda: lost(client))
    assert answer.startswith("The gateway cannot write its audit log") is required
    assert ("tools/call" in (tmp_path / "log").read_text()) is not required
    assert b"loses records: No space left on device" in b"".join(client.stderr)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full device")
@pytest.mark.parametrize("required", [False, True])
async def test_what_is_read_without_a_record_unless_audit_is_required(
    configured: Configured, open_lines: OpenLines, raw: Any, tmp_path: Path, *, required: bool
) -> None:
    store = {"kind": "disk", "path": str(tmp_path / "store")}
    async with open_lines(configured({"one": raw()}, store=store)) as client:
        await client.greet()
        stored = path_in(await client.text("say_mirrored", LARGE_RESULT))
    audit = {"path": "/dev/full", "required": required}
    async with open_lines(configured({"notes": NOTES}, store=store, audit=audit)) as client:
        await client.greet()
        replies = [
            await client.request("resources/read", json.dumps({"uri": f"memory://{stored}"})),
            await client.request("resources/read", '{"uri":"notes://one"}'),
            await client.request("prompts/get", '{"name":"greet","arguments":{"who":"Ada"}}'),
        ]
    shown = [text in reply for text, reply in zip((b"c4nary", b"What is at", b"Greet Ada"), replies, strict=True)]
    assert shown == [not required] * 3
    assert [b"cannot write its audit log" in reply for reply in replies] == [required] * 3


async def test_requests_for_resources_and_prompts_are_recorded(
    configured: Configured, open_lines: OpenLines, tmp_path: Path
) -> None:
    path = tmp_path / "audit.jsonl"
    hiding = {"model": {"accepts": {"confidentiality": "public"}}}
    for flows in ({}, hiding):
        config = configured({"notes": NOTES}, audit={"path": str(path), "required": True}, flows=flows)
        async with open_lines(config) as client:
            await client.greet()
            await client.request("resources/read", '{"uri":"notes://one"}')
            await client.request("prompts/get", '{"name":"greet","arguments":{"who":"Ada"}}')
            await client.request("prompts/get", '{"name":"no such prompt"}')
            await client.request("completion/complete", COMPLETION)
    assert read_audit(path) == [
        ("call", "resources/read", "begun"),
        ("call", "resources/read", "ok"),
        ("call", "prompts/get", "begun"),
        ("call", "prompts/get", "ok"),
        *NO_PROMPT,
        *COMPLETED,
        ("call", "resources/read", "begun"),
        ("refusal", "resources/read", "flow"),
        ("call", "prompts/get", "begun"),
        ("refusal", "prompts/get", "flow"),
        *NO_PROMPT,
        *COMPLETED,
    ]


async def test_an_exception_after_a_resource_is_read_is_recorded_as_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> Any:
        raise KeyError

    monkeypatch.setattr(ContentCapture, "capture", fail)
    path = tmp_path / "audit.jsonl"
    config = {"upstreams": {"notes": NOTES}, "audit": {"path": str(path)}}
    served: asyncio.Queue[str] = asyncio.Queue()
    mirror = Mirror(upstreams=config)
    async with mirror, asyncio.timeout(BOUND):
        serving = asyncio.create_task(mirror.serve_http(announce=served.put_nowait))
        async with Client(await served.get()) as client:
            with pytest.raises(MCPError, match="error in its program"):
                await client.read_resource("notes://one")
        serving.cancel()
    assert read_audit(path) == [("call", "resources/read", "error")]


async def test_required_audit_records_are_written_before_and_after_a_call(
    open_client: OpenClient, raw: Any, tmp_path: Path
) -> None:
    path = tmp_path / "audit.jsonl"
    async with open_client({"one": raw()}, audit={"path": str(path), "required": True}) as client:
        await client.text("hear_mirrored")
    begun, done = lines(path)
    assert (begun["outcome"], done["outcome"]) == ("begun", "stored")
    assert begun["correlation"] == done["correlation"]
