"""Starts a program before the gateway is imported, so that both start at once. The first connection takes it.

At most one program starts early in a process. Until it is taken, a watchdog of its own kills it if the gateway ends.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from mcp_mirror.system.resources import open_wide_pipes
from mcp_mirror.system.watchdog_process import WatchdogProcess


class EarlyProgram(msgspec.Struct, frozen=True):
    """A program that runs already, and the gateway's ends of its standard streams."""

    command: tuple[str, ...]
    process: subprocess.Popen[bytes]
    input: int
    output: int
    watchdog: WatchdogProcess | None

    def kill(self) -> None:
        """Kill the program and the processes that it started, and close its streams."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        if self.watchdog:
            self.watchdog.release(self.process.pid)
        self.process.wait()
        os.close(self.input)
        os.close(self.output)
        if self.process.stderr:
            self.process.stderr.close()


_waiting: list[EarlyProgram] = []


def start_early(command: Sequence[str]) -> None:
    """Start a program with this process's environment and folder.

    If it cannot start, nothing happens: the connection tries again, and reports the reason.
    """
    name, arguments = os.path.expanduser(command[0]), command[1:]  # noqa: PTH111  # as the configuration reads it
    program = shutil.which(name)
    if program is None or sys.platform == "win32":
        return
    try:
        with open_wide_pipes() as ((stdin, stdout), (our_output, our_input)):
            process = subprocess.Popen(  # noqa: S603  # the user's own command
                [program, *arguments], stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, start_new_session=True
            )
    except (OSError, ValueError):
        return
    watchdog = None
    with suppress(OSError):  # the gateway's own watchdog reports the reason
        watchdog = WatchdogProcess()
        watchdog.write(f"+ {process.pid}\n")
    _waiting.append(EarlyProgram((name, *arguments), process, our_output, our_input, watchdog))


def take_early(command: Sequence[str]) -> EarlyProgram | None:
    """Return the program that started early with this command, once; None if no such program waits."""
    if _waiting and _waiting[0].command == tuple(command):
        return _waiting.pop()
    return None


def end_early() -> None:
    """Kill the program if no connection has taken it."""
    while _waiting:
        _waiting.pop().kill()
