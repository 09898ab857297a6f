"""Calls that outlive the requests which began them, while their clients are asked."""

import json
from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from mcp_mirror.callers import Caller, ClientChannel, NullChannel
from mcp_mirror.upstreams.elicitation import InputRequired, InputRound, SuspendedCalls
from mcp_mirror.upstreams.transports.payloads import RawResponse

CLIENT = NullChannel(Caller("local", capabilities={"elicitation": {}}))
RESULT: Mapping[str, bytes] = {"content": b"[]"}
ANSWER = {"action": "accept"}

pytestmark = pytest.mark.timeout(60)


async def test_a_question_that_came_with_the_result_is_asked_before_the_result_is_given() -> None:
    answers: list[Any] = []

    async with anyio.create_task_group() as tasks:
        calls = SuspendedCalls(tasks, 600)

        async def ask(held: ClientChannel) -> None:
            answers.append(await held.request("elicitation/create", {"message": "Who?"}))

        async def send(held: ClientChannel) -> RawResponse:
            tasks.start_soon(ask, held)
            await anyio.lowlevel.checkpoint()
            return RESULT

        asked = await calls.begin(CLIENT, send)
        assert isinstance(asked, InputRequired)
        (key,) = asked.requests
        again = InputRound(json.dumps({key: ANSWER}).encode(), asked.state or {})
        assert await calls.resume(again, CLIENT) == RESULT
        await anyio.wait_all_tasks_blocked()
        assert answers == [ANSWER]
        tasks.cancel_scope.cancel()
