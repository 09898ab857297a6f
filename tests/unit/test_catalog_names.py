"""The name of a twin never equals that of another twin or of a memory tool, for any names of upstreams."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from samples import at_most, sample

from mcp_mirror.core.catalog import Catalog, CatalogRules, build_catalog
from mcp_mirror.core.naming import Origin, fit_name
from mcp_mirror.memory.tools.table import TOOLS
from mcp_mirror.security.pins import Lock, Pins, pin_upstream
from mcp_mirror.settings.policies import MirrorPolicy
from mcp_mirror.settings.upstreams import LockMode, StdioEndpoint, UpstreamPolicy
from mcp_mirror.system.slices import finish

UPSTREAMS = ("a", "A", "b", "a_b", "mem\u00f6ry", "b.c")
PLAIN = (
    "x", "X", "\uff58", "\u0445", "x\u200b", "x_mirrored", "X_Mirrored", "x_mirrored_mirrored", "x2", "x.y", "x/y",
    "x y", "x_y", "a_x", "b_x", "a_b_x", "A_x", "a_x2", "a_x_mirrored", "memory_read", "Memory_Read",
    "memory_re\u0430d", "memory_read_mirrored", "memory read", "a_memory_read", "retrieve_final_answer_from_memory",
    " ", "-", "_", "9",
    *("n" * length for length in (35, 36, 37, 44, 45, 46, 54, 55, 63, 64, 65, 200)),
)  # fmt: skip
FORGED = tuple(
    fit_name(name, suffix, prefix)
    for name in ("n" * 200, "n" * 46, "\u0445", "x y" * 30, "memory_read")
    for prefix in ("", "a", "b")
    for suffix in ("", "_mirrored")
)
"""Names as we make them."""
NAMES = st.sampled_from((*PLAIN, *FORGED, *(name.removesuffix("_mirrored") for name in FORGED))) | st.text(max_size=5)
LISTING = st.lists(NAMES, max_size=8)
WORLD = st.fixed_dictionaries({}, optional=dict.fromkeys(UPSTREAMS, LISTING))
MIRRORS = [
    MirrorPolicy(),
    MirrorPolicy(expose_originals=True),
    MirrorPolicy(suffix=""),
    MirrorPolicy(suffix="_" * 32),
    MirrorPolicy(suffix="_Mirrored", expose_originals=True),
]
World = Mapping[str, Sequence[str]]


def tool(name: str) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}}


def build(world: World, mirror: MirrorPolicy, **more: Any) -> Catalog:
    listings = [(UpstreamPolicy(one, StdioEndpoint("x")), [tool(name) for name in world[one]]) for one in world]
    return finish(build_catalog(listings, CatalogRules(mirror, TOOLS, **more)))


def origins(world: World) -> set[Origin]:
    return {(one, name) for one in world for name in world[one] if name}


@pytest.mark.parametrize("mirror", MIRRORS)
@at_most(60)
@given(world=WORLD)
def test_tool_names_are_unique_and_never_reserved_names(mirror: MirrorPolicy, world: World) -> None:
    entries = build(world, mirror).entries
    names = [*entries, *TOOLS]
    assert len({name.casefold() for name in names}) == len(names)
    assert all(re.fullmatch("[A-Za-z0-9_-]{1,64}", name) for name in entries)
    assert all(entry.advert["name"] == entry.name == name for name, entry in entries.items())
    for kind in {entry.is_twin for entry in entries.values()}:
        served = [(one.upstream, one.tool) for one in entries.values() if one.is_twin is kind]
        assert (len(served), set(served)) == (len(set(served)), origins(world))


@pytest.mark.parametrize("is_transparent", sample([False, True], lambda is_transparent: not is_transparent))
@pytest.mark.parametrize("mirror", MIRRORS)
@at_most(30)
@given(world=WORLD)
@example(world={"a": ["x", "X"]})
def test_the_tools_of_one_upstream_alone_have_unique_names(
    mirror: MirrorPolicy,
    is_transparent: bool,  # noqa: FBT001  # a parameter of the test
    world: World,
) -> None:
    reserved = "retrieve_final_answer_from_memory"
    catalog = build(world, mirror, is_transparent=is_transparent)
    for upstream in world:
        alone = catalog.of_upstream(upstream, (reserved,))
        assert {(one.upstream, one.tool) for one in alone.entries.values()} == origins({upstream: world[upstream]})
        folded = [name.casefold() for name in alone.entries]
        assert reserved not in folded
        in_both_cases = [name for name in alone.entries if folded.count(name.casefold()) > 1]
        assert all(alone.entries[name].tool == name for name in in_both_cases)  # new names differ in more than case
        assert all(entry.advert["name"] == entry.name == name for name, entry in alone.entries.items())
        assert alone.origins == {name: (one.upstream, one.tool) for name, one in alone.entries.items()}
        assert catalog.of_upstream(upstream, (reserved,)) is alone
        plain = [name for name in world[upstream] if re.fullmatch("[a-z_]{1,64}", name) and name != reserved]
        unique = [name for name in plain if [one.casefold() for one in world[upstream]].count(name) == 1]
        assert is_transparent or all(alone.entries[name].tool == name for name in unique if name in alone.entries)


def test_an_upstream_alone_keeps_the_names_of_its_tools() -> None:
    world = {"a": ["read", "memory_read"], "b": ["read", "retrieve_final_answer_from_memory"]}
    catalog = build(world, MirrorPolicy(expose_originals=True))
    reserved = ("retrieve_final_answer_from_memory",)
    assert [*catalog.of_upstream("a", reserved).entries] == ["read", "memory_read"]
    assert all(entry.is_twin for entry in catalog.of_upstream("a", reserved).entries.values())
    assert [*catalog.of_upstream("b", reserved).entries] == ["read", "b_retrieve_final_answer_from_memory"]
    assert not catalog.of_upstream("", reserved).entries
    both_cases = build({"a": ["get", "GET"], "b": ["Get"]}, MirrorPolicy())
    assert [*both_cases.of_upstream("a", reserved).entries] == ["get", "GET"]


@given(world=WORLD)
def test_a_transparent_catalog_gives_no_name_twice_either(world: World) -> None:
    listings = [(UpstreamPolicy(one, StdioEndpoint("x")), [tool(name) for name in world[one]]) for one in world]
    rules = CatalogRules(MirrorPolicy(suffix="", capture="never"), is_transparent=True)
    catalog = finish(build_catalog(listings, rules))
    served = [(one.upstream, one.tool) for one in catalog.entries.values()]
    assert (len(served), set(served)) == (len(set(served)), origins(world))


def locked(world: World) -> Lock:
    pinned = {one: [tool(name) for name in world[one]] for one in world}
    return Lock(1, {one: pin_upstream(UpstreamPolicy(one, StdioEndpoint("x")), None, pinned[one])[0] for one in world})


@pytest.mark.parametrize("mode", ["warn", "block"])
@pytest.mark.parametrize("transparent", [False, True])
@at_most(25)
@given(pinned=WORLD, world=WORLD)
def test_tools_without_a_pin_do_not_change_names_of_pinned_tools(
    mode: LockMode,
    transparent: bool,  # noqa: FBT001  # both ways
    pinned: World,
    world: World,
) -> None:
    mirror = MirrorPolicy(suffix="" if transparent else "_mirrored")
    pins = Pins(locked(pinned), mode)
    everybody = dict.fromkeys(UPSTREAMS, ()) | dict(pinned)
    alone = build(everybody, mirror, pins=pins, is_transparent=transparent)
    more = {one: [*world.get(one, ()), *pinned.get(one, ())] for one in UPSTREAMS}
    beside = build(more, mirror, pins=pins, is_transparent=transparent)
    assert {name: beside.origins[name] for name in alone.origins} == alone.origins
    assert {name: entry.tool for name, entry in alone.entries.items()}.items() <= {
        name: entry.tool for name, entry in beside.entries.items()
    }.items()
    new = origins(more) - origins(pinned)
    assert {(one.change.upstream, one.change.tool) for one in beside.findings} == new
    served = {(entry.upstream, entry.tool) for entry in beside.entries.values()}
    assert served & new == (new if mode == "warn" else set())
    gone = build(dict.fromkeys(UPSTREAMS, ()) | dict(world), mirror, pins=pins, is_transparent=transparent)
    assert all(alone.origins.get(name, one) == one for name, one in gone.origins.items())


@pytest.mark.parametrize("mirror", MIRRORS[:3])
@at_most(40)
@given(worlds=st.lists(WORLD, min_size=2, max_size=4))
def test_a_name_that_was_one_tools_is_never_anothers(mirror: MirrorPolicy, worlds: list[World]) -> None:
    given_names: dict[str, Origin] = {}
    for world in worlds:
        all_origins = build(world, mirror, owned_names=given_names).origins
        assert all(given_names.get(name, origin) == origin for name, origin in all_origins.items())
        assert set(all_origins.values()) == origins(world)
        given_names |= all_origins
