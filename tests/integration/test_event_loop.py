"""The measured event loop: it counts stalls with their length and place, but not the time of other programs."""

import asyncio
import ctypes
import gc
import logging
import os
import platform
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import closing
from typing import Any

import anyio
import pytest

from mcp_mirror.system.event_loop import MeasuredLoop, find_stalls, measure_stalls, new_event_loop

BOUND = 60.0

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a selector loop cannot start processes there")


def run(work: Callable[[], None]) -> MeasuredLoop:
    """Run a function within a measured loop that has other events too."""

    async def run_beside_others() -> None:
        measure_stalls()
        for _ in range(5):
            await asyncio.sleep(0.001)
        asyncio.get_running_loop().call_soon(work)
        for _ in range(5):
            await asyncio.sleep(0.001)

    loop = new_event_loop()
    assert isinstance(loop, MeasuredLoop)
    try:
        loop.run_until_complete(run_beside_others())
    finally:
        loop.close()
    return loop


def compute(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_a_blocked_loop_is_counted_with_its_length() -> None:
    stalls = run(lambda: time.sleep(0.3)).stalls
    assert 0.25 < stalls.longest < 3
    assert stalls.counts[0.25] == 1
    assert max(seconds for _, seconds in stalls.recent) == stalls.longest


def test_a_computing_loop_is_counted_too() -> None:
    assert run(lambda: compute(0.15)).stalls.counts[0.1] == 1


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports the time of other programs")
def test_the_time_of_other_programs_is_not_counted() -> None:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(8)]
    try:
        took = []

        def work() -> None:
            began = time.monotonic()
            compute(0.06)
            took.append(time.monotonic() - began)

        stalls = run(work).stalls
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert stalls.longest < 0.06 + (took[0] - 0.06) / 2 + 0.02


def test_the_time_between_two_runs_is_not_a_stall() -> None:
    async def pause() -> None:
        measure_stalls()
        await asyncio.sleep(0.001)

    loop = MeasuredLoop()
    try:
        for _ in range(2):
            loop.run_until_complete(pause())
            time.sleep(0.15)
    finally:
        loop.close()
    assert loop.stalls.longest < 0.15


def test_the_log_names_the_functions_of_a_stall_and_no_value(caplog: pytest.LogCaptureFixture) -> None:
    def hesitate(secret: str) -> None:
        time.sleep(1.2)
        del secret

    with caplog.at_level(logging.INFO, "mcp_mirror.system.event_loop"):
        run(lambda: hesitate("c4nary"))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "hesitate" in record.getMessage()
    assert "c4nary" not in caplog.text


def test_the_log_explains_a_stall_in_which_no_thread_could_look(caplog: pytest.LogCaptureFixture) -> None:
    def lock_interpreter() -> None:
        time.sleep(0.02)  # the loop waits for events now
        ctypes.PyDLL(None).usleep(300_000)

    async def wait_for_thread() -> None:
        measure_stalls()
        await asyncio.to_thread(int)  # an event, after which the loop is active
        await asyncio.to_thread(lock_interpreter)
        await asyncio.sleep(0.001)  # the pass after the stall ends

    with caplog.at_level(logging.INFO, "mcp_mirror.system.event_loop"), closing(new_event_loop()) as loop:
        loop.run_until_complete(wait_for_thread())
    (record,) = caplog.records
    assert "another thread computes or the whole process is stopped" in record.getMessage()


def test_the_start_of_a_command_is_not_measured(caplog: pytest.LogCaptureFixture) -> None:
    found = []

    async def start() -> None:
        time.sleep(1.2)  # noqa: ASYNC251  # as an import of many modules does
        found.append(find_stalls())
        measure_stalls()
        await asyncio.sleep(0.001)
        found.append(find_stalls())

    logged = caplog.at_level(logging.INFO, "mcp_mirror.system.event_loop")
    with logged, asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(start())
    assert found[0] is None
    assert found[1] is not None
    assert found[1].as_json()["longest_stall_ms"] < 1_000
    assert not [record for record in caplog.records if "stalled" in record.getMessage()]


def test_ready_callbacks_run_before_events_that_came_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_mirror.system.event_loop._LOOK_INTERVAL", 60.0)  # in 1 ms, another program may run
    order: list[str] = []

    def work() -> None:
        loop, (source, sink) = asyncio.get_running_loop(), os.pipe()

        def read() -> None:
            order.append("event")
            loop.remove_reader(source)

        loop.add_reader(source, read)
        os.write(sink, b"x")
        loop.call_soon(lambda: loop.call_soon(lambda: loop.call_soon(order.append, "callback")))

    run(work)
    assert order == ["callback", "event"]


