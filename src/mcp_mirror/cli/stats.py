"""What a store holds and what its answers have cost, by namespace, as a table or as JSON."""

import json
from collections.abc import Mapping
from typing import Final

from rich import box
from rich.table import Table

from mcp_mirror.core.preview import human_bytes
from mcp_mirror.stores.base import Store
from mcp_mirror.types import StoreStats

NOTHING: Final = "Nothing is stored, and no client has been answered yet: let one call a twin."
"""In place of a table without a line."""


async def read_stats(store: Store) -> Mapping[str, StoreStats]:
    """Each namespace with what is in the store of it.

    Raises:
        StoreError: The store cannot tell.
    """
    return {namespace: await store.stats(namespace) for namespace in sorted(await store.namespaces())}


def as_table(found: Mapping[str, StoreStats]) -> Table:
    """A line for each namespace."""
    table = Table(box=box.SIMPLE)
    table.add_column("namespace", overflow="fold")
    for name in ("values", "size", "tokens sent", "tokens kept out", "ratio"):
        table.add_column(name, justify="right", no_wrap=True)
    for namespace, one in found.items():
        told = one.traffic
        tokens = (f"{told.sent:,}", f"{told.kept_out:,}", f"1 : {told.ratio:,}")
        table.add_row(namespace, f"{one.values:,}", human_bytes(one.size), *tokens)
    return table


def as_json(found: Mapping[str, StoreStats]) -> str:
    """An object with a member for each namespace; sizes in bytes."""
    told = {
        namespace: {
            "values": one.values,
            "bytes": one.size,
            "tokens_sent": one.traffic.sent,
            "tokens_kept_out": one.traffic.kept_out,
            "ratio": one.traffic.ratio,
        }
        for namespace, one in found.items()
    }
    return json.dumps(told, indent=2)
