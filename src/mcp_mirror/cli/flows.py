"""The command `mcp-mirror flows`: which data flows between places are allowed, and which rule refuses the rest."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.table import Table

from mcp_mirror.cli.console import new_table, open_console, print_table
from mcp_mirror.cli.options import ConfigOption, JsonOption
from mcp_mirror.cli.run import load
from mcp_mirror.security.flows import Flows, build_flows
from mcp_mirror.settings.labels import FILES, MODEL

Matrix = Mapping[tuple[str, str], str | None]
"""By source and target: the rule that refuses; None if a value with the source's own labels passes."""


def print_flows(
    config: ConfigOption = None,
    as_: JsonOption = False,
    stdio: Annotated[bool, typer.Option("--stdio", help="As with stdio: one user, regardless of `auth`.")] = False,
) -> None:
    """Print which data flows the configuration allows; start no server.

    The table assumes that a value has only the labels of its source. A value made of several sources may flow where
    each of them may.

    Example: mcp-mirror flows
    """
    loaded = load(config)
    flows = build_flows(loaded, is_isolated=loaded.auth.is_required and not stdio)
    places = (*(one.name for one in loaded.upstreams), *([FILES] if loaded.memory_tools.roots else []), MODEL)
    found: dict[tuple[str, str], str | None] = {}
    for source in places:
        for target in places:
            refusal = flows.refusal(flows.labels_of_place(source), target)
            found[source, target] = refusal.rule if refusal else None
    if as_:
        print(json.dumps(as_json(flows, found), indent=2))
        return
    console = open_console()
    rules = sorted({rule for rule in found.values() if rule is not None})
    print_table(as_table(flows, found, rules))
    for number, rule in enumerate(rules, 1):
        console.print(f"{number}: {rule}", markup=False, highlight=False)


def as_table(flows: Flows, found: Matrix, rules: Sequence[str]) -> Table:
    """Return a table with a row for each source and the labels of its values; numbers refer to refusing rules."""
    places = tuple(dict.fromkeys(source for source, _ in found))
    table = new_table(("from", "zone", "labels", *(f"to {name}" for name in places)))
    for source in places:
        labels, zone = flows.labels_of_place(source), flows.find_zone(source)
        refusals = [found[source, target] for target in places]
        cells = ["yes" if rule is None else f"no ({rules.index(rule) + 1})" for rule in refusals]
        table.add_row(source, zone or "(all)", f"{labels.integrity}, {labels.confidentiality}", *cells)
    return table


def as_json(flows: Flows, found: Matrix) -> dict[str, Any]:
    """Return the places with their labels and zones, and all pairs of places."""
    places = dict.fromkeys(source for source, _ in found)
    labels = {name: flows.labels_of_place(name) for name in places}
    return {
        "places": {
            name: {"zone": flows.find_zone(name), "integrity": one.integrity, "confidentiality": one.confidentiality}
            for name, one in labels.items()
        },
        "flows": [
            {"from": source, "to": to, "allowed": rule is None, **({} if rule is None else {"rule": rule})}
            for (source, to), rule in found.items()
        ],
    }
