"""Queries and arguments that take all the time they can: they hold up only their own principal."""

from __future__ import annotations

import json
import re
from contextlib import aclosing, suppress
from typing import Any

import anyio
import pytest
from tests.load import measure_pause, slowness

from mcp_mirror import Mirror
from mcp_mirror.errors import ToolError
from mcp_mirror.payload.spool import Spool
from mcp_mirror.query.select import Select
from mcp_mirror.settings.policies import WirePolicy
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.workers.queries import QueryRunner

BOMB = Select(" | ".join(["reverse(sort(@))"] * 200), 1 << 20, "", "")
"""Sorts 400,000 numbers 200 times: more than 20 s."""
STALL = 0.25
"""Seconds of a pass of the event loop on an idle machine. Before, these calls took several times as long."""


async def query(queries: QueryRunner, blob: bytes, select: Select, principal: str) -> bytes:
    async with queries.run_in_worker(blob, None, select, 20, principal) as found:
        return bytes(found)


async def explode(queries: QueryRunner, numbers: bytes, principal: str) -> None:
    with suppress(ToolError):
        await query(queries, numbers, BOMB, principal)


@pytest.mark.slow
@pytest.mark.parametrize("bombs", [6, 20])
async def test_query_bombs_leave_others_their_answers(bombs: int) -> None:
    numbers = b"[" + b",".join(b"%d" % (7919 * n % 1_000_003) for n in range(400_000)) + b"]"
    with ChildWatchdog() as child_watchdog, Spool(WirePolicy()) as spool:
        async with aclosing(QueryRunner(child_watchdog, spool)) as queries, anyio.create_task_group() as tasks:
            await query(queries, b"[1]", Select("@[0]", 99, "", ""), "alice")
            for number in range(bombs):
                tasks.start_soon(explode, queries, numbers, f"mallory-{number % 2}")
            await anyio.wait_all_tasks_blocked()
            for _ in range(3):
                began = anyio.current_time()
                assert await query(queries, b"[1,2]", Select("@[1]", 99, "", ""), "alice") == b"2"
                assert anyio.current_time() - began < 5 * slowness()
            tasks.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("pattern", ["[a-z]{1,100}" * 200, r"\pL" * 2_000, "(a?){500}a{500}"])
async def test_a_pattern_of_very_many_steps_does_not_stall_others(pattern: str) -> None:
    mirror = Mirror()

    @mirror.tool
    def text() -> str:
        return "a" * 60_000

    async with mirror:
        path = (await mirror.call("text_mirrored", {})).path
        await mirror.call("memory_query", {"memory_path": path, "expression": "@"})  # starts a worker process
        search = mirror.call("memory_grep", {"memory_path": path, "pattern": pattern})
        assert await measure_pause(search) < STALL * slowness()


@pytest.mark.slow
@pytest.mark.timeout(60)
async def test_matches_deep_in_a_small_value_do_not_stall_others() -> None:
    mirror = Mirror()

    @mirror.tool
    def nested() -> list[Any]:
        return [json.loads("[" * 300 + '"text"' + "]" * 300)] * 85

    async with mirror:
        path = (await mirror.call("nested_mirrored", {})).path
        pauses = [await measure_pause(mirror.call("memory_grep", {"memory_path": path, "pattern": "t"})) for _ in "123"]
        assert min(pauses) < 0.1 * slowness()


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("inner", ['"text"', "null", '"text-3f2b8c1e-9d4a-4e7b-8f21-0a1b2c3d4e5f"'])
async def test_deep_arguments_do_not_stall_others(inner: str) -> None:
    mirror = Mirror()

    @mirror.tool
    def text(rows: list[int]) -> str:
        return str(rows)

    deep = '{"a":' * 300 + inner + "}" * 300
    async with mirror:
        rows = {"rows": [json.loads(deep)] * 50}
        assert await measure_pause(mirror.call("text_mirrored", rows)) < STALL * slowness()


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("argument", ["rows", "text"])
async def test_small_arguments_of_deep_arrays_do_not_stall_others(argument: str) -> None:
    mirror = Mirror()

    @mirror.tool
    def join(rows: list[int], text: str) -> str:
        return f"{text}{rows}"

    deep = json.loads("[" * 150 + '"text"' + "]" * 150)
    async with mirror:
        arguments = {"rows": [], "text": "", argument: [deep] * 100}
        pauses = [await measure_pause(mirror.call("join_mirrored", arguments)) for _ in range(3)]
        assert min(pauses) < 0.1 * slowness()  # a stall of this call is in each of them, one of the machine is not


EDITS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "often": ({"rows": ["a"] * 300}, {"old_text": "a", "new_text": "TEXT", "all": True}, "would have 2.4 GB"),
    "once": ("text", {"old_text": "text", "new_text": "QUOTES"}, "text, 57 MB"),
}
"""The edited value, the edit with the name of the value that it inserts, and a part of the answer."""


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", EDITS)
async def test_an_edit_that_inserts_a_large_value_does_not_stall_others(kind: str) -> None:
    mirror = Mirror()
    edited, edit, expected = EDITS[kind]
    async with mirror:
        path = await mirror.put(edited)
        inserted = await mirror.put({"often": "b c " * 2_000_000, "once": ['"' * 27] * 1_000_000}[kind])
        arguments = json.loads(re.sub("TEXT|QUOTES", inserted, json.dumps(edit)))
        answers: list[str] = []

        async def run() -> None:
            answers.append((await mirror.call("memory_edit", {"memory_path": path, **arguments})).text)

        assert await measure_pause(run()) < STALL * slowness()
        assert expected in answers[0]
