"""A watchdog that kills the gateway's child processes when the gateway ends, even by SIGKILL.

Windows has no process groups, so there the watchdog does nothing.
"""

import logging
import os
import signal
import sys
from contextlib import suppress
from typing import Final, Self
from weakref import WeakSet

import anyio

from mcp_mirror.system.watchdog_process import WatchdogProcess

_logger = logging.getLogger(__name__)


class ChildWatchdog:
    """Kills registered process groups when the gateway ends.

    The watchdog starts with the first group. If it dies, the next change starts it again.
    """

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._watchdog: WatchdogProcess | None = None
        self.start_lock: anyio.Lock = anyio.Lock()
        """Held while a process starts. A start blocks the event loop for milliseconds, so starts run one by one."""

    def __enter__(self) -> Self:
        _open.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        _open.discard(self)
        self.kill_all()
        self._end_watchdog()

    def add(self, group: int) -> None:
        """Register a living process group."""
        self._groups.add(group)
        self._send(f"+ {group}\n")

    def adopt(self, watchdog: WatchdogProcess, group: int) -> None:
        """Register a process group that a watchdog of its own has watched so far."""
        if self._watchdog is None and not self._groups:
            self._watchdog = watchdog
            self._groups.add(group)
        else:
            self.add(group)
            watchdog.release(group)

    def remove(self, group: int) -> None:
        """Remove a process group that has ended: the system may give its number to another group."""
        if group in self._groups:
            self._groups.remove(group)
            self._send(f"- {group}\n")

    def kill_all(self) -> None:
        """Kill the registered process groups."""
        if sys.platform == "win32":
            return
        for group in self._groups:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)

    def _send(self, line: str) -> None:
        if sys.platform == "win32":
            return
        if self._watchdog is not None:
            with suppress(OSError):
                self._watchdog.write(line)
                return
        self._end_watchdog()
        try:
            self._watchdog = WatchdogProcess()
            self._watchdog.write("".join(f"+ {group}\n" for group in self._groups))
        except OSError as error:
            _logger.warning(
                "The child watchdog cannot start (%s). If the gateway is killed, its child processes keep running.",
                error,
            )

    def _end_watchdog(self) -> None:
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:
            watchdog.end()


_open: Final[WeakSet[ChildWatchdog]] = WeakSet()


async def hold_starts() -> None:
    """Let no further child process of this process start; return when one that is starting is registered."""
    for watchdog in tuple(_open):
        await watchdog.start_lock.acquire()


def kill_children() -> None:
    """Kill the child processes of this process, so that no shutdown waits for them."""
    for watchdog in tuple(_open):
        watchdog.kill_all()
