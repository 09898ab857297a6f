"""Tool names are unique."""

from itertools import islice, product

import pytest

from mcp_mirror.core.naming import NameAllocator

OWN = ("memory_read",)


def test_a_name_that_is_anothers_is_not_given_away() -> None:
    names = {"x_twin": ("a", "x"), "y": ("a", "y")}
    assert dict(NameAllocator((), names).allocate([("b", "x")], "_twin")) == {("b", "x"): "b_x_twin"}
    assert dict(NameAllocator((), names).allocate([("a", "x")], "_twin")) == {("a", "x"): "x_twin"}
    assert NameAllocator((), names).keep_original_names([("b", "y"), ("b", "z")]) == {("b", "z"): "z"}


def test_names_that_differ_only_in_case_collide() -> None:
    named = dict(NameAllocator(OWN).allocate([("a", "Get"), ("b", "get"), ("a", "Memory_Read")], ""))
    assert list(named.values()) == ["a_Get", "b_get", "a_Memory_Read"]


def test_a_name_that_is_taken_in_every_form_gets_a_number() -> None:
    names = dict.fromkeys(("x", "a_x"), ("z", "z"))
    assert dict(NameAllocator((), names).allocate([("a", "x")], "")) == {("a", "x"): "a_x2"}


@pytest.mark.timeout(30)
def test_tools_that_differ_in_unsafe_characters_are_named_in_linear_time() -> None:
    tools = [("a", "".join(name)) for name in islice(product(". /", repeat=9), 15_000)]
    names = list(dict(NameAllocator().allocate(tools, "_twin")).values())
    safe = "_" * 9
    assert names[:4] == [f"{safe}_twin", f"a_{safe}_twin", f"a_{safe}2_twin", f"a_{safe}3_twin"]
    assert len(set(names)) == len(tools)


def test_a_number_that_belongs_to_a_tool_stays_its_own() -> None:
    tools = [("a", name) for name in (".", "/", "?", "!", "&")]
    owned_names = {"a__3": ("a", "&")}
    assert list(dict(NameAllocator((), owned_names).allocate(tools, "")).values()) == [
        *("_", "a__", "a__2", "a__4", "a__3")
    ]


def test_those_that_keep_their_names_do_so_before_others_and_once() -> None:
    names = NameAllocator()
    assert names.keep_original_names([("a", "x"), ("b", "y"), ("c", "y")]) == {("a", "x"): "x"}
    assert names.keep_original_names([("d", "x"), ("d", "z")]) == {("d", "z"): "z"}
    assert dict(names.allocate([("d", "x")], "", [("a", "x")])) == {("d", "x"): "d_x"}