def test_a_loop_whose_callbacks_are_always_ready_handles_events() -> None:
    async def spin_until_an_event() -> int:
        measure_stalls()
        loop, (source, sink), event = asyncio.get_running_loop(), os.pipe(), asyncio.Event()

        def read() -> None:
            event.set()
            loop.remove_reader(source)

        loop.add_reader(source, read)
        os.write(sink, b"x")
        end, turns = time.monotonic() + 10, 0
        while not event.is_set() and time.monotonic() < end:
            await asyncio.sleep(0)
            turns += 1
        assert event.is_set()
        return turns

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        assert runner.run(spin_until_an_event()) > 1


async def test_other_loops_are_not_measured() -> None:
    measure_stalls()
    assert find_stalls() is None


@pytest.mark.parametrize(("idle", "circles"), [(True, 200_000), (False, 1_000_000), (False, 15_000)])
def test_garbage_is_collected_also_in_a_loop_that_is_never_idle(*, idle: bool, circles: int) -> None:
    program = f"""
import asyncio, gc, sys, weakref
from mcp_mirror.cli.run import COLLECTOR_THRESHOLDS
from mcp_mirror.system import heap
from mcp_mirror.system.event_loop import measure_stalls, new_event_loop

heap._CHECK_INTERVAL = 0.2

class Node:
    pass

def leave_garbage():
    node = Node()
    node.others = [[] for _ in range({circles})]
    for other in node.others:
        other.append(node)
    return weakref.ref(node)

async def main():
    measure_stalls()
    reading, writing = await asyncio.open_connection(sock=ours)
    node = leave_garbage()
    while node() is not None:
        if not {idle}:
            theirs.send(b"an event")
            await reading.read(100)
        await asyncio.sleep(0.01)
    writing.close()

import socket
ours, theirs = socket.socketpair()
gc.freeze()  # as `cli/main.py` does
gc.set_threshold(*COLLECTOR_THRESHOLDS)
loop = new_event_loop()
loop.run_until_complete(asyncio.wait_for(main(), 30))
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_cancelled_task_leaves_no_garbage() -> None:
    async def find_garbage() -> list[str]:
        class Kept:
            pass

        async def work() -> None:
            kept.append(weakref.ref(own := Kept()))
            await anyio.sleep_forever()
            del own

        kept: list[weakref.ref[Kept]] = []
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(work)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        await asyncio.sleep(0)
        return [type(found).__name__ for one in kept if (found := one())]

    loop = new_event_loop()
    gc.disable()
    try:
        assert loop.run_until_complete(find_garbage()) == []
    finally:
        gc.enable()
        loop.close()


def test_an_expected_growth_is_not_searched_for_garbage() -> None:
    program = """
from mcp_mirror.system.event_loop import expect_growth, measure_stalls, new_event_loop

async def main():
    measure_stalls()
    cleanup = asyncio.get_running_loop().watch.cleanup
    kept = [[] for _ in range(1_000_000)]
    expect_growth(1_000_000)
    assert not cleanup.run(time.monotonic(), is_idle=True)
    more = [[] for _ in range(1_000_000)]
    assert cleanup.run(time.monotonic(), is_idle=True)

import asyncio, time
new_event_loop().run_until_complete(main())
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_more_sessions_than_before_are_not_searched_for_garbage() -> None:
    program = """
from mcp_mirror.server.request_context import build_session_key
from mcp_mirror.server.sessions import Sessions
from mcp_mirror.system.event_loop import measure_stalls, new_event_loop

async def main():
    measure_stalls()
    cleanup = asyncio.get_running_loop().watch.cleanup
    sessions, kept = Sessions(60.0, time.monotonic, lambda *_: None, 300.0, requires_auth=False), []
    for number in range(1_000):
        kept.append([[] for _ in range(500)])
        sessions.add_http_session("mia", str(number))
    assert not cleanup.run(time.monotonic(), is_idle=True)
    for number in range(1_000):  # what the ended sessions have left may be garbage
        sessions.end(build_session_key("mia", str(number)))
        kept.append([[] for _ in range(500)])
        sessions.add_http_session("mia", str(1_000 + number))
    assert cleanup.run(time.monotonic(), is_idle=True)

import asyncio, time
new_event_loop().run_until_complete(main())
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_garbage_beside_new_sessions_is_collected_in_a_busy_loop() -> None:
    program = """
from mcp_mirror.server.sessions import Sessions
from mcp_mirror.system.event_loop import measure_stalls, new_event_loop

