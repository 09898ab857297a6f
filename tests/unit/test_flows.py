"""The flow policy: labels form a lattice, and every rule is tested with every pair of labels."""

from __future__ import annotations

import dataclasses
from itertools import product
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from samples import at_most

from mcp_mirror.core.results.processing import read_ifc
from mcp_mirror.security.flows import (
    DEFAULT_ZONE,
    Flows,
    build_flows,
    describe_place,
    find_config_key,
    format_labels,
    read_rule,
)
from mcp_mirror.settings.labels import (
    FILES,
    FUNCTIONS,
    LEVELS,
    MODEL,
    UNKNOWN,
    Accepts,
    FlowRule,
    FlowsPolicy,
    Integrity,
    Labels,
    Lowering,
    PlacePolicy,
)
from mcp_mirror.settings.policies import Config
from mcp_mirror.settings.upstreams import StdioEndpoint, UpstreamPolicy
from mcp_mirror.types import Descriptor, Provenance

INTEGRITIES: tuple[Integrity, ...] = get_args(Integrity)
NAMES = ("a", "b", "c")
LABELS = [
    Labels(frozenset(sources), integrity, level)
    for sources in (("a",), ("b",), ("a", "b"))
    for integrity in INTEGRITIES
    for level in LEVELS
]
sources = st.frozensets(st.sampled_from((*NAMES, MODEL, FILES, UNKNOWN)), min_size=1)
labels = st.builds(Labels, sources, st.sampled_from(INTEGRITIES), st.sampled_from(LEVELS))
globs = st.sampled_from((*NAMES, "*", "[ab]", "model", "files", "zone:x", "zone:local", "zone:a"))
accepts = st.builds(
    Accepts,
    st.sampled_from((None, *INTEGRITIES)),
    st.sampled_from((None, *LEVELS)),
    st.one_of(st.none(), st.lists(globs, max_size=2).map(tuple)),
)
places = st.builds(
    PlacePolicy,
    st.sampled_from((None, *INTEGRITIES)),
    st.sampled_from((None, *LEVELS)),
    accepts,
    st.sampled_from((None, "x", "y")),
    st.sampled_from(get_args(Lowering)),
)
rules = st.lists(st.builds(FlowRule, globs, globs), max_size=3).map(tuple)
policies = st.builds(
    FlowsPolicy, default=st.sampled_from(("allow", "deny")), allow=rules, deny=rules, model=places, files=places
)
every_flows = st.builds(Flows, policies, st.fixed_dictionaries(dict.fromkeys(NAMES, places)), st.booleans())
targets = st.sampled_from((*NAMES, MODEL, FILES))
words = st.sampled_from(("trusted", "untrusted", "public", "internal", "private", "readers", 1, None))
ifcs = st.one_of(
    st.none(),
    st.just("unreadable"),
    st.fixed_dictionaries({}, optional={"integrity": words, "confidentiality": st.one_of(words, st.lists(words))}),
)


def flows(policy: dict[str, Any] | None = None, *, isolated: bool = False, **upstreams: PlacePolicy) -> Flows:
    return Flows(FlowsPolicy(**policy or {}), {name: PlacePolicy() for name in NAMES} | upstreams, isolated)


def made(**members: Any) -> Descriptor:
    source = members.pop("provenance", Provenance("a", "t", ""))
    return Descriptor("t-1", "object", 1, 1, (), 0.0, 0.0, source, **members)


def is_higher(one: Labels, other: Labels) -> bool:
    """Whether the first may go nowhere where the second may not."""
    return (
        one.sources >= other.sources
        and INTEGRITIES.index(one.integrity) >= INTEGRITIES.index(other.integrity)
        and LEVELS.index(one.confidentiality) >= LEVELS.index(other.confidentiality)
    )


