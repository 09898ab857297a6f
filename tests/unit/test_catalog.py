"""The catalog of all tools: names, order, and changes by the configuration."""

import gc
import json
import re
from typing import Any

import pytest

from mcp_mirror.callers import Caller
from mcp_mirror.core.catalog import Catalog, CatalogRules, build_catalog
from mcp_mirror.settings.limits import UpstreamBounds
from mcp_mirror.settings.policies import MirrorPolicy
from mcp_mirror.settings.upstreams import StdioEndpoint, ToolPolicy, UpstreamPolicy
from mcp_mirror.system.slices import finish

OWN = ("retrieve_final_answer_from_memory",)


def policy(name: str, **more: Any) -> UpstreamPolicy:
    return UpstreamPolicy(name, StdioEndpoint("x"), **more)


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}} | more


def build(*listings: tuple[UpstreamPolicy, list[dict[str, Any]]], **mirror: Any) -> Catalog:
    return finish(build_catalog(listings, CatalogRules(MirrorPolicy(**mirror), OWN)))


def test_clients_that_see_the_same_tools_share_a_view() -> None:
    catalog = build((policy("a", required_scopes=("x",)), [tool("m")]), (policy("b"), [tool("n")]))
    views = [catalog.visible_to(Caller("me", scopes=frozenset(scopes))) for scopes in ("x", "xy", "y", "z", "")]
    assert [list(view.entries) for view in views] == [["m_mirrored", "n_mirrored"]] * 2 + [["n_mirrored"]] * 3
    assert views[0] is views[1]
    assert views[2] is views[3] is views[4]
    assert catalog.visible_to(Caller("me", scopes=None)) is catalog
    for number in range(300):  # more than are kept
        assert list(catalog.visible_to(Caller("me", scopes=frozenset({str(number)}))).entries) == ["n_mirrored"]
    again = [catalog.visible_to(Caller("me", scopes=frozenset("y"))) for _ in range(2)]
    assert again[0] is again[1]
    assert again[0].entries == views[2].entries


def test_tools_are_listed_in_configuration_and_upstream_order() -> None:
    listings = [(policy("b"), [tool("z"), tool("a")]), (policy("a"), [tool("m")])]
    assert list(build(*listings).entries) == ["z_mirrored", "a_mirrored", "m_mirrored"]


def test_equal_tool_names_are_prefixed_with_the_upstream_name() -> None:
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
    assert catalog.entries["x"].is_twin is False
    assert catalog.entries["x"].advert == listing[0]
    assert "outputSchema" not in catalog.entries["x_mirrored"].advert
    assert catalog.entries["up_x_mirrored"].tool == "x_mirrored"


def test_without_a_suffix_twins_take_the_tools_names() -> None:
    catalog = build((policy("up"), [tool("x"), tool(OWN[0])]), suffix="", expose_originals=True)
    assert list(catalog.entries) == ["x", f"up_{OWN[0]}"]
    assert all(entry.is_twin for entry in catalog.entries.values())


FULL = tool(
    "files.read all",
    title="Read",
    description="Reads. ",
    inputSchema={
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"region": {"type": "string", "x-mcp-header": "Region"}, "n": {"$ref": "#/$defs/N"}},
        "$defs": {"N": {"$anchor": "n", "type": "integer"}},
        "anyOf": [{"required": ["n"]}],
        "x-order": ["n"],
    },
    outputSchema={"type": "object"},
    annotations={"readOnlyHint": True},
    icons=[{"src": "data:x"}],
    _meta={"a/b": 1},
    **{"x-unknown": [1]},
)


def transparent(*listings: tuple[UpstreamPolicy, list[dict[str, Any]]]) -> Catalog:
    return finish(build_catalog(listings, CatalogRules(MirrorPolicy(suffix="", capture="never"), is_transparent=True)))


def test_a_transparent_catalog_is_what_the_upstreams_list() -> None:
    catalog = transparent((policy("up"), [FULL, tool("n" * 100)]), (policy("two"), [tool(OWN[0])]))
    assert [entry.advert for entry in catalog.entries.values()] == [FULL, tool("n" * 100), tool(OWN[0])]
    assert list(catalog.entries) == ["files.read all", "n" * 100, OWN[0]]
    assert not any(entry.is_twin for entry in catalog.entries.values())
    assert all(entry.rules.mode == "never" for entry in catalog.entries.values())


