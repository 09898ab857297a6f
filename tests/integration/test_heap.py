"""What the heap keeps of freed buffers and of garbage."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

COUNT_FAULTS = """
import resource
from mcp_mirror.system.heap import keep_freed_memory

keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    [bytes(1 << 19) for _ in range(6)]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries manage their heap themselves")
def test_a_buffer_that_is_allocated_again_costs_no_page_faults() -> None:
    done = subprocess.run([sys.executable, "-c", COUNT_FAULTS], capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) < 2000  # the pages of one round; each round costs as many without it


COUNT_RELEASES = """
import ctypes
from types import SimpleNamespace
from mcp_mirror.system import heap

cleanup, library, releases = heap.HeapCleanup(), ctypes.CDLL(None), []


def release(keep):
    releases.append(library.malloc_trim(keep))


heap.ctypes = SimpleNamespace(CDLL=lambda _: SimpleNamespace(malloc_trim=release))
cleanup.start(0.0)
kept = [bytearray(b"x" * (1 << 20)) for _ in range(200)]
for now in (10.0, 20.0, 30.0):
    cleanup.run(now, is_idle=True)
kept += [bytearray(b"x" * (1 << 20)) for _ in range(400)]
cleanup.run(40.0, is_idle=True)
print(len(releases))
for now in range(50, 3600, 10):
    cleanup.run(float(now), is_idle=True)
print(len(releases))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries manage their heap themselves")
def test_memory_is_released_once_for_each_growth() -> None:
    """A store in memory may be large for long: a release that has nothing to return takes up to 15 ms."""
    done = subprocess.run(
        [sys.executable, "-c", COUNT_RELEASES], capture_output=True, text=True, check=True, timeout=60
    )
    at_once, in_an_hour = map(int, done.stdout.split())
    assert at_once == 2
    assert in_an_hour < 10


FREE_LATER = """
from mcp_mirror.system import heap

heap.keep_freed_memory()
cleanup = heap.HeapCleanup()
cleanup.start(0.0)
kept = [bytes(1 << 20) + b"x" for _ in range(300)]
pin = bytes(1 << 19) + b"x"  # at the end of the heap
cleanup.run(10.0, is_idle=True)
del kept
for now in range(20, 100, 10):
    cleanup.run(float(now), is_idle=True)
print(heap._measure_resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries manage their heap themselves")
def test_memory_that_was_in_use_at_a_release_is_released_later() -> None:
    done = subprocess.run([sys.executable, "-c", FREE_LATER], capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) < 100 << 20


COUNT_LOOKS = """
import sys
from types import SimpleNamespace
from mcp_mirror.system import heap

cleanup, looks = heap.HeapCleanup(), []
cleanup.start(0.0)
heap.sys = SimpleNamespace(getallocatedblocks=lambda: looks.append(1) or sys.getallocatedblocks())
kept = []
for make in (lambda: [], lambda: [[] for _ in range(10_000)], lambda: [bytes(1_000_000) + b"x" for _ in range(40)]):
    kept.append(make())
    for now in range(10):
        cleanup.expect_growth(1)
        cleanup.run(float(now), is_idle=bool(now % 2), is_quiet=True)
    print(len(looks))
"""


def test_a_heap_that_has_not_grown_is_not_read() -> None:
    """The first call after hours would wait until the whole heap is back in the main memory or in the caches."""
    done = subprocess.run([sys.executable, "-c", COUNT_LOOKS], capture_output=True, text=True, check=True, timeout=60)
    knows_resident_memory = Path("/proc/self/statm").exists()
    assert list(map(int, done.stdout.split())) == [0, 1, 2 if knows_resident_memory else 1]


WAIT_UNTIL_IDLE = """
import gc
from mcp_mirror.system.heap import HeapCleanup

gc.set_threshold(0)
in_use = [[] for _ in range(200_000)]
cleanup = HeapCleanup()
cleanup.start(0.0)
for _ in range(300_000):
    circle = []
    circle.append(circle)
print(cleanup.run(1.0, is_idle=False), cleanup.run(2.0, is_idle=True), cleanup.run(3.0, is_idle=True))
"""


def test_garbage_that_a_busy_loop_keeps_is_collected_as_soon_as_it_is_idle() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WAIT_UNTIL_IDLE], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "False True False\n"


PAUSE = """
import gc
from mcp_mirror.system.heap import HeapCleanup

cleanup = HeapCleanup()
cleanup.start(0.0)
gc.disable()
in_use = [[] for _ in range(500_000)]
collected = cleanup.run(1.0, is_idle=True)
gc.enable()
print(collected, cleanup.run(2.0, is_idle=True))
"""


def test_nothing_is_collected_while_the_collector_is_paused() -> None:
    """A thread pauses it that converts many values, which a collection would visit for a second in vain."""
    done = subprocess.run([sys.executable, "-c", PAUSE], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False True\n"


COLLECT_LITTLE = """
import gc
from time import thread_time
from mcp_mirror.system.heap import HeapCleanup


def delay(phase, _info):
    gc.callbacks.clear()
    began = thread_time()
    while thread_time() < began + 0.02:
        pass


gc.set_threshold(0)
in_use = [[] for _ in range(1_000_000)]  # to look at them takes about 20 ms
gc.callbacks.append(delay)
cleanup = HeapCleanup()
cleanup.start(0.0)
for _ in range(11_000):
    circle = []
    circle.append(circle)
print(cleanup.run(10.0, is_idle=False, is_quiet=True))
"""


def test_many_objects_and_a_slow_start_do_not_prevent_short_collections() -> None:
    """The first collection writes to all pages of the heap, which a worker shares with its parent until then."""
    done = subprocess.run(
        [sys.executable, "-c", COLLECT_LITTLE], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "True\n"
