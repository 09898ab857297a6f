"""The command `mcp-mirror`, which is also `python -m mcp_mirror`."""

import sys

from mcp_mirror.cli.main import app, import_lazily


def main() -> None:
    """Run the command that the arguments name."""
    if sys.stderr is None:
        import_lazily("mcp_mirror.observability.standard_error").open_closed_stream()
    app()


if __name__ == "__main__":
    main()
