"""Sessions that the gateway ends."""

from itertools import pairwise

import anyio
import anyio.lowlevel
import pytest

from mcp_mirror.server.sessions import Sessions


async def test_a_session_that_cannot_be_closed_does_not_keep_others_open(caplog: pytest.LogCaptureFixture) -> None:
    closed: list[str] = []

    async def close(key: str) -> None:
        if key == "a":
            raise RuntimeError("Task group is not initialized. Make sure to use run().")
        closed.append(key)

    sessions = Sessions(1.0, lambda: 0.0, lambda *_: None, 300.0, requires_auth=False)
    sessions.close = close
    for session_id in ("a", "b"):
        sessions.add_http_session("local", session_id)
        sessions.end(session_id)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sessions.run)
            await anyio.wait_all_tasks_blocked()
            assert not any(map(sessions.is_closing, ("a", "b")))
            sessions.add_http_session("local", "c")
            sessions.end("c")
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
    assert closed == ["b", "c"]
    assert "RuntimeError" in caplog.text


async def test_other_tasks_run_while_many_idle_sessions_end() -> None:
    now, keys, closed = 0.0, [f"{number}" for number in range(100)], set[str]()
    sessions = Sessions(1.0, lambda: now, lambda *_: None, 0.2, requires_auth=False)
    counts: list[int] = []

    async def close(key: str) -> None:
        await anyio.lowlevel.checkpoint()
        closed.add(key)

    async def watch() -> None:
        while len(closed) < len(keys):
            counts.append(len({key for key in keys if key in closed or sessions.is_closing(key)}))
            await anyio.lowlevel.checkpoint()

    sessions.close = close
    for key in keys:
        sessions.add_http_session("local", key)
    assert sessions.count("local") == 100
    now = 1.0
    assert sessions.count("local") == 0
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sessions.run)
            await watch()
            tasks.cancel_scope.cancel()
    assert max(later - earlier for earlier, later in pairwise([0, *counts, 100])) <= 16
