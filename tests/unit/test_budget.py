"""Answers never exceed their part of the context window, for any sizes and order of calls."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_mirror.core.budgets import (
    MIN_CALL_TOKENS,
    NOTICE_TOKENS,
    ROOM_DIVISOR,
    TokenAccount,
    compute_capacity,
    estimate_wanted_tokens,
    lower_budgets,
)
from mcp_mirror.core.replies import count_media_tokens, count_result_tokens
from mcp_mirror.settings.policies import ContextPolicy, MirrorPolicy
from mcp_mirror.types import Buffer, Traffic

TOKENS = st.integers(0, 300_000)
STEPS = st.lists(
    st.tuples(st.sampled_from(["begin", "end", "give up"]), TOKENS, TOKENS, st.integers(0, 9)), max_size=60
)


@given(st.integers(1, 300_000), TOKENS, STEPS)
def test_sent_and_reserved_tokens_never_exceed_the_capacity(
    capacity: int, before: int, steps: list[tuple[str, int, int, int]]
) -> None:
    account, open_calls = TokenAccount(capacity, before), list[int]()
    most = max(capacity, before)
    for step, wanted, cost, which in steps:
        if step == "begin":
            reservation = account.share(wanted)
            account = account.reserve(reservation)
            open_calls.append(reservation)
        elif open_calls:
            reservation = open_calls.pop(which % len(open_calls))
            more = min(max(cost - reservation, 0), account.room) if step == "end" else 0
            account = account.reserve(more)
            account = account.settle(reservation + more, min(cost, reservation + more) if step == "end" else 0)
        assert account.sent + account.reserved <= most
        assert account.reserved == sum(open_calls)
        assert account.room == max(capacity - account.sent - account.reserved, 0)


@given(st.integers(0, 300_000), TOKENS)
def test_a_call_reserves_at_most_its_share_and_at_least_a_path(capacity: int, wanted: int) -> None:
    account = TokenAccount(capacity)
    reservation = account.share(wanted)
    assert reservation <= min(wanted, account.room)
    assert reservation == wanted or reservation >= min(account.room // ROOM_DIVISOR, wanted)
    assert reservation >= min(wanted, account.room, MIN_CALL_TOKENS)


@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=400))
def test_calls_made_at_once_share_the_room_and_the_last_gets_a_path_still(wanted: list[int]) -> None:
    account = TokenAccount(160_000)
    for one in wanted:
        account = account.reserve(account.share(one))
    assert account.reserved <= 160_000
    if len(wanted) < 30:
        assert account.room >= MIN_CALL_TOKENS


@pytest.mark.parametrize(
    ("policy", "capacity"),
    [
        (ContextPolicy(), None),
        (ContextPolicy(200_000), 160_000),
        (ContextPolicy(1001, 0.5), 500),
        (ContextPolicy(1, 0.99), 0),
        (ContextPolicy(10, 0.0), 10),
    ],
)
def test_the_capacity_for_answers_is_the_unreserved_part(policy: ContextPolicy, capacity: int | None) -> None:
    assert compute_capacity(policy) == capacity


@pytest.mark.parametrize(
    ("reservation", "inline", "error", "read", "answer", "notice"),
    [
        (100_000, 2500, 2000, 2500, 20_000, "compact"),
        (2600, 2500, 2000, 2275, 2600, "compact"),
        (NOTICE_TOKENS, NOTICE_TOKENS, NOTICE_TOKENS, 525, NOTICE_TOKENS, "compact"),
        (NOTICE_TOKENS - 1, 599, 599, 525, 599, "opaque"),
        (MIN_CALL_TOKENS, 128, 128, 112, 128, "opaque"),
    ],
)
def test_every_budget_decreases_with_the_reservation_of_a_call(  # the columns of the table
    reservation: int, inline: int, error: int, read: int, answer: int, notice: str
) -> None:
    low = lower_budgets(MirrorPolicy(), reservation)
    budgets = (low.inline_budget, low.error_budget, low.read_budget, low.answer_budget, low.notice)
    assert budgets == (inline, error, read, answer, notice)
    assert lower_budgets(low, 10 * reservation).inline_budget == inline


@given(st.integers(0, 50_000), st.integers(0, 50_000), st.integers(0, 50_000))
def test_a_call_with_its_full_reservation_keeps_its_budgets(inline: int, error: int, read: int) -> None:
    mirror = MirrorPolicy(inline_budget=inline, error_budget=error, read_budget=read, answer_budget=0)
    assert lower_budgets(mirror, estimate_wanted_tokens(mirror, 0, is_retrieval=False)) == mirror
    assert lower_budgets(MirrorPolicy(answer_budget=read), max(read, MIN_CALL_TOKENS)).answer_budget == read


def test_a_call_wants_the_largest_of_the_budgets_that_it_is_under() -> None:
    mirror = MirrorPolicy()
    assert estimate_wanted_tokens(mirror, 800, is_retrieval=False) == 2500 + NOTICE_TOKENS
    assert estimate_wanted_tokens(mirror, 9000, is_retrieval=False) == 9000 + NOTICE_TOKENS
    assert estimate_wanted_tokens(mirror, 9000, is_retrieval=True) == 20_000
    assert estimate_wanted_tokens(MirrorPolicy(answer_budget=0), 0, is_retrieval=True) == MIN_CALL_TOKENS


def size(text: Buffer) -> int:
    return len(text)


def text(content: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": content, **more}


PICTURE = base64.b64encode(bytes(600_000)).decode()
LINK = {"type": "resource_link", "uri": "file:///x", "name": "x"}
RESULTS: dict[str, tuple[dict[str, Any], int]] = {
    "nothing": ({}, 0),
    "no blocks": ({"content": []}, 0),
    "an empty text": ({"content": [text("")]}, 0),
    "a text": ({"content": [text("abc")]}, 3),
    "a text as it is read": ({"content": [text('"\n\u00e9', annotations={})]}, 4),
    "two texts": ({"content": [text("abc"), text("de")]}, 5),
    "structured content that is shorter": ({"content": [text("abcdefghij")], "structuredContent": {"a": 1}}, 10),
    "structured content that is longer": ({"content": [text("abc")], "structuredContent": {"a": 1}}, 8),
    "a picture": ({"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]}, 4800),
    "a recording": ({"content": [{"type": "audio", "data": PICTURE, "mimeType": "audio/ogg"}]}, 12_500),
    "a file": ({"content": [{"type": "resource", "resource": {"uri": "x:y", "blob": "AAAA"}}]}, 4800),
    "a link": ({"content": [LINK]}, len(json.dumps(LINK))),
    "a text that is none": ({"content": [{"type": "text", "text": 5}]}, 27),
    "a block that is none": ({"content": [7]}, 1),
    "a long text without its escapes": ({"content": [text("\n" * (1 << 20))]}, 1 << 20),
    "a question to the user": ({"resultType": "input_required", "inputRequests": [1, 2, 3]}, 0),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_costs_what_a_model_reads_of_it(name: str) -> None:
    result, cost = RESULTS[name]
    members: Mapping[str, Buffer] = {
        key: json.dumps(value, separators=(", ", ": ")).encode() for key, value in result.items()
    }
    assert count_result_tokens(members, size) == cost
    cut = {key: (memoryview(raw)[:1], memoryview(raw)[1:]) for key, raw in members.items()}
    assert count_result_tokens(cut, size) == count_result_tokens(members, size)


def test_a_shown_text_is_counted_apart_from_the_lines_around_it() -> None:
    counted: list[bytes] = []

    def count(read: Buffer) -> int:
        counted.append(bytes(read))
        return len(read)

    members = {"content": json.dumps([text("eins\n\nPath: p"), text("other")]).encode()}
    assert count_result_tokens(members, count, "eins") == len("eins\n\nPath: pother")
    assert counted == [b"eins", b"\n\nPath: p", b"other"]
    counted.clear()
    members = {"content": json.dumps([text("p\n\neins\n\nuse")]).encode()}
    assert count_result_tokens(members, count, "eins") == len("p\n\neins\n\nuse")
    assert counted == [b"eins", b"p\n\n", b"\n\nuse"]


def test_media_cost_as_much_as_at_the_most_expensive_provider() -> None:
    assert count_media_tokens(0) == count_media_tokens(300_000) == 4800
    assert count_media_tokens(6_400_000) == 100_000


@pytest.mark.parametrize(("sent", "kept_out", "ratio"), [(1234, 5_678_901, 4602), (0, 0, 0), (0, 7, 7), (10, 4, 0)])
def test_the_ratio_is_tokens_kept_out_for_each_that_was_sent(sent: int, kept_out: int, ratio: int) -> None:
    assert Traffic().plus(Traffic(sent, kept_out)).ratio == ratio
