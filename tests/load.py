"""How busy the machine is, so that bounds on time hold on a busy one too and stay tight on an idle one."""

import time

_SAMPLE = 0.03
"""Seconds of processor time that a sample takes."""


def slowness() -> float:
    """The slowdown of a program by other programs that run now; 1 on an idle machine."""
    began, worked = time.monotonic(), time.thread_time()
    while time.thread_time() - worked < _SAMPLE:
        pass
    return max(1.0, (time.monotonic() - began) / _SAMPLE)