async def main():
    measure_stalls()
    cleanup = asyncio.get_running_loop().watch.cleanup
    sessions, kept = Sessions(60.0, time.monotonic, lambda *_: None, 300.0, requires_auth=False), []
    for number in range(50):
        for _ in range(1_400):
            circle = [[]]
            circle[0].append(circle)
            kept.append(circle)
        sessions.add_http_session("mia", str(number))
    del circle, kept
    assert cleanup.run(time.monotonic(), is_idle=False, is_quiet=True)

import asyncio, gc, time
from mcp_mirror.cli.run import COLLECTOR_THRESHOLDS
gc.set_threshold(*COLLECTOR_THRESHOLDS)
new_event_loop().run_until_complete(main())
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries manage their heap themselves")
@pytest.mark.parametrize("idle", [True, False])
def test_freed_memory_is_released_when_the_loop_is_idle_or_it_is_much(*, idle: bool) -> None:
    program = f"""
import asyncio, socket
from pathlib import Path
from mcp_mirror.system import heap
from mcp_mirror.system.event_loop import measure_stalls, new_event_loop

heap._CHECK_INTERVAL = 0.2
heap.keep_freed_memory()

def measure():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

async def main():
    measure_stalls()
    reading, writing = await asyncio.open_connection(sock=ours)
    before = measure()
    buffers = [(b"x" * (1 << 19), b"x" * (1 << 14)) for _ in range(800)]
    small = [pair[1] for pair in buffers]  # too large for the gaps that imports left: between the large ones
    buffers.clear()
    assert measure() > before + (350 << 20)
    while measure() > before + (40 << 20):
        if not {idle}:
            theirs.send(b"an event")
            await reading.read(100)
        await asyncio.sleep(0.01)
    writing.close()

ours, theirs = socket.socketpair()
loop = new_event_loop()
loop.run_until_complete(asyncio.wait_for(main(), 30))
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries manage their heap themselves")
def test_the_memory_of_collected_garbage_is_released_in_a_busy_loop() -> None:
    program = """
import gc, time
from pathlib import Path
from mcp_mirror.cli.run import COLLECTOR_THRESHOLDS
from mcp_mirror.system.heap import HeapCleanup, keep_freed_memory

def measure():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

gc.set_threshold(*COLLECTOR_THRESHOLDS)
keep_freed_memory()
cleanup = HeapCleanup()
cleanup.start(time.monotonic())
circles = []
for _ in range(65_000):
    circles.append([[], bytes(1_000)])
    circles[-1][0].append(circles[-1])
last, full = bytes(1_000), measure()
del circles
assert cleanup.run(time.monotonic(), is_idle=False, is_quiet=True)
assert measure() > full - (40 << 20)
assert not cleanup.run(time.monotonic(), is_idle=False, is_quiet=True)
assert measure() < full - (50 << 20)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_what_a_finalizer_schedules_during_a_collection_runs_at_once() -> None:
    program = """
import asyncio, gc, os
from time import monotonic
from mcp_mirror.cli.run import COLLECTOR_THRESHOLDS
from mcp_mirror.system.event_loop import measure_stalls, new_event_loop

class Node:
    def __del__(self):
        self.loop.call_soon(self.finalized.set_result, monotonic())

def leave_garbage(loop, finalized):
    node = Node()
    node.loop, node.finalized = loop, finalized
    node.others = [[node] for _ in range(300_000)]

async def main():
    measure_stalls()
    await asyncio.sleep(0.001)
    finalized = asyncio.get_running_loop().create_future()
    leave_garbage(asyncio.get_running_loop(), finalized)
    loop, received = asyncio.get_running_loop(), asyncio.Event()
    reader, writer = os.pipe()
    os.write(writer, b"x")
    loop.add_reader(reader, lambda: (loop.remove_reader(reader), received.set()))
    await received.wait()  # an event; after it, the loop becomes idle
    at = await asyncio.wait_for(finalized, 20)
    assert monotonic() - at < 5

gc.set_threshold(*COLLECTOR_THRESHOLDS)
loop = new_event_loop()
loop.run_until_complete(main())
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_silent_name_delays_neither_other_names_nor_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    look_up, is_over = socket.getaddrinfo, threading.Event()

    def look_up_slowly(host: str, *rest: Any) -> Any:
        if host.endswith(".silent.test"):
            is_over.wait(BOUND)
        return look_up(host, *rest)

    async def connect() -> None:
        waiting = [asyncio.create_task(asyncio.open_connection(f"{name}.silent.test", 80)) for name in range(50)]
        await asyncio.sleep(0)
        assert await asyncio.get_running_loop().getaddrinfo("localhost", 80)
        assert not any(one.done() for one in waiting)

    monkeypatch.setattr(socket, "getaddrinfo", look_up_slowly)
    began = time.monotonic()
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(connect())
        assert time.monotonic() - began < BOUND / 2
    finally:
        is_over.set()
