"""Options and variables that several commands have, and the ages in options, such as 7d."""

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from mcp_mirror.errors import MirrorError
from mcp_mirror.system.patterns import lazy_pattern


def _read_folder(text: str) -> Path:
    """Return a folder, with `~` expanded. An empty text, as of a variable that is not set, would be the current one."""
    if not text:
        raise typer.BadParameter("A store needs a folder. Leave the option out for the default.")
    return Path(os.path.expanduser(text))  # noqa: PTH111  # `Path.expanduser` raises for an unknown user


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        help="The configuration, YAML or JSON. Default: $MCP_MIRROR_CONFIG, ./mcp-mirror.yaml, or in the user's "
        "configuration folder mcp-mirror.yaml or the only file of `install --merge`.",
    ),
]
ClientArgument = Annotated[
    str | None,
    typer.Argument(metavar="[CLIENT|FILE]", help="A client's name or file. Default: every client."),
]
StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store",
        parser=_read_folder,
        help="The folder of stored values, which all gateways with the same folder share. Default: mcp-mirror/store in "
        "the user's data folder.",
        metavar="FOLDER",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
VerboseOption = Annotated[
    int, typer.Option("--verbose", "-v", count=True, metavar="", help="Increase log verbosity; repeat for more.")
]
AWAIT_VARIABLE: Final = "MCP_MIRROR_AWAIT_SERVER"
"""The environment variable with which `wrap` answers only when its server is ready or has failed; `doctor` sets it."""
_AGE: Final = lazy_pattern(r"([0-9]{1,9})([smhd])")
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def parse_age(age: str, option: str) -> float:
    """Return an age, a number and s, m, h or d, in seconds, 0 for an empty text. Errors name the option."""
    match = _AGE.fullmatch(age)
    if age and not match:
        raise MirrorError(f"{option} takes a number and s, m, h or d, such as 7d; got {age!r}.")
    return int(match[1]) * _UNITS[match[2]] if match else 0


def format_duration(seconds: float) -> str:
    """Return a time, rounded, in its largest fitting unit: `3 h`."""
    unit = next((unit for unit in "dhm" if seconds >= _UNITS[unit]), "s")
    return f"{max(0, round(seconds / _UNITS[unit]))} {unit}"
