"""A conversation with a full context window: answers stay within their part, and no value is lost."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from typing import TYPE_CHECKING, Any

import pytest
from mcp_types import CallToolResult, ImageContent, TextContent
from samples import sample
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp import Client
    from tests.end_to_end.conftest import Configured, Connect, Lines, OpenLines

RETRIEVE = "retrieve_final_answer_from_memory"
CONVERSATION = "mcp-mirror/conversation"
WINDOW = {"window": 15_000, "reserve": "20 %"}
LARGE_ALONE = {"capture": "large", "inline_budget": 800}
"""Small results pass as they came, so that a test can compare them."""
OURS = 12_000
"""What is left of the window for answers."""
PATH = re.compile(r"[A-Za-z0-9_-]+-[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
LENGTHS = (40, 2500, 90_000, 700, 1500, 3, 12_000)
"""Characters of results: most are shown in an empty window."""
MOST = 240
"""Calls that are enough to fill the window."""


class Chat:
    """A client that remembers what it read in one conversation."""

    def __init__(self, client: Client, name: str | None) -> None:
        self.client = client
        self.name = name
        self.read: list[str] = []
        self.declared: dict[str, Any] = {}

    async def call(self, tool: str, arguments: dict[str, Any]) -> CallToolResult:
        named = {"id": self.name} if self.name else {}
        conversation, self.declared = {**named, **self.declared}, {}
        meta: Any = {CONVERSATION: conversation} if conversation else None
        result = await self.client.call_tool(tool, arguments, meta=meta)
        structured = result.structured_content
        texts = [block.text for block in result.content if isinstance(block, TextContent)]
        self.read.append("\n".join(texts) if structured is None else json.dumps(structured))
        return result

    async def text(self, tool: str, arguments: dict[str, Any]) -> str:
        await self.call(tool, arguments)
        return self.read[-1]

    async def say(self, text: str, *, is_error: bool = False) -> str:
        """Have a tool answer with a text."""
        result = {"content": [{"type": "text", "text": text}], "isError": is_error}
        return await self.text("say_mirrored", {"result": json.dumps(result)})


def line(number: int, length: int) -> str:
    """A text like no other."""
    return "".join(f"{number}: the {word}th word\n" for word in range(length // 16 + 1))[:length]


async def definitions(client: Client) -> str:
    return json.dumps([tool.model_dump(by_alias=True, exclude_none=True) for tool in (await client.list_tools()).tools])


async def whole(chat: Chat, path: str) -> str:
    """A stored text in parts, each of them in a window that the harness has made room in."""
    parts = list[str]()
    while True:
        chat.declared = {"reset": True, "tokens": OURS - 2000}
        at = sum(map(len, parts))
        window = await chat.text("memory_read", {"memory_path": path, "by": "chars", "offset": at})
        part, _, more = window.partition(
            f"\n... next: by=chars, offset={at + len(window.partition(chr(10) + '... next')[0])}"
        )
        parts.append(part.removesuffix("\nResult ends."))
        if not more and "... next: by=chars" not in window:
            return "".join(parts)


CLIENTS = [("stdio", "auto", None), ("stdio", "legacy", "c-1"), ("http", "auto", "c-1"), ("http", "legacy", None)]


@pytest.mark.parametrize(("client_transport", "mode", "name"), sample(CLIENTS, CLIENTS[2].__eq__))
async def test_many_results_do_not_overflow_a_conversation_and_are_retrievable(  # noqa: PLR0917  # fixtures
    client_transport: str,
    mode: str,
    name: str | None,
    configured: Configured,
    connect: Connect,
    raw: Any,
    chemist: Any,
    count_tokens: Callable[[str], int],
) -> None:
    upstreams = {"raw": raw(), **({"chemist": chemist} if client_transport == "http" else {})}
    async with connect(
        configured(upstreams, mirror=LARGE_ALONE, context=WINDOW), client_transport, mode=mode
    ) as client:
        chat = Chat(client, name)
        chat.read.append(await definitions(client))
        arguments, answers = dict[int, str](), dict[int, str]()
        while (
            not all("context is full" in answer or not answer for answer in list(answers.values())[-6:]) or not answers
        ):
            batch = range(len(arguments), len(arguments) + 6)
            assert len(arguments) < MOST
            arguments |= {number: line(number, LENGTHS[number % len(LENGTHS)]) for number in batch}
            texts = await asyncio.gather(*(chat.say(arguments[number]) for number in batch))
            answers |= dict(zip(batch, texts, strict=True))
            if client_transport == "http":
                await chat.text("make_grid_mirrored", {"size": 3, "name": "grid"})
            await chat.text("memory_list", {})
        assert sum(map(count_tokens, arguments.values())) > 5 * OURS
        assert sum(map(count_tokens, chat.read)) <= OURS
        shown = [number for number, answer in answers.items() if answer == arguments[number]]
        refused = [number for number, answer in answers.items() if "context is full" in answer or not answer]
        stored = {number: answer for number, answer in answers.items() if number not in (*shown, *refused)}
        assert min(len(shown), len(refused), len(stored)) > 4
        for number, answer in list(stored.items())[:: len(stored) // 3]:
            found = PATH.search(answer)
            assert found, answer
            assert await whole(chat, found[0]) == arguments[number]


async def test_each_conversation_has_its_own_window_and_upstreams_do_not_see_it(
    configured: Configured, connect: Connect, raw: Any
) -> None:
    text = line(7, 600)
    async with connect(configured({"raw": raw()}, mirror=LARGE_ALONE, context=WINDOW), "http") as client:
        full, other, nameless = Chat(client, "full"), Chat(client, "other"), Chat(client, None)
        full.declared = {"reset": True, "tokens": OURS}
        assert await full.say(text) == ""
        full.declared = {"reset": True, "tokens": OURS - 100}
        assert "context is full: 100 tokens are left for tool results. Nothing was called." in await full.say(text)
        full.declared = {"reset": True, "tokens": OURS - 150}
        assert PATH.fullmatch((await full.say(text)).strip())
        assert await other.say(text) == text
        for _ in range(12):  # of a client without a session or a name nothing is known
            assert await nameless.say(text) == text
        full.declared = {"reset": True, "tokens": 3000}
        assert await full.say(text) == text
        full.declared = {"reset": True, "tokens": OURS}
        assert await full.say(text) == ""
        full.declared = {"reset": True}
        assert await full.say(text) == text
        full.declared = {"tokens": "many"}
        assert "`tokens` (the number that it contains now)" in await full.say(text)
        meta: Any = {CONVERSATION: "c-1", "example.com/other": 7}
        received = await client.call_tool("hear_mirrored", {"x": "1"}, meta=meta)
        assert isinstance(received.content[0], TextContent)
        assert CONVERSATION not in received.content[0].text
        assert '"example.com/other":7' in received.content[0].text.replace(" ", "")


async def test_a_result_over_the_budget_is_stored_or_an_error(
    configured: Configured, connect: Connect, raw: Any
) -> None:
    picture = {"type": "image", "data": "A" * 4000, "mimeType": "image/png"}
    config = configured(
        {"raw": raw(overrides={"hear": {"capture": "never"}})},
        context=WINDOW,
        mirror={**LARGE_ALONE, "expose_originals": True},
    )
    async with connect(config, "http") as client:
        chat = Chat(client, "c")
        assert "x" * 6000 in await chat.text("hear_mirrored", {"x": "x" * 6000})
        answer = await chat.text("hear_mirrored", {"x": line(1, 100_000)})
        assert re.match(r"Tool 'hear' was called\. Its result, about [\d,]+ tokens, does not fit the [\d,]+ ", answer)
        original = await chat.text(
            "say", {"result": json.dumps({"content": [{"type": "text", "text": "x " * 50_000}]})}
        )
        assert original.startswith("Tool 'say' was called.")
        assert await chat.text("memory_list", {}) == "Nothing is stored yet."

        chat.declared = {"reset": True, "tokens": OURS - 1000}
        path = (await chat.text("say_mirrored", {"result": json.dumps({"content": [picture]})})).strip()
        assert PATH.fullmatch(path)
        chat.declared = {"reset": True, "tokens": OURS - 1000}
        failed = await chat.call("say_mirrored", {"result": json.dumps({"content": [picture], "isError": True})})
        assert failed.is_error
        assert PATH.fullmatch(chat.read[-1].strip())
        chat.declared = {"reset": True, "tokens": 0}
        back = await chat.call(RETRIEVE, {"memory_path": path})
        assert [block.data for block in back.content if isinstance(block, ImageContent)] == [picture["data"]]
        chat.declared = {"reset": True, "tokens": OURS - 1000}
        assert "takes about 4,800 tokens; 1,000 are left" in await chat.text(RETRIEVE, {"memory_path": path})

        chat.declared = {"reset": True, "tokens": OURS - 500}
        path = (await chat.text("memory_put", {"value": {"key": line(1, 3000)}})).strip()
        assert PATH.fullmatch(path)
        chat.declared = {"reset": True, "tokens": OURS - 600}
        assert "answers are limited to 150" in await chat.text(RETRIEVE, {"memory_path": f"{path}/key"})
        chat.declared = {"reset": True, "tokens": 0}
        assert await chat.text(RETRIEVE, {"memory_path": f"{path}/key"}) == line(1, 3000)


async def test_pictures_are_shown_while_the_conversation_has_room(
    configured: Configured, connect: Connect, raw: Any
) -> None:
    picture = {"type": "image", "data": "A" * 4000, "mimeType": "image/png"}
    rows = {"type": "text", "text": json.dumps([{"id": number, "name": line(number, 60)} for number in range(500)])}
    results = [json.dumps({"content": content}) for content in ([picture], [rows, picture])]
    config = configured({"raw": raw()}, context={"window": 40_000, "reserve": "20 %"})
    async with connect(config, "http") as client:
        chat = Chat(client, "c")
        for result in results:
            chat.declared = {"reset": True, "tokens": 4000}
            told = await chat.call("say_mirrored", {"result": result})
            assert [block.data for block in told.content if isinstance(block, ImageContent)] == [picture["data"]]
            chat.declared = {"reset": True, "tokens": 20_000}
            assert PATH.fullmatch((await chat.text("say_mirrored", {"result": result})).strip())


async def shown(client: Lines, length: int) -> str:
    result = {"content": [{"type": "text", "text": "a " * (length // 2)}]}
    return await client.text("say_mirrored", {"result": json.dumps(result)})


@pytest.mark.posix
async def test_a_window_is_taken_from_a_changed_configuration(
    configured: Configured, open_lines: OpenLines, raw: Any
) -> None:
    async with open_lines(configured({"raw": raw()})) as client:
        await client.greet()
        assert await shown(client, 400) == "a " * 200
        configured({"raw": raw()}, context={"window": 100})
        client.process.send_signal(signal.SIGHUP)
        await until(lambda: b"configuration was reloaded" in b"".join(client.stderr))
        answer = json.loads(await client.call("say_mirrored", '{"result": "{}"}'))["result"]
        assert answer == {"content": [], "isError": True}
