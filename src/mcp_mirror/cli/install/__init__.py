"""The commands `mcp-mirror install` and `uninstall`: put the gateway between a client and its servers, and undo it.

`install` moves the servers of a client's file unchanged into a new gateway configuration (`config.clients` reads the
clients' formats) and makes the gateway the client's only server. A backup beside the client's file allows `uninstall`.
Existing configurations are never extended: `install` rejects ambiguous cases before it writes anything.
"""

from mcp_mirror.cli.install.commands import install, uninstall

__all__ = ["install", "uninstall"]
