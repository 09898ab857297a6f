"""The commands `mcp-mirror install` and `uninstall`: between a client and its servers, and out again.

The servers in a client's file move, as they stand there (`config.clients` reads them so), to a new configuration of
ours, and the gateway takes their place. The file as it was is kept beside it as long as the gateway is installed, and
comes back from there. Nothing that is there already is added to: what would need a person's judgement is refused,
before anything is written.
"""

from mcp_mirror.cli.install.commands import install, uninstall

__all__ = ["install", "uninstall"]