def test_in_a_transparent_catalog_only_tools_of_one_name_are_renamed() -> None:
    listings = [
        (policy("a"), [tool("get"), tool("b_get")]),
        (policy("b"), [tool("get")]),
        (policy("c"), [tool("a_get"), tool("b")]),
    ]
    entries = transparent(*listings).entries
    assert len(entries) == 5
    assert {name: (entry.upstream, entry.tool) for name, entry in entries.items() if entry.tool != "get"} == {
        "b_get": ("a", "b_get"),
        "a_get": ("c", "a_get"),
        "b": ("c", "b"),
    }


def test_a_task_is_offered_neither_by_a_twin_nor_by_an_original() -> None:
    listing = [tool("x", execution={"taskSupport": "optional"}), tool("y", execution={"taskSupport": "required"})]
    for catalog in (build((policy("up"), listing), expose_originals=True), transparent((policy("up"), listing))):
        assert not any("execution" in entry.advert for entry in catalog.entries.values())
    assert "execution" in listing[0]


def test_only_originals_keep_header_arguments() -> None:
    listing = [FULL, tool("x"), tool("odd", inputSchema={"properties": {"a": {"x-mcp-header": "A"}}})]
    both = build((policy("up"), listing), expose_originals=True)
    assert both.header_schema("files_read_all_mirrored") is None
    assert both.header_schema("x") is None
    assert both.header_schema("none such") is None
    assert both.header_schema("files_read_all") == FULL["inputSchema"]
    assert both.header_schema("odd") == listing[2]["inputSchema"] | {"type": "object"}
    assert transparent((policy("up"), listing)).header_schema(FULL["name"]) == FULL["inputSchema"]


def test_a_property_of_an_original_that_accepts_anything_is_an_object() -> None:
    written = {"type": "object", "properties": {"a": True, "b": {"type": "string"}}}
    listing = [tool("x", inputSchema=written, outputSchema=written), tool("y", outputSchema=5)]
    entries = transparent((policy("up"), listing)).entries
    expected = {"type": "object", "properties": {"a": {}, "b": {"type": "string"}}}
    assert entries["x"].advert == tool("x", inputSchema=expected, outputSchema=expected)
    assert "outputSchema" not in entries["y"].advert


def test_an_original_is_listed_with_a_schema_that_clients_take() -> None:
    schemas: list[Any] = [{"type": "object", "properties": 5}, {"type": "string"}, {"properties": {}}, [], None]
    listing = [tool(f"t{at}", inputSchema=schema) for at, schema in enumerate(schemas)]
    adverts = [entry.advert["inputSchema"] for entry in transparent((policy("up"), listing)).entries.values()]
    object_alone = {"type": "object"}
    assert adverts == [schemas[0], object_alone, {"type": "object", "properties": {}}, object_alone, object_alone]


@pytest.mark.parametrize("meta", [{"ui": {"resourceUri": "ui://x"}}, {"ui/resourceUri": "ui://x"}])
def test_a_tool_with_a_view_is_marked_unless_its_capture_is_overridden(meta: dict[str, Any]) -> None:
    overrides = (("kept", ToolPolicy(capture="auto")), ("late", ToolPolicy(timeout=5)))
    listing = [tool(name, _meta=meta) for name in ("view", "late", "kept")]
    listing += [tool("plain", _meta={"ui": None, "other": 1}), tool("none")]
    for capture in ("auto", "always"):
        entries = build((policy("up", overrides=overrides), listing), capture=capture).entries
        assert [entry.has_view for entry in entries.values()] == [True, True, False, False, False]
        assert [entry.rules.mode for entry in entries.values()] == [capture, capture, "auto", capture, capture]
        assert all(entry.is_twin for entry in entries.values())
        assert entries["view_mirrored"].advert["_meta"] == meta


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
    assert (z.rules.mode, "description" in z.advert) == ("auto", False)


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


def test_the_catalog_knows_the_path_labels_of_its_tools() -> None:
    assert build((policy("up"), [tool("get it"), tool("x")])).slugs == {"get_it", "x"}