@at_most(50)
@given(labels, labels, labels)
def test_join_forms_a_lattice(one: Labels, other: Labels, third: Labels) -> None:
    join = Flows().join
    assert join(one, other) == join(other, one)
    assert join(one, join(other, third)) == join(join(one, other), third) == join(one, other, third)
    assert join(one, one) == one == join(one, Flows().lowest)
    assert is_higher(join(one, other), one)
    assert is_higher(join(one, other), other)
    assert is_higher(one, other) == (join(one, other) == one)


def test_the_join_of_every_two_labels() -> None:
    for one, other in product(LABELS, LABELS):
        joined = Flows().join(one, other)
        assert joined.sources == one.sources | other.sources
        assert joined.integrity == ("untrusted" if "untrusted" in (one.integrity, other.integrity) else "trusted")
        levels = (one.confidentiality, other.confidentiality)
        assert joined.confidentiality == next(level for level in reversed(LEVELS) if level in levels)
    assert Flows().join() == Flows().lowest


def test_every_label_against_every_accept_rule() -> None:
    """The truth table: 18 labels before 24 ways to accept, in one zone."""
    wrong = []
    for value, integrity, level, named in product(LABELS, INTEGRITIES, LEVELS, (None, ("a",), ("a", "b"), ())):
        expected = (
            (named is None or value.sources <= {*named, "c"})
            and (integrity == "untrusted" or value.integrity == "trusted")
            and LEVELS.index(value.confidentiality) <= LEVELS.index(level)
        )
        place = PlacePolicy(accepts=Accepts(integrity, level, named))
        if (flows(c=place).refusal(value, "c") is None) != expected:
            wrong.append((value, integrity, level, named))
    assert wrong == []


RULES = (None, "a -> b", "b -> a", "* -> *", "zone:east -> b", "a -> zone:west")
ZONES = ((None, None), ("east", "west"), ("east", "east"), ("east", None))


def test_every_flow_between_two_places() -> None:
    """The truth table of zones and rules, from `a` to `b`: 192 of them."""
    wrong = []
    for isolated, default, rule, zones, how in product(
        (False, True), ("allow", "deny"), RULES, ZONES, ("allow", "deny")
    ):
        read = read_rule(rule) if rule else None
        policy: dict[str, Any] = {"default": default, how: (read,) if read else ()}
        one, other = (PlacePolicy(zone=zone) for zone in zones)
        matches = {
            "a -> b": True,
            "* -> *": True,
            "zone:east -> b": zones[0] == "east",
            "a -> zone:west": zones[1] == "west",
        }.get(rule or "", False)
        same = zones[0] == zones[1] and (zones[0] is not None or not isolated)
        open_ = same or default == "allow" or (how == "allow" and matches)
        expected = open_ and not (how == "deny" and matches)
        value = Labels(frozenset({"a"}), "trusted", "public")
        if (flows(policy, isolated=isolated, a=one, b=other).refusal(value, "b") is None) != expected:
            wrong.append((isolated, default, rule, zones, how))
    assert wrong == []


@at_most(50)
@given(every_flows, labels, labels, targets)
def test_a_joined_value_may_flow_where_both_sources_may(policy: Flows, one: Labels, other: Labels, to: str) -> None:
    """So it is one whether two pointers of a call are looked at apart or together."""
    apart = policy.refusal(one, to) is None and policy.refusal(other, to) is None
    assert apart == (policy.refusal(policy.join(one, other), to) is None)


@at_most(50)
@given(every_flows, labels, targets, st.lists(st.tuples(st.sampled_from(NAMES), ifcs), max_size=4))
def test_upstreams_without_permission_never_lower_labels(
    policy: Flows, value: Labels, to: str, chain: list[tuple[str, object]]
) -> None:
    plain = {name: replace(place, may_lower="nothing") for name, place in policy.upstreams.items()}
    policy = dataclasses.replace(policy, upstreams=plain)
    washed = value
    for upstream, ifc in chain:
        washed = policy.labels_of_result(upstream, washed, ifc)
        assert upstream in washed.sources
    assert is_higher(washed, value)
    if policy.refusal(value, to) is not None:
        assert policy.refusal(washed, to) is not None


