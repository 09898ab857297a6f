"""The jobs of the query runner. They run in worker processes, so this module imports nothing that jobs do not use."""

import gc
import pickle
import sys
from collections.abc import Callable
from contextlib import nullcontext
from time import monotonic
from typing import Any, Final, Protocol, TypeVar

from mcp_mirror.errors import ToolError
from mcp_mirror.query.indexes import keep_indexes
from mcp_mirror.system.mapped_files import map_sent
from mcp_mirror.types import Buffer, FileSpan
from mcp_mirror.workers.child import put_in_file

Answer_co = TypeVar("Answer_co", covariant=True)

_INLINE_BYTES: Final = 1 << 18
"""Bytes of a result above which it is written to a file."""


class Query(Protocol[Answer_co]):
    """A query of a value. It and its result can be pickled.

    A query that does not check its deadline needs `QueryRunner.run_in_worker`: nothing else can stop it.
    """

    def __call__(self, blob: Buffer, is_over: Callable[[], bool], /) -> Answer_co:
        """Run the query; `is_over` is true after its deadline."""


def run_query_job(
    value: FileSpan | bytes, query: FileSpan | bytes, seconds: float, result_file: str
) -> FileSpan | bytes:
    """Run a pickled query in the worker process, and return its result; a large one is written to `result_file`.

    Raises:
        ToolError: The query failed.
        FileRemovedError: The file of the value no longer exists.
    """
    sys.set_int_max_str_digits(0)  # only in this process, which is killed if a conversion takes too long
    gc.disable()  # parsed values have no cycles, and the collector would visit them again and again
    try:
        unpickled: Query[bytes] = pickle.loads(map_sent(query))  # noqa: S301  # of the gateway
        blob = map_sent(value)
        with keep_indexes(value, blob) if isinstance(value, FileSpan) else nullcontext():
            result = run_query(blob, unpickled, seconds)
    finally:
        gc.enable()
    return put_in_file(result, result_file, _INLINE_BYTES)


def pickle_result(query: Query[Any], blob: Buffer, is_over: Callable[[], bool]) -> bytes:
    """Run a query and pickle its result."""
    return pickle.dumps(query(blob, is_over))


def run_query(blob: Buffer, query: Query[Answer_co], seconds: float) -> Answer_co:
    """Run a query with its deadline in seconds; ToolError if it fails, or the value is too large or nested too deep."""
    end = monotonic() + seconds
    try:
        return query(blob, lambda: monotonic() > end)
    except RecursionError:
        raise ToolError("The value is nested too deep for this query. Query a path below it.") from None
    except MemoryError:
        raise ToolError(
            "The query takes too much memory. Query a smaller part of the value, or request fewer results."
        ) from None
