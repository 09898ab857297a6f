"""The command `mcp-mirror version`."""

from mcp_mirror import __version__


def version() -> None:
    """Print the version."""
    print(__version__)
