"""The lineage of a value, or of the newest calls and values, for the page."""

from collections.abc import Mapping
from typing import Any, Final

import anyio.to_thread
import msgspec

from mcp_mirror.errors import ToolError
from mcp_mirror.memory.tools.lookup import read_path
from mcp_mirror.observability.lineage import CallNode, Graph, Node, find_older, read_graph
from mcp_mirror.stores.base import Store

NEWEST: Final = 60
"""Nodes of the graph of the newest calls and values, without the neighbours of these nodes."""


async def read_lineage(
    store: Store, namespace: str, text: str, *, include_parts: bool = True, newest: int = NEWEST
) -> Mapping[str, Any]:
    """Return a graph as an object for JSON; see `Graph.to_json`.

    `text` is a memory path; empty for the newest calls and values, at most `newest` without their neighbours.
    `include_parts`: name the parts of values that calls used, which contain keys of the values.

    Raises:
        StoreError: The store failed.
        ToolError: The text is not a memory path.
    """
    path = read_path(text) if text else None
    if text and path is None:
        raise ToolError("This is not a memory path. Open a value, and follow its link.")
    graph = await read_graph(store, namespace, path.base if path else "")

    def select() -> Graph:
        selected = graph.lineage_of(path.base) if path else select_newest(graph, newest)
        if not include_parts:
            selected = msgspec.structs.replace(
                selected, edges=tuple(dict.fromkeys(msgspec.structs.replace(one, part="") for one in selected.edges))
            )
        return selected

    return (await find_older(store, namespace, await anyio.to_thread.run_sync(select))).to_json()


def select_newest(graph: Graph, limit: int) -> Graph:
    """Return the newest nodes that have edges, with the neighbours of calls.

    `limit` is the number of nodes without the neighbours.
    """
    connected = {name for edge in graph.edges for name in (edge.source, edge.target)}
    newest = sorted(connected, key=lambda name: _time_of(graph.nodes[name]), reverse=True)
    first = set(newest[:limit])
    kept = dict.fromkeys(newest[:limit])
    for edge in graph.edges:
        for one, other in ((edge.source, edge.target), (edge.target, edge.source)):
            if one in first and isinstance(graph.nodes[one], CallNode):
                kept[other] = None
    edges = tuple(edge for edge in graph.edges if edge.source in kept and edge.target in kept)
    is_cut = graph.is_cut or len(kept) < len(connected)
    return Graph({name: graph.nodes[name] for name in kept}, edges, is_cut)


def _time_of(node: Node) -> float:
    return node.at if isinstance(node, CallNode) else node.created
