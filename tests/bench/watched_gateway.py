"""`mcp-mirror` and a process that measures how long its event loop stalls: `watched_gateway.py FILE ARGUMENTS...`.

The process sends a byte to the gateway once a millisecond, which the event loop sends back. A stall is the time until
the byte is back, without the time in which the machine ran other programs instead of these two. A thread of the gateway
would have to wait for the interpreter lock, which a loop that is only busy can keep from it for a long time. FILE
contains the longest stall, in seconds, as a double; other processes read it and may set it to 0.
"""

import asyncio
import mmap
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

_INTERVAL = 0.001
"""Seconds between two bytes."""


def watch(connection: socket.socket, longest: mmap.mmap, loop_thread: str) -> None:
    """Measure until the gateway ends; `loop_thread` is the directory of the loop's thread in /proc."""
    threads = [os.open(f"{thread}/schedstat", os.O_RDONLY) for thread in (loop_thread, "/proc/self")]
    while True:
        time.sleep(_INTERVAL)
        waited = sum(map(_run_queue_delay, threads))
        sent = time.monotonic()
        try:
            connection.send(b".")
        except BrokenPipeError:
            return
        if not connection.recv(1):
            return
        stall = time.monotonic() - sent - (sum(map(_run_queue_delay, threads)) - waited)
        if stall > struct.unpack("d", longest[:])[0]:
            longest[:] = struct.pack("d", stall)


def _run_queue_delay(file: int) -> float:
    """Seconds that a thread was ready to run and another program ran instead."""
    return int(os.pread(file, 64, 0).split()[1]) / 1e9


def start_watching(file: str) -> None:
    """Start the process that watches the running loop."""
    connection, other = socket.socketpair()
    loop_thread = f"/proc/{os.getpid()}/task/{threading.get_native_id()}"
    argv = [sys.executable, __file__, "--watch", str(other.fileno()), file, loop_thread]
    with other:
        subprocess.Popen(argv, pass_fds=[other.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    asyncio.get_running_loop().add_reader(connection, lambda: connection.send(connection.recv(1)))


def main() -> None:
    """Run the gateway, and watch the loop from where the gateway starts its own measurement of stalls."""
    from mcp_mirror.__main__ import main  # noqa: PLC0415  # the watching process does not need it
    from mcp_mirror.system import event_loop  # noqa: PLC0415

    file, measure_stalls = sys.argv.pop(1), event_loop.measure_stalls

    def measure() -> None:
        measure_stalls()
        start_watching(file)

    event_loop.measure_stalls = measure
    main()


if __name__ == "__main__":
    if sys.argv[1] == "--watch":
        with Path(sys.argv[3]).open("r+b") as shared:
            watch(socket.socket(fileno=int(sys.argv[2])), mmap.mmap(shared.fileno(), 8), sys.argv[4])
    else:
        main()
