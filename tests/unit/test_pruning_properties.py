"""Properties of pruning for any conversation: valid, within the budget, not smaller than necessary, reversible."""

import json
from copy import deepcopy
from typing import Any

import pytest
from conversations import CONVERSATIONS
from hypothesis import given, settings
from hypothesis import strategies as st
from rules import RULES
from samples import at_most

from mcp_mirror.prune import ChatFormat, Pruned, prune_messages, pruned_paths, restore_messages

Message = dict[str, Any]

conversations = st.sampled_from(sorted(CONVERSATIONS)).flatmap(
    lambda provider: st.tuples(st.just(provider), CONVERSATIONS[provider])
)
shares = st.integers(0, 110)
"""Budgets in percent of the conversation's tokens."""
some = at_most(30)
memories = st.sampled_from((None, "a dict"))


def count(message: Message) -> int:
    """Tokens for a test: exactly additive over all parts of a message."""
    return len(json.dumps(message))


def total(messages: list[Message]) -> int:
    return sum(map(count, messages))


def prune(messages: list[Message], budget: int, provider: ChatFormat, memory: dict[str, bytes] | None = None) -> Pruned:
    return prune_messages(messages, budget, provider, memory, estimate=count)


def put(messages: list[Message], at: int, where: tuple[Any, ...], value: Any) -> list[Message]:
    """The messages with another value in one place."""
    copy: Any = deepcopy(messages)
    node = copy[at]
    for step in where[:-1]:
        node = node[step]
    node[where[-1]] = value
    return copy  # type: ignore[no-any-return]


def get(message: Any, where: tuple[Any, ...]) -> Any:
    for step in where:
        message = message[step]
    return message


@some
@given(conversations)
def test_the_generated_conversations_are_valid(drawn: tuple[ChatFormat, list[Message]]) -> None:
    provider, messages = drawn
    RULES[provider](messages)


