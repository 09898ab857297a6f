"""The command `mcp-mirror`, which is also `python -m mcp_mirror`."""

from mcp_mirror.cli.main import app


def main() -> None:
    """Run the command that the arguments name."""
    app()


if __name__ == "__main__":
    main()
