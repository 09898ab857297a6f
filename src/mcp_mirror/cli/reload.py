"""Reload of the configuration while the gateway serves: at SIGHUP, or when the file changes.

If the new configuration cannot be used, the gateway reports the error and continues with the old one.
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

_POLL_INTERVAL: Final = 1.0
"""Seconds between two checks of the file."""


@dataclass(frozen=True, slots=True)
class Reloading:
    """Reloads one configuration file."""

    application: Application
    path: Path
    environ: Mapping[str, str]
    print_line: Callable[[str], None]
    """Prints a line for the operator."""
    on_reload: Callable[[Config], None] = lambda _config: None
    """Called with each configuration that the gateway has loaded."""
    complete: Callable[[Config], Config] = lambda config: config
    """Adds what the configuration file does not contain."""

    def reload(self) -> None:
        """Read the file again and continue with its configuration; report an unusable one and keep the old one."""
        try:
            config = self.complete(load_config(self.path, self.environ))
            deferred = self.application.reload(config, read_pins(config.lock))
        except ConfigError as error:
            self.print_line(f"mcp-mirror: the configuration was not reloaded, the old one continues. {error}")
            return
        for warning in config.warnings:
            self.print_line(f"mcp-mirror: {warning}")
        self.on_reload(config)
        rest = f" A change of {' and '.join(deferred)} takes effect at the next start." if deferred else ""
        self.print_line(f"mcp-mirror: the configuration was reloaded.{rest}")

    async def follow_signal(self) -> None:
        """Reload at each SIGHUP; return on systems without it."""
        if sys.platform == "win32":
            return
        with anyio.open_signal_receiver(signal.SIGHUP) as signals:
            async for _ in signals:
                self.reload()

    async def follow_file(self) -> None:
        """Reload whenever the file has changed. This checks the path, because editors replace the file."""
        known = self._read_version()
        while True:
            await anyio.sleep(_POLL_INTERVAL)
            if (version := self._read_version()) not in (known, None):
                known = version
                self.reload()

    def _read_version(self) -> tuple[int, int, int] | None:
        """Return values that change with the file; None while it does not exist."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino
