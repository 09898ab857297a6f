"""Accounts of conversations: their owners and resets; they are bounded and never overdrawn."""

import time
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest
from clocks import Clock
from hypothesis import given
from hypothesis import strategies as st
from samples import at_most

from mcp_mirror.core.budgets import MIN_CALL_TOKENS
from mcp_mirror.errors import ToolError
from mcp_mirror.gateway.context_budgets import (
    CONVERSATION,
    UNLIMITED,
    ContextBudgets,
    Conversation,
    Reservation,
    read_conversation,
)

CAPACITY = 8_000
CHAT = Conversation(("harness", "chat"))


def kept(capacity: int = CAPACITY, clock: Clock | None = None) -> ContextBudgets:
    return ContextBudgets(clock or Clock(), capacity)


def spend(conversations: ContextBudgets, conversation: Conversation, cost: int, namespace: str = "me") -> int:
    """Make a call that sends so much, if it may; what could be sent before it."""
    with conversations.reserve(namespace, conversation, 1000, lambda: 100) as hold:
        left = hold.left
        if hold.widen(cost):
            hold.settle(cost)
        return left


@pytest.mark.parametrize(
    ("declared", "connection", "read"),
    [
        (None, None, None),
        (None, "s-1", Conversation(("connection", "s-1"))),
        ("c-1", None, Conversation(("harness", "c-1"))),
        ("c-1", "s-1", Conversation(("harness", "c-1"))),
        ({"id": "c-1", "tokens": 0}, None, Conversation(("harness", "c-1"), 0)),
        ({"tokens": 5}, "s-1", Conversation(("connection", "s-1"), 5)),
        ({"tokens": 5}, None, None),
        ({"reset": True}, "s-1", Conversation(("connection", "s-1"), None, is_reset=True)),
        ({"reset": False}, "s-1", Conversation(("connection", "s-1"))),
    ],
)
def test_a_conversation_is_what_the_harness_calls_it_else_its_connection(
    declared: Any, connection: str | None, read: Conversation | None
) -> None:
    assert read_conversation({} if declared is None else {CONVERSATION: declared}, connection) == read


@pytest.mark.parametrize(
    "declared",
    ["", "x" * 201, 7, ["c"], {"id": 7}, {"id": ""}, {"tokens": -1}, {"tokens": 1.5}, {"tokens": True},
     {"reset": "yes"}, {"token": 5}],
)  # fmt: skip
def test_the_error_for_an_invalid_conversation_names_the_format(declared: Any) -> None:
    with pytest.raises(ToolError, match="must be an id of up to 200 characters, or an object with any of"):
        read_conversation({CONVERSATION: declared}, "s-1")


def test_without_a_budget_anything_may_be_sent() -> None:
    assert UNLIMITED.tokens is None
    assert not UNLIMITED.is_exhausted
    assert UNLIMITED.widen(10**9)
    UNLIMITED.settle(10**9)


def test_a_conversation_starts_with_definitions_and_is_private() -> None:
    conversations = kept()
    assert spend(conversations, CHAT, 700) == 7900
    assert spend(conversations, CHAT, 0) == 7200
    assert spend(conversations, Conversation(("connection", "chat")), 0) == 7900
    assert spend(conversations, CHAT, 0, "you") == 7900


def test_a_harness_reports_the_size_or_the_restart_of_a_conversation() -> None:
    conversations = kept()
    spend(conversations, CHAT, 7000)
    assert spend(conversations, Conversation(CHAT.key, 2000), 0) == 900
    assert spend(conversations, Conversation(CHAT.key, 7500), 0) == 500
    assert spend(conversations, Conversation(CHAT.key, 2000, is_reset=True), 50) == 6000
    assert spend(conversations, CHAT, 0) == 5950
    assert spend(conversations, Conversation(CHAT.key, is_reset=True), 0) == 7900
    assert spend(conversations, Conversation(CHAT.key, 20_000), 0) == 0
    assert (
        spend(conversations, Conversation(CHAT.key, 8000 - MIN_CALL_TOKENS + 1, is_reset=True), 0)
        == MIN_CALL_TOKENS - 1
    )
    assert spend(conversations, Conversation(CHAT.key), 0) == MIN_CALL_TOKENS - 1
    assert spend(conversations, Conversation(("harness", "new"), 20), 0) == 7900
    assert spend(conversations, Conversation(("harness", "newer"), 3000, is_reset=True), 0) == 5000


