"""Callers, their scopes, and the requests that a server may send to them."""

from typing import Any, get_args

import mcp_types as types
import pytest

from mcp_mirror.callers import (
    CAPABILITY_OF,
    LOCAL,
    LOG_LEVELS,
    Caller,
    ClientHeaders,
    NullChannel,
    name_namespaces,
    name_principal,
)
from mcp_mirror.errors import RefusedError


@pytest.mark.parametrize(
    ("capabilities", "answered"),
    [
        ({}, set()),
        ({"sampling": {}}, {"sampling/createMessage"}),
        ({"elicitation": {"url": {}}, "roots": {}}, {"elicitation/create", "roots/list"}),
        ({"sampling": None, "tools": {}}, set()),
    ],
)
def test_a_caller_can_be_asked_what_it_has_declared(capabilities: dict[str, Any], answered: set[str]) -> None:
    caller = Caller("me", capabilities=capabilities)
    assert {method for method in CAPABILITY_OF if caller.can_answer(method)} == answered
    assert caller.can_answer_any is bool(answered)
    assert not caller.can_answer("tools/list")


@pytest.mark.parametrize(
    ("capabilities", "shows_views"),
    [
        ({}, False),
        ({"extensions": None}, False),
        ({"extensions": {"io.modelcontextprotocol/other": {}}}, False),
        ({"extensions": {"io.modelcontextprotocol/ui": {}}}, True),
    ],
)
def test_a_client_declares_that_it_shows_views(capabilities: dict[str, Any], shows_views: bool) -> None:  # noqa: FBT001
    assert Caller("me", capabilities=capabilities).shows_views is shows_views


def test_a_namespace_has_its_principals_name_unless_several_have_it() -> None:
    alice, other, bob = '["token","alice"]', '["https://login.example.com/","alice"]', '["token","bob"]'
    assert name_namespaces((alice, bob, "local")) == {alice: "alice", bob: "bob", "local": "local"}
    assert name_namespaces((alice, other, bob)) == {alice: alice, other: other, bob: "bob"}


def test_two_callers_are_one_if_they_share_memory_and_connection() -> None:
    one = Caller("me", is_stateless=False, session="a")
    assert one.identity == Caller("me", is_stateless=False, session="a", capabilities={"roots": {}}).identity
    others = [Caller("you", session="a"), Caller("me", session="b"), Caller("me")]
    assert one.identity not in [other.identity for other in others]


def test_levels_stand_in_the_protocols_order() -> None:
    assert get_args(types.LoggingLevel) == LOG_LEVELS


async def test_the_null_channel_drops_notifications_and_refuses_requests() -> None:
    silent = NullChannel(Caller("me", capabilities={"roots": {}}))
    await silent.notify("notifications/message", {"level": "error"})
    with pytest.raises(RefusedError, match="accepts no roots/list request now") as refused:
        await silent.request("roots/list", {})
    assert (refused.value.code, refused.value.data) == (types.INVALID_REQUEST, None)


@pytest.mark.parametrize(
    ("caller", "other", "same"),
    [
        (Caller("me", session="a"), Caller("me", session="b"), True),
        (Caller("me", capabilities={"a": {}, "b": {}}), Caller("me", capabilities={"b": {}, "a": {}}), True),
        (Caller("me", capabilities={"a": {}}), Caller("me", capabilities={"b": {}}), False),
        (Caller("me", capabilities={"a": {}}), Caller("you", capabilities={"a": {}}), False),
        (Caller("me"), Caller("you"), False),
        (Caller(LOCAL), Caller(LOCAL, is_stateless=False), True),
    ],
)
def test_callers_with_equal_namespace_and_capabilities_share_connections(
    caller: Caller,
    other: Caller,
    same: bool,  # noqa: FBT001  # a column of the table
) -> None:
    assert (caller.principal_key == other.principal_key) is same


@pytest.mark.parametrize(
    ("scopes", "required", "holds"),
    [
        (None, ["a"], True),
        (["a", "b"], ["b", "a"], True),
        (["a"], ["a", "b"], False),
        ([], [], True),
        ([], ["a"], False),
    ],
)
def test_a_caller_has_access_with_all_required_scopes(
    scopes: list[str] | None, required: list[str], *, holds: bool
) -> None:
    assert Caller("x", scopes=None if scopes is None else frozenset(scopes)).has_scopes(required) is holds


@pytest.mark.parametrize(
    ("namespace", "name"),
    [
        (LOCAL, LOCAL),
        ('["token", "alice"]', "alice"),
        ('["https://login.example.com/", "a b"]', "a b"),
        ('["token"]', '["token"]'),
        ('["token", 1]', '["token", 1]'),
        ('{"a": 1, "b": 2}', '{"a": 1, "b": 2}'),
    ],
)
def test_the_name_of_a_principal_is_in_its_namespace(namespace: str, name: str) -> None:
    assert name_principal(namespace) == name


def test_the_description_of_a_caller_contains_no_value_of_a_header() -> None:
    caller = Caller("alice", client_headers=ClientHeaders({"x-crm": "Bearer secret", "x-b": "secret"}))
    assert "client_headers=ClientHeaders(x-crm, x-b)" in repr(caller)
    assert "secret" not in repr(caller)
