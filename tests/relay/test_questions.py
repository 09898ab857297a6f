"""What upstreams ask of the user, before every combination of client and upstream."""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from desk import BOUND, NEW, OLD, Desk
from mcp import MCPError
from mcp_types import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    REQUEST_TIMEOUT,
    ElicitResult,
    InputRequiredResult,
    TextContent,
)
from notices import path_in

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

ROUNDS = "form,sampling;url;roots"
ANSWERS = {
    "0-form": {"action": "accept", "content": {"name": "Ada"}},
    "0-sampling": {
        "role": "assistant",
        "content": {"type": "text", "text": "Why? 0 Because."},
        "model": "tiny",
        "stopReason": "endTurn",
    },
    "1-url": {"action": "accept"},
    "2-roots": {"roots": [{"uri": "file:///home/ada", "name": "home"}]},
}


async def in_tool(desk: Desk, rounds: str) -> Any:
    return json.loads(await desk.text("interview", rounds=rounds))


async def in_prompt(desk: Desk, rounds: str) -> Any:
    filled: Any = await asyncio.wait_for(desk.client.get_prompt("interview", {"rounds": rounds}), BOUND)
    return json.loads(filled.messages[0].content.text)


async def in_resource(desk: Desk, rounds: str) -> Any:
    read: Any = await asyncio.wait_for(desk.client.read_resource(f"interview://{rounds}"), BOUND)
    return json.loads(read.contents[0].text)


Interview = Callable[[Desk, str], Awaitable[Any]]
each_place = pytest.mark.parametrize("interview", [in_tool, in_prompt, in_resource])


@each_place
async def test_questions_of_every_kind_reach_the_client_and_its_answers_the_upstream(
    desk: Desk, interview: Interview
) -> None:
    told = await interview(desk, ROUNDS)
    assert told["answers"] == ANSWERS
    assert sorted(desk.person.asked) == ["form", "roots", "sampling", "url"]


@each_place
@pytest.mark.parametrize("refusal", ["decline", "cancel"])
async def test_what_the_user_does_not_answer_reaches_the_upstream_as_that(
    desk: Desk, interview: Interview, refusal: str
) -> None:
    desk.person.refusal = refusal
    assert (await interview(desk, "form"))["answers"] == {"0-form": {"action": refusal}}


async def test_an_error_for_an_answer_reaches_whoever_waits_for_it(desk: Desk) -> None:
    desk.person.refusal = "error"
    if (desk.combination.client, desk.combination.upstream) == (OLD, OLD):
        assert (await in_tool(desk, "form"))["answers"] == {"0-form": {"refused": INVALID_REQUEST}}
    elif desk.combination.client == OLD:  # the call's caller is a model: it reads what was said
        result = await desk.call("interview", rounds="form")
        assert (result.is_error, result.content) == (True, [TextContent(text="Not now")])
    else:
        with pytest.raises(MCPError) as caught:
            await desk.text("interview", rounds="form")
        assert caught.value.error.code == INVALID_REQUEST
    assert await desk.text("echo") == "{}"


async def test_upstreams_see_what_the_client_can_do(desk: Desk) -> None:
    told = json.loads(await desk.text("whoami"))
    assert told == {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {"listChanged": True}}


async def test_upstreams_see_what_the_client_cannot_do(reserved: Desk) -> None:
    assert json.loads(await reserved.text("whoami")) == {"elicitation": {"form": {}, "url": {}}}


@pytest.mark.parametrize("kind", ["sampling", "roots"])
async def test_a_question_that_the_client_does_not_take_is_refused_as_the_protocol_has_it(
    reserved: Desk, kind: str
) -> None:
    if reserved.combination.upstream == OLD:
        told = await in_tool(reserved, kind)
        assert told["answers"] == {f"0-{kind}": {"refused": METHOD_NOT_FOUND}}
        return
    with pytest.raises(MCPError) as caught:
        await reserved.text("interview", rounds=kind)
    assert caught.value.error.code == MISSING_REQUIRED_CLIENT_CAPABILITY
    assert caught.value.error.data == {"requiredCapabilities": {kind: {}}}


async def test_progress_reaches_the_request_that_waits_in_every_round(desk: Desk) -> None:
    told: list[float] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        assert (total, message) == (3, None)
        told.append(progress)

    arguments = {"rounds": "form;form;form"}
    await asyncio.wait_for(desk.client.call_tool("interview_mirrored", arguments, progress_callback=hear), BOUND)
    rounds = 3 if desk.combination.upstream == OLD else 4
    await desk.until(lambda: len(told) == rounds)
    assert sorted(told) == list(range(rounds))


@pytest.mark.parametrize("below", ["", "/rows"])
async def test_a_memory_path_is_the_same_value_in_every_round(desk: Desk, below: str) -> None:
    notice = await desk.text("grow", rows=50)
    path = path_in(notice)
    told = json.loads(await desk.text("interview", rounds="form;sampling;form", value=path + below))
    rows = [{"number": number} for number in range(50)]
    value = json.dumps(rows if below else {"rows": rows}, sort_keys=True)
    assert set(told["digests"]) == {hashlib.sha256(value.encode()).hexdigest()}
    assert len(told["digests"]) == (1 if desk.combination.upstream == OLD else 4)
    assert len(told["answers"]) == 3


