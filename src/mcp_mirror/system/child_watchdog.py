"""A watchdog that kills the gateway's child processes when the gateway ends, even by SIGKILL.

The watchdog is a small shell in its own session. The gateway reports its living process groups over a pipe. When the
gateway ends, the watchdog reads the end of the pipe, kills the remaining groups and exits. Only the gateway has the
writing end of the pipe, and the watchdog inherits only the reading end.

Windows has no process groups, so there the watchdog does nothing.
"""

import logging
import subprocess
import sys
from contextlib import suppress
from typing import Final, Self

import anyio

_WATCH: Final = """
trap '' HUP INT QUIT TERM
groups=
while read -r sign group; do
  others=
  for one in $groups; do [ "$one" = "$group" ] || others="$others $one"; done
  groups=$others
  [ "$sign" = - ] || groups="$groups $group"
done
for group in $groups; do kill -s KILL -- "-$group"; done
"""
"""`+ 123` adds a process group to the list, `- 123` removes it."""

_LAST_WAIT: Final = 1.0
"""Seconds in which the watchdog must exit after its pipe is closed."""

_logger = logging.getLogger(__name__)


class ChildWatchdog:
    """Kills registered process groups when the gateway ends.

    The watchdog starts with the first group. If it dies, the next change starts it again.
    """

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._watchdog: subprocess.Popen[bytes] | None = None
        self.starting: anyio.Lock = anyio.Lock()
        """Held while a process starts. A start blocks the event loop for milliseconds, so starts run one by one."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_watchdog()

    def add(self, group: int) -> None:
        """Register a living process group."""
        self._groups.add(group)
        self._send(f"+ {group}\n")

    def remove(self, group: int) -> None:
        """Remove a process group that has ended: the system may give its number to another group."""
        if group in self._groups:
            self._groups.remove(group)
            self._send(f"- {group}\n")

    def _send(self, line: str) -> None:
        if sys.platform == "win32":
            return
        if self._watchdog is not None:
            with suppress(OSError):
                _write(self._watchdog, line)
                return
        self._end_watchdog()
        try:
            self._watchdog = _start_watchdog()
            _write(self._watchdog, "".join(f"+ {group}\n" for group in self._groups))
        except OSError as error:
            _logger.warning(
                "The child watchdog cannot start (%s). If the gateway is killed, its child processes keep running.",
                error,
            )

    def _end_watchdog(self) -> None:
        """Close the pipe, so that the watchdog kills the remaining groups and exits."""
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is None or watchdog.stdin is None:
            return
        watchdog.stdin.close()
        try:
            watchdog.wait(_LAST_WAIT)
        except subprocess.TimeoutExpired:
            watchdog.kill()
            watchdog.wait()


def _start_watchdog() -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603  # a constant command line
        ["/bin/sh", "-c", _WATCH],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        cwd="/",
        env={},
        start_new_session=True,  # a Ctrl-C goes to the terminal's foreground group
    )


def _write(watchdog: subprocess.Popen[bytes], text: str) -> None:
    assert watchdog.stdin is not None  # noqa: S101  # opened with a pipe
    watchdog.stdin.write(text.encode())
