"""The ends of conversations, and the failures of endpoints."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import anyio
import httpx2
import pytest
from redis_process import free_port
from scripted import ScriptedServer, scripted_server

from mcp_mirror.errors import EndpointError, UpstreamError
from mcp_mirror.evals.cases import Limits
from mcp_mirror.evals.conversation import Call, End, MadeCall, Result, Tool, Transcript, Usage, User
from mcp_mirror.evals.dialects import DIALECTS, Message, ToolsMode
from mcp_mirror.evals.endpoint import Completion, Endpoint
from mcp_mirror.evals.loop import ConversationSetup, run_conversation

TOOL = Tool("count", "Count.", {"type": "object"})


def setup(mode: ToolsMode = "json_text", **limits: Any) -> ConversationSetup:
    return ConversationSetup("Be kind.", (TOOL,), (User("Count."),), DIALECTS[mode], {"seed": 1}, Limits(**limits))


async def run(setup: ConversationSetup, *replies: str, fails: bool = False) -> Transcript:
    """Run a conversation with a model that sends these replies, and repeats the last one."""
    waiting = list(replies)

    async def complete(_messages: Sequence[Message], _body: Any) -> Completion:
        await anyio.lowlevel.checkpoint()
        return Completion({"content": waiting.pop(0) if len(waiting) > 1 else waiting[0]}, Usage(10, 5))

    async def make_call(call: Call) -> MadeCall:
        await anyio.lowlevel.checkpoint()
        return MadeCall(Result(call, "no" if fails else "1", is_error=fails))

    return await run_conversation(setup, complete, make_call)


def called(**arguments: Any) -> str:
    return json.dumps({"name": "count", "arguments": arguments})


@pytest.mark.parametrize(
    ("limits", "replies", "fails", "end", "calls"),
    [
        ({}, [called(), "One."], False, "answered", 1),
        ({"calls": 2}, [called()], False, "calls", 2),
        ({}, [called()], True, "repeated", 3),
        ({}, [called(a=1), called(a=2), called(a=1), called(a=2), "No."], True, "answered", 4),
        ({"tokens": 40}, [called()], False, "tokens", 2),
        ({"seconds": 0.05}, [called()], False, "seconds", None),
        ({}, [" "], False, "malformed", 0),
        ({}, [" ", called(), " ", "One."], False, "answered", 1),
        ({}, ['{"name": "count", "arguments": 7}', "One."], False, "answered", 1),
    ],
)
async def test_a_conversation_ends_with_an_answer_or_at_a_limit(
    *, limits: dict[str, Any], replies: list[str], fails: bool, end: End, calls: int | None
) -> None:
    if "seconds" in limits:
        limits = {**limits, "calls": 10**9, "tokens": 10**12}
    transcript = await run(setup(**limits), *replies, fails=fails)
    assert transcript.end == end
    assert calls in (None, len(transcript.made_calls))
    assert transcript.answer == (replies[-1] if end == "answered" else "")
    assert transcript.usage.total >= 15 * len(transcript.made_calls)


async def test_the_tokens_of_the_previous_request_count_as_cached() -> None:
    prompts = iter((100, 180, 150))

    async def complete(messages: Sequence[Message], _body: Any) -> Completion:
        await anyio.lowlevel.checkpoint()
        content = "One." if messages[-1]["content"].endswith("2") else called(a=len(messages))
        return Completion({"content": content}, Usage(next(prompts), 5))

    async def make_call(call: Call) -> MadeCall:
        await anyio.lowlevel.checkpoint()
        return MadeCall(Result(call, "2" if call.arguments["a"] > 2 else "1"))

    transcript = await run_conversation(setup(), complete, make_call)
    assert transcript.usage == Usage(prompt=430, completion=15, cached=100 + 150, steps=3)


async def test_an_invalid_call_is_reported_to_the_model_and_not_made() -> None:
    transcript = await run(setup(), '{"name": "count", "arguments": 7}', "One.")
    assert "no JSON object" in transcript.made_calls[0].result.text
    assert transcript.made_calls[0].result.is_error


async def test_a_lost_server_and_a_failing_endpoint_end_the_conversation() -> None:
    async def complete(_messages: Sequence[Message], _body: Any) -> Completion:
        await anyio.lowlevel.checkpoint()
        return Completion({"content": called()}, Usage())

    async def full(_messages: Sequence[Message], _body: Any) -> Completion:
        await anyio.lowlevel.checkpoint()
        raise EndpointError("too long", is_context_exceeded=True)

    async def lose(_call: Call) -> MadeCall:
        await anyio.lowlevel.checkpoint()
        raise UpstreamError("lost")

    lost = await run_conversation(setup(), complete, lose)
    assert (lost.end, lost.detail) == ("error", "lost")
    assert (await run_conversation(setup(), full, lose)).end == "overflow"


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_server() as running:
        yield running


async def complete(server: ScriptedServer, *script: Any, pauses: Sequence[float] = (0.0, 0.0)) -> Completion:
    server.scripts["m"] = list(script)
    async with httpx2.AsyncClient(timeout=20) as client:
        endpoint = Endpoint(client, f"{server.url}/", "m", "a key", {"top_k": 3}, pauses)
        return await endpoint.complete([{"role": "user", "content": "half \ud83d"}], {"tools": [], "seed": 1})


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_temporary_failure_is_retried(server: ScriptedServer, status: int) -> None:
    found = await complete(server, {"status": status}, {"status": 200, "body": "[]"}, "One.")
    assert (found.message["content"], found.usage) == ("One.", Usage(100, 10))
    assert len(server.seen) == 3
    assert server.seen[-1]["top_k"] == 3


@pytest.mark.parametrize(
    ("step", "message", "times", "is_full"),
    [
        ({"status": 401, "body": "no such key"}, "status 401: no such key", 1, False),
        ({"status": 400, "body": "the request exceeds the available context size"}, "context size", 1, True),
        ({"status": 400, "body": "no such model"}, "no such model", 1, False),
        ({"status": 500, "body": "boom"}, "boom", 3, False),
        ({"status": 200, "body": "<html>"}, "did not return a chat completion: <html>", 3, False),
        ({"status": 200, "body": '{"choices": [{"message": "hi"}]}'}, "without a message", 3, False),
        ({"status": 200, "body": '{"choices": [], "usage": {}}'}, "did not return a chat completion", 3, False),
    ],
)
async def test_a_lasting_failure_is_an_error(
    server: ScriptedServer, *, step: Any, message: str, times: int, is_full: bool
) -> None:
    with pytest.raises(EndpointError) as caught:
        await complete(server, step)
    assert message in str(caught.value)
    assert (caught.value.is_context_exceeded, len(server.seen)) == (is_full, times)


async def test_an_unreachable_endpoint_is_an_error() -> None:
    async with httpx2.AsyncClient() as client:
        with pytest.raises(EndpointError, match="cannot be reached"):
            await Endpoint(client, f"http://127.0.0.1:{free_port()}/v1", "m", pauses=(0.0,)).complete([], {})