@pytest.mark.slow
def test_ten_thousand_tools_with_equal_names_are_cataloged_quickly() -> None:
    same = [tool(f"a{'.' * index}b") for index in range(60)]
    many = [tool(f"tool_{index}") for index in range(10_000)]
    listings = ((policy("one"), many + same), (policy("two"), many))
    assert len(build(*listings).entries) == len(transparent(*listings).entries) == 20_060


def test_a_catalog_adds_few_containers_to_those_of_the_definitions() -> None:
    """A garbage collection visits each container, and stops the event loop. A compiled schema has twelve."""
    texts = {f"p{n}": {"type": "string", "description": f"The text number {n}"} for n in range(12)}
    listing = [tool(f"tool_{n}", inputSchema={"type": "object", "properties": dict(texts)}) for n in range(1000)]
    finish(build((policy("up"), listing)).build_index({}))  # what is read or cached at the first use
    gc.collect()
    before = len(gc.get_objects())
    catalog = build((policy("up"), listing))
    index = finish(catalog.build_index({}))
    gc.collect()
    added = len(gc.get_objects()) - before
    assert catalog.entries["tool_7_mirrored"].inspected.check is not None
    assert index.search("tool 7", 1) == ["tool_7_mirrored"]
    assert added <= 1.5 * len(listing)


def test_problems_name_the_upstream_and_the_tool() -> None:
    listing = [tool("x"), tool("x"), {"name": "y"}, {}, tool("z", annotations=7)]
    problems = build((policy("up"), listing)).problems
    assert problems == (
        "Upstream 'up' lists tool 'x' twice. The gateway serves the first one.",
        "Tool 'y' of upstream 'up': it has no input schema; the gateway does not validate its arguments.",
        "Upstream 'up' lists a tool without a usable name. The gateway does not serve the tool.",
        "Tool 'z' of upstream 'up': its annotations cannot be passed on.",
    )


def test_tools_that_cannot_be_served_or_are_too_many_are_problems() -> None:
    served = policy("up", bounds=UpstreamBounds(max_tools=1, max_name_bytes=3))
    catalog = build((served, [tool("long"), tool("x"), tool("y"), tool("z")]))
    assert list(catalog.entries) == ["x_mirrored"]
    first, second = catalog.problems
    assert first.startswith("Upstream 'up' lists tool 'long', which the gateway does not serve: ")
    assert second == "Upstream 'up' lists more tools than `limits.max_tools` (1). The gateway does not serve the rest."


def test_definitions_are_encoded_counted_and_indexed_once() -> None:
    listing = [tool(f"t{number}", description="x" * 100_000) for number in range(4)]
    catalog = build((policy("up", overrides=(("t1", ToolPolicy(listed=True)),)), listing))
    pieces = finish(catalog.encode_adverts())
    assert len(pieces) == 2
    adverts = json.loads(b"[%b]" % b",".join(pieces))
    assert adverts == [entry.advert for entry in catalog.entries.values()]
    assert finish(catalog.encode_adverts()) is pieces
    assert finish(catalog.count_tokens("default")) == finish(catalog.count_tokens("default")) > 10_000
    assert finish(catalog.build_index({})) is finish(catalog.build_index({}))
    assert list(catalog.always_listed.entries) == ["t1_mirrored"]
    assert finish(build().encode_adverts()) == ()


def test_only_tools_that_say_that_they_change_nothing_are_repeated() -> None:
    said: list[object] = [{"readOnlyHint": True}, {"readOnlyHint": "yes"}, {}, []]
    listing = [tool(f"t{at}", annotations=one) for at, one in enumerate(said)]
    entries = build((policy("up", repeat_read_only=True), listing)).entries.values()
    assert [entry.is_repeatable for entry in entries] == [True, False, False, False]


def test_a_denied_tool_is_never_reported_as_a_problem() -> None:
    listing = [tool("x", execution={"taskSupport": "required"}), {"name": "y"}, tool("z")]
    catalog = build((policy("up", deny=("x", "y")), listing))
    assert (list(catalog.entries), catalog.problems) == (["z_mirrored"], ())
