"""The process of the watchdog that kills the gateway's child processes when the gateway ends.

It is a small shell in its own session. The gateway reports its living process groups over a pipe. When the gateway
ends, the shell reads the end of the pipe, kills the remaining groups and exits. Only the gateway has the writing end of
the pipe, and the shell inherits only the reading end.
"""

import subprocess
from contextlib import suppress
from typing import Final

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


class WatchdogProcess:
    """A running watchdog."""

    def __init__(self) -> None:
        """Start it.

        Raises:
            OSError: It cannot start.
        """
        self._process = subprocess.Popen(  # noqa: S603  # a constant command line
            ["/bin/sh", "-c", _WATCH],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            cwd="/",
            env={},
            start_new_session=True,  # a Ctrl-C goes to the terminal's foreground group
        )

    def write(self, lines: str) -> None:
        """Add process groups to the list (`+ 123`), or remove them (`- 123`).

        Raises:
            OSError: The watchdog has died.
        """
        assert self._process.stdin is not None  # noqa: S101  # opened with a pipe
        self._process.stdin.write(lines.encode())

    def release(self, group: int) -> None:
        """End the watchdog without killing a process group."""
        with suppress(OSError):
            self.write(f"- {group}\n")
        self.end()

    def end(self) -> None:
        """Close the pipe, so that the watchdog kills the remaining groups and exits; kill it if it is too slow."""
        assert self._process.stdin is not None  # noqa: S101  # as above
        self._process.stdin.close()
        try:
            self._process.wait(_LAST_WAIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
