"""Messages of very many small parts delay no other client, and every byte of their values arrives.

There are 300,000 parts, a million with `make hostile`.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import pytest
from tests.hostile.bystander import HttpClient, Waits, bystander, message_of
from tests.hostile.conftest import FULL
from tests.hostile.servers.many import COUNT, DEEP, LINES, PAYLOADS, arrays, members

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.end_to_end.conftest import Configured, Serve
    from tests.hostile.conftest import Budget

MANY = {
    "command": sys.executable,
    "args": [str(Path(__file__).parent / "servers" / "many.py")],
    "env": {"HOSTILE_FULL": "1"} if FULL else {},
}
HONEST = "honest_hear_mirrored"

MEMORY = 1200 << 20
"""Bytes that the gateway and the process that reads large results may take together: a million Python objects."""


@pytest.fixture
def config(configured: Configured, raw: Any) -> Path:
    return configured({"many": MANY, "honest": raw()}, mirror={"answer_budget": 100_000_000})


@pytest.mark.slow
@pytest.mark.parametrize("kind", PAYLOADS)
async def test_a_result_of_very_many_parts_delays_no_other_client(
    config: Path, serve: Serve, budget: Budget, kind: str
) -> None:
    async with (
        serve(config, "-v") as served,
        budget(served, f"result: {kind}", f"{COUNT:,}", memory=MEMORY) as row,
    ):

        def run() -> tuple[bytes, bytes | None, Waits]:
            with HttpClient(served.url) as client, bystander(served.url, HONEST) as waits:
                answer = client.call("emit_mirrored", json.dumps({"kind": kind}).encode())
                path = re.search(rb"emit-[0-9a-f-]{36}", answer)
                back = path and client.call("retrieve_final_answer_from_memory", b'{"memory_path":"%b"}' % path[0])
            return answer, back, waits

        answer, back, waits = await anyio.to_thread.run_sync(run)
        assert not waits.failures
        row.waited, row.outcome = waits.longest, "stored and retrieved" if back else "passed on"
    result = message_of(answer)["result"]
    if kind == "members":
        assert all(result[f"k{index:06d}"] == index % 10 for index in range(COUNT))
    elif kind != "meta":
        assert back is not None, answer[:300]
        sent = json.loads(PAYLOADS[kind]()) if kind != "blocks" else None
        value = json.loads(message_of(back)["result"]["content"][0]["text"])
        assert value == sent["structuredContent"] if sent else len(value) > COUNT / 2


@pytest.mark.parametrize("kind", LINES)
async def test_a_server_message_of_very_many_arrays_delays_no_other_client(
    config: Path, serve: Serve, budget: Budget, kind: str
) -> None:
    async with (
        serve(config, "-v") as served,
        budget(served, f"server message of arrays: {kind}", f"{8 * COUNT:,}") as row,
    ):

        def run() -> tuple[str, Waits]:
            with HttpClient(served.url) as client, bystander(served.url, HONEST) as waits:
                return client.text("write_mirrored", {"kind": kind}), waits

        answer, waits = await anyio.to_thread.run_sync(run)
        assert (waits.failures, answer) == ([], f"{len(json.dumps({'kind': kind}))} characters")
        row.waited, row.outcome = waits.longest, "refused"


FEW = 9_000
"""Parts that are few enough for the event loop."""
PATH = b'"emit-9c1d4f0e-6a55-4b8e-9d0a-0f3b2f6f6a11/a"'
REQUESTS: dict[str, tuple[Callable[[], bytes], bytes]] = {
    "members": (lambda: b'"arguments":{' + members() + b"},", b" characters"),
    "items": (lambda: b'"arguments":{"items":[' + b",".join([b"1"] * COUNT) + b"]},", b" characters"),
    "paths": (lambda: b'"arguments":{"items":[' + b",".join([PATH] * (COUNT // 4)) + b"]},", b"look like memory paths"),
    "meta": (lambda: b'"_meta":{' + members() + b"},", b"`arguments`"),
    "params": (lambda: members() + b",", b"`arguments`"),
    "icons": (lambda: b'"icons":[' + b",".join([b'{"src":"x"}'] * FEW) + b"],", b"outside of `arguments`"),
    "depth": (lambda: b'"arguments":{"items":[' + arrays(480_000) + b"," + DEEP + b"]},", b"nested too deep"),
}
"""Parameters of a call, and what its answer says."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", REQUESTS)
async def test_a_request_of_very_many_parts_delays_no_other_client(
    config: Path, serve: Serve, budget: Budget, kind: str
) -> None:
    build, expected = REQUESTS[kind]
    params, size = build(), f"{FEW if kind == 'icons' else COUNT:,}"
    async with serve(config, "-v") as served, budget(served, f"request: {kind}", size) as row:

        def run() -> tuple[bytes, Waits]:
            with HttpClient(served.url) as client, bystander(served.url, HONEST) as waits:
                answer = client.send("tools/call", b'{"name":"many_hear_mirrored",' + params, "many_hear_mirrored")
            return answer, waits

        answer, waits = await anyio.to_thread.run_sync(run)
        assert not waits.failures
        assert expected in answer
        row.waited, row.outcome = waits.longest, "passed on" if b"characters" in answer else "refused"
    if row.outcome == "passed on":
        sent = json.loads(b"{" + params.rstrip(b",") + b"}")["arguments"]
        assert f"{len(json.dumps(sent))} characters".encode() in answer


@pytest.mark.slow
@pytest.mark.parametrize("end", [b"1]},", b"x]},"], ids=["valid", "malformed"])
async def test_a_request_of_many_megabytes_delays_no_other_client(
    config: Path, serve: Serve, budget: Budget, end: bytes
) -> None:
    params = b'{"name":"unknown","arguments":{"items":[' + b"[]," * (20 << 20) + end
    async with serve(config, "-v") as served, budget(served, f"request: {end!r} at its end", "60 MB") as row:

        def run() -> bytes:
            with HttpClient(served.url) as client, bystander(served.url, HONEST) as waits:
                answer = client.send("tools/call", params, "unknown")
            row.waited = waits.longest
            return answer

        answer = await anyio.to_thread.run_sync(run)
        row.outcome = "refused"
    assert (b"Unknown tool" if end == b"1]}," else b"not valid JSON") in answer