async def test_calls_that_ask_at_the_same_time_all_get_their_answers(desk: Desk) -> None:
    calls = [in_tool(desk, "form,sampling;form") for _ in range(4)]
    for told in await asyncio.gather(*calls):
        assert told["answers"].keys() == {"0-form", "0-sampling", "1-form"}
        assert told["answers"]["0-sampling"] == ANSWERS["0-sampling"]


async def first_round(desk: Desk, **arguments: Any) -> InputRequiredResult:
    session = desk.client.session
    first = await session.call_tool("interview_mirrored", arguments, allow_input_required=True)
    assert isinstance(first, InputRequiredResult)
    assert first.request_state
    assert first.input_requests
    return first


async def come_back(desk: Desk, first: InputRequiredResult, state: str, **arguments: Any) -> Any:
    answers = {key: ElicitResult(action="decline") for key in first.input_requests or ()}
    again = desk.client.session.call_tool(
        "interview_mirrored",
        arguments,
        input_responses=answers,  # type: ignore[arg-type]  # a dict of one kind of answers
        request_state=state,
        allow_input_required=True,
    )
    return await asyncio.wait_for(again, BOUND)


async def test_a_state_that_was_tampered_with_or_belongs_to_other_arguments_is_refused(desk: Desk) -> None:
    if desk.combination.client == OLD:  # such a client is asked live: there is no state to tamper with
        await in_tool(desk, "form")
        assert "requestState" not in json.dumps(desk.heard)
        return
    first = await first_round(desk, rounds="form")
    state = first.request_state or ""
    other = "A" if state[40] != "A" else "B"
    for forged, rounds in ((state[:40] + other + state[41:], "form"), ("", "form"), (state, "form,form")):
        with pytest.raises(MCPError) as caught:
            await come_back(desk, first, forged, rounds=rounds)
        assert caught.value.error.code == INVALID_PARAMS
    told = await come_back(desk, first, state, rounds="form")
    assert json.loads(told.content[0].text)["answers"] == {"0-form": {"action": "decline"}}
    if desk.combination.is_held:
        with pytest.raises(MCPError) as caught:
            await come_back(desk, first, state, rounds="form")
        assert caught.value.error.code == INVALID_PARAMS


async def test_a_call_that_is_left_open_takes_no_questions_of_later_ones(desk: Desk) -> None:
    if desk.combination.client == NEW:
        await first_round(desk, rounds="form")
    else:
        desk.person.is_away = True
        left = asyncio.create_task(in_tool(desk, "form"))
        await desk.until(lambda: desk.person.asked)
        desk.person.is_away = False
        left.cancel()
    assert (await in_tool(desk, ROUNDS))["answers"] == ANSWERS


async def test_a_cancelled_call_whose_question_is_open_is_cancelled_at_the_upstream(desk: Desk, tmp_path: Path) -> None:
    over = tmp_path / "over"
    if desk.combination.client == NEW:  # between rounds it has no call that it could cancel
        return
    desk.person.is_away = True
    call = asyncio.create_task(desk.call("interview", rounds="form", over=str(over)))
    await desk.until(lambda: desk.person.asked)
    call.cancel()
    if desk.combination.upstream == OLD:
        await desk.until(over.exists)
    assert await desk.text("echo") == "{}"


async def test_a_server_that_asks_without_end_ends_its_own_call_only(desk: Desk) -> None:
    if desk.combination.client == NEW:  # calls that it left open are not counted for the one that asks
        for _ in range(3):
            await first_round(desk, rounds="form")
    for _ in range(2):
        result = await desk.call("interview", rounds=";".join(["form"] * 20))
        assert result.is_error
        assert "`limits.max_questions_per_call` (8)" in getattr(result.content[0], "text", "")
    assert len(desk.person.asked) == 16
    told = await in_tool(desk, ";".join(["form"] * 8))
    assert len(told["answers"]) == 8


async def test_a_call_whose_question_nobody_answers_ends_in_time(reserved: Desk, tmp_path: Path) -> None:
    reserved.person.is_away = True
    over = tmp_path / "over"
    arguments = {"rounds": "form", "over": str(over)}
    if reserved.combination.client == NEW:
        await first_round(reserved, **arguments)
        if reserved.combination.is_held:
            await reserved.until(over.exists)
        return
    result = await reserved.call("interview", **arguments)
    if reserved.combination.upstream == OLD:
        answered = json.loads(getattr(result.content[0], "text", ""))["answers"]
        assert answered == {"0-form": {"refused": REQUEST_TIMEOUT}}
    else:
        assert result.is_error
        assert "not answered within 0.5 s" in getattr(result.content[0], "text", "")
