"""Child processes that end with the gateway."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import pytest

from mcp_mirror.system.child_watchdog import ChildWatchdog, hold_starts
from mcp_mirror.system.watchdog_process import WatchdogProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
BOUND = 60


@contextmanager
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process with its own process group."""
    process = subprocess.Popen(["sleep", "100"], start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait(BOUND)


def children() -> set[int]:
    found = set[int]()
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended since it was listed
            found.update(map(int, (thread / "children").read_text().split()))
    return found


def watchdog_of(before: set[int]) -> int:
    (watchdog,) = children() - before
    return watchdog


def test_added_groups_end_with_the_watchdog() -> None:
    before = children()
    with sleeper() as first, sleeper() as second:
        with ChildWatchdog() as child_watchdog:
            child_watchdog.add(first.pid)
            child_watchdog.add(second.pid)
            assert len(children() - before) == 3
        assert first.wait(BOUND) == second.wait(BOUND) == -signal.SIGKILL
    assert children() == before


@pytest.mark.parametrize("fault", [signal.SIGSTOP, signal.SIGKILL], ids=["it is too slow", "it has died"])
def test_groups_end_where_the_watchdog_does_not_end_them(fault: signal.Signals) -> None:
    with sleeper() as process:
        before = children()
        with ChildWatchdog() as child_watchdog:
            child_watchdog.add(process.pid)
            os.kill(watchdog_of(before), fault)
        assert process.wait(BOUND) == -signal.SIGKILL


def test_groups_end_where_no_watchdog_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    with sleeper() as process:
        with monkeypatch.context() as patched, ChildWatchdog() as child_watchdog:
            patched.setattr(subprocess, "Popen", refuse)
            child_watchdog.add(process.pid)
        assert process.wait(BOUND) == -signal.SIGKILL


@pytest.mark.parametrize("has_others", [False, True])
def test_a_group_of_another_watchdog_is_adopted(has_others: bool) -> None:  # noqa: FBT001
    before = children()
    with sleeper() as first, sleeper() as second:
        watchdog = WatchdogProcess()
        watchdog.write(f"+ {first.pid}\n")
        with ChildWatchdog() as child_watchdog:
            if has_others:
                child_watchdog.add(second.pid)
            child_watchdog.adopt(watchdog, first.pid)
            assert first.poll() is None
            assert len(children() - before) == 3
        assert first.wait(BOUND) == -signal.SIGKILL
        assert (second.wait(BOUND) == -signal.SIGKILL) if has_others else (second.poll() is None)
    assert children() == before


def test_an_early_program_ends_with_a_gateway_that_is_killed() -> None:
    program = (
        "import signal; from mcp_mirror.system import early_program as early; early.start_early(['sleep', '100']);"
        "print(early.take_early(['sleep', '100']).process.pid, flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as gateway:
        assert gateway.stdout
        started = int(gateway.stdout.readline())
        assert is_running(started)
        gateway.kill()
        gateway.wait(BOUND)
        deadline = time.monotonic() + BOUND
        while is_running(started):
            assert time.monotonic() < deadline


def is_running(process: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False


def test_removed_groups_keep_running() -> None:
    with sleeper() as watched, sleeper() as released:
        with ChildWatchdog() as child_watchdog:
            for process in (released, watched, released):
                child_watchdog.add(process.pid)
            child_watchdog.remove(released.pid)
            child_watchdog.remove(released.pid)
        assert watched.wait(BOUND) == -signal.SIGKILL
        assert released.poll() is None


def test_no_watchdog_starts_without_groups() -> None:
    before = children()
    with ChildWatchdog() as child_watchdog:
        child_watchdog.remove(1)
        assert children() == before


def test_a_killed_watchdog_restarts_with_all_groups() -> None:
    with sleeper() as first, sleeper() as second:
        before = children()
        with ChildWatchdog() as child_watchdog:
            child_watchdog.add(first.pid)
            killed = watchdog_of(before)
            os.kill(killed, signal.SIGKILL)
            os.waitid(os.P_PID, killed, os.WEXITED | os.WNOWAIT)
            child_watchdog.add(second.pid)
            assert watchdog_of(before) != killed
        assert first.wait(BOUND) == second.wait(BOUND) == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_does_not_end_the_watchdog(number: signal.Signals) -> None:
    with sleeper() as first, sleeper() as second:
        before = children()
        with ChildWatchdog() as child_watchdog:
            child_watchdog.add(first.pid)
            watchdog = watchdog_of(before)
            ignored, deadline = 0, time.monotonic() + BOUND
            while not ignored and time.monotonic() < deadline:  # until the shell has read what it is to do
                status = Path(f"/proc/{watchdog}/status").read_text()
                ignored = int(status.partition("SigIgn:")[2].split()[0], 16) & 1 << (number - 1)
            os.kill(watchdog, number)
            child_watchdog.add(second.pid)
            assert watchdog_of(before) == watchdog
        assert first.wait(BOUND) == second.wait(BOUND) == -signal.SIGKILL


def opened_by(process: Path) -> dict[int, str]:
    """The open descriptors of a process, after it has closed those that it was started with."""
    over = time.monotonic() + BOUND
    opened: dict[int, str] = {}
    while time.monotonic() < over and opened.keys() != {0, 1, 2}:
        with suppress(FileNotFoundError):  # closed since it was listed
            opened = {int(path.name): str(path.readlink()) for path in (process / "fd").iterdir()}
    return opened


def test_the_watchdog_inherits_nothing_from_the_gateway() -> None:
    secret, other = os.pipe()
    os.set_inheritable(secret, True)  # noqa: FBT003  # the signature is the language's
    with sleeper() as process:
        before = children()
        with ChildWatchdog() as child_watchdog:
            child_watchdog.add(process.pid)
            folder = Path(f"/proc/{watchdog_of(before)}")
            opened = opened_by(folder)
            assert opened.keys() == {0, 1, 2}
            assert opened[0].startswith("pipe:")
            assert opened[1] == opened[2] == os.devnull
            assert str((folder / "cwd").readlink()) == "/"
            assert os.getsid(int(folder.name)) == int(folder.name)
            assert b"PATH=" + os.environ["PATH"].encode() not in (folder / "environ").read_bytes()
    os.close(secret)
    os.close(other)


def test_a_program_does_not_start_early_without_free_handles() -> None:
    program = """
import os, resource
from mcp_mirror.system import early_program as early
early.start_early(["true"])  # imports what it needs
early.end_early()
started = 0
for most in range(3, 40):
    before = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, 40))
    try:
        early.start_early(["true"])
        taken = early.take_early(["true"])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    if taken:
        started += 1
        taken.kill()
    assert len(os.listdir("/proc/self/fd")) == before, most
print(started)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=BOUND)
    assert done.returncode == 0, done.stderr
    assert 0 < int(done.stdout) < 37


async def test_an_end_waits_for_the_start_of_a_process_and_permits_no_other() -> None:
    held, started = anyio.Event(), anyio.Event()

    async def hold() -> None:
        await hold_starts()
        held.set()

    async def start() -> None:
        async with watchdog.start_lock:
            started.set()

    with ChildWatchdog() as watchdog:
        async with anyio.create_task_group() as tasks:
            async with watchdog.start_lock:
                tasks.start_soon(hold)
                await anyio.wait_all_tasks_blocked()
                assert not held.is_set()
            with anyio.fail_after(BOUND):
                await held.wait()
            tasks.start_soon(start)
            await anyio.wait_all_tasks_blocked()
            assert not started.is_set()
            tasks.cancel_scope.cancel()
