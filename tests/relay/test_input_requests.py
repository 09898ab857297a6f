"""Input requests of upstreams, in every combination of client and upstream."""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
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
from relay_setup import BOUND, NEW, OLD, RelaySetup
from waiting import until

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


async def in_tool(setup: RelaySetup, rounds: str) -> Any:
    return json.loads(await setup.text("interview", rounds=rounds))


async def in_prompt(setup: RelaySetup, rounds: str) -> Any:
    filled: Any = await asyncio.wait_for(setup.client.get_prompt("interview", {"rounds": rounds}), BOUND)
    return json.loads(filled.messages[0].content.text)


async def in_resource(setup: RelaySetup, rounds: str) -> Any:
    read: Any = await asyncio.wait_for(setup.client.read_resource(f"interview://{rounds}"), BOUND)
    return json.loads(read.contents[0].text)


Interview = Callable[[RelaySetup, str], Awaitable[Any]]
each_place = pytest.mark.parametrize("interview", [in_tool, in_prompt, in_resource])


@each_place
async def test_input_requests_of_every_kind_reach_the_client_and_are_answered(
    setup: RelaySetup, interview: Interview
) -> None:
    answered = await interview(setup, ROUNDS)
    assert answered["answers"] == ANSWERS
    assert sorted(setup.user.requests) == ["form", "roots", "sampling", "url"]


@each_place
@pytest.mark.parametrize("refusal", ["decline", "cancel"])
async def test_a_declined_or_cancelled_form_reaches_the_upstream(
    setup: RelaySetup, interview: Interview, refusal: str
) -> None:
    setup.user.refusal = refusal
    assert (await interview(setup, "form"))["answers"] == {"0-form": {"action": refusal}}


async def test_a_clients_error_reaches_the_upstream_or_the_caller(setup: RelaySetup) -> None:
    setup.user.refusal = "error"
    if (setup.combination.client, setup.combination.upstream) == (OLD, OLD):
        assert (await in_tool(setup, "form"))["answers"] == {"0-form": {"refused": INVALID_REQUEST}}
    elif setup.combination.client == OLD:  # the model reads the client's error
        result = await setup.call("interview", rounds="form")
        assert (result.is_error, result.content) == (True, [TextContent(text="Not now")])
    else:
        with pytest.raises(MCPError) as caught:
            await setup.text("interview", rounds="form")
        assert caught.value.error.code == INVALID_REQUEST
    assert await setup.text("echo") == "{}"


async def test_upstreams_see_the_capabilities_of_the_client(setup: RelaySetup) -> None:
    answered = json.loads(await setup.text("whoami"))
    assert answered == {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {"listChanged": True}}


async def test_upstreams_do_not_see_capabilities_that_the_client_lacks(reserved: RelaySetup) -> None:
    assert json.loads(await reserved.text("whoami")) == {"elicitation": {"form": {}, "url": {}}}


@pytest.mark.parametrize("kind", ["sampling", "roots"])
async def test_a_request_without_the_clients_capability_is_refused(reserved: RelaySetup, kind: str) -> None:
    if reserved.combination.upstream == OLD:
        answered = await in_tool(reserved, kind)
        assert answered["answers"] == {f"0-{kind}": {"refused": METHOD_NOT_FOUND}}
        return
    with pytest.raises(MCPError) as caught:
        await reserved.text("interview", rounds=kind)
    assert caught.value.error.code == MISSING_REQUIRED_CLIENT_CAPABILITY
    assert caught.value.error.data == {"requiredCapabilities": {kind: {}}}


async def test_progress_reaches_the_waiting_request_in_every_input_round(setup: RelaySetup) -> None:
    answered: list[float] = []

    async def record(progress: float, total: float | None, message: str | None) -> None:
        assert (total, message) == (3, None)
        answered.append(progress)

    arguments = {"rounds": "form;form;form"}
    await asyncio.wait_for(setup.client.call_tool("interview_mirrored", arguments, progress_callback=record), BOUND)
    rounds = 3 if setup.combination.upstream == OLD else 4
    await until(lambda: len(answered) == rounds)
    assert sorted(answered) == list(range(rounds))


@pytest.mark.parametrize("below", ["", "/rows"])
async def test_a_memory_path_has_the_same_value_in_every_input_round(setup: RelaySetup, below: str) -> None:
    notice = await setup.text("grow", rows=50)
    path = path_in(notice)
    answered = json.loads(await setup.text("interview", rounds="form;sampling;form", value=path + below))
    rows = [{"number": number} for number in range(50)]
    value = json.dumps(rows if below else {"rows": rows}, sort_keys=True)
    assert set(answered["digests"]) == {hashlib.sha256(value.encode()).hexdigest()}
    assert len(answered["digests"]) == (1 if setup.combination.upstream == OLD else 4)
    assert len(answered["answers"]) == 3


