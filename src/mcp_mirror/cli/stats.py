"""The command `mcp-mirror stats`: stored values and token traffic by namespace."""

import json
from collections.abc import Mapping
from typing import Final

from rich.table import Table

from mcp_mirror.callers import name_namespaces
from mcp_mirror.cli.console import new_table, print_table
from mcp_mirror.cli.options import ConfigOption, JsonOption, StoreOption, VerboseOption
from mcp_mirror.cli.store import load_store_config, read_store
from mcp_mirror.core.amounts import format_bytes
from mcp_mirror.security.sanitize import sanitize_to_lines
from mcp_mirror.stores.base import Store
from mcp_mirror.types import StoreStats

NOTHING: Final = "The store is empty, and the gateway has answered no call yet. Call a twin first."


def stats(
    config: ConfigOption = None, store: StoreOption = None, as_: JsonOption = False, verbose: VerboseOption = 0
) -> None:
    """Print stored values and tokens sent and kept out, by namespace.

    A running gateway updates these numbers every few seconds.

    Example: mcp-mirror stats
    """

    async def run(opened: Store) -> None:
        found = {namespace: await opened.stats(namespace) for namespace in sorted(await opened.namespaces())}
        if found and not as_:
            print_table(as_table(found))
        else:
            print(as_json(found) if as_ else NOTHING)

    read_store(load_store_config(config, store, verbose), run)


def as_table(found: Mapping[str, StoreStats]) -> Table:
    """Return a table with a row for each namespace."""
    table = new_table(("namespace",), ("values", "size", "tokens sent", "tokens kept out", "ratio"))
    names = name_namespaces(found)
    for namespace, one in found.items():
        traffic = one.traffic
        tokens = (f"{traffic.sent:,}", f"{traffic.kept_out:,}", f"1 : {traffic.ratio:,}")
        table.add_row(sanitize_to_lines(names[namespace]), f"{one.values:,}", format_bytes(one.size), *tokens)
    return table


def as_json(found: Mapping[str, StoreStats]) -> str:
    """Return a JSON object with a member for each namespace; sizes are bytes."""
    members = {
        namespace: {
            "values": one.values,
            "bytes": one.size,
            "tokens_sent": one.traffic.sent,
            "tokens_kept_out": one.traffic.kept_out,
            "ratio": one.traffic.ratio,
        }
        for namespace, one in found.items()
    }
    return json.dumps(members, indent=2)
