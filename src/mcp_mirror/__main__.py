"""`python -m mcp_mirror` is the command `mcp-mirror`."""

from mcp_mirror.cli import main

main()
