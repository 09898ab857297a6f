"""The command `mcp-mirror`, which is also `python -m mcp_mirror`."""

import io
import sys

from mcp_mirror.cli.main import app


def main() -> None:
    """Run the command that the arguments name."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # As for standard error: names and values may have characters that the encoding of a pipe lacks.
        sys.stdout.reconfigure(errors="backslashreplace")
    app()


if __name__ == "__main__":
    main()
