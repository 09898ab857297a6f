"""The table of all tools: names, order, and what a configuration changes."""

import re
from typing import Any

import pytest

from mcp_mirror.catalog import Catalog, build_catalog
from mcp_mirror.policies import MirrorPolicy, StdioEndpoint, ToolPolicy, UpstreamPolicy

OWN = ("retrieve_final_answer_from_memory",)


def policy(name: str, **more: Any) -> UpstreamPolicy:
    return UpstreamPolicy(name, StdioEndpoint("x"), **more)


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}} | more


def build(*listings: tuple[UpstreamPolicy, list[dict[str, Any]]], **mirror: Any) -> Catalog:
    return build_catalog(listings, MirrorPolicy(**mirror), OWN)


def test_tools_stand_in_the_order_of_the_configuration_and_of_their_listings() -> None:
    listings = [(policy("b"), [tool("z"), tool("a")]), (policy("a"), [tool("m")])]
    assert list(build(*listings).entries) == ["z_mirrored", "a_mirrored", "m_mirrored"]


def test_two_upstreams_with_one_tool_name_are_told_apart_by_their_own() -> None:
    catalog = build((policy("one"), [tool("get"), tool("x")]), (policy("two"), [tool("get")]))
    assert list(catalog.entries) == ["one_get_mirrored", "x_mirrored", "two_get_mirrored"]
    assert [(entry.upstream, entry.tool) for entry in catalog.entries.values()] == [
        ("one", "get"), ("one", "x"), ("two", "get")
    ]  # fmt: skip


def test_names_that_meet_only_once_they_are_made_safe_stay_apart() -> None:
    catalog = build((policy("one"), [tool("a.b"), tool("a/b"), tool("a b")]), (policy("one.x"), [tool("a_b")]))
    assert len(catalog.entries) == 4
    assert {entry.tool for entry in catalog.entries.values()} == {"a.b", "a/b", "a b", "a_b"}
    assert all(re.fullmatch("[A-Za-z0-9_-]{1,64}", name) for name in catalog.entries)


def test_originals_are_listed_beside_their_twins_where_that_is_wished() -> None:
    listing = [tool("x", outputSchema={"type": "object"}, description="X"), tool("x_mirrored")]
    catalog = build((policy("up"), listing), expose_originals=True)
    assert list(catalog.entries) == ["x_mirrored", "x_mirrored_mirrored", "x", "up_x_mirrored"]
    assert catalog.entries["x"].mirrored is False
    assert catalog.entries["x"].advert == listing[0]
    assert "outputSchema" not in catalog.entries["x_mirrored"].advert
    assert catalog.entries["up_x_mirrored"].tool == "x_mirrored"


def test_without_a_suffix_twins_take_the_tools_names() -> None:
    catalog = build((policy("up"), [tool("x"), tool(OWN[0])]), suffix="", expose_originals=True)
    assert list(catalog.entries) == ["x", f"up_{OWN[0]}"]
    assert all(entry.mirrored for entry in catalog.entries.values())


def test_only_what_is_allowed_and_not_denied_is_served() -> None:
    listing = [tool("read_a"), tool("read_b"), tool("write_a"), tool("Read_c")]
    assert list(build((policy("up", allow=("read_*",), deny=("*_b",)), listing)).entries) == ["read_a_mirrored"]


def test_overrides_change_single_tools() -> None:
    overrides = (
        ("*", ToolPolicy(inline_budget=5, timeout=9)),
        ("x", ToolPolicy(capture="always", inline_budget=0, description="Mine.")),
        ("y", ToolPolicy(capture="never")),
    )
    catalog = build((policy("up", overrides=overrides), [tool("x", description="Theirs."), tool("y"), tool("z")]))
    x, y, z = (catalog.entries[f"{name}_mirrored"] for name in "xyz")
    assert (x.rules.mode, x.rules.inline_budget, x.timeout, x.advert["description"]) == ("always", 0, 9, "Mine.")
    assert (y.rules.mode, y.rules.inline_budget, y.timeout) == ("never", 5, 9)
    assert (z.rules.mode, z.advert["description"]) == ("auto", "")


@pytest.mark.parametrize("length", [1, 36, 37, 45, 46, 64, 65, 300])
def test_long_names_are_shortened_the_same_way_each_time(length: int) -> None:
    listing = [tool("n" * length), tool("n" * length + "_2")]
    first, second = build((policy("up"), listing)), build((policy("up"), listing))
    assert list(first.entries) == list(second.entries)
    assert len(first.entries) == 2
    assert all(len(name) <= 45 for name in first.entries)


def test_names_of_our_own_tools_are_not_given_away() -> None:
    catalog = build((policy("up"), [tool(OWN[0])]), suffix="", expose_originals=True)
    assert OWN[0] not in catalog.entries


def test_what_the_tools_labels_are_is_known_for_telling_paths_from_text() -> None:
    assert build((policy("up"), [tool("get it"), tool("x")])).labels == {"get_it", "x"}


def test_ten_thousand_tools_that_share_a_name_are_no_matter_of_minutes() -> None:
    same = [tool(f"a{'.' * index}b") for index in range(60)]
    many = [tool(f"tool_{index}") for index in range(10_000)]
    catalog = build((policy("one"), many + same), (policy("two"), many))
    assert len(catalog.entries) == 20_060


def test_problems_name_the_upstream_and_the_tool() -> None:
    listing = [tool("x"), tool("x"), {"name": "y"}, {}, tool("z", annotations=7)]
    problems = build((policy("up"), listing)).problems
    assert problems == (
        "Upstream 'up' lists tool 'x' twice: the first is served.",
        "Tool 'y' of upstream 'up': it has no input schema; its arguments are passed on unchecked.",
        "Upstream 'up' lists a tool without a usable name: it is not served.",
        "Tool 'z' of upstream 'up': its annotations cannot be passed on.",
    )


def test_a_tool_that_is_denied_is_no_problem_whatever_it_is() -> None:
    listing = [tool("x", execution={"taskSupport": "required"}), {"name": "y"}, tool("z")]
    catalog = build((policy("up", deny=("x", "y")), listing))
    assert (list(catalog.entries), catalog.problems) == (["z_mirrored"], ())