async def test_concurrent_calls_with_input_requests_all_get_their_answers(setup: RelaySetup) -> None:
    calls = [in_tool(setup, "form,sampling;form") for _ in range(4)]
    for answered in await asyncio.gather(*calls):
        assert answered["answers"].keys() == {"0-form", "0-sampling", "1-form"}
        assert answered["answers"]["0-sampling"] == ANSWERS["0-sampling"]


async def first_round(setup: RelaySetup, **arguments: Any) -> InputRequiredResult:
    session = setup.client.session
    first = await session.call_tool("interview_mirrored", arguments, allow_input_required=True)
    assert isinstance(first, InputRequiredResult)
    assert first.request_state
    assert first.input_requests
    return first


async def come_back(setup: RelaySetup, first: InputRequiredResult, state: str, **arguments: Any) -> Any:
    answers = {key: ElicitResult(action="decline") for key in first.input_requests or ()}
    again = setup.client.session.call_tool(
        "interview_mirrored",
        arguments,
        input_responses=answers,  # type: ignore[arg-type]  # a dict of one kind of answers
        request_state=state,
        allow_input_required=True,
    )
    return await asyncio.wait_for(again, BOUND)


async def test_a_forged_state_or_one_of_other_arguments_is_refused(setup: RelaySetup) -> None:
    if setup.combination.client == OLD:  # such a client gets live requests, so it cannot forge a state
        await in_tool(setup, "form")
        assert "requestState" not in json.dumps(setup.received)
        return
    first = await first_round(setup, rounds="form")
    state = first.request_state or ""
    other = "A" if state[40] != "A" else "B"
    for forged, rounds in ((state[:40] + other + state[41:], "form"), ("", "form"), (state, "form,form")):
        with pytest.raises(MCPError) as caught:
            await come_back(setup, first, forged, rounds=rounds)
        assert caught.value.error.code == INVALID_PARAMS
    answered = await come_back(setup, first, state, rounds="form")
    assert json.loads(answered.content[0].text)["answers"] == {"0-form": {"action": "decline"}}
    if setup.combination.is_suspended:
        with pytest.raises(MCPError) as caught:
            await come_back(setup, first, state, rounds="form")
        assert caught.value.error.code == INVALID_PARAMS


async def test_an_abandoned_call_takes_no_input_requests_of_later_calls(setup: RelaySetup) -> None:
    if setup.combination.client == NEW:
        await first_round(setup, rounds="form")
    else:
        setup.user.is_away = True
        left = asyncio.create_task(in_tool(setup, "form"))
        await until(lambda: setup.user.requests)
        setup.user.is_away = False
        left.cancel()
    assert (await in_tool(setup, ROUNDS))["answers"] == ANSWERS


async def test_cancelling_a_call_with_an_open_input_request_cancels_it_upstream(
    setup: RelaySetup, tmp_path: Path
) -> None:
    over = tmp_path / "over"
    if setup.combination.client == NEW:  # between rounds it has no call that it could cancel
        return
    setup.user.is_away = True
    call = asyncio.create_task(setup.call("interview", rounds="form", over=str(over)))
    await until(lambda: setup.user.requests)
    call.cancel()
    if setup.combination.upstream == OLD:
        await until(over.exists)
    assert await setup.text("echo") == "{}"


async def test_a_server_that_keeps_requesting_input_ends_only_its_own_call(setup: RelaySetup) -> None:
    if setup.combination.client == NEW:  # abandoned calls do not count
        for _ in range(3):
            await first_round(setup, rounds="form")
    for _ in range(2):
        result = await setup.call("interview", rounds=";".join(["form"] * 20))
        assert result.is_error
        assert "`limits.max_input_requests_per_call` (8)" in getattr(result.content[0], "text", "")
    assert len(setup.user.requests) == 16
    answered = await in_tool(setup, ";".join(["form"] * 8))
    assert len(answered["answers"]) == 8


async def test_a_call_with_an_unanswered_input_request_ends_in_time(reserved: RelaySetup, tmp_path: Path) -> None:
    reserved.user.is_away = True
    over = tmp_path / "over"
    arguments = {"rounds": "form", "over": str(over)}
    if reserved.combination.client == NEW:
        await first_round(reserved, **arguments)
        if reserved.combination.is_suspended:
            await until(over.exists)
        return
    result = await reserved.call("interview", **arguments)
    if reserved.combination.upstream == OLD:
        answered = json.loads(getattr(result.content[0], "text", ""))["answers"]
        assert answered == {"0-form": {"refused": REQUEST_TIMEOUT}}
    else:
        assert result.is_error
        assert "not answered within 0.5 s" in getattr(result.content[0], "text", "")
