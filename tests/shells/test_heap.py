"""Freed buffers stay in the heap of a process that works with large ones."""

import platform
import subprocess
import sys

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
