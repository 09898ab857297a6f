"""What a model reads that looks in memory for a result which it has seen whole, and which therefore is not stored."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from gateway_processes import forked_upstream
from mcp import Client

from mcp_mirror import Mirror

COMPLETE = "The result of get_weather_mirrored is complete, and not stored. The answer is in it: Bergen: light rain"
OFFICE = str(Path(__file__).parents[2] / "evals" / "servers" / "office.py")
INVENTED = "weather_bergen"
MISSING = f'No value is stored under "{INVENTED}". '
CALLS: dict[str, dict[str, Any]] = {
    "memory_read": {"memory_path": INVENTED},
    "memory_edit": {"memory_path": INVENTED, "merge": {"rain": True}},
    "memory_query": {"inputs": {"weather": INVENTED}, "sql": "SELECT * FROM weather"},
    "memory_run": {"inputs": {"weather": INVENTED}, "code": "max(row['rain'] for row in weather)"},
    "memory_forget": {"memory_path": INVENTED},
}


def get_weather(city: str) -> str:
    """Get the weather of a city."""
    if city == "Atlantis":
        raise ValueError("Unknown city.")
    return f"{city}: light rain{', then sun' * (60 if city == 'Oslo' else 0)}"


def list_towns() -> list[str]:
    """List all towns."""
    return [f"town {number}" for number in range(20_000)]


def open_mirror() -> Mirror:
    mirror = Mirror(upstreams={"memory_tools": {"allow": [*CALLS]}, "upstreams": {}})
    mirror.tool(get_weather)
    mirror.tool(list_towns)
    return mirror


async def look_up(mirror: Mirror, conversation: str | None = None) -> str:
    reply = await mirror.call("memory_read", CALLS["memory_read"], conversation=conversation)
    assert reply.is_error
    return reply.text


@pytest.mark.parametrize("tool", CALLS)
async def test_a_model_that_looks_for_a_shown_result_gets_it(tool: str) -> None:
    async with open_mirror() as mirror:
        await mirror.call("get_weather_mirrored", {"city": "Bergen"})
        reply = await mirror.call(tool, CALLS[tool])
    assert (reply.text, reply.is_error) == (f"{MISSING}{COMPLETE}", True)


async def test_values_of_other_tools_are_not_proposed_for_a_shown_result() -> None:
    async with open_mirror() as mirror:
        await mirror.call("list_towns_mirrored")
        assert "Newest are" in await look_up(mirror)
        await mirror.call("get_weather_mirrored", {"city": "Bergen"})
        assert await look_up(mirror) == f"{MISSING}{COMPLETE}"
        await mirror.call("list_towns_mirrored")
        assert "Newest are" in await look_up(mirror)


async def test_a_longer_shown_result_is_named_and_not_repeated() -> None:
    async with open_mirror() as mirror:
        await mirror.call("get_weather_mirrored", {"city": "Oslo"})
        answer = await look_up(mirror)
    assert "The result of get_weather_mirrored is complete, and not stored: the answer is in it. " in answer
    assert answer.endswith("For other data, first call the tool that gets it.")


@pytest.mark.parametrize("content", [[1], [{"type": "text", "text": 5}], [{"type": "text"}], []])
async def test_malformed_content_is_not_quoted(content: Any, raw: Any) -> None:
    async with Mirror(upstreams={"raw": raw()}) as mirror:
        await mirror.call("say_mirrored", {"result": json.dumps({"content": content})})
        assert "not stored: the answer is in it. " in await look_up(mirror)


@pytest.mark.parametrize(("mode", "is_quoted"), [("legacy", True), ("auto", False)])
async def test_a_shown_result_is_quoted_only_to_the_client_that_got_it(mode: Any, *, is_quoted: bool) -> None:
    served: asyncio.Queue[str] = asyncio.Queue()
    async with open_mirror() as mirror, asyncio.TaskGroup() as group:
        server = group.create_task(mirror.serve_http(announce=served.put_nowait))
        url = await served.get()
        async with Client(url, mode=mode) as client, Client(url, mode=mode) as other:
            await client.call_tool("get_weather_mirrored", {"city": "Bergen"})
            for one, may_have in ((client, is_quoted), (other, False)):
                answer = await one.call_tool("memory_read", CALLS["memory_read"])
                assert ("Bergen: light rain" in str(answer.content)) == may_have
        server.cancel()


async def test_a_path_of_a_deleted_value_is_not_taken_for_a_shown_result() -> None:
    async with open_mirror() as mirror:
        stored = await mirror.call("list_towns_mirrored")
        await mirror.clear()
        await mirror.call("get_weather_mirrored", {"city": "Bergen"})
        reply = await mirror.call("memory_read", {"memory_path": str(stored.path)})
    assert "It was deleted or has expired" in reply.text
    assert reply.text.endswith("Nothing is stored yet: first call the tool that gets the data.")


async def test_an_error_of_a_tool_is_no_result_to_answer_with() -> None:
    async with open_mirror() as mirror:
        await mirror.call("get_weather_mirrored", {"city": "Bergen"})
        assert (await mirror.call("get_weather_mirrored", {"city": "Atlantis"})).is_error
        assert (await look_up(mirror)).endswith("Nothing is stored yet: first call the tool that gets the data.")


async def test_a_shown_result_belongs_to_its_conversation() -> None:
    async with open_mirror() as mirror:
        await mirror.call("get_weather_mirrored", {"city": "Bergen"}, conversation="first")
        assert (await look_up(mirror, "second")).endswith("first call the tool that gets the data.")
        assert (await look_up(mirror, "first")).endswith(COMPLETE)


async def test_a_result_that_only_a_script_receives_is_not_shown() -> None:
    async with open_mirror() as mirror:
        code = "await tools.get_weather_mirrored(city='Bergen')"
        assert (await mirror.call("memory_run", {"inputs": {}, "code": code})).text.startswith("Bergen: light rain")
        assert (await look_up(mirror)).endswith("Nothing is stored yet: first call the tool that gets the data.")


async def test_a_shown_result_of_a_server_is_known() -> None:
    async with Mirror(upstreams={"office": forked_upstream(OFFICE)}) as mirror:
        reply = await mirror.call("get_weather_mirrored", {"city": "Bergen"})
        assert not reply.is_error
        assert (await look_up(mirror)).endswith(f"The answer is in it: {reply.text}")
