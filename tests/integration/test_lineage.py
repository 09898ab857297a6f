"""The graph of calls and values, from events and descriptors; and sums of usage."""

from functools import reduce
from typing import Any

import pytest

from mcp_mirror.cli.usage import group_sums
from mcp_mirror.observability.events import CallEvent
from mcp_mirror.observability.lineage import CallNode, Graph, ValueNode, build_graph
from mcp_mirror.stores.event_log import Sums
from mcp_mirror.types import Descriptor, Provenance


def base(tool: str, number: int = 0) -> str:
    return f"{tool}-9c1d4f0e-6a55-4b8e-9d0a-0f3b2f6f{number:04x}"


def event(identity: str, path: str = "", *inputs: str, **more: Any) -> CallEvent:
    members = {"at": 1.0, "milliseconds": 1.0, "tool": "t", "upstream": "up", "outcome": "ok", "reason": ""}
    counts = {"bytes": 0, "sent": 0, "kept_out": 0}
    return CallEvent(id=identity, path=path, inputs=inputs, **{**members, **counts, **more})


def value(path: str, *inputs: str, **more: Any) -> Descriptor:
    provenance = Provenance("up", "t", "0" * 64, inputs)
    return Descriptor(path, "array", 7, 1, (), 2.0, 9.0, provenance, **more)


A, B, C, D = (base(tool) for tool in "abcd")


def edges(graph: Graph) -> set[tuple[str, str, str]]:
    return {(edge.source, edge.target, edge.part) for edge in graph.edges}


def test_values_lead_from_the_call_that_made_them_to_those_that_used_them() -> None:
    calls = [event("1", A), event("2", B, f"{A}/rows/0", A), event("3", "", B), event("4")]
    graph = build_graph(calls, [value(A), value(B)])
    assert edges(graph) == {
        ("call 1", f"value {A}", ""),
        (f"value {A}", "call 2", "/rows/0"),
        (f"value {A}", "call 2", ""),
        ("call 2", f"value {B}", ""),
        (f"value {B}", "call 3", ""),
    }
    assert "call 4" not in graph.nodes
    assert graph.nodes[f"value {A}"] == ValueNode(A, "t", "array", 7, 2.0)


def test_removed_values_and_calls_that_the_log_has_lost_are_in_the_graph() -> None:
    graph = build_graph([event("2", "", B)], [value(C, f"{A}/x"), value(D, companion=base("e")), value(base("e"))])
    removed = graph.nodes[f"value {B}"]
    assert isinstance(removed, ValueNode)
    assert (removed.tool, removed.is_removed) == ("b", True)
    assert graph.nodes[f"call {C}"] == CallNode(C, "t", "up", 2.0, "stored")
    assert (f"value {A}", f"call {C}", "/x") in edges(graph)
    assert {(f"call {D}", f"value {D}", ""), (f"call {D}", f"value {base('e')}", "")} <= edges(graph)


def test_calls_of_a_script_lead_to_the_call_that_ran_it() -> None:
    calls = [event("run", C), event("1", A, parent="run"), event("2", parent="run"), event("3", B, parent="gone")]
    graph = build_graph(calls, [])
    assert {(f"value {A}", "call run", ""), ("call 2", "call run", "")} <= edges(graph)
    assert not any(target == "call gone" for _, target, _ in edges(graph))


def test_the_lineage_of_a_value_is_what_made_it_and_what_used_it() -> None:
    calls = [event("1", A), event("2", B, A), event("3", C, B), event("4", D, A), event("5", base("e"))]
    graph = build_graph(calls, [])
    found = graph.lineage_of(B)
    assert set(found.nodes) == {f"value {B}", "call 2", f"value {A}", "call 1", "call 3", f"value {C}"}
    assert not found.is_cut
    assert [(depth, node.id) for depth, node, _ in found.walk(B, "up")] == [
        (1, "call 2"),
        (2, f"value {A}"),
        (3, "call 1"),
    ]
    assert [(depth, node.id) for depth, node, _ in found.walk(B, "down")] == [(1, "call 3"), (2, f"value {C}")]
    assert graph.lineage_of(base("unknown")) == Graph()


def test_a_large_lineage_is_cut_after_the_nearest_nodes() -> None:
    users = [event(f"u{number}", "", A, at=2.0 + number) for number in range(300)]
    graph = build_graph([event("1", A), *users], [])
    found = graph.lineage_of(A, 10)
    assert len(found.nodes) == 10
    assert found.is_cut
    assert {f"value {A}", "call 1"} <= set(found.nodes)
    assert len(graph.lineage_of(A).nodes) == 200


def test_a_circle_ends() -> None:
    calls = [event("1", A, B), event("2", B, A)]
    found = build_graph(calls, []).lineage_of(A)
    assert len(found.nodes) == 4
    assert len([*found.walk(A, "up")]) == 3


def test_graphs_are_written_for_other_programs() -> None:
    calls = [event("1", A, tool='a "quoted" \\ tool\n<b>'), event("2", "", f"{A}/k", upstream="")]
    graph = build_graph(calls, []).lineage_of(A)
    dot = graph.to_dot()
    assert dot.startswith("digraph lineage {")
    assert '[shape=box, label="a \\"quoted\\" \\\\ tool <b> (up)"]' in dot
    assert f'[shape=note, label="{A} (removed)", style=dashed]' in dot
    assert '-> n2 [label="/k"];' in dot
    mermaid = graph.to_mermaid()
    assert mermaid.startswith("flowchart LR\n")
    assert "<" not in mermaid
    assert "a #34;quoted#34; #92; tool #60;b#62; (up)" in mermaid
    assert '-->|"/k"| n2' in mermaid
    written = graph.to_json()
    assert {node["type"] for node in written["nodes"]} == {"value", "call"}
    assert {node["id"] for node in written["nodes"]} == set(graph.nodes)
    assert written["edges"][0].keys() == {"source", "target", "part"}
    assert written["cut"] is False


HOUR = 500_000
USAGE = {
    '["token", "alice"]': {(HOUR, "up", "a"): Sums(1, sent=5), (HOUR + 24, "", "memory_read"): Sums(2)},
    '["https://x", "alice"]': {(HOUR, "up", "b"): Sums(4)},
    "local": {(HOUR, "up", "b"): Sums(8)},
}


@pytest.mark.parametrize(
    ("by", "calls"),
    [
        ("principal", {"local": 8, '["https://x", "alice"]': 4, '["token", "alice"]': 3}),
        ("tool", {"b": 12, "memory_read": 2, "a": 1}),
        ("upstream", {"up": 13, "mcp-mirror": 2}),
        ("day", {"2027-01-15": 13, "2027-01-16": 2}),
    ],
)
def test_usage_is_summed_by_group(by: Any, calls: dict[str, int]) -> None:
    found = group_sums(USAGE, by)
    assert {name: one.calls for name, one in found.items()} == calls
    assert [*found] == [*calls]
    assert reduce(Sums.plus, found.values()) == Sums(15, sent=5)


def test_a_principal_has_its_name_if_no_other_has_it() -> None:
    assert [*group_sums({'["token", "bob"]': {(HOUR, "up", "a"): Sums(1)}}, "principal")] == ["bob"]
