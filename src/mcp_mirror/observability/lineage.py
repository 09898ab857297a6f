"""The graph of calls and stored values: a call makes a value, other calls use it.

The graph is built from the calls in the event log, and from the descriptors of values whose calls the log does not
have any more.
"""

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final, Literal

import anyio.to_thread
import msgspec

from mcp_mirror.core.amounts import shorten
from mcp_mirror.observability.events import CallEvent, read_calls
from mcp_mirror.paths import slug_of
from mcp_mirror.stores.base import Store
from mcp_mirror.types import Descriptor

MAX_NODES: Final = 200
"""Nodes of the lineage of one value."""
_READ: Final = 10_000
"""Calls and values that a graph is built from, the newest."""
_READ_NEWEST: Final = 1_000
"""Values that the graph of the newest calls is built from; older inputs of these calls are read one by one."""
_NEWEST: Final = 60
"""Nodes of the graph of the newest calls and values, without the neighbours of these nodes."""
_LABEL_CHARACTERS: Final = 80

Direction = Literal["up", "down"]


class ValueNode(msgspec.Struct, frozen=True):
    """A stored value, or one that was removed."""

    path: str
    """Its base."""
    tool: str
    """The tool that made it; of a removed value the beginning of its path."""
    kind: str = ""
    size: int = 0
    """Bytes."""
    created: float = 0.0
    """Seconds since the epoch."""
    is_removed: bool = False

    @property
    def id(self) -> str:
        """The name of the node in edges."""
        return _value_id(self.path)


class CallNode(msgspec.Struct, frozen=True):
    """A tool call that made or used values."""

    call: str
    """The correlation id of the call; of a call that is only known by its value, the value's path."""
    tool: str
    upstream: str
    """Empty for the gateway's own tools."""
    at: float
    """Seconds since the epoch."""
    outcome: str

    @property
    def id(self) -> str:
        """The name of the node in edges."""
        return f"call {self.call}"


Node = ValueNode | CallNode


class Edge(msgspec.Struct, frozen=True):
    """The way of data from one node to another."""

    source: str
    target: str
    part: str = ""
    """The part of the value that was used, such as `/rows/0`; empty for the whole value."""


