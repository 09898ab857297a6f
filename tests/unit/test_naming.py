"""Tool names are unique, and such as every client accepts."""

from itertools import islice, product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_mirror.core.naming import NameAllocator, fit_name

OWN = ("memory_read",)
SAFE = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


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


@given(st.text(max_size=90), st.text(max_size=80) | st.just("_mirrored"), st.text(max_size=70))
@example("x" * 37, "_mirrored", "")
@example("", "", "")
@example("\ud800", "_m", "")
def test_a_name_is_one_that_every_client_takes(name: str, suffix: str, prefix: str) -> None:
    fitted = fit_name(name, suffix, prefix)
    assert 1 <= len(fitted) <= (45 if len(suffix) <= 37 and (suffix or prefix) else 64)
    assert set(fitted) <= SAFE
    assert fitted == fit_name(name, suffix, prefix)


@pytest.mark.parametrize(
    ("name", "suffix", "prefix", "fitted"),
    [
        ("git_log", "_mirrored", "", "git_log_mirrored"),
        ("git_log", "_mirrored", "two", "two_git_log_mirrored"),
        ("files.read/all", "_mirrored", "", "files_read_all_mirrored"),
        ("x" * 36, "_mirrored", "", "x" * 36 + "_mirrored"),
        ("git_log", "", "", "git_log"),
        ("x" * 64, "", "", "x" * 64),
        ("get", "_mirrored", "2nd", "_2nd_get_mirrored"),
        ("get", "", "-a", "_-a_get"),
        ("2nd", "", "", "2nd"),
    ],
)
def test_a_name_that_fits_is_kept(name: str, suffix: str, prefix: str, fitted: str) -> None:
    assert fit_name(name, suffix, prefix) == fitted


@pytest.mark.parametrize(
    ("one", "other"),
    [("x" * 60 + "a", "x" * 60 + "b"), ("\u6570\u636e", "\u68c0\u7d22"), ("", "_"), ("caf\u00e9", "caf\u00e8")],
)
def test_names_that_would_become_the_same_stay_apart(one: str, other: str) -> None:
    for suffix in ("_mirrored", "", "s" * 60, "s" * 200):
        assert fit_name(one, suffix) != fit_name(other, suffix)
        assert fit_name(one, suffix, "p") != fit_name(one, suffix, "q")
