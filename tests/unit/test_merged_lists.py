"""Several lists are merged to one: without losses and with unambiguous names."""

import json
import re
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_mirror.core.merged_lists import (
    KINDS,
    ItemKind,
    MergedList,
    ResourceOrigin,
    assign_name,
    build_scheme,
    join_cache_hints,
    merge_lists,
    prefix_name,
)

ALL_KINDS: Sequence[ItemKind] = ("resources", "templates", "prompts")
UPSTREAMS = ["a", "b", "a_b", "x y", "x-y", "7"]
"""Two of them are one in a URI's scheme."""
NAMES = st.recursive(
    st.sampled_from(["x", "y", "", "\u00e9", "file:///x", "{+path}"]),
    lambda inner: (
        st.builds("{}_{}".format, st.sampled_from(["a", "b"]), inner)
        | st.builds("{}+{}".format, st.sampled_from(["a", "b", "x-y"]), inner)
    ),
    max_leaves=3,
)
LISTED = st.dictionaries(st.sampled_from(UPSTREAMS), st.lists(NAMES, max_size=5), max_size=4)


def item(kind: ItemKind, name: str, *, spaced: bool = False) -> bytes:
    """A listed thing, some of it in bytes that no writer of JSON would choose."""
    space = b" " if spaced else b""
    key = KINDS[kind].key.encode()
    label = b"" if kind == "prompts" else b'"name":"n",'
    members = b'"%b":%b%b,"_meta":{"\\u0061":1e400}' % (key, space, json.dumps(name).encode())
    return b'{"weight":1.10,%b%b%b}' % (space, label, members)


def merged(kind: ItemKind, listed: Mapping[str, Sequence[str]]) -> MergedList:
    return merge_lists(kind, ((upstream, [item(kind, name) for name in names]) for upstream, names in listed.items()))


def name_of(kind: ItemKind, raw: bytes) -> str:
    return str(json.loads(raw)[KINDS[kind].key])


@given(st.sampled_from(ALL_KINDS), LISTED)
@example("prompts", {"a": ["b_x", "x"], "b": ["x"]})
@example("prompts", {"a": ["x"], "b": ["b_x", "x"]})
@example("resources", {"a": ["x"], "x y": ["x"], "x-y": ["x"]})
@example("resources", {"a": ["x", "x"]})
def test_every_thing_of_every_upstream_is_found_again_under_one_name(
    kind: ItemKind, listed: dict[str, list[str]]
) -> None:
    one = merged(kind, listed)
    names = [name_of(kind, b"".join(raw)) for raw in one.items]
    assert names == list(one.origins)
    assert len(set(one.origins.values())) == len(names)
    assert set(one.origins.values()) == {
        ResourceOrigin(upstream, name) for upstream in listed for name in listed[upstream]
    }


@given(st.sampled_from(ALL_KINDS), LISTED)
def test_an_item_is_passed_on_to_the_byte_unless_it_is_renamed(kind: ItemKind, listed: dict[str, list[str]]) -> None:
    one = merged(kind, listed)
    for raw, (name, origin) in zip(one.items, one.origins.items(), strict=True):
        given_raw = item(kind, origin.key)
        if name == origin.key:
            assert b"".join(raw) == given_raw
        else:
            old, new = json.dumps(origin.key).encode(), json.dumps(name, ensure_ascii=False).encode()
            assert b"".join(raw) == given_raw.replace(b":" + old, b":" + new)


@given(st.sampled_from(ALL_KINDS), LISTED)
def test_the_names_of_the_first_upstream_are_kept(kind: ItemKind, listed: dict[str, list[str]]) -> None:
    origins = merged(kind, listed).origins
    for upstream in list(listed)[:1]:
        assert all(origins[name] == ResourceOrigin(upstream, name) for name in listed[upstream])


@given(st.sampled_from(ALL_KINDS), LISTED)
def test_from_where_it_is_a_thing_is_led_back_to_its_name(kind: ItemKind, listed: dict[str, list[str]]) -> None:
    origins = merged(kind, listed).origins
    assert all(assign_name(kind, origin, origins) == name for name, origin in origins.items())
    assert assign_name(kind, ResourceOrigin("new", "not listed"), origins) == "not listed"


@pytest.mark.parametrize(
    ("kind", "upstream", "name"),
    [
        ("prompts", "one more", "one more_x"),
        ("resources", "one more", "one-more+x"),
        ("templates", "one more", "one-more+x"),
        ("resources", "7", "u7+x"),
        ("resources", "_", "u-+x"),
    ],
)
def test_a_name_that_is_taken_gets_its_upstreams_before_it(kind: ItemKind, upstream: str, name: str) -> None:
    origins = merged(kind, {"a": ["x"], upstream: ["x"]}).origins
    assert origins == {"x": ResourceOrigin("a", "x"), name: ResourceOrigin(upstream, "x")}
    assert prefix_name(kind, upstream, "x") == name


def test_a_name_of_the_gateways_own_is_given_to_no_upstreams_resource() -> None:
    def is_reserved(name: str) -> bool:
        return name == "x"

    one = merge_lists("resources", [("a", [item("resources", "x"), item("resources", "y")])], is_reserved)
    assert one.origins == {"a+x": ResourceOrigin("a", "x"), "y": ResourceOrigin("a", "y")}
    assert assign_name("resources", ResourceOrigin("a", "x"), one.origins, is_reserved) == "a+x"