@some
@given(conversations, shares, memories)
def test_only_pruned_parts_change_and_the_result_is_valid(
    drawn: tuple[ChatFormat, list[Message]], share: int, kept: str | None
) -> None:
    provider, messages = drawn
    before = deepcopy(messages)
    pruned = prune(messages, total(messages) * share // 100, provider, {} if kept else None)
    assert messages == before
    RULES[provider](pruned.messages)
    assert pruned.tokens == total(pruned.messages) == total(messages) - sum(cut.tokens for cut in pruned.cuts)
    rebuilt = pruned.messages
    for cut in pruned.cuts:
        assert cut.tokens > 0
        rebuilt = put(rebuilt, cut.message, cut.where, get(messages[cut.message], cut.where))
    assert rebuilt == messages
    touched = {cut.message for cut in pruned.cuts}
    for at, (now, then) in enumerate(zip(pruned.messages, messages, strict=True)):
        assert (now is then) == (at not in touched)


@some
@given(conversations, shares)
def test_the_budget_is_met_if_possible_without_unnecessary_cuts(
    drawn: tuple[ChatFormat, list[Message]], share: int
) -> None:
    provider, messages = drawn
    budget = total(messages) * share // 100
    pruned, smallest = prune(messages, budget, provider), prune(messages, 0, provider)
    assert pruned.fits == (smallest.tokens <= budget) == (pruned.tokens <= budget)
    if not pruned.fits:
        assert pruned.messages == smallest.messages
        return
    if total(messages) <= budget:
        assert pruned.messages is messages
    for cut in pruned.cuts:
        assert pruned.tokens + cut.tokens > budget


@some
@given(conversations, shares, memories)
def test_pruning_again_changes_nothing(drawn: tuple[ChatFormat, list[Message]], share: int, kept: str | None) -> None:
    provider, messages = drawn
    budget = total(messages) * share // 100
    once = prune(messages, budget, provider, {} if kept else None)
    again = prune(once.messages, budget, provider, {} if kept else None)
    assert again.messages is once.messages
    assert again.cuts == ()
    stubs = {(cut.message, cut.where) for cut in once.cuts}
    assert stubs.isdisjoint((cut.message, cut.where) for cut in prune(once.messages, 0, provider).cuts)


@some
@given(conversations, shares, shares)
def test_a_larger_budget_never_prunes_more(drawn: tuple[ChatFormat, list[Message]], share: int, other: int) -> None:
    provider, messages = drawn
    small, large = sorted(total(messages) * part // 100 for part in (share, other))
    assert prune(messages, small, provider).tokens <= prune(messages, large, provider).tokens


@some
@given(conversations, shares, shares)
def test_a_conversation_pruned_into_a_memory_can_be_restored(
    drawn: tuple[ChatFormat, list[Message]], share: int, later: int
) -> None:
    provider, messages = drawn
    memory: dict[str, bytes] = {}
    once = prune(messages, total(messages) * share // 100, provider, memory)
    twice = prune(once.messages, total(messages) * later // 100, provider, memory)
    assert set(memory) == {cut.path for cut in (*once.cuts, *twice.cuts)}
    assert set(memory) <= set(pruned_paths(twice.messages, provider))
    for blob in memory.values():
        json.loads(blob)
    restored = restore_messages(twice.messages, memory.get, provider)
    assert json.dumps(restored) == json.dumps(messages)


@some
@given(conversations)
def test_repeated_stubs_are_treated_as_text(drawn: tuple[ChatFormat, list[Message]]) -> None:
    provider, messages = drawn
    memory: dict[str, bytes] = {}
    pruned = prune(messages, 0, provider, memory)
    echoes = [json.loads(json.dumps(message).replace("call_", "echo_")) for message in pruned.messages]
    restored = restore_messages([*pruned.messages, *echoes], memory.get, provider)
    assert json.dumps(restored) == json.dumps([*messages, *echoes])


@pytest.mark.slow
@some
@given(conversations, shares)
def test_the_properties_apply_to_the_default_estimate(drawn: tuple[ChatFormat, list[Message]], share: int) -> None:
    provider, messages = drawn
    memory: dict[str, bytes] = {}
    before = prune_messages(messages, 1 << 40, provider)
    budget = before.tokens * share // 100
    pruned = prune_messages(messages, budget, provider, memory)
    assert pruned.fits == (pruned.tokens <= budget)
    assert pruned.tokens == prune_messages(pruned.messages, 1 << 40, provider).tokens
    if pruned.fits:
        for cut in pruned.cuts:
            value = get(messages[cut.message], cut.where)
            assert (
                prune_messages(put(pruned.messages, cut.message, cut.where, value), 1 << 40, provider).tokens > budget
            )
    RULES[provider](pruned.messages)
    assert json.dumps(restore_messages(pruned.messages, memory.get, provider)) == json.dumps(messages)


names = st.sampled_from(
    [
        "role",
        "type",
        "content",
        "tool_calls",
        "function",
        "custom",
        "arguments",
        "input",
        "args",
        "output",
        "value",
        "result",
        "text",
        "id",
        "call_id",
        "toolCallId",
        "tool_use_id",
        "providerOptions",
        "annotations",
        "signature",
    ]
)
words = st.sampled_from(
    [
        "user",
        "assistant",
        "tool",
        "function",
        "text",
        "input_text",
        "output_text",
        "tool_use",
        "tool_result",
        "json",
        "tool-call",
        "tool-result",
        "content",
        "function_call",
        "function_call_output",
        "message",
    ]
) | st.sampled_from(("word " * 60, ""))
shapes = st.recursive(
    st.none() | st.booleans() | st.integers() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)
odd = st.lists(st.dictionaries(names, words | shapes, max_size=5), max_size=5)


@some
@given(st.sampled_from(sorted(CONVERSATIONS)), odd)
def test_messages_of_unknown_shape_are_pruned_and_restored(provider: ChatFormat, messages: list[Message]) -> None:
    memory: dict[str, bytes] = {}
    pruned = prune(messages, 0, provider, memory)
    assert json.dumps(restore_messages(pruned.messages, memory.get, provider)) == json.dumps(messages)


@pytest.mark.slow
@pytest.mark.parametrize("provider", CONVERSATIONS)
def test_the_generated_conversations_contain_every_phase(provider: ChatFormat) -> None:
    seen: set[str] = set()

    @given(CONVERSATIONS[provider])
    @settings(max_examples=100)
    def look(messages: list[Message]) -> None:
        seen.update(cut.phase for cut in prune(messages, 0, provider).cuts)

    look()
    assert seen == {"tool results", "tool inputs", "last tool result", "assistant text", "user text"}
