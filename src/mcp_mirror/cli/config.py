"""The command `mcp-mirror config schema`."""

import json

import typer

from mcp_mirror.config import config_json_schema

config_app = typer.Typer(no_args_is_help=True, help="Print the JSON Schema of the configuration.")


@config_app.command()
def schema() -> None:
    """Print the JSON Schema of the configuration, for editors.

    Example: mcp-mirror config schema > mcp-mirror.schema.json
    """
    print(json.dumps(config_json_schema(), indent=2))
