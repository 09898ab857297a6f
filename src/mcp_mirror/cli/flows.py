"""The command `mcp-mirror flows`: what may flow from each place to each, and which rule refuses the rest."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich import box
from rich.table import Table

from mcp_mirror.cli.check import open_console
from mcp_mirror.cli.run import load, tell_warnings
from mcp_mirror.security.flows import Flows, flows_of
from mcp_mirror.settings.labels import FILES, MODEL
from mcp_mirror.settings.policies import Config

_YES: Final = "yes"

Matrix = Mapping[tuple[str, str], str | None]
"""By source and target: the rule that refuses; None where a value of the source's own labels passes."""


def print_flows(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            help="The configuration, YAML or JSON. Else $MCP_MIRROR_CONFIG, ./mcp-mirror.yaml, or the user's own.",
            show_default=False,
        ),
    ] = None,
    as_: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,  # noqa: FBT002  # a flag
    stdio: Annotated[  # noqa: FBT002  # a flag of the command line
        bool, typer.Option("--stdio", help="As on standard streams: one user, whatever `auth` says.")
    ] = False,
) -> None:
    """Print what may flow from each upstream to each other, to local files and to the model; nothing is started.

    A value is taken to have the labels of its source alone; one that was made of several may go where all may.

    Example: mcp-mirror flows
    """
    loaded = load(config)
    tell_warnings(loaded)
    flows = flows_of(loaded, is_isolated=loaded.auth.is_required and not stdio)
    found = matrix_of(flows, places_of(loaded))
    if as_:
        print(json.dumps(as_json(flows, found), indent=2))  # noqa: T201  # the output
        return
    console = open_console()
    console.print(as_table(flows, found))
    for number, rule in enumerate(_rules(found), 1):
        console.print(f"{number}: {rule}", markup=False, highlight=False)


def places_of(config: Config) -> tuple[str, ...]:
    """All places, the model last; files where there are folders for them."""
    return (*(one.name for one in config.upstreams), *([FILES] if config.memory_tools.roots else []), MODEL)


def matrix_of(flows: Flows, places: tuple[str, ...]) -> Matrix:
    """What passes, and what does not."""
    found = {(one, to): flows.refusal(flows.labels_from(one), to) for one in places for to in places}
    return {pair: refusal.rule if refusal else None for pair, refusal in found.items()}


def as_table(flows: Flows, found: Matrix) -> Table:
    """A line for each source, with what its values are labelled; a number stands for the rule that refuses."""
    places, rules = tuple(dict.fromkeys(source for source, _ in found)), _rules(found)
    table = Table(box=box.SIMPLE)
    for name in ("from", "zone", "labels"):
        table.add_column(name, overflow="fold")
    for name in places:
        table.add_column(f"to {name}", no_wrap=True)
    for source in places:
        labels = flows.labels_from(source)
        cells = [found[source, to] for to in places]
        told = [_YES if rule is None else f"no ({rules.index(rule) + 1})" for rule in cells]
        table.add_row(source, flows.zone_of(source) or "(all)", f"{labels.integrity}, {labels.confidentiality}", *told)
    return table


def as_json(flows: Flows, found: Matrix) -> dict[str, Any]:
    """The places with their labels and zones, and each pair of them."""
    places = dict.fromkeys(source for source, _ in found)
    labels = {name: flows.labels_from(name) for name in places}
    return {
        "places": {
            name: {"zone": flows.zone_of(name), "integrity": one.integrity, "confidentiality": one.confidentiality}
            for name, one in labels.items()
        },
        "flows": [
            {"from": source, "to": to, "allowed": rule is None, **({} if rule is None else {"rule": rule})}
            for (source, to), rule in found.items()
        ],
    }


def _rules(found: Matrix) -> list[str]:
    return sorted({rule for rule in found.values() if rule is not None})
