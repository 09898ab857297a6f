"""Suspended calls that are over before the client comes back."""

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


async def test_an_input_request_is_returned_before_a_result_that_is_there_too() -> None:
    answers: list[Any] = []

    async with anyio.create_task_group() as tasks:
        calls = SuspendedCalls(tasks, 600)

        async def request_input(suspended: ClientChannel) -> None:
            answers.append(await suspended.request("elicitation/create", {"message": "Who?"}))

        async def send(suspended: ClientChannel) -> RawResponse:
            tasks.start_soon(request_input, suspended)
            await anyio.lowlevel.checkpoint()
            return RESULT

        required = await calls.begin(CLIENT, send)
        assert isinstance(required, InputRequired)
        (key,) = required.requests
        answered = InputRound(json.dumps({key: ANSWER}).encode(), required.state or {})
        assert await calls.resume(answered, CLIENT) == RESULT
        await anyio.wait_all_tasks_blocked()
        assert answers == [ANSWER]
        tasks.cancel_scope.cancel()