class Graph(msgspec.Struct, frozen=True):
    """Nodes by id, and edges.

    Edges lead from calls to values that they made, and from values to calls that used them. A call of a script whose
    result was not stored has an edge to the call that ran the script.
    """

    nodes: Mapping[str, Node] = msgspec.field(default_factory=dict)
    edges: tuple[Edge, ...] = ()
    is_cut: bool = False
    """There are more nodes than these."""

    def lineage_of(self, path: str, limit: int = MAX_NODES) -> "Graph":
        """The values and calls that a value was made of, and those that were made of it; empty for an unknown path.

        `limit` is the maximum number of nodes, the nearest first.
        """
        start = _value_id(path)
        if start not in self.nodes:
            return Graph()
        kept = {start: None}
        waiting: deque[tuple[str, Direction]] = deque([(start, "up"), (start, "down")])
        nexts = {"up": self._list_neighbours("up"), "down": self._list_neighbours("down")}
        is_cut = self.is_cut
        seen = {*waiting}
        while waiting:
            node, direction = waiting.popleft()
            for other, _ in nexts[direction][node]:
                if (other, direction) in seen:
                    continue
                seen.add((other, direction))
                if other not in kept and len(kept) >= limit:
                    is_cut = True
                    continue
                kept[other] = None
                waiting.append((other, direction))
        return self._select(kept, is_cut=is_cut)

    def select_newest(self, limit: int) -> "Graph":
        """The newest nodes that have edges, at most `limit`, with the neighbours of calls."""

        def find_time(name: str) -> float:
            node = self.nodes[name]
            return node.at if isinstance(node, CallNode) else node.created

        connected = {name for edge in self.edges for name in (edge.source, edge.target)}
        newest = dict.fromkeys(sorted(connected, key=find_time, reverse=True)[:limit])
        kept = dict(newest)
        for edge in self.edges:
            for one, other in ((edge.source, edge.target), (edge.target, edge.source)):
                if one in newest and isinstance(self.nodes[one], CallNode):
                    kept[other] = None
        return self._select(kept, is_cut=self.is_cut or len(kept) < len(connected))

    def _select(self, kept: Collection[str], *, is_cut: bool) -> "Graph":
        edges = tuple(edge for edge in self.edges if edge.source in kept and edge.target in kept)
        return Graph({name: self.nodes[name] for name in kept}, edges, is_cut)

    def to_json(self) -> dict[str, Any]:
        """The graph as JSON objects: `nodes` with their `id` and `type`, `edges`, `cut`."""
        return {
            "nodes": [_describe_node(node) for node in self.nodes.values()],
            "edges": [{"source": edge.source, "target": edge.target, "part": edge.part} for edge in self.edges],
            "cut": self.is_cut,
        }

    def to_dot(self) -> str:
        """The graph in the language of Graphviz."""
        names = {name: f"n{number}" for number, name in enumerate(self.nodes)}
        lines = ["digraph lineage {", "  rankdir=LR;", '  node [fontname="sans-serif"];']
        for name, node in self.nodes.items():
            shape = "box" if isinstance(node, CallNode) else "note"
            style = ", style=dashed" if isinstance(node, ValueNode) and node.is_removed else ""
            lines.append(f"  {names[name]} [shape={shape}, label={_quote_dot(title_of(node))}{style}];")
        for edge in self.edges:
            label = f" [label={_quote_dot(shorten(edge.part, _LABEL_CHARACTERS))}]" if edge.part else ""
            lines.append(f"  {names[edge.source]} -> {names[edge.target]}{label};")
        return "\n".join([*lines, "}"])

    def to_mermaid(self) -> str:
        """The graph as a Mermaid flowchart."""
        names = {name: f"n{number}" for number, name in enumerate(self.nodes)}
        lines = ["flowchart LR"]
        for name, node in self.nodes.items():
            left, right = ("[", "]") if isinstance(node, CallNode) else ("([", "])")
            lines.append(f'  {names[name]}{left}"{_escape_mermaid(title_of(node))}"{right}')
        for edge in self.edges:
            label = f'|"{_escape_mermaid(shorten(edge.part, _LABEL_CHARACTERS))}"|' if edge.part else ""
            lines.append(f"  {names[edge.source]} -->{label} {names[edge.target]}")
        return "\n".join(lines)

    def walk(self, path: str, direction: Direction) -> Iterator[tuple[int, Node, str]]:
        """The nodes above or below a value as a tree: depth, node and the used part; each node once.

        up: what the value was made of. down: what was made of it. The value itself is not part of the result.
        """
        nexts, start = self._list_neighbours(direction), _value_id(path)
        seen, stack = {start}, [(1, *one) for one in reversed(nexts[start])]
        while stack:
            depth, name, part = stack.pop()
            if name in seen:
                continue
            seen.add(name)
            yield depth, self.nodes[name], part
            stack += [(depth + 1, *one) for one in reversed(nexts[name])]

    def _list_neighbours(self, direction: Direction) -> Mapping[str, list[tuple[str, str]]]:
        """By node, the nodes that an edge leads to in this direction, with the used part; empty for other nodes."""
        found = defaultdict[str, list[tuple[str, str]]](list)
        for edge in self.edges:
            one, other = (edge.target, edge.source) if direction == "up" else (edge.source, edge.target)
            found[one].append((other, edge.part))
        return found


def title_of(node: Node) -> str:
    """Return a node as one line of text."""
    if isinstance(node, CallNode):
        return f"{node.tool} ({node.upstream})" if node.upstream else node.tool
    return f"{node.path} (removed)" if node.is_removed else node.path


def build_graph(calls: Iterable[CallEvent], values: Iterable[Descriptor], *, is_cut: bool = False) -> Graph:
    """Return the graph of calls and values.

    Calls without stored values and inputs are skipped. `is_cut`: there are more calls or values than these.
    """
    events = {one.id: one for one in sorted(calls, key=lambda one: one.at)}
    described = {one.base: one for one in sorted(values, key=lambda one: one.created)}
    nodes: dict[str, Node] = {_value_id(base): _build_value_node(one) for base, one in described.items()}
    edges: dict[Edge, None] = {}
    makers: dict[str, CallNode] = {}
    parents = {one.parent for one in events.values() if one.parent in events}
    for event in events.values():
        if event.path or event.inputs or event.parent or event.id in parents:
            node = CallNode(event.id, event.tool, event.upstream, event.at, event.outcome)
            nodes[node.id] = node
            if event.path:
                makers[event.path] = node
            edges |= dict.fromkeys(_connect(node, event.path, event.inputs))
        if event.parent in events:
            result = _value_id(event.path) if event.path else node.id
            edges[Edge(result, f"call {event.parent}")] = None
    for base, maker in _find_makers(described, makers).items():
        nodes[maker.id] = maker
        inputs = described[base].provenance.inputs if maker.call == base else ()
        edges |= dict.fromkeys(_connect(maker, base, inputs))
    for name in (name for edge in edges for name in (edge.source, edge.target) if name not in nodes):
        base = name.removeprefix(_VALUE)
        nodes[name] = ValueNode(base, slug_of(base), is_removed=True)
    return Graph(nodes, tuple(edges), is_cut)


