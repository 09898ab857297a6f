"""The worker pool: fair concurrency limits, deadlines and memory limits."""

from __future__ import annotations

import gc
import os
import sys
import time
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from clocks import PassTime
from recording_watchdog import RecordingWatchdog
from refused_processes import refuse_processes
from waiting import until

from mcp_mirror.errors import ToolError
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.workers.pool import (
    BusyPoolError,
    DeadlineError,
    PoolSize,
    PreemptedError,
    StartError,
    TaskError,
    WorkerDiedError,
    WorkerPool,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SLEEP = partial(time.sleep, 60)
ANSWER = partial(abs, -3)


@pytest.fixture
async def pool() -> AsyncIterator[WorkerPool]:
    with ChildWatchdog() as child_watchdog:
        async with aclosing(
            WorkerPool(child_watchdog, PoolSize(processes=3, per_principal=2, memory=1 << 30))
        ) as opened:
            yield opened


async def expect_preempted(pool: WorkerPool, principal: str, ended: list[str]) -> None:
    with pytest.raises(PreemptedError):
        await pool.run(principal, SLEEP, 60)
    ended.append(principal)


async def test_what_a_task_prints_does_not_reach_the_responses(pool: WorkerPool) -> None:
    assert await pool.run("alice", partial(os.write, 1, b"a progress bar"), 30) == 14
    assert await pool.run("alice", ANSWER, 30) == 3


@pytest.mark.parametrize("variable", [None, "PYTHONPATH"])
async def test_a_worker_imports_no_modules_of_the_users_folders(
    pool: WorkerPool, variable: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pickle", "msgspec"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError")
    if variable:
        monkeypatch.setenv(variable, str(tmp_path))
    else:
        monkeypatch.chdir(tmp_path)
    await pool.run("alice", partial(exec, "import msgspec"), 30)


async def test_one_principal_cannot_occupy_all_processes(pool: WorkerPool) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(pool.run, "mallory", SLEEP, 60)
        await anyio.wait_all_tasks_blocked()
        began = anyio.current_time()
        assert await pool.run("alice", ANSWER, 30) == 3
        assert await pool.run("alice", ANSWER, 30) == 3
        assert anyio.current_time() - began < 10
        tasks.cancel_scope.cancel()


async def test_a_long_task_is_preempted_for_another_principal(pool: WorkerPool) -> None:
    ended: list[str] = []
    async with anyio.create_task_group() as tasks:
        for principal in ("mallory", "mallory", "trudy"):
            tasks.start_soon(expect_preempted, pool, principal, ended)
        await anyio.wait_all_tasks_blocked()
        assert await pool.run("alice", ANSWER, 30) == 3
        assert len(ended) == 1
        for principal in ("bob", "carol", "dave"):
            tasks.start_soon(pool.run, principal, SLEEP, 60)
        await until(lambda: len(ended) >= 3)
        tasks.cancel_scope.cancel()


async def test_the_collector_seldom_interrupts_a_task_with_many_objects(pool: WorkerPool) -> None:
    count = "sum(one['collections'] for one in __import__('gc').get_stats())"
    task = partial(eval, f"-{count} + 0 * len([[] for _ in range(200_000)]) + {count}")
    assert await pool.run("alice", task, 30) < 10  # before: 300


async def test_a_task_past_its_deadline_is_killed(pool: WorkerPool) -> None:
    with pytest.raises(DeadlineError):
        await pool.run("alice", SLEEP, 0.1)
    assert await pool.run("alice", ANSWER, 5) == 3


async def test_a_deadline_does_not_count_the_start_of_a_process(tmp_path: Path, pass_time: PassTime) -> None:
    os.mkfifo(gate := tmp_path / "gate")
    wait_at_gate: Any = gate.read_bytes
    answers: list[int] = []

    async def ask(pool: WorkerPool) -> None:
        answers.append(await pool.run("alice", ANSWER, 15))

    with ChildWatchdog() as child_watchdog:
        async with (
            aclosing(WorkerPool(child_watchdog, PoolSize(1, 1), wait_at_gate)) as slow,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(ask, slow)
            await anyio.wait_all_tasks_blocked()
            await pass_time(20)
            await anyio.to_thread.run_sync(gate.write_bytes, b"")  # the process waits for this
    assert answers == [3]


async def test_the_error_of_a_task_is_raised(pool: WorkerPool) -> None:
    first = await pool.run("alice", os.getpid, 30)
    with pytest.raises(ToolError, match="one sentence"):
        await pool.run(
            "alice", partial(exec, "from mcp_mirror.errors import ToolError; raise ToolError('one sentence')"), 30
        )
    with pytest.raises(TaskError, match="ValueError"):
        await pool.run("alice", partial(int, "x"), 30)
    assert await pool.run("alice", os.getpid, 30) == first


async def test_a_task_over_the_memory_limit_fails(pool: WorkerPool) -> None:
    with pytest.raises(TaskError, match="MemoryError"):
        await pool.run("alice", partial(bytearray, 2 << 30), 30)
    assert await pool.run("alice", ANSWER, 30) == 3


async def test_a_task_that_ends_its_process_fails(pool: WorkerPool) -> None:
    with pytest.raises(WorkerDiedError):
        await pool.run("alice", partial(os.abort), 30)
    assert await pool.run("alice", ANSWER, 30) == 3


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not report the data of a process")
async def test_a_process_that_keeps_much_memory_is_replaced(pool: WorkerPool) -> None:
    first = await pool.run("alice", os.getpid, 30)
    assert await pool.run("alice", os.getpid, 30) == first
    await pool.run("alice", partial(exec, "import sys; sys.kept = bytearray(600 << 20)"), 30)
    assert await pool.run("bob", os.getpid, 30) != first


async def test_a_task_waits_no_longer_than_max_wait(pool: WorkerPool) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(pool.run, "alice", SLEEP, 60)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(BusyPoolError):
            await pool.run("alice", ANSWER, 5, 0.1)
        tasks.cancel_scope.cancel()
    assert await pool.run("alice", ANSWER, 5) == 3


async def test_a_cancelled_waiter_passes_its_place_on(pool: WorkerPool) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(pool.run, "alice", partial(time.sleep, 1), 60)
        await anyio.wait_all_tasks_blocked()
        with anyio.move_on_after(0.05):
            await pool.run("alice", ANSWER, 5)
        assert await pool.run("alice", ANSWER, 5) == 3


async def test_a_process_that_cannot_start_is_an_error_with_the_cause(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        refuse_processes(patched)
        for _ in range(5):
            with pytest.raises(StartError, match=r"no free file handle.*`ulimit -n`"):
                await pool.run("alice", ANSWER, 5)
    assert await pool.run("alice", ANSWER, 5) == 3


async def test_a_process_that_ends_at_its_start_is_an_error_with_advice() -> None:
    with ChildWatchdog() as child_watchdog:
        async with aclosing(WorkerPool(child_watchdog, PoolSize(1, 1), partial(os._exit, 1))) as pool:
            with pytest.raises(StartError, match=r"the process ended\. Check the limits"):
                await pool.run("alice", ANSWER, 5)


async def test_if_no_process_can_start_a_task_waits_for_one_in_use(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, the result that an upstream has sent would be lost."""
    async with anyio.create_task_group() as tasks, pool.reserve("bob") as run:
        assert await run(ANSWER, 30) == 3
        refuse_processes(monkeypatch)
        answers: list[int] = []

        async def ask() -> None:
            answers.append(await pool.run("alice", ANSWER, 30))

        for _ in range(5):
            tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(BusyPoolError):
            await pool.run("carol", ANSWER, 5, 0.01)
        assert answers == []
    assert answers == [3] * 5


@pytest.mark.parametrize("steps", range(9))
def test_a_process_whose_start_is_cancelled_is_closed(steps: int) -> None:
    async def cancel(scope: anyio.CancelScope) -> None:
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        scope.cancel()

    async def start_and_cancel() -> None:
        with RecordingWatchdog() as child_watchdog:
            async with aclosing(WorkerPool(child_watchdog, PoolSize(1, 1))) as pool, anyio.create_task_group() as tasks:
                tasks.start_soon(cancel, tasks.cancel_scope)
                await pool.run("alice", ANSWER, 30)
            for process in child_watchdog.added:
                with pytest.raises(ProcessLookupError):
                    os.kill(process, 0)

    anyio.run(start_and_cancel)
    gc.collect()  # reports pipes and processes that are still open
