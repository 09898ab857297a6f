"""Calls of tools that run only as tasks (MCP 2025-11-25, "Tasks"), with the results of ordinary calls.

The session begins such a call as a task, waits for its end, and takes its result. Messages about the task have the
token of the call, as those about an ordinary call, so clients need not know tasks.
"""

from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from typing import Any, Final

import anyio
import mcp_types as types
import msgspec
from mcp import MCPError

from mcp_mirror.payload.json_rpc import decode_as, object_of, open_object
from mcp_mirror.types import Buffer
from mcp_mirror.upstreams.transports.payloads import PayloadBypass
from mcp_mirror.upstreams.transports.requests import (
    MisdirectedResponseError,
    PausableTimeout,
    PendingRequest,
    RequestTimeoutError,
    UnknownSessionError,
)

_SHORTEST_INTERVAL: Final = 0.05
"""Seconds between two requests for the state of a task, at least."""
_LONGEST_INTERVAL: Final = 10.0
"""Seconds between two such requests, at most."""
_INTERVAL: Final = 1000.0
"""Milliseconds between two such requests if the server names no interval."""
_FASTMCP: Final = "modelcontextprotocol.io/task"
"""The member of `_meta` in which FastMCP 2 returns a task."""
_CANCEL_TIMEOUT: Final = 2.0
"""Seconds that the cancellation of a task may take."""
_SHORTEST_TTL: Final = 3600.0
"""Seconds for which the server should keep a task, at least: a user may take time to answer its input requests."""
_FAILURES: Final = (MCPError, RequestTimeoutError, UnknownSessionError, MisdirectedResponseError)


def find_task_tools(tools: Iterable[Mapping[str, Any]], capabilities: types.ServerCapabilities) -> frozenset[str]:
    """Return the names of the tools that run only as tasks."""
    tasks = capabilities.tasks
    if tasks is None or tasks.requests is None or tasks.requests.tools is None or tasks.requests.tools.call is None:
        return frozenset()
    return frozenset(str(tool.get("name")) for tool in tools if _requires_task(tool.get("execution")))


def _requires_task(execution: object) -> bool:
    return isinstance(execution, Mapping) and execution.get("taskSupport") == "required"


async def run_as_task(
    bypass: PayloadBypass, pending: PendingRequest, limit: PausableTimeout, changes: dict[str, anyio.Event]
) -> None:
    """Send a tool call as a task, and wait for the result of the task.

    The outcome of `pending` is then that of the task. If the caller is cancelled or the timeout is over, cancel the
    task. `changes` has events by the id of a task, which the connection sets when the server announces a change.

    Raises:
        RequestTimeoutError: The timeout is over.
        MCPError: The task has failed, or the connection has ended.
        UnknownSessionError: The server does not know the session, and has not begun the task.
        MisdirectedResponseError: See `PayloadBypass.exchange`.
    """
    ttl = round(1000 * max(2 * limit.seconds, _SHORTEST_TTL))
    pending.params = (*pending.params[:-1], b',"task":{"ttl":%d}}' % ttl)  # after the name of the tool
    await bypass.exchange(pending, limit)
    task = _read_task(pending)
    if (task_id := decode_as(task.get("taskId"), str)) is None:  # the server has answered as to an ordinary call
        return
    pending.params = object_of({"taskId": msgspec.json.encode(task_id)})
    try:
        await _wait_for_end(bypass, pending, limit, changes, task_id)
        pending.method = "tasks/result"  # while input is required, the server requests it before it answers
        await bypass.exchange(pending, limit)
    except (RequestTimeoutError, anyio.get_cancelled_exc_class()):
        pending.method = "tasks/cancel"
        with anyio.CancelScope(shield=True), suppress(*_FAILURES), closing(PausableTimeout(_CANCEL_TIMEOUT)) as short:
            await bypass.exchange(pending, short)
        raise
    except UnknownSessionError:  # the server has begun the call, so it must not be repeated in a new session
        raise MCPError(types.CONNECTION_CLOSED, "Connection closed") from None
    finally:
        changes.pop(task_id, None)


async def _wait_for_end(
    bypass: PayloadBypass,
    pending: PendingRequest,
    limit: PausableTimeout,
    changes: dict[str, anyio.Event],
    task_id: str,
) -> None:
    """Wait until a task does not work any more: it has ended, or requires input."""
    interval, pending.method = 0.0, "tasks/get"
    status: str | None = "working"
    changed = anyio.Event()
    while status == "working":
        with limit.cancelling():
            await anyio.sleep(_SHORTEST_INTERVAL)
            with anyio.move_on_after(interval):
                await changed.wait()
        changed = changes[task_id] = anyio.Event()  # before the request: a change may arrive right after its answer
        await bypass.exchange(pending, limit)
        task = pending.outcome if isinstance(pending.outcome, dict) else {}
        status = decode_as(task.get("status"), str)
        interval = min((decode_as(task.get("pollInterval"), float) or _INTERVAL) / 1000, _LONGEST_INTERVAL)


def _read_task(pending: PendingRequest) -> Mapping[str, Buffer]:
    """Return the members of the task that a call has begun; empty if the outcome is that of an ordinary call."""
    outcome = pending.outcome if isinstance(pending.outcome, dict) else {}
    meta = open_object(outcome.get("_meta", b"null")) or {}
    return open_object(outcome.get("task", meta.get(_FASTMCP, b"null"))) or {}