async def read_lineage(store: Store, namespace: str, path: str = "", newest: int = _NEWEST) -> Graph:
    """Return the lineage of a value by its base, also of values that it was made of and that are older than the log.

    Without a base: the newest calls and values, at most `newest` without their neighbours.

    Raises:
        StoreError: The store failed.
    """
    most = _READ if path else _READ_NEWEST
    found = await read_calls(store.events, namespace, limit=_READ + 1)
    values = await store.list(namespace, limit=most + 1)
    is_cut = len(found) > _READ or len(values) > most
    calls = [event for _, event in found[:_READ]]
    older = await _read_sources(store, namespace, path, calls, values[:most]) if path else ()

    def select() -> Graph:
        graph = build_graph(calls, (*values[:most], *older), is_cut=is_cut)
        return graph.lineage_of(path) if path else graph.select_newest(newest)

    graph = await anyio.to_thread.run_sync(select)
    nodes = dict(graph.nodes)
    for name, node in graph.nodes.items():  # some are not removed, but older than the values that were read
        if isinstance(node, ValueNode) and node.is_removed:
            stored = await store.describe(namespace, node.path)
            if isinstance(stored, Descriptor):
                nodes[name] = _build_value_node(stored)
    return Graph(nodes, graph.edges, graph.is_cut)


async def _read_sources(
    store: Store, namespace: str, path: str, calls: Iterable[CallEvent], values: Iterable[Descriptor]
) -> list[Descriptor]:
    """Return the value of a path and those that it was made of, without those that are known already."""
    known = {one.base: one for one in values}
    made_of = {event.path: event.inputs for event in calls if event.path}
    older: list[Descriptor] = []
    waiting, seen = [path], {path}
    while waiting and len(seen) <= MAX_NODES:
        base = waiting.pop(0)
        one = known.get(base)
        if one is None and isinstance(stored := await store.describe(namespace, base), Descriptor):
            older.append(one := stored)
        inputs = made_of.get(base) or (one.provenance.inputs if one else ())
        nexts = dict.fromkeys(text.partition("/")[0] for text in inputs)
        waiting += [source for source in nexts if source not in seen]
        seen.update(nexts)
    return older


def _build_value_node(one: Descriptor) -> ValueNode:
    return ValueNode(one.base, one.provenance.tool, one.kind, one.shown_size, one.created)


def _find_makers(described: Mapping[str, Descriptor], makers: Mapping[str, CallNode]) -> dict[str, CallNode]:
    """The calls of values that no event names: companions of other values, and values of older calls."""
    found: dict[str, CallNode] = {}
    companions = {one.companion: base for base, one in described.items() if one.companion}
    for base, one in described.items():
        if base in makers:
            continue
        origin = one.provenance
        main = companions.get(base, base)
        known = makers.get(main) or found.get(main)
        found[base] = known or CallNode(main, origin.tool, origin.upstream, one.created, "stored")
    return found


def _connect(call: CallNode, path: str, inputs: Iterable[str]) -> Iterator[Edge]:
    if path:
        yield Edge(call.id, _value_id(path))
    for one in inputs:
        base, slash, part = one.partition("/")
        yield Edge(_value_id(base), call.id, slash + part)


_VALUE: Final = "value "


def _value_id(base: str) -> str:
    return f"{_VALUE}{base}"


def _describe_node(node: Node) -> dict[str, Any]:
    if isinstance(node, CallNode):
        return {"id": node.id, "type": "call", **msgspec.structs.asdict(node)}
    facts = {"path": node.path, "tool": node.tool, "kind": node.kind, "bytes": node.size, "created": node.created}
    return {"id": node.id, "type": "value", **facts, "removed": node.is_removed}


def _quote_dot(text: str) -> str:
    escaped = _to_line(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _escape_mermaid(text: str) -> str:
    """A text for a quoted label, in which Mermaid reads HTML and `#code;`."""
    return "".join(one if one.isalnum() or one in " _-./()" else f"#{ord(one)};" for one in _to_line(text))


def _to_line(text: str) -> str:
    return "".join(one if one.isprintable() else " " for one in text)
