"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        help="The configuration, YAML or JSON. Default: $MCP_MIRROR_CONFIG, ./mcp-mirror.yaml, or the file in the "
        "user's configuration folder that `install --merge` wrote.",
        show_default=False,
    ),
]
StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store",
        help="The folder of stored values, which all gateways with the same folder share. Default: the user's data "
        "folder.",
        metavar="FOLDER",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
VerboseOption = Annotated[
    int, typer.Option("--verbose", "-v", count=True, help="Increase log verbosity; repeat for more.")
]
