"""Queries of values: the same result inline, in a thread and in a worker process, within a deadline."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
from recording_watchdog import RecordingWatchdog
from refused_processes import refuse_processes
from removed_files import wait_until_empty
from tests.load import find_longest_stall

from mcp_mirror.errors import RefusalReason, ToolError
from mcp_mirror.payload.spool import Spool
from mcp_mirror.query.grep import Search
from mcp_mirror.query.select import Select
from mcp_mirror.query.shape import Shape
from mcp_mirror.query.windows import Budget
from mcp_mirror.settings.policies import WirePolicy
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.system.event_loop import MeasuredLoop, measure_stalls
from mcp_mirror.tokens import estimate_tokens
from mcp_mirror.types import Buffer, FileSpan, Span
from mcp_mirror.workers.pool import TaskError
from mcp_mirror.workers.queries import QueryRunner, build_failure

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SECONDS = 20.0
LARGE = b'"' + b"line\n".replace(b"\n", b"\\n") * 2_000_000 + b'the needle"'
NEEDLE = Search("needle", 0, 0, 9, Budget(1000, 1000, estimate_tokens))


@pytest.fixture
async def queries(child_watchdog: RecordingWatchdog, tmp_path: Path) -> AsyncIterator[QueryRunner]:
    with Spool(WirePolicy(), tmp_path / "spool") as spool:
        async with aclosing(QueryRunner(child_watchdog, spool)) as opened:
            yield opened
        wait_until_empty(spool.directory)


async def select(queries: QueryRunner, blob: bytes, file: FileSpan | None, expression: str) -> bytes:
    async with queries.run_in_worker(blob, file, Select(expression, 1 << 30, "", ""), SECONDS, "alice") as found:
        return bytes(found)


def filed(tmp_path: Path, blob: bytes) -> FileSpan:
    path = tmp_path / "value"
    path.write_bytes(b"before" + blob + b"behind")
    return FileSpan(str(path), Span(6, len(blob)))


async def test_the_result_is_the_same_wherever_a_query_runs(queries: QueryRunner, tmp_path: Path) -> None:
    line = "2000000: the needle"
    assert await queries.run(LARGE, None, NEEDLE, SECONDS, "alice") == line
    assert await queries.run(LARGE, filed(tmp_path, LARGE), NEEDLE, SECONDS, "alice") == line
    assert await queries.run(b'"the needle"', None, NEEDLE, SECONDS, "alice") == "0: the needle"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("MemoryError", "The query needs more memory than one query may have."),
        ("ZeroDivisionError", "The query failed: ZeroDivisionError."),
    ],
)
def test_the_error_of_a_failed_query_names_the_next_step(error: str, reason: str) -> None:
    failure = build_failure(TaskError(error), SECONDS, "Query a smaller part of the value.")
    assert str(failure) == f"{reason} Query a smaller part of the value."


async def test_a_costly_query_of_a_small_value_runs_in_a_worker_process(
    queries: QueryRunner, child_watchdog: RecordingWatchdog
) -> None:
    for cost, started in ((1 << 20, 0), (1 << 24, 1)):
        found = await queries.run(b'"the needle"', None, NEEDLE, SECONDS, "alice", cost=cost)
        assert (found, len(child_watchdog.added)) == ("0: the needle", started)


@pytest.mark.parametrize(("members", "started"), [(50_000, 0), (110_000, 1)])
async def test_an_object_with_very_many_members_is_queried_in_a_worker_process(
    queries: QueryRunner, child_watchdog: RecordingWatchdog, members: int, started: int
) -> None:
    """A thread that decodes them keeps the interpreter lock for the whole time."""
    blob = json.dumps({f"key {number}": "the needle" for number in range(members)}).encode()
    found = await queries.run(blob, None, Shape(NEEDLE.budget), SECONDS, "alice")
    assert found.startswith(f"object, {members:,} keys")
    assert len(child_watchdog.added) == started


@pytest.mark.parametrize("size", [10, 70_000, 1_000_000])
@pytest.mark.parametrize("place", ["in a file", "in memory", "in a file that was removed"])
async def test_an_expression_selects_from_values_of_any_size_and_place(
    queries: QueryRunner, tmp_path: Path, size: int, place: str
) -> None:
    blob = b'{"a":"%b","b":1}' % (b"x" * size)
    file = None if place == "in memory" else filed(tmp_path, blob)
    if file and "removed" in place:
        Path(file.path).unlink()
    assert await select(queries, blob, file, "b") == b"1"
    assert await select(queries, blob, file, "a") == blob[5:-7]


async def test_an_expression_is_evaluated_if_the_disk_cannot_be_used(child_watchdog: RecordingWatchdog) -> None:
    blob = b'{"a":"%b","b":1}' % (b"x" * 1_000_000)
    with Spool(WirePolicy()) as spool:
        spool.directory.rmdir()
        async with aclosing(QueryRunner(child_watchdog, spool)) as queries:
            assert await select(queries, blob, None, "b") == b"1"
            assert await select(queries, blob, None, "a") == blob[5:-7]


async def test_a_query_succeeds_after_its_file_was_removed(queries: QueryRunner, tmp_path: Path) -> None:
    nowhere = FileSpan(str(tmp_path / "gone"), Span(0, len(LARGE)))
    assert await queries.run(LARGE, nowhere, NEEDLE, SECONDS, "alice") == "2000000: the needle"


async def test_errors_are_the_same_wherever_a_query_runs(queries: QueryRunner, tmp_path: Path) -> None:
    wrong = Search("(", 0, 0, 9, Budget(1000, 1000, estimate_tokens))
    for file in (None, filed(tmp_path, LARGE)):
        with pytest.raises(ToolError, match="not a valid RE2 expression"):
            await queries.run(LARGE, file, wrong, SECONDS, "alice")


class Dying:
    """A query that ends the process that reads it."""

    def __call__(self, _blob: Buffer, _is_over: object) -> bytes:
        return b""

    def __reduce__(self) -> tuple[object, ...]:
        return os._exit, (1,)


async def test_a_worker_that_dies_or_hangs_fails_one_query(
    queries: QueryRunner, child_watchdog: RecordingWatchdog, tmp_path: Path
) -> None:
    file = filed(tmp_path, LARGE)
    with pytest.raises(ToolError, match="died"):
        await queries.run(LARGE, file, Dying(), SECONDS, "alice")
    assert await queries.run(LARGE, file, NEEDLE, SECONDS, "alice") == "2000000: the needle"
    os.kill(child_watchdog.added[-1], signal.SIGSTOP)
    with pytest.raises(ToolError, match=r"longer than 0\.1 s"):
        await queries.run(LARGE, file, NEEDLE, 0.1, "alice")
    assert await queries.run(LARGE, file, NEEDLE, SECONDS, "alice") == "2000000: the needle"


async def test_a_query_without_a_free_file_handle_names_the_cause(
    queries: QueryRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_processes(monkeypatch)
    with pytest.raises(ToolError, match=r"cannot start: the gateway has no free file handle.*`ulimit -n`"):
        await queries.run(LARGE, filed(tmp_path, LARGE), NEEDLE, SECONDS, "alice")


async def test_a_cancelled_query_does_not_affect_the_next(queries: QueryRunner, tmp_path: Path) -> None:
    file = filed(tmp_path, LARGE)
    await queries.run(LARGE, file, NEEDLE, SECONDS, "alice")
    with anyio.move_on_after(0.001):
        await queries.run(LARGE, file, Search("line", 0, 0, 9, Budget(9, 9, estimate_tokens)), SECONDS, "alice")
    assert await queries.run(LARGE, file, NEEDLE, SECONDS, "alice") == "2000000: the needle"
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(queries.run, LARGE, file, NEEDLE, SECONDS, "alice")


async def test_a_query_for_which_no_process_is_free_is_refused_as_busy(
    queries: QueryRunner, child_watchdog: RecordingWatchdog, tmp_path: Path
) -> None:
    file = filed(tmp_path, LARGE)
    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(queries.run, LARGE, file, NEEDLE, SECONDS, "alice")
    for pid in child_watchdog.added:
        os.kill(pid, signal.SIGSTOP)
    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(queries.run, LARGE, file, NEEDLE, SECONDS, "alice")
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(ToolError, match=r"Other queries have run for 0\.1 s") as refused:
            await queries.run(LARGE, file, NEEDLE, 0.1, "alice")
        tasks.cancel_scope.cancel()
    assert refused.value.reason is RefusalReason.BUSY


async def test_a_query_stopped_for_another_principal_is_refused_as_busy(
    queries: QueryRunner, child_watchdog: RecordingWatchdog, tmp_path: Path
) -> None:
    file, ended = filed(tmp_path, LARGE), list[RefusalReason | None]()

    async def hang(principal: str) -> None:
        with pytest.raises(ToolError, match="another principal was waiting") as refused:
            await queries.run(LARGE, file, NEEDLE, SECONDS, principal)
        ended.append(refused.value.reason)

    async with anyio.create_task_group() as tasks:
        for principal in ("mallory", "mallory", "trudy"):
            tasks.start_soon(queries.run, LARGE, file, NEEDLE, SECONDS, principal)
    for pid in child_watchdog.added:
        os.kill(pid, signal.SIGSTOP)
    async with anyio.create_task_group() as tasks:
        for principal in ("mallory", "mallory", "trudy"):
            tasks.start_soon(hang, principal)
        await anyio.wait_all_tasks_blocked()
        assert await queries.run(LARGE, file, NEEDLE, SECONDS, "alice") == "2000000: the needle"
        assert ended == [RefusalReason.BUSY]
        tasks.cancel_scope.cancel()


@pytest.mark.alone
@pytest.mark.skipif(sys.platform == "win32", reason="no loop is measured there")
def test_queries_do_not_block_the_event_loop(tmp_path: Path) -> None:
    written = filed(tmp_path, LARGE)  # not in the loop: a busy disk makes the test wait

    async def ask() -> float:
        """Return the longest stall while the spool is open: the disk may be busy when it is removed."""
        measure_stalls()
        with ChildWatchdog() as child_watchdog, Spool(WirePolicy(), tmp_path / "spool") as spool:
            async with aclosing(QueryRunner(child_watchdog, spool)) as queries:
                for file in (None, written):
                    await queries.run(LARGE, file, NEEDLE, SECONDS, "alice")
                return await find_longest_stall()

    with asyncio.Runner(loop_factory=MeasuredLoop) as runner:
        longest = runner.run(ask())
    assert longest < 0.2


@pytest.mark.alone
@pytest.mark.skipif(sys.platform == "win32", reason="no loop is measured there")
def test_an_expression_on_200_mb_does_not_block_the_event_loop(tmp_path: Path) -> None:
    blob = b'{"a":"%b","b":1}' % (b"x" * (200 << 20))

    async def ask() -> float:
        """Return the longest stall while the spool is open: the disk may be busy when it is removed."""
        with ChildWatchdog() as child_watchdog, Spool(WirePolicy(), tmp_path / "spool") as spool:
            async with aclosing(QueryRunner(child_watchdog, spool)) as queries:
                await select(queries, b"1", None, "@")
                measure_stalls()
                for expression, size in (("b", 1), ("a", (200 << 20) + 2)):
                    async with queries.run_in_worker(
                        blob, None, Select(expression, 1 << 30, "", ""), 5 * SECONDS, "alice"
                    ) as found:
                        assert len(found) == size
                return await find_longest_stall()

    with asyncio.Runner(loop_factory=MeasuredLoop) as runner:
        longest = runner.run(ask())
    assert longest < 0.2


async def test_long_queries_of_one_principal_leave_threads_to_others(queries: QueryRunner) -> None:
    text = b'"%b"' % (b"x" * 100_000)
    is_over, running = threading.Event(), threading.Semaphore(0)

    def hang(_blob: Buffer, _is_over: object) -> bytes:
        running.release()
        is_over.wait(60)
        return b""

    async with anyio.create_task_group() as tasks:
        for _ in range(60):
            tasks.start_soon(queries.run, text, None, hang, SECONDS, "mallory")
        try:
            await anyio.to_thread.run_sync(running.acquire)
            with anyio.fail_after(30):
                assert await queries.run(text, None, lambda blob, _: blob[:2], SECONDS, "alice") == b'"x'
        finally:
            is_over.set()
