"""The processor time that a piece of work takes."""

import time
from collections.abc import Callable
from typing import Final

_ATTEMPTS: Final = 3


def least_seconds(work: Callable[[], object]) -> float:
    """Return the processor seconds of the fastest of three attempts: others may have shared the processor.

    The work must not keep anything that would make a later attempt faster.
    """
    seconds = []
    for _ in range(_ATTEMPTS):
        began = time.thread_time()
        work()
        seconds.append(time.thread_time() - began)
    return min(seconds)
