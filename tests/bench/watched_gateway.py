"""`mcp-mirror` with a thread that measures how long the event loop stalls: `watched_gateway.py FILE ARGUMENTS...`.

The thread asks the loop once a millisecond to run a callback. A stall is the time from the moment at which the thread
was due to ask until the callback runs, without the time in which the machine ran other programs instead of these two
threads. If the callback runs at once, the thread may have waited for the interpreter lock, which a busy but responsive
loop keeps for up to the interpreter's switch interval; such waits are not stalls. FILE contains the longest stall, in
seconds, as a double; another process reads it and may set it to 0.
"""

import asyncio
import mmap
import os
import struct
import sys
import threading
import time
from pathlib import Path

from mcp_mirror.system import event_loop

_INTERVAL = 0.001
"""Seconds between two callbacks."""
_AT_ONCE = 0.001
"""Seconds within which a responsive loop runs a callback."""
_measure_stalls = event_loop.measure_stalls


def watch(loop: asyncio.AbstractEventLoop, loop_thread: int, longest: mmap.mmap) -> None:
    """Measure until the loop is closed."""
    threads = [_schedstat(loop_thread), _schedstat(threading.get_native_id())]
    free = sys.getswitchinterval() + _AT_ONCE
    ran_at, has_run = [0.0], threading.Event()

    def run() -> None:
        ran_at[0] = time.monotonic()
        has_run.set()

    while True:
        waited = [_run_queue_delay(file) for file in threads]
        due = time.monotonic() + _INTERVAL
        time.sleep(_INTERVAL)
        posted = time.monotonic()
        try:
            loop.call_soon_threadsafe(run)
        except RuntimeError:
            return
        has_run.wait()
        has_run.clear()
        others = sum(_run_queue_delay(file) - before for file, before in zip(threads, waited, strict=True))
        is_prompt = ran_at[0] - posted < _AT_ONCE and posted - due - others < free
        stall = ran_at[0] - (posted if is_prompt else due) - others
        if stall > struct.unpack("d", longest[:])[0]:
            longest[:] = struct.pack("d", stall)


def _schedstat(thread: int) -> int:
    return os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY)


def _run_queue_delay(file: int) -> float:
    """Seconds that a thread was ready to run and another program ran instead."""
    return int(os.pread(file, 64, 0).split()[1]) / 1e9


def start_watching() -> None:
    """Start the thread where the gateway starts its own measurement, and start that too."""
    _measure_stalls()
    with Path(FILE).open("r+b") as file:
        longest = mmap.mmap(file.fileno(), 8)
    arguments = (asyncio.get_running_loop(), threading.get_native_id(), longest)
    threading.Thread(target=watch, args=arguments, daemon=True).start()


if __name__ == "__main__":
    from mcp_mirror.__main__ import main

    FILE = sys.argv.pop(1)
    event_loop.measure_stalls = start_watching
    main()
