"""Processes of ours that must not outlive us, however we end: a watchdog kills those that are left.

The watchdog is one small shell in a session of its own. It reads from us which process groups live; when we are gone,
killed without a word even, it reads the end of the pipe, kills what it still knows of, and ends. Nobody but we holds
the writing end, and the watchdog holds nothing of ours beside the reading one.

On Windows nothing happens: there are no process groups to kill. What a group means is not known here.
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
"""`+ 123` puts a process group on the list, `- 123` takes it off."""

_LAST_WAIT: Final = 1.0
"""Seconds that the watchdog gets to end once its pipe is closed."""

log = logging.getLogger(__name__)


class ChildWatchdog:
    """The process groups that end with us. The watchdog starts with the first; one that dies is started again."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._watchdog: subprocess.Popen[bytes] | None = None
        self.starting = anyio.Lock()
        """Held while a process starts: a start blocks the event loop for milliseconds, so they are made one by one."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_watchdog()

    def hold(self, group: int) -> None:
        """A process group lives."""
        self._groups.add(group)
        self._tell(f"+ {group}\n")

    def release(self, group: int) -> None:
        """It does not any more, and its number may become another's."""
        if group in self._groups:
            self._groups.remove(group)
            self._tell(f"- {group}\n")

    def _tell(self, line: str) -> None:
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
            log.warning("no watchdog can be started (%s): if we are killed, programs that we started stay", error)

    def _end_watchdog(self) -> None:
        """Close its pipe, upon which it kills what is left and ends."""
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
    return subprocess.Popen(  # noqa: S603  # nothing of it comes from outside
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
