"""Runs queries of stored values: inline if the value is small, else in a thread or in a worker process.

A long query must neither delay other calls nor run without end. A query in a thread checks its deadline; a worker
process is killed. This module must not know the kinds of queries.
"""

import pickle
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, TypeVar

import anyio.to_thread

from mcp_mirror.errors import RefusalReason, ToolError
from mcp_mirror.payload.json_bounds import has_more_values
from mcp_mirror.payload.json_spans import kind_at, skip_space
from mcp_mirror.payload.spool import Spool
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.system.fair_threads import run_fairly
from mcp_mirror.system.mapped_files import map_span
from mcp_mirror.system.slices import run_by_size
from mcp_mirror.types import Buffer, FileSpan
from mcp_mirror.workers.pool import (
    BusyPoolError,
    DeadlineError,
    PoolError,
    PoolSize,
    PreemptedError,
    StartError,
    TaskError,
    WorkerPool,
)
from mcp_mirror.workers.query_jobs import Answer_co, Query, pickle_result, run_query, run_query_job
from mcp_mirror.workers.transfer import TransferFiles

Answer = TypeVar("Answer")

INLINE_BYTES: Final = 1 << 16
"""Bytes up to which a value is queried inline, in the event loop."""
_THREAD_BYTES: Final = 1 << 23
"""Bytes up to which a value is queried in a thread; a worker process queries larger ones."""
_THREAD_MEMBERS: Final = 100_000
"""Members and items of objects that are queried in a thread: while it decodes so many members, in about 25 ms, nothing
else runs. Items of arrays are decoded in pieces."""
_GRACE: Final = 1.0
"""Seconds that a worker process has after the deadline to return by itself."""
_SIZE: Final = PoolSize(processes=3, per_principal=2, memory=2 << 30)
"""The limit of one principal leaves a process for others. The memory limit does not count mapped files."""


class QueryRunner:
    """Runs queries inline, in threads or in worker processes."""

    def __init__(self, child_watchdog: ChildWatchdog, spool: Spool) -> None:
        """Create the runner. The spool gets large values without a file, and large results."""
        self._pool = WorkerPool(child_watchdog, _SIZE)
        self._spool = spool

    async def run(
        self,
        blob: Buffer,
        file: FileSpan | None,
        query: Query[Answer_co],
        seconds: float,
        principal: str,
        *,
        cost: int | None = None,
    ) -> Answer_co:
        """Run a query inline, in a thread or in a worker process, by the size of the value.

        `file` has the same bytes as the value. Principals share threads and worker processes fairly. `cost` is the size
        in bytes of a value with which an ordinary query takes as long; None: that of this value. A ToolError says why
        the query failed.
        """
        cost = len(blob) if cost is None else cost
        if cost <= INLINE_BYTES:
            return run_query(blob, query, seconds)
        is_large = cost > _THREAD_BYTES
        if not is_large and len(blob) > _THREAD_MEMBERS and kind_at(blob, skip_space(blob, 0)) == "object":
            is_large = await run_fairly(principal, has_more_values, blob, _THREAD_MEMBERS)
        if not is_large:
            return await run_fairly(principal, run_query, blob, query, seconds)
        async with self.run_in_worker(blob, file, partial(pickle_result, query), seconds, principal) as answer:
            return await run_by_size(len(answer), pickle.loads, answer, principal=principal)

    @asynccontextmanager
    async def run_in_worker(
        self, blob: Buffer, file: FileSpan | None, query: Query[bytes], seconds: float, principal: str
    ) -> AsyncIterator[Buffer]:
        """As `run`, but always in a worker process: for queries that do not check their deadline. Yields the result.

        A large query or result crosses in a file, which is removed when the context ends.
        """
        with TransferFiles(self._spool) as files:
            pickled = await files.place(await anyio.to_thread.run_sync(pickle.dumps, query))
            job = partial(run_query_job, query=pickled, seconds=seconds, result_file=files.new_result_path())
            answer = await files.run_with(partial(self._run_in_worker, job, seconds, principal), blob, file)
            yield await anyio.to_thread.run_sync(map_span, answer) if isinstance(answer, FileSpan) else answer

    async def aclose(self) -> None:
        """Stop the worker processes."""
        await self._pool.aclose()

    async def _run_in_worker(
        self, job: Callable[[FileSpan | bytes], Answer], seconds: float, principal: str, value: FileSpan | bytes
    ) -> Answer:
        try:
            return await self._pool.run(principal, partial(job, value), seconds + _GRACE, seconds + _GRACE)
        except PoolError as error:
            raise build_failure(error, seconds, "Query a smaller part of the value.") from None


def build_failure(error: PoolError, seconds: float, advice: str) -> ToolError:
    """Return the error of a query without a result: the cause, and what to try.

    `advice` is a sentence that says how to query less.
    """
    limit = f"{seconds:g} s (`memory_tools.timeout`)"
    if isinstance(error, BusyPoolError):
        return ToolError(f"Other queries have run for {limit}. Try again in a moment.", RefusalReason.BUSY)
    if isinstance(error, PreemptedError):
        reason = f"The query was stopped because another principal was waiting. {advice}"
        return ToolError(reason, RefusalReason.BUSY)
    if isinstance(error, DeadlineError):
        return ToolError(f"The query takes longer than {limit}. {advice}")
    if isinstance(error, TaskError):
        needs_memory = str(error) == MemoryError.__name__
        reason = "needs more memory than one query may have" if needs_memory else f"failed: {error}"
        return ToolError(f"The query {reason}. {advice}")
    if isinstance(error, StartError):
        return ToolError(f"The worker process for the query cannot start: {error}.")
    return ToolError(f"The worker process died during the query, perhaps at its memory limit. {advice}")
