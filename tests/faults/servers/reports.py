"""Reports of a scripted upstream to the test: events with their times, as lines to the port in `WITNESS`.

Reports from before the death of the process still arrive. CLOCK_MONOTONIC is the same clock in all processes.
"""

import json
import os
import socket
import threading
import time
from functools import cache
from typing import Any

_lock = threading.Lock()


@cache
def _witness() -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(os.environ["WITNESS"])))


def report(what: str, **details: Any) -> None:
    line = json.dumps({"what": what, "at": time.monotonic(), "pid": os.getpid(), **details})
    with _lock:
        _witness().sendall(line.encode() + b"\n")
