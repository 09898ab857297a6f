"""A gateway whose wall clock is set back and forth (libfaketime; Debian: `apt-get install faketime`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from samples import sample
from tests.hostile.sessions import Session, children
from waiting import until

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Configured, Serve

LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
VALUE = json.dumps({"content": [], "structuredContent": {"a": "x" * 9000}})
pytestmark = [
    pytest.mark.skipif(not LIBRARIES, reason="libfaketime is not installed"),
    pytest.mark.executable,  # a preloaded library works from the start of a process on
]


async def describe(session: Session, path: str) -> str:
    result = await session.result("tools/call", {"name": "memory_describe", "arguments": {"memory_path": path}})
    return str(result["content"][0]["text"])


@pytest.mark.parametrize("kind", sample(["memory", "disk"], "disk".__eq__))
async def test_a_clock_that_jumps_ends_no_session_and_loses_no_value_in_use(
    kind: str, configured: Configured, serve: Serve, raw: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = tmp_path / "clock"
    clock.write_text("+0")
    monkeypatch.setenv("LD_PRELOAD", str(LIBRARIES[0]))
    monkeypatch.setenv("FAKETIME_TIMESTAMP_FILE", str(clock))
    monkeypatch.setenv("FAKETIME_NO_CACHE", "1")
    monkeypatch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
    config = configured({"one": raw()}, store={"kind": kind, "ttl": 86_400}, server={"session_idle": 120})
    async with serve(config) as served, httpx2.AsyncClient() as http:
        session = await Session.open(http, served.url)

        async def store() -> str:
            return (await session.call("say_mirrored", result=VALUE)).splitlines()[0].strip('"')

        first = await store()
        before = children(served.process.pid)
        clock.write_text("-1d")  # as when a wrong clock is corrected
        assert "object" in await describe(session, first)
        second = await store()
        clock.write_text("-12h")
        assert "object" in await describe(session, second)
        clock.write_text("+0")
        assert "object" in await describe(session, first)
        assert "object" in await describe(session, second)
        clock.write_text("+10d")
        assert "expired" in await describe(session, first)
        third = await store()
        assert "object" in await describe(session, third)
        clock.write_text("+9d")
        assert "object" in await describe(session, third)
        assert "Result ends." in await session.call("hear_mirrored")
        assert children(served.process.pid) == before
        await session.delete()  # timers use the monotonic clock, and continue
        await until(lambda: len(children(served.process.pid)) == 1)
