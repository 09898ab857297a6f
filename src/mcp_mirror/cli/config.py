"""The commands `mcp-mirror config schema | reference | example`."""

import json

import typer

from mcp_mirror.config import config_json_schema
from mcp_mirror.config.reference import example_file, reference_page

config_app: typer.Typer = typer.Typer(
    no_args_is_help=True, help="Print a schema, a reference or an example of the configuration."
)


@config_app.command()
def schema() -> None:
    """Print the JSON Schema of the configuration, for editors.

    Example: mcp-mirror config schema > mcp-mirror.schema.json
    """
    print(json.dumps(config_json_schema(), indent=2))


@config_app.command()
def reference() -> None:
    """Print the reference of all keys as Markdown."""
    print(reference_page(), end="")


@config_app.command()
def example() -> None:
    """Print a commented example with every key.

    Example: mcp-mirror config example > mcp-mirror.yaml
    """
    print(example_file(), end="")
