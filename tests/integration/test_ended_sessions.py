"""Sessions that the gateway ends."""

import anyio
import pytest

from mcp_mirror.server.sessions import Sessions


async def test_a_session_that_cannot_be_closed_does_not_keep_others_open(caplog: pytest.LogCaptureFixture) -> None:
    closed: list[str] = []

    async def close(key: str) -> None:
        if key == "a":
            raise RuntimeError("Task group is not initialized. Make sure to use run().")
        closed.append(key)

    sessions = Sessions(1.0, lambda: 0.0, lambda *_: None)
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
