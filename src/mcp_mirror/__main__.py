"""The command `mcp-mirror`, which is also `python -m mcp_mirror`."""

import io
import sys

from mcp_mirror.system.import_path import prefer_own_libraries


def main() -> None:
    """Run the command that the arguments name."""
    if sys.argv[1:2] == ["wrap"]:
        prefer_own_libraries()  # the entry of the client is the server's, and so is its environment
    from mcp_mirror.cli.main import app, import_lazily  # noqa: PLC0415  # from the folders in the new order

    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # As for standard error: names and values may have characters that the encoding of a pipe lacks.
        sys.stdout.reconfigure(errors="backslashreplace")
    if sys.stderr is None:
        import_lazily("mcp_mirror.observability.standard_error").open_closed_stream()
    app()


if __name__ == "__main__":
    main()
