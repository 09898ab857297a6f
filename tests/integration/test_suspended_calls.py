"""Suspended calls that are over before the client comes back."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_mirror.callers import Caller, ClientChannel, NullChannel
from mcp_mirror.errors import RefusedError, UpstreamError
from mcp_mirror.payload.spool import Spool, SpooledFrame
from mcp_mirror.settings.policies import WirePolicy
from mcp_mirror.upstreams.elicitation import InputRequired, InputRound, SuspendedCalls
from mcp_mirror.upstreams.transports.requests import RawResponse

CLIENT = NullChannel(Caller("local", capabilities={"elicitation": {}}))
RESULT: Mapping[str, bytes] = {"content": b"[]"}
ANSWER = {"action": "accept"}
FORM = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}

pytestmark = pytest.mark.timeout(60)


async def test_an_input_request_is_returned_before_a_result_that_is_there_too() -> None:
    answers: list[Any] = []

    async with anyio.create_task_group() as tasks:
        calls: SuspendedCalls[RawResponse] = SuspendedCalls(tasks, 600)

        async def request_input(suspended: ClientChannel) -> None:
            answers.append(await suspended.request("elicitation/create", FORM))

        async def send(suspended: ClientChannel) -> RawResponse:
            tasks.start_soon(request_input, suspended)
            await anyio.lowlevel.checkpoint()
            return RESULT

        required = await calls.begin(CLIENT, send)
        assert isinstance(required, InputRequired)
        (key,) = required.requests
        long = json.dumps({key: ANSWER | {"more": [1] * 5_000}}).encode()
        with pytest.raises(RefusedError, match="more than 4,096 members and items"):
            await calls.resume(InputRound(long, required.state or {}), CLIENT)
        answered = InputRound(json.dumps({key: ANSWER}).encode(), required.state or {})
        assert await calls.resume(answered, CLIENT) == RESULT
        await anyio.wait_all_tasks_blocked()
        assert answers == [ANSWER]
        tasks.cancel_scope.cancel()


async def test_a_result_that_no_client_fetched_is_deleted_at_the_stop(tmp_path: Path) -> None:
    with Spool(WirePolicy(spool_bytes=1), tmp_path) as spool:
        collector = spool.collector()
        collector.add(b"{}" * 1000)
        frame = collector.take()
        assert isinstance(frame, SpooledFrame)

        async with anyio.create_task_group() as tasks:
            calls: SuspendedCalls[RawResponse] = SuspendedCalls(tasks, 600)

            async def send(suspended: ClientChannel) -> RawResponse:
                tasks.start_soon(suspended.request, "elicitation/create", FORM)
                await anyio.lowlevel.checkpoint()
                return frame

            assert isinstance(await calls.begin(CLIENT, send), InputRequired)
            assert frame.path.exists()
            tasks.cancel_scope.cancel()
        assert not frame.path.exists()


async def test_a_call_to_a_stopped_upstream_is_an_error() -> None:
    async with anyio.create_task_group() as tasks:
        calls: SuspendedCalls[RawResponse] = SuspendedCalls(tasks, 600)

    async def send(_suspended: ClientChannel) -> RawResponse:
        return RESULT

    with pytest.raises(UpstreamError, match="its server is gone"):
        await calls.begin(CLIENT, send)