def test_a_failed_call_releases_its_reservation() -> None:
    conversations = kept()
    with pytest.raises(KeyError), conversations.reserve("me", CHAT, 1000, lambda: 100):
        raise KeyError
    assert spend(conversations, CHAT, 0) == 7900


def test_a_call_in_flight_keeps_its_budget_when_the_conversation_restarts() -> None:
    conversations = kept()
    with conversations.reserve("me", CHAT, 1000, lambda: 100) as hold:
        assert spend(conversations, Conversation(CHAT.key, 0, is_reset=True), 0) == 7000
        hold.settle(400)
    assert spend(conversations, CHAT, 0) == 7600


def test_a_changed_window_applies_to_running_conversations() -> None:
    conversations = kept()
    spend(conversations, CHAT, 900)
    conversations = msgspec.structs.replace(conversations, capacity=1500)
    assert spend(conversations, CHAT, 0) == 500


def test_a_call_without_room_for_a_path_is_not_to_be_made() -> None:
    conversations = kept()
    for tokens, spent in ((8000 - MIN_CALL_TOKENS, False), (8000 - MIN_CALL_TOKENS + 1, True), (8000, True)):
        with conversations.reserve("me", Conversation(CHAT.key, tokens, is_reset=True), 1000, lambda: 100) as hold:
            assert hold.is_exhausted is spent


def test_an_operator_hears_of_a_window_that_the_definitions_fill(caplog: pytest.LogCaptureFixture) -> None:
    assert spend(kept(224), CHAT, 0) == 124
    assert "The tool definitions take 100 of the 224 tokens that `context` allows" in caplog.text
    caplog.clear()
    assert spend(kept(228), CHAT, 0) == 128
    assert caplog.text == ""


def test_idle_and_excess_conversations_are_dropped() -> None:
    clock = Clock()
    conversations = kept(clock=clock)
    spend(conversations, CHAT, 700)
    for number in range(4095):
        spend(conversations, Conversation(("harness", str(number))), 0)
    assert spend(conversations, CHAT, 0) == 7200
    spend(conversations, Conversation(("harness", "more")), 100)
    assert spend(conversations, Conversation(("harness", "0")), 0) == 7900
    assert spend(conversations, CHAT, 0) == 7200
    clock.now += 86_401
    assert spend(conversations, Conversation(("harness", "x")), 0, "you") == 7900
    assert spend(conversations, CHAT, 0) == 7900


def test_a_call_does_not_take_longer_with_the_number_of_users() -> None:
    conversations = kept(clock=Clock())
    started = time.process_time()
    for number in range(6000):
        spend(conversations, CHAT, 100, f"user {number}")
    assert time.process_time() - started < 1  # before: 5
    assert spend(conversations, CHAT, 0, "user 0") == 7800


CALLS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "end", "fail"]),
        st.sampled_from(["a", "b"]),
        st.integers(0, 6000),
        st.integers(0, 9),
    ),
    max_size=50,
)


@at_most(200)
@given(st.integers(160, 9_600), CALLS)
def test_concurrent_calls_never_exceed_the_budget_of_a_conversation(
    capacity: int, calls: list[tuple[str, str, int, int]]
) -> None:
    conversations = kept(capacity)
    sent = {"a": 100, "b": 100}
    under_way: list[tuple[str, Reservation, ExitStack]] = []
    for step, name, cost, which in calls:
        if step == "begin":
            stack = ExitStack()
            reservation = conversations.reserve("me", Conversation(("harness", name)), cost, lambda: 100)
            under_way.append((name, stack.enter_context(reservation), stack))
        elif under_way:
            of, hold, stack = under_way.pop(which % len(under_way))
            if step == "end" and hold.widen(cost):
                hold.settle(cost)
                sent[of] += cost
            stack.close()
        assert max(sent.values()) <= max(capacity, 100)
    for _, _, stack in under_way:
        stack.close()