@at_most(50)
@given(every_flows, labels, st.sampled_from(NAMES), ifcs)
def test_an_upstream_lowers_only_what_it_may(policy: Flows, value: Labels, upstream: str, ifc: object) -> None:
    lowers = policy.place(upstream).may_lower
    result, own = policy.labels_of_result(upstream, value, ifc), policy.labels_of_place(upstream)
    assert result.sources == value.sources | {upstream}
    if ifc is None or lowers == "nothing":
        assert is_higher(result, policy.join(own, value))
    if lowers == "own":
        assert is_higher(result, value)


OWN = PlacePolicy("untrusted", "internal")


@pytest.mark.parametrize(
    ("lowers", "ifc", "expected"),
    [
        ("nothing", None, ("untrusted", "internal")),
        ("nothing", {"integrity": "trusted", "confidentiality": "public"}, ("untrusted", "internal")),
        ("nothing", {"confidentiality": "private"}, ("untrusted", "private")),
        ("nothing", {"confidentiality": ["public"]}, ("untrusted", "internal")),
        ("nothing", {"confidentiality": ["public", "private"]}, ("untrusted", "private")),
        ("nothing", {"confidentiality": []}, ("untrusted", "private")),
        ("nothing", {"confidentiality": ["ada", "bob"]}, ("untrusted", "private")),
        ("nothing", {"integrity": "very"}, ("untrusted", "internal")),
        ("nothing", "unreadable", ("untrusted", "private")),
        ("own", {"integrity": "trusted", "confidentiality": "public"}, ("trusted", "public")),
        ("own", {"integrity": "trusted"}, ("trusted", "internal")),
        ("own", {"confidentiality": "private"}, ("untrusted", "private")),
        ("own", {"integrity": "very", "confidentiality": 3}, ("untrusted", "private")),
        ("own", [], ("untrusted", "private")),
        ("all", {"integrity": "trusted", "confidentiality": "public"}, ("trusted", "public")),
        ("all", {}, ("untrusted", "internal")),
    ],
)
def test_an_upstream_labels_its_own_result(lowers: Lowering, ifc: object, expected: tuple[str, str]) -> None:
    policy = flows(a=replace(OWN, may_lower=lowers))
    found = policy.labels_of_result("a", policy.lowest, ifc)
    assert (found.integrity, found.confidentiality) == expected


def test_labels_of_arguments_are_lowered_only_with_may_lower_all() -> None:
    ifc = {"integrity": "trusted", "confidentiality": "public"}
    value = Labels(frozenset({"b"}), "untrusted", "private")
    found = {
        lowers: flows(a=PlacePolicy(may_lower=lowers)).labels_of_result("a", value, ifc)
        for lowers in get_args(Lowering)
    }
    worst = Labels(frozenset({"a", "b"}), "untrusted", "private")
    assert found == {
        "nothing": worst,
        "own": worst,
        "all": replace(worst, integrity="trusted", confidentiality="public"),
    }


def test_a_chain_of_allowed_flows_is_refused_at_its_end() -> None:
    policy = flows(isolated=True, policy={"allow": (FlowRule("a", "b"), FlowRule("b", "c"))})
    first = policy.labels_of_result("a", policy.lowest)
    assert policy.labels_of_result("a", policy.lowest) == first
    assert policy.refusal(first, "b") is None
    second = policy.labels_of_result("b", first)
    refusal = policy.refusal(second, "c")
    assert refusal is not None
    assert refusal.rule == "flows.default: deny"
    assert "upstream 'a'" in refusal.why
    assert policy.refusal(policy.labels_of_place("b"), "c") is None


