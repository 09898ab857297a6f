"""How a scripted upstream tells the test what happens in it, and when: lines to the port that `WITNESS` names.

What was told before the process died arrives all the same; CLOCK_MONOTONIC is one clock for all processes.
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


def tell(what: str, **details: Any) -> None:
    line = json.dumps({"what": what, "at": time.monotonic(), "pid": os.getpid(), **details})
    with _lock:
        _witness().sendall(line.encode() + b"\n")
