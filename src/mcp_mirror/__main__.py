"""The command `mcp-mirror`, which `python -m mcp_mirror` is too."""

import gc


def main() -> None:
    """Run the command.

    What is imported stays to the end, so that the garbage collector has nothing to find there. Looking for it while it
    comes in takes an eighth of the start; later, each look through it would hold up every call for some 50 ms.
    """
    gc.disable()
    from mcp_mirror.cli.main import app  # noqa: PLC0415  # after the collector is off

    gc.freeze()
    gc.enable()
    app()


if __name__ == "__main__":
    main()
