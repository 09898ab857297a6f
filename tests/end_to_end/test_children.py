"""The gateway's child processes and their children end with it, for every kind of end."""

from __future__ import annotations

import asyncio
import contextlib
import operator
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from process_tree import offspring, stat_of
from samples import sample
from tests.end_to_end.conftest import BOUND
from waiting import until

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Configured, OpenClient, OpenLines

pytestmark = [pytest.mark.posix, pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")]
SOON = 10.0
"""Seconds after which nothing may be left."""
SCANNER = "mcp_mirror.workers.child"
WATCHDOG = "/bin/sh"


async def survivors(pids: dict[int, str], *, zombies: bool = False) -> dict[int, str]:
    """The processes that still live after a while; zombies count only if requested."""
    gone = ("",) if zombies else ("", "Z", "X")

    def find() -> dict[int, str]:
        return {pid: command for pid, command in pids.items() if stat_of(pid)[0] not in gone}

    with contextlib.suppress(TimeoutError):
        await until(find, operator.not_, within=SOON)
    return find()


def one_of(pids: dict[int, str], words: str) -> int:
    (found,) = (pid for pid, command in pids.items() if words in command)
    return found


async def test_a_gateway_that_is_killed_leaves_no_process(open_client: OpenClient, raw: Any) -> None:
    upstreams = {name: raw(name, "--name", name) for name in ("brood", "stubborn", "deaf", "ok")}
    async with open_client(upstreams) as client:
        await until(lambda: len(offspring(client.process.pid)) >= 6)  # it greets before all have started
        started = offspring(client.process.pid)
        assert len(started) == 6, started  # four, a grandchild, the one watchdog
        client.process.kill()
        assert await survivors(started) == {}


async def test_a_process_that_is_stopped_is_not_left_either(open_client: OpenClient, raw: Any) -> None:
    async with open_client({"raw": raw()}, limits={"spool_bytes": 1024}) as client:
        large = '{"content":[{"type":"text","text":"' + "x" * 5000 + '"}]}'
        assert "This path " in await client.text("say_mirrored", {"result": large})
        started = offspring(client.process.pid)
        stopped = [pid for pid, command in started.items() if SCANNER in command or "raw.py" in command]
        assert len(stopped) >= 2, started  # a worker process and the upstream
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        client.process.kill()
        assert await survivors(started) == {}


@pytest.mark.parametrize("way", sample(["leaves", signal.SIGTERM, signal.SIGINT], lambda way: way == "leaves"))
async def test_a_gateway_that_ends_leaves_no_watchdog(way: Any, open_client: OpenClient, raw: Any) -> None:
    async with open_client({"one": raw(), "two": raw()}) as client:
        started = offspring(client.process.pid)
        assert one_of(started, WATCHDOG)
        if isinstance(way, signal.Signals):
            client.process.send_signal(way)
        else:
            assert client.process.stdin is not None
            client.process.stdin.close()
        async with asyncio.timeout(BOUND):
            assert await client.process.wait() == (130 if way == signal.SIGINT else 0)
        assert await survivors(started, zombies=True) == {}
        assert client.stderr == []


async def test_an_upstream_that_exits_fails_its_calls_and_leaves_no_process(open_client: OpenClient, raw: Any) -> None:
    async with open_client({"brood": raw("brood", "--name", "marker"), "other": raw()}) as client:
        before = offspring(client.process.pid)
        child = one_of(before, "raw.py brood")
        (grandchild,) = offspring(child)
        began = time.monotonic()
        assert "'brood' closed the connection" in await client.text("brood_die_mirrored")
        assert time.monotonic() - began < SOON  # though the grandchild keeps its pipes open
        assert await survivors({child: before[child]}, zombies=True) == {}
        assert await survivors({grandchild: before[grandchild]}) == {}
        assert "again" in await client.text("brood_hear_mirrored", {"text": "again"})
        client.process.kill()
        assert await survivors(before) == {}


async def test_an_upstream_that_exits_is_restarted_beside_a_daemon_of_it(open_client: OpenClient, raw: Any) -> None:
    async with open_client({"daemon": raw("daemon", "--name", "marker")}) as client:
        (grandchild,) = offspring(one_of(offspring(client.process.pid), "raw.py daemon"))
        try:
            assert "'daemon' closed the connection" in await client.text("die_mirrored")
            assert "again" in await client.text("hear_mirrored", {"text": "again"})
            (later,) = offspring(one_of(offspring(client.process.pid), "raw.py daemon"))
        finally:
            os.kill(grandchild, signal.SIGKILL)
        os.kill(later, signal.SIGKILL)
    assert b"exit code 3" in b"".join(client.stderr)


async def test_a_watchdog_that_was_killed_is_replaced_with_the_next_process(open_client: OpenClient, raw: Any) -> None:
    async with open_client({"mortal": raw(), "brood": raw("brood", "--name", "x")}) as client:
        before = offspring(client.process.pid)
        watchdog = one_of(before, WATCHDOG)
        os.kill(watchdog, signal.SIGKILL)
        assert await survivors({watchdog: before[watchdog]}) == {}
        await client.text("mortal_die_mirrored")
        assert "again" in await client.text("mortal_hear_mirrored", {"text": "again"})
        started = offspring(client.process.pid)
        assert one_of(started, WATCHDOG)
        client.process.kill()
        assert await survivors(started) == {}


@pytest.mark.executable  # has its own session
async def test_a_ctrl_c_in_the_terminal_reaches_only_the_gateway(
    configured: Configured, open_lines: OpenLines, raw: Any, tmp_path: Path
) -> None:
    running, gate = tmp_path / "running", tmp_path / "gate"
    config = configured({"raw": raw()}, limits={"spool_bytes": 1024})
    async with open_lines(config, start_new_session=True) as client:
        await client.greet()
        large = '{"content":[{"type":"text","text":"' + "x" * 5000 + '"}]}'
        await client.text("say_mirrored", {"result": large})
        started = offspring(client.process.pid)
        assert any(SCANNER in command for command in started.values())
        call = asyncio.create_task(client.text("hang_mirrored", {"started": str(running), "until": str(gate)}))
        await until(running.exists)
        os.killpg(client.process.pid, signal.SIGINT)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.process.wait(), 0.5)  # the call keeps it open
        assert offspring(client.process.pid) == started
        gate.touch()
        assert await call == "late"
        async with asyncio.timeout(BOUND):
            assert await client.process.wait() == 130
        assert await survivors(started, zombies=True) == {}
        assert client.stderr == []
