"""Runs SQL queries over values in worker processes.

The gateway kills a process at the deadline and when the call is cancelled. Other queries have other processes, since
DuckDB keeps memory after a query. Large values and results cross as files, so that the event loop copies none of them.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import msgspec

from mcp_mirror.payload.spool import Spool
from mcp_mirror.query.sql import import_database, run_sql
from mcp_mirror.query.sql_errors import SqlFailure
from mcp_mirror.query.sql_files import TableSource
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.system.mapped_files import FileRemovedError, map_span
from mcp_mirror.types import Buffer, FileSpan
from mcp_mirror.workers.pool import DeadlineError, PoolError, PoolSize, TransientPoolError, WorkerPool
from mcp_mirror.workers.queries import build_failure
from mcp_mirror.workers.transfer import TransferFiles

_SIZE: Final = PoolSize(processes=3, per_principal=2, memory=2 << 30)
_ADVICE: Final = "Use parts of the values, filter before you join, or group."


class TableValue(msgspec.Struct, frozen=True):
    """A value that becomes a table."""

    name: str
    blob: Buffer
    """JSON text."""
    file: FileSpan | None = None
    """A file with the same bytes."""
    is_media: bool = False
    """The value is a content block."""


class SqlCall(msgspec.Struct, frozen=True):
    """One query, with its limits."""

    sql: str
    tables: Sequence[TableValue]
    principal: str
    """The caller. Principals share the worker processes fairly."""
    seconds: float
    max_bytes: int
    """Bytes of the largest result."""


class SqlWorkers:
    """The pool of worker processes."""

    def __init__(self, child_watchdog: ChildWatchdog) -> None:
        self._pool = WorkerPool(child_watchdog, _SIZE, import_database)

    @asynccontextmanager
    async def run(self, call: SqlCall, spool: Spool) -> AsyncIterator[Buffer | SqlFailure]:
        """Run a query. Yields the rows, a JSON array of objects, or the failure; ToolError if no process is free."""
        with TransferFiles(spool) as files:
            result_file = files.new_result_path()
            try:
                answer = await self._run(call, await _place_values(call.tables, files), result_file)
            except FileRemovedError:
                unfiled = [msgspec.structs.replace(one, file=None) for one in call.tables]
                answer = await self._run(call, await _place_values(unfiled, files), result_file)
            yield answer if isinstance(answer, SqlFailure) else map_span(answer)

    async def aclose(self) -> None:
        """Stop the worker processes."""
        await self._pool.aclose()

    async def _run(
        self, call: SqlCall, tables: tuple[TableSource, ...], result_file: str
    ) -> FileSpan | bytes | SqlFailure:
        job = partial(run_sql, call.sql, tables, call.max_bytes, result_file)
        try:
            return await self._pool.run(call.principal, job, call.seconds, call.seconds)
        except PoolError as error:
            failure = build_failure(error, call.seconds, _ADVICE)
            if isinstance(error, TransientPoolError):
                raise failure from None
            kind = "Timeout" if isinstance(error, DeadlineError) else "WorkerDied"
            return SqlFailure(str(failure), kind, is_limit=True)


async def _place_values(tables: Sequence[TableValue], files: TransferFiles) -> tuple[TableSource, ...]:
    """Return the tables as the worker process gets them."""
    return tuple([TableSource(one.name, await files.place(one.blob, one.file), one.is_media) for one in tables])
