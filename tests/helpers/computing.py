"""The processor time that a piece of work takes."""

import sys
import time
from collections.abc import Callable
from typing import Final

_ATTEMPTS: Final = 3


def least_seconds(work: Callable[[], object]) -> float:
    """Return the processor seconds of the fastest of three attempts: others may have shared the processor.

    A first run is not measured, and the others run without the tracer that measures coverage. The work must not keep
    anything that would make a later attempt faster.
    """
    work()
    tracer, seconds = sys.gettrace(), list[float]()
    sys.settrace(None)
    try:
        for _ in range(_ATTEMPTS):
            began = time.thread_time()
            work()
            seconds.append(time.thread_time() - began)
    finally:
        sys.settrace(tracer)
    return min(seconds)