@pytest.mark.parametrize(
    ("policy", "target", "rule", "why"),
    [
        (flows(policy={"deny": (FlowRule("a", "b"),)}), "b", "flows.deny: a -> b", "'a -> b'"),
        (
            flows(b=PlacePolicy(accepts=Accepts(sources=("c",)))),
            "b",
            "upstreams.b.accepts.sources",
            "does not name that",
        ),
        (
            flows(b=PlacePolicy(accepts=Accepts(integrity="trusted"))),
            "b",
            "upstreams.b.accepts.integrity: trusted",
            "it is untrusted",
        ),
        (
            flows(policy={"model": PlacePolicy(accepts=Accepts(confidentiality="internal"))}),
            MODEL,
            "flows.model.accepts.confidentiality: internal",
            "it is private",
        ),
        (
            flows(policy={"files": PlacePolicy(accepts=Accepts(confidentiality="public"))}),
            FILES,
            "flows.files.accepts.confidentiality: public",
            "it is private",
        ),
        (flows(isolated=True), "b", "flows.default: deny", "zone 'a' and not in 'b'"),
        (flows(a=PlacePolicy(zone="east")), "b", "flows.default: deny", "zone 'east' and not in 'local'"),
    ],
)
def test_a_refusal_names_the_configuration_key(policy: Flows, target: str, rule: str, why: str) -> None:
    refusal = policy.refusal(policy.labels_of_place("a"), target)
    assert refusal is not None
    assert refusal.rule == rule
    assert why in refusal.why


def test_default_flows_with_one_and_several_principals() -> None:
    every = (*NAMES, FILES, MODEL)
    alone, many = flows(), flows(isolated=True)
    assert all(alone.refusal(alone.labels_of_place(one), to) is None for one, to in product(every, every))
    passes = {(one, to) for one, to in product(every, every) if many.refusal(many.labels_of_place(one), to) is None}
    assert passes == {(one, to) for one, to in product(every, every) if one == to or MODEL in (one, to)}


def test_the_model_is_in_every_zone() -> None:
    policy = flows(isolated=True, policy={"deny": (FlowRule("a", "model"), FlowRule("model", "b"))})
    assert policy.find_zone(MODEL) is None
    assert not policy.may_show(policy.labels_of_place("a"))
    assert policy.may_show(policy.labels_of_place("b"))
    assert policy.refusal(policy.labels_of_place(MODEL), "b") is not None
    assert policy.refusal(policy.labels_of_place(MODEL), "c") is None


def test_model_labels_are_at_most_what_the_model_may_see() -> None:
    free = flows().labels_of_place(MODEL)
    assert (free.integrity, free.confidentiality) == ("untrusted", "private")
    bound = PlacePolicy(accepts=Accepts("trusted", "internal"))
    found = flows(policy={"model": bound}).labels_of_place(MODEL)
    assert (found.integrity, found.confidentiality) == ("trusted", "internal")
    chosen = replace(bound, integrity="untrusted", confidentiality="public")
    found = flows(policy={"model": chosen}).labels_of_place(MODEL)
    assert (found.integrity, found.confidentiality) == ("untrusted", "public")


def test_a_refusal_mentions_the_labels_of_the_model() -> None:
    place = PlacePolicy(accepts=Accepts("trusted", "public"))
    for value in (flows().labels_of_place(MODEL), Labels(frozenset({MODEL}), "trusted", "private")):
        refusal = flows(b=place).refusal(value, "b")
        assert refusal is not None
        assert "`flows.model.labels`" in refusal.why


def test_files_and_upstreams_have_their_configured_labels() -> None:
    place = PlacePolicy(accepts=Accepts("trusted", "public"))
    policy = flows(policy={"files": place}, a=place)
    for name in ("a", FILES):
        found = policy.labels_of_place(name)
        assert (found.integrity, found.confidentiality) == ("untrusted", "private")


@at_most(50)
@given(labels)
def test_stored_labels_survive_reading(value: Labels) -> None:
    assert Flows().read_labels(made(labels=format_labels(value))) == value