@given(st.text(min_size=1, max_size=12))
def test_every_upstreams_name_makes_a_scheme(upstream: str) -> None:
    assert re.fullmatch("[A-Za-z][A-Za-z0-9.-]*", build_scheme(upstream))


@pytest.mark.parametrize("odd", [b"5", b"[]", b"{", b"{}", b'{"name":null}', b'{"name":7}', b'{"name":"\\ud800"}'])
def test_entries_without_a_name_are_not_listed(odd: bytes) -> None:
    one = merge_lists("prompts", [("a", [odd, item("prompts", "x", spaced=True)])])
    assert [b"".join(raw) for raw in one.items] == [item("prompts", "x", spaced=True)]
    assert one.origins == {"x": ResourceOrigin("a", "x")}


@pytest.mark.parametrize(
    ("kind", "odd", "expected"),
    [
        ("resources", b'{"uri":"x:a"}', b'{"name":"x:a","uri":"x:a"}'),
        ("resources", b'{"uri":"x:a","name":5,"size":[]}', b'{"name":"x:a","uri":"x:a"}'),
        ("templates", b'{"uriTemplate":"x:a","name":"n","icons":5}', b'{"name":"n","uriTemplate":"x:a"}'),
        ("prompts", b'{"name":"n","arguments":[{}],"odd":1.0}', b'{"name":"n","odd":1.0}'),
    ],
)
def test_members_that_clients_cannot_read_are_left_out(kind: ItemKind, odd: bytes, expected: bytes) -> None:
    one = merge_lists(kind, [("a", [odd]), ("b", [item(kind, "x:b")])])
    assert [b"".join(raw) for raw in one.items] == [expected, item(kind, "x:b")]
    assert one.invalid == {"a": 1}


_NULLS = b'"description":null,"title":null,"icons":null,"_meta":null'


@pytest.mark.parametrize(
    ("kind", "odd", "expected"),
    [
        (
            "resources",
            b'{"uri":"x:a","name":"n",%b,"mimeType":null,"annotations":null,"size":null,"own":null,"n":1.0}' % _NULLS,
            b'{"uri":"x:a","name":"n","own":null,"n":1.0}',
        ),
        ("templates", b'{"uriTemplate":"x:a","name":"n",%b}' % _NULLS, b'{"uriTemplate":"x:a","name":"n"}'),
        ("prompts", b'{"name":"n","arguments":null,%b}' % _NULLS, b'{"name":"n"}'),
        (
            "prompts",
            b'{"name":"n","_meta":{"a":null},"arguments":[{"name":"x","description":null,"required":null}]}',
            b'{"name":"n","_meta":{"a":null},"arguments":[{"name":"x"}]}',
        ),
        (
            "resources",
            b'{"uri":"x:a","name":"n","annotations":{"audience":null,"priority":1.0,"lastModified":"2026-01-02"}}',
            b'{"uri":"x:a","name":"n","annotations":{"priority":1.0}}',
        ),
        (
            "resources",
            b'{"uri":"x:a","name":"n","annotations":{"lastModified":"2026-02-30T00:00:00Z"}}',
            b'{"uri":"x:a","name":"n","annotations":{}}',
        ),
    ],
)
def test_null_members_and_unreadable_times_are_left_out(kind: ItemKind, odd: bytes, expected: bytes) -> None:
    one = merge_lists(kind, [("a", [odd])])
    assert [b"".join(raw) for raw in one.items] == [expected]
    assert one.invalid == {}


@pytest.mark.parametrize(
    "whole",
    [
        b'{"uri":"x:a","name": "null"}',
        b'{"uri":"x:a", "name":"n","annotations":{"lastModified":"2026-01-02T03:04:05.6+02:00"},"_meta":{"a":null}}',
    ],
)
def test_an_item_that_clients_can_read_keeps_its_bytes(whole: bytes) -> None:
    assert merge_lists("resources", [("a", [whole])]).items == ((whole,),)


def test_a_number_that_is_a_text_is_left_out() -> None:
    one = merge_lists("resources", [("a", [b'{"uri":"x:a","name":"n","size":"12"}'])])
    assert [b"".join(raw) for raw in one.items] == [b'{"name":"n","uri":"x:a"}']
    assert one.invalid == {"a": 1}


@pytest.mark.parametrize(
    ("hints", "joined"),
    [
        ([], (0, "private")),
        ([(5000, "public")], (5000, "public")),
        ([(5000, "public"), (300, "public")], (300, "public")),
        ([(5000, "public"), (300, "private")], (300, "private")),
        ([(5000, "public"), (None, "public")], (0, "public")),
        ([(5000, "public"), (-1, None)], (0, "private")),
        ([(5000, "shared")], (5000, "private")),
    ],
)
def test_a_list_from_several_is_kept_no_longer_and_by_no_more_than_any(
    hints: list[tuple[int | None, str | None]], joined: tuple[int, str]
) -> None:
    assert join_cache_hints(iter(hints)) == joined
