"""The library without `await`: in scripts, in threads, and where an event loop runs already."""

import asyncio
import contextlib
import inspect
import json
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from gateway_processes import forked_python
from tests.end_to_end.conftest import BOUND

from mcp_mirror import Mirror, SyncMirror
from mcp_mirror.errors import MirrorError, StoreError
from mcp_mirror.library import sync_mirror


def with_functions(**options: Any) -> SyncMirror:
    mirror = SyncMirror(**options)

    @mirror.tool
    def ramp(size: int) -> list[float]:
        return [number / 2 for number in range(size)]

    @mirror.tool(name="mean", description="The mean.")
    async def average(values: list[float]) -> float:
        return sum(values) / len(values)

    return mirror


def portals() -> set[threading.Thread]:
    """Threads with an event loop of their own; other tests in this process may have some."""
    return {thread for thread in threading.enumerate() if "portal" in thread.name}


def test_a_script_calls_tools_without_await(chemist: Any) -> None:
    with with_functions(upstreams={"maker": chemist}) as mirror:
        names = [tool["name"] for tool in mirror.tools("mcp")]
        assert {"ramp_mirrored", "mean_mirrored", "make_grid_mirrored"} < set(names)
        assert "Ask for grids." in mirror.instructions
        stored = mirror.call("ramp_mirrored", {"size": 9001})
        assert mirror.call("mean_mirrored", {"values": stored.path}).text == "2250.0"
        assert mirror.read(f"{stored.path}/3") == 1.5
        grid = mirror.call("make_grid_mirrored", {"size": 12})
        assert mirror.read(f"{grid.path}/grid/0/0")
        path = mirror.put([1, 2], namespace="other")
        assert mirror.read(path, namespace="other") == [1, 2]
        assert mirror.call("mean_mirrored", {"values": path}).is_error


def test_a_tool_is_added_while_the_mirror_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")  # asyncio then refuses what only the thread of the loop may do
    with SyncMirror() as mirror:

        @mirror.tool
        def double(number: int) -> int:
            return 2 * number

        assert mirror.call("double_mirrored", {"number": 21}).text == "42"


def test_a_script_prunes_and_restores_a_conversation() -> None:
    messages = [
        {"role": "user", "content": "What is in the file?"},
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "read", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "a line of the file\n" * 5000},
        {"role": "assistant", "content": "Lines."},
        {"role": "user", "content": "Thank you."},
    ]
    with SyncMirror() as mirror:
        pruned = mirror.prune(messages, 500, "openai")
        assert len(str(pruned.messages)) < len(str(messages)) / 10
        assert mirror.restore(pruned.messages, "openai") == messages


async def test_it_works_where_an_event_loop_runs_already() -> None:
    with with_functions() as mirror:
        assert mirror.call("mean_mirrored", {"values": [1, 2]}).text == "1.5"


def test_many_threads_call_it_at_once() -> None:
    with with_functions() as mirror, ThreadPoolExecutor(8) as threads:

        def mean(number: int) -> str:
            return mirror.call("mean_mirrored", {"values": [number, number]}).text

        assert list(threads.map(mean, range(200))) == [str(float(number)) for number in range(200)]


def test_plain_tools_call_it_and_async_tools_are_refused() -> None:
    mirror = with_functions()

    @mirror.tool
    def plain() -> str:
        return mirror.call("mean_mirrored", {"values": [1, 2]}).text

    @mirror.tool
    async def in_loop() -> str:
        return mirror.call("mean_mirrored", {"values": [1, 2]}).text

    with mirror:
        assert mirror.call("plain_mirrored").text == "1.5"
        refused = mirror.call("in_loop_mirrored")
        assert refused.is_error
        assert "A SyncMirror cannot be called in its own event loop, where `async` tools run. Make the" in refused.text


def test_a_call_of_another_thread_ends_when_the_mirror_closes() -> None:
    mirror, started = SyncMirror(), threading.Event()

    @mirror.tool
    async def wait() -> None:
        started.set()
        await asyncio.Event().wait()

    with ThreadPoolExecutor() as threads:
        with mirror:
            call = threads.submit(mirror.call, "wait_mirrored")
            assert started.wait(BOUND)
        with pytest.raises(MirrorError, match="This Mirror was closed before the call ended"):
            call.result(BOUND)


def test_a_mirror_closes_while_an_async_tool_blocks_its_event_loop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sync_mirror, "_CLOSE_TIMEOUT", 0.2)
    others = portals()
    mirror, started, may_end, closed = SyncMirror(), *(threading.Event() for _ in range(3))

    @mirror.tool
    async def block() -> None:
        started.set()
        assert may_end.wait(BOUND)  # the mistake: it does not await

    def use() -> None:
        with mirror:
            threads.submit(mirror.call, "block_mirrored")
            assert started.wait(BOUND)
        closed.set()

    with ThreadPoolExecutor() as threads:
        used = threads.submit(use)
        is_closed = closed.wait(BOUND / 2)
        may_end.set()
        used.result(BOUND)
    assert is_closed
    assert "The event loop of a SyncMirror did not end within 0.2 s" in caplog.text
    for thread in portals() - others:
        thread.join(BOUND)
        assert not thread.is_alive()


