"""Queries of values: the same result inline, in a thread and in a worker process, within a deadline."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import aclosing
from typing import TYPE_CHECKING

import anyio
import pytest
from recording_watchdog import RecordingWatchdog

from mcp_mirror.errors import ToolError
from mcp_mirror.query.grep import Search
from mcp_mirror.query.windows import Budget
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.system.event_loop import MeasuredLoop, measure_stalls
from mcp_mirror.tokens import estimate_tokens
from mcp_mirror.types import FileSpan, Span
from mcp_mirror.workers.queries import QueryRunner

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

SECONDS = 20.0
LARGE = b'"' + b"line\n".replace(b"\n", b"\\n") * 2_000_000 + b'the needle"'
NEEDLE = Search("needle", 0, 0, 9, Budget(1000, 1000, estimate_tokens))


@pytest.fixture
def child_watchdog() -> Iterator[RecordingWatchdog]:
    with RecordingWatchdog() as child_watchdog:
        yield child_watchdog


@pytest.fixture
async def queries(child_watchdog: RecordingWatchdog) -> AsyncIterator[QueryRunner]:
    async with aclosing(QueryRunner(child_watchdog)) as opened:
        yield opened


def filed(tmp_path: Path, blob: bytes) -> FileSpan:
    path = tmp_path / "value"
    path.write_bytes(b"before" + blob + b"behind")
    return FileSpan(str(path), Span(6, len(blob)))


async def test_the_result_is_the_same_wherever_a_query_runs(queries: QueryRunner, tmp_path: Path) -> None:
    line = "2000000: the needle"
    assert await queries.run(LARGE, None, NEEDLE, SECONDS, "alice") == line
    assert await queries.run(LARGE, filed(tmp_path, LARGE), NEEDLE, SECONDS, "alice") == line
    assert await queries.run_in_worker(LARGE, filed(tmp_path, LARGE), NEEDLE, SECONDS, "alice") == line
    small = b'"the needle"'
    assert await queries.run(small, None, NEEDLE, SECONDS, "alice") == "0: the needle"
    assert await queries.run_in_worker(small, None, NEEDLE, SECONDS, "alice") == "0: the needle"


async def test_a_query_succeeds_after_its_file_was_removed(queries: QueryRunner, tmp_path: Path) -> None:
    nowhere = FileSpan(str(tmp_path / "gone"), Span(0, len(LARGE)))
    assert await queries.run(LARGE, nowhere, NEEDLE, SECONDS, "alice") == "2000000: the needle"
    assert await queries.run_in_worker(LARGE, nowhere, NEEDLE, SECONDS, "alice") == "2000000: the needle"


async def test_errors_are_the_same_wherever_a_query_runs(queries: QueryRunner, tmp_path: Path) -> None:
    wrong = Search("(", 0, 0, 9, Budget(1000, 1000, estimate_tokens))
    for file in (None, filed(tmp_path, LARGE)):
        with pytest.raises(ToolError, match="not a valid RE2 expression"):
            await queries.run(LARGE, file, wrong, SECONDS, "alice")


async def test_a_worker_that_dies_or_hangs_fails_one_query(
    queries: QueryRunner, child_watchdog: RecordingWatchdog, tmp_path: Path
) -> None:
    file = filed(tmp_path, LARGE)
    await queries.run(LARGE, file, NEEDLE, SECONDS, "alice")
    for sign, seconds, reason in ((signal.SIGKILL, SECONDS, "died"), (signal.SIGSTOP, 0.1, r"longer than 0\.1 s")):
        os.kill(child_watchdog.added[-1], sign)
        with pytest.raises(ToolError, match=reason):
            await queries.run(LARGE, file, NEEDLE, seconds, "alice")
        assert await queries.run(LARGE, file, NEEDLE, SECONDS, "alice") == "2000000: the needle"


async def test_a_cancelled_query_does_not_affect_the_next(queries: QueryRunner, tmp_path: Path) -> None:
    file = filed(tmp_path, LARGE)
    await queries.run(LARGE, file, NEEDLE, SECONDS, "alice")
    with anyio.move_on_after(0.001):
        await queries.run(LARGE, file, Search("line", 0, 0, 9, Budget(9, 9, estimate_tokens)), SECONDS, "alice")
    assert await queries.run(LARGE, file, NEEDLE, SECONDS, "alice") == "2000000: the needle"
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(queries.run, LARGE, file, NEEDLE, SECONDS, "alice")


@pytest.mark.skipif(sys.platform == "win32", reason="no loop is measured there")
def test_queries_do_not_block_the_event_loop(tmp_path: Path) -> None:
    loop = MeasuredLoop()

    async def ask() -> None:
        measure_stalls()
        with ChildWatchdog() as child_watchdog:
            async with aclosing(QueryRunner(child_watchdog)) as queries:
                for file in (None, filed(tmp_path, LARGE)):
                    await queries.run(LARGE, file, NEEDLE, SECONDS, "alice")

    try:
        loop.run_until_complete(ask())
    finally:
        loop.close()
    assert loop.stalls.longest < 0.2