@pytest.mark.parametrize(
    ("provenance", "expected"),
    [
        (Provenance("a", "t", ""), {"a"}),
        (Provenance("a", "t", "", ("x-1",)), {"a", UNKNOWN}),
        (Provenance("gone", "t", ""), {"gone", UNKNOWN}),
        (Provenance("mcp-mirror", "memory_put", ""), {"mcp-mirror", UNKNOWN}),
    ],
)
@pytest.mark.parametrize("labels", [{}, {"sources": "b", "integrity": "trusted"}])
def test_a_value_without_labels_has_the_highest_labels(
    provenance: Provenance, expected: set[str], labels: dict[str, str]
) -> None:
    found = flows().read_labels(made(provenance=provenance, labels=labels))
    assert found == Labels(frozenset(expected), "untrusted", "private")
    beyond = flows(isolated=True).refusal(found, "a")
    assert (beyond is None) == (expected == {"a"})


def test_unknown_levels_are_the_highest() -> None:
    known = made(labels={"sources": "a", "integrity": "perhaps", "confidentiality": "hush"})
    assert flows().read_labels(known) == Labels(frozenset({"a"}), "untrusted", "private")
    levels = flows(policy={"levels": ("low", "high")})
    assert (
        levels.read_labels(made(labels=format_labels(Labels(frozenset({"a"}), "trusted", "public")))).confidentiality
        == "high"
    )


@pytest.mark.parametrize(
    ("text", "rule"),
    [("a -> b", FlowRule("a", "b")), (" a->b ", FlowRule("a", "b")), ("a b", None), ("a ->", None), ("a -> b c", None)],
)
def test_a_rule_has_two_sides(text: str, rule: FlowRule | None) -> None:
    assert read_rule(text) == rule
    if rule:
        assert read_rule(str(rule)) == rule


def test_places_have_a_name_and_a_configuration_key() -> None:
    assert (find_config_key("crm"), find_config_key(MODEL), find_config_key(FILES)) == (
        "upstreams.crm",
        "flows.model",
        "flows.files",
    )
    assert (describe_place("crm"), describe_place(MODEL), describe_place(UNKNOWN)) == (
        "upstream 'crm'",
        "the model",
        "unknown origin",
    )
    assert flows().find_zone("a") == DEFAULT_ZONE


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        (b"null", None),
        (b"{}", None),
        (b'{"ifc":null}', None),
        (b'{"ifc":{"integrity":"trusted"}}', {"integrity": "trusted"}),
        (b"[1]", None),
        (b"{", "unreadable"),
        (b'{"ifc":"\xff"}', "unreadable"),
    ],
)
def test_ifc_labels_are_read_from_meta(meta: bytes, expected: object) -> None:
    assert read_ifc(meta) == expected


def test_flows_are_built_from_a_configuration() -> None:
    place = PlacePolicy(zone="east")
    config = Config((UpstreamPolicy("a", StdioEndpoint("x"), place=place),), flows=FlowsPolicy(default="allow"))
    found = build_flows(config, is_isolated=True)
    assert (found.place("a"), found.policy.default, found.is_isolated) == (place, "allow", True)


def test_a_removed_upstream_is_its_own_zone() -> None:
    assert flows().find_zone("gone") == DEFAULT_ZONE
    zoned = flows(a=PlacePolicy(zone="east"))
    assert (zoned.find_zone("gone"), zoned.find_zone("b"), zoned.find_zone(FUNCTIONS)) == (
        "gone",
        DEFAULT_ZONE,
        DEFAULT_ZONE,
    )
    assert zoned.refusal(zoned.labels_of_place("gone"), "b") is not None
    assert flows({"files": PlacePolicy(zone="east")}).find_zone(UNKNOWN) == UNKNOWN


def test_rules_can_name_the_functions_of_a_program() -> None:
    policy = flows({"deny": (FlowRule("a", "functions"),)})
    refusal = policy.refusal(policy.labels_of_place("a"), FUNCTIONS)
    assert refusal is not None
    assert policy.read_labels(made(provenance=Provenance(FUNCTIONS, "t", ""))).sources == {FUNCTIONS}