def test_a_closed_mirror_can_be_opened_again_and_is_unusable_until_then(tmp_path: Any) -> None:
    before = portals()
    mirror = with_functions(store={"kind": "disk", "path": str(tmp_path / "store")})
    closed = r"This SyncMirror is not open: use it within `with mirror:`\."
    with pytest.raises(MirrorError, match=closed):
        mirror.call("mean_mirrored")
    with mirror:
        path = mirror.put("kept")
        with pytest.raises(MirrorError, match="open already"), mirror:
            pytest.fail("it was opened twice")
        assert mirror.read(path) == "kept"
    with pytest.raises(MirrorError, match=closed):
        mirror.tools()
    with mirror:
        assert mirror.read(path) == "kept"
    assert portals() == before


def test_errors_of_the_script_and_of_the_start_are_raised(tmp_path: Any) -> None:
    before = portals()
    with pytest.raises(ZeroDivisionError), with_functions() as mirror:
        raise ZeroDivisionError
    with pytest.raises(MirrorError):
        mirror.put(1)
    (tmp_path / "file").write_text("")
    mirror = SyncMirror(store={"kind": "disk", "path": str(tmp_path / "file")})
    with pytest.raises(StoreError, match=r"The store in .* failed"), mirror:
        pytest.fail("it was opened")
    assert portals() == before


def test_the_script_in_the_documentation_runs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "library.md").read_text(encoding="utf-8")
    script = page.partition("## Scripts and notebooks")[2].partition("```python\n")[2].partition("```")[0]
    (tmp_path / "script.py").write_text(script)
    command = forked_python("script.py")
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=3 * BOUND, check=True)
    mean, schema = ran.stdout.splitlines()
    assert mean == "4999.5"
    assert schema == "{'type': 'numpy.ndarray', 'shape': [10000], 'dtype': 'int64'}"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no signal to a thread")
def test_an_interrupt_that_does_not_wake_the_waiting_thread_ends_the_call() -> None:
    """A signal that comes just before the thread waits, or to another thread, is only noted and wakes nothing."""
    mirror = SyncMirror()
    ended = threading.Semaphore(0)

    @mirror.tool
    async def wait() -> None:
        try:
            await asyncio.sleep(0.05)
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            ended.release()

    with mirror:
        with pytest.raises(KeyboardInterrupt):
            mirror.call("wait_mirrored", {})
        assert ended.acquire(timeout=BOUND)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no signal to a thread")
def test_an_interrupt_ends_the_call() -> None:
    """However early the signal comes: the call of an interrupted script must not continue in the background."""
    mirror = SyncMirror()
    ended = threading.Semaphore(0)

    @mirror.tool
    async def wait(delay: float) -> None:
        try:
            await asyncio.sleep(delay)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            ended.release()

    with mirror:
        for number in range(100):
            with contextlib.suppress(KeyboardInterrupt):
                mirror.call("wait_mirrored", {"delay": 0.0001 * (number % 10)})
            assert ended.acquire(timeout=BOUND)


CELL = """
@mirror.tool(inline_budget={budget})
def repeat(word: str, times: int = {times}) -> str:
    return word * times
"""


def test_a_cell_of_a_notebook_may_define_its_tools_again() -> None:
    mirror = SyncMirror()
    cell: dict[str, Any] = {"__name__": "__main__", "mirror": mirror}
    exec(CELL.format(times=3, budget=2500), cell)  # noqa: S102  # as a notebook does
    with mirror:
        assert mirror.call("repeat_mirrored", {"word": "a"}).text == "aaa"
        exec(CELL.format(times=500, budget=10), cell)  # noqa: S102
        assert mirror.call("repeat_mirrored", {"word": "a "}).path
        assert '"default": 500' in json.dumps(mirror.tools("mcp")[0])
        exec(CELL.format(times=2, budget=2500), cell)  # noqa: S102
        assert mirror.call("repeat_mirrored", {"word": "a"}).text == "aa"


OPEN = """
import os, sys
from mcp_mirror import SyncMirror
from mcp_mirror.errors import MirrorError

mirror = SyncMirror(store={{"kind": "disk", "path": {folder!r}}})

@mirror.tool
def double(number: int) -> int:
    return 2 * number

mirror.__enter__()
print(mirror.call("double_mirrored", {{"number": 4}}), mirror.put("kept"), flush=True)
"""

FORKED = """
import warnings

warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks of processes with threads
if os.fork() == 0:
    try:
        mirror.call("double_mirrored", {"number": 5})
    except MirrorError as error:
        print(error)
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
print(mirror.call("double_mirrored", {"number": 6}))
"""


def run_program(text: str, folder: Path) -> list[str]:
    (folder / "program.py").write_text(text)
    command = forked_python("program.py")
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=3 * BOUND, check=True)
    assert not ran.stderr
    return ran.stdout.splitlines()


def test_a_program_that_never_closes_its_mirror_ends_and_keeps_values(tmp_path: Path) -> None:
    store = {"kind": "disk", "path": str(tmp_path / "store")}
    [line] = run_program(OPEN.format(folder=store["path"]), tmp_path)
    result, path = line.split()
    assert result == "8"
    with SyncMirror(store=store) as mirror:
        assert mirror.read(path) == "kept"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_forked_process_cannot_use_the_mirror_of_its_parent(tmp_path: Path) -> None:
    _, refusal, result = run_program(OPEN.format(folder=str(tmp_path / "store")) + FORKED, tmp_path)
    assert refusal.startswith("This SyncMirror was opened in another process.")
    assert result == "12"


@pytest.mark.parametrize("name", ["__init__", "call", "read", "put", "clear", "prune", "restore", "tools", "tool"])
def test_it_has_the_methods_of_a_mirror(name: str) -> None:
    one, other = getattr(Mirror(), name), getattr(SyncMirror(), name)
    assert inspect.signature(one).parameters == inspect.signature(other).parameters
