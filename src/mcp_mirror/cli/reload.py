"""Taking a changed configuration while the gateway serves: at SIGHUP, or whenever its file changes.

One that cannot be used is told of, and the old one goes on.
"""

import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio

from mcp_mirror.app import Application
from mcp_mirror.config import load_config
from mcp_mirror.config.lock_file import read_pins
from mcp_mirror.errors import ConfigError
from mcp_mirror.settings.policies import Config

_LOOK: Final = 1.0
"""Seconds between two looks at the file."""


@dataclass(frozen=True, slots=True)
class Reloading:
    """Follows one configuration file."""

    application: Application
    path: Path
    environ: Mapping[str, str]
    say: Callable[[str], None]
    """Tells the operator a line."""
    taken: Callable[[Config], None] = lambda _config: None
    """Told what is served from now on."""

    def reload(self) -> None:
        """Read the file again and go on with what it says."""
        try:
            config = load_config(self.path, self.environ)
            later = self.application.reload(config, read_pins(config.lock))
        except ConfigError as error:
            self.say(f"mcp-mirror: the configuration is not taken, the old one goes on. {error}")
            return
        for warning in config.warnings:
            self.say(f"mcp-mirror: {warning}")
        self.taken(config)
        rest = f" A change of {' and '.join(later)} takes effect at the next start." if later else ""
        self.say(f"mcp-mirror: the configuration is taken.{rest}")

    async def follow_signal(self) -> None:
        """Reload at each SIGHUP, where the system has it."""
        if sys.platform == "win32":
            return
        with anyio.open_signal_receiver(signal.SIGHUP) as signals:
            async for _ in signals:
                self.reload()

    async def follow_file(self) -> None:
        """Reload whenever the file has changed: editors write it anew, so it is looked at by its name."""
        known = self._stamp()
        while True:
            await anyio.sleep(_LOOK)
            if (stamp := self._stamp()) not in (known, None):
                known = stamp
                self.reload()

    def _stamp(self) -> tuple[int, int, int] | None:
        """What changes when the file does; None while it is away."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
