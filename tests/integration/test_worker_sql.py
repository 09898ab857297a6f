"""SQL queries in worker processes: files of large values and results, deadlines, cancellation and fairness."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from recording_watchdog import RecordingWatchdog
from removed_files import wait_until_empty
from tests.load import find_longest_stall
from worker_texts import ReportedText

from mcp_mirror.payload.spool import Spool
from mcp_mirror.query.sql_errors import SqlFailure
from mcp_mirror.settings.policies import WirePolicy
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.system.event_loop import MeasuredLoop, measure_stalls
from mcp_mirror.types import FileSpan, Span
from mcp_mirror.workers.sql import SqlCall, SqlWorkers, TableValue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

pytest.importorskip("duckdb")

SECONDS = 30.0
SLOW = "SELECT sum(a.range * b.range % 7) AS n FROM range(1000000) a, range(1000000) b"
BLOB = json.dumps([{"id": number, "text": "x" * 50} for number in range(20_000)]).encode()
COUNT = "SELECT count(*) AS n FROM t"


@pytest.fixture
async def workers(child_watchdog: RecordingWatchdog) -> AsyncIterator[SqlWorkers]:
    async with aclosing(SqlWorkers(child_watchdog)) as opened:
        yield opened


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    with Spool(WirePolicy(), tmp_path / "spool") as opened:
        yield opened
        wait_until_empty(opened.directory)


def asked(sql: str, file: FileSpan | None = None, seconds: float = SECONDS, principal: str = "ann") -> SqlCall:
    return SqlCall(sql, [TableValue("t", BLOB, file)], principal, seconds, 1 << 28)


async def rows(workers: SqlWorkers, spool: Spool, call: SqlCall) -> Any:
    async with workers.run(call, spool) as answer:
        return answer if isinstance(answer, SqlFailure) else json.loads(bytes(answer))


async def test_a_value_is_sent_or_read_from_its_file_or_from_a_new_one(
    workers: SqlWorkers, spool: Spool, tmp_path: Path
) -> None:
    path = tmp_path / "value"
    path.write_bytes(b"before" + BLOB + b"behind")
    part = FileSpan(str(path), Span(6, len(BLOB)))
    for file in (None, part, FileSpan(str(tmp_path / "gone"), Span(0, len(BLOB)))):
        assert await rows(workers, spool, asked(COUNT, file)) == [{"n": 20_000}]
    small = SqlCall(COUNT, [TableValue("t", b"[1,2]")], "ann", SECONDS, 1000)
    assert await rows(workers, spool, small) == [{"n": 2}]


GREEDY = (
    "WITH RECURSIVE t(s) AS (SELECT 'a' UNION ALL SELECT s || s FROM t) SELECT max(length(s)) FROM t",
    "SELECT list(range) FROM range(1000000000)",
    "SELECT regexp_replace(repeat('a', 10000000), 'a', repeat('b', 1000), 'g')",
)


@pytest.mark.slow
async def test_queries_that_need_too_much_memory_leave_it_to_later_ones(workers: SqlWorkers, spool: Spool) -> None:
    wide = f"SELECT {', '.join(f'1 AS c{number}' for number in range(9000))}"
    for sql in GREEDY:
        found = await rows(workers, spool, asked(sql, seconds=4 * SECONDS))
        assert found.kind == "OutOfMemoryException", found
        assert await rows(workers, spool, asked(wide, principal="bob")) == [{f"c{n}": 1 for n in range(9000)}]


async def test_a_large_result_comes_as_a_file_that_is_removed(workers: SqlWorkers, spool: Spool) -> None:
    async with workers.run(asked("FROM t, range(3)"), spool) as answer:
        assert isinstance(answer, memoryview)
        assert len(json.loads(bytes(answer))) == 60_000


async def test_a_small_result_needs_no_folder_for_files(workers: SqlWorkers, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with Spool(WirePolicy(), tmp_path / "file" / "spool") as spool:
        assert await rows(workers, spool, asked(COUNT)) == [{"n": 20_000}]
        found = await rows(workers, spool, asked("SELECT t.* FROM t, range(20)"))
    assert isinstance(found, SqlFailure)
    assert "cannot be written to the gateway's disk" in found.message


async def test_a_query_that_never_ends_is_killed_and_names_the_limit(
    workers: SqlWorkers, spool: Spool, child_watchdog: RecordingWatchdog
) -> None:
    found = await rows(workers, spool, asked(SLOW, seconds=0.5))
    assert isinstance(found, SqlFailure)
    assert found.is_limit
    assert "longer than 0.5 s (`memory_tools.timeout`)" in found.message
    with pytest.raises(ProcessLookupError):
        os.kill(child_watchdog.added[-1], 0)
    assert await rows(workers, spool, asked(COUNT)) == [{"n": 20_000}]


async def test_a_cancelled_query_ends_with_its_process(
    workers: SqlWorkers, spool: Spool, child_watchdog: RecordingWatchdog, tmp_path: Path
) -> None:
    query = ReportedText(SLOW, tmp_path / "pipe")
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(rows, workers, spool, asked(query))
            await query.wait_for_arrival()
            tasks.cancel_scope.cancel()
    with pytest.raises(ProcessLookupError):
        os.kill(child_watchdog.added[-1], 0)
    assert await rows(workers, spool, asked(COUNT)) == [{"n": 20_000}]


async def test_a_worker_that_dies_fails_one_query(
    workers: SqlWorkers, spool: Spool, child_watchdog: RecordingWatchdog, tmp_path: Path
) -> None:
    query = ReportedText(SLOW, tmp_path / "pipe")

    async def kill() -> None:
        await query.wait_for_arrival()
        os.kill(child_watchdog.added[-1], signal.SIGKILL)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kill)
        found = await rows(workers, spool, asked(query))
    assert isinstance(found, SqlFailure)
    assert "died during the query" in found.message
    assert await rows(workers, spool, asked(COUNT)) == [{"n": 20_000}]


@pytest.mark.slow
async def test_memory_of_a_query_is_free_for_the_next_one(workers: SqlWorkers, spool: Spool) -> None:
    for _ in range(3):
        greedy = "SELECT list(a.range) AS x FROM range(100000) a, range(100000) b"
        found = await rows(workers, spool, asked(greedy, seconds=4 * SECONDS))
        assert isinstance(found, SqlFailure)
        assert "1,024 MiB" in found.message
        large = "SELECT sum(len(x)) AS n FROM (SELECT repeat(text, 200) AS x FROM t)"
        assert await rows(workers, spool, asked(large)) == [{"n": 200_000_000}]


async def test_a_principal_with_long_queries_does_not_delay_another(workers: SqlWorkers, spool: Spool) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(rows, workers, spool, asked(SLOW))
        with anyio.fail_after(SECONDS):
            assert await rows(workers, spool, asked(COUNT, principal="bob")) == [{"n": 20_000}]
        tasks.cancel_scope.cancel()


@pytest.mark.alone
@pytest.mark.skipif(sys.platform == "win32", reason="no loop is measured there")
def test_values_over_100_mb_do_not_block_the_event_loop(tmp_path: Path) -> None:
    row = b'{"id":%d,"name":"a name of some length","city":"Bonn","cents":%d},'
    blob = b"[" + b"".join(row % (number, number % 1000) for number in range(1_500_000))[:-1] + b"]"
    assert len(blob) > 100e6

    async def ask() -> float:
        """Return the longest stall while the spool is open: the disk may be busy when it is removed."""
        with ChildWatchdog() as child_watchdog, Spool(WirePolicy(), tmp_path / "spool") as spool:
            async with aclosing(SqlWorkers(child_watchdog)) as workers:
                call = SqlCall("FROM t WHERE id % 2 = 0", [TableValue("t", blob)], "ann", 120, 1 << 28)
                await rows(workers, spool, asked(COUNT))
                measure_stalls()
                async with workers.run(call, spool) as answer:
                    assert not isinstance(answer, SqlFailure), answer
                    assert len(answer) > 50e6
                    assert bytes(answer[-70:]).endswith(b'"cents":998}]')
                return await find_longest_stall()

    with asyncio.Runner(loop_factory=MeasuredLoop) as runner:
        longest = runner.run(ask())
    assert longest < 0.2
