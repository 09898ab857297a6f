"""Arguments that are expensive to validate: other calls are not delayed, and errors stay useful."""

import json
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from mcp import Client
from tests.end_to_end.conftest import Serve
from tests.hostile import lister
from tests.hostile.conftest import Budget, Configured, connect_http, pinging
from tests.hostile.schemas import blocks, doubling, levels, nesting, page, tool

LISTER = ["-S", lister.__file__]


def listing(folder: Path, name: str, tools: list[dict[str, Any]]) -> dict[str, Any]:
    """The configuration of an upstream that lists these tools."""
    file = folder / f"{name}.json"
    file.write_text(json.dumps(tools))
    return {"command": sys.executable, "args": [*LISTER, str(file)]}


async def ask(client: Client, name: str, arguments: Any) -> str:
    result = await client.call_tool(name, arguments)
    return str(result.content[0].text)  # type: ignore[union-attr]


def nested(depth: int, value: Any) -> Any:
    for _ in range(depth):
        value = {"x": value}
    return value


def alike(length: int, count: int) -> list[str]:
    """Different names of two characters, which take long to compare."""
    name = "a" * (length // 2) + "b" * (length // 2)
    return [name[at:] + name[:at] for at in range(count)]


async def test_validation(configured: Configured, serve: Serve, tmp_path: Path, budget: Budget) -> None:
    tools = [
        tool("edit", page()),
        tool("any", doubling("anyOf")),
        tool("all", doubling("allOf")),
        tool("nest", nesting(60)),
        *(tool(f"levels{number}", levels(60, 20)) for number in range(3)),
        tool("plain", {"properties": {"n": {"type": "integer"}}}),
        tool("pick", {"properties": {name: {"enum": alike(200, 60)} for name in "abcde"}}),
        tool("price", {"properties": {"a": {"type": "array", "items": {"multipleOf": 0.01}}}}),
        *(tool(name, {}) for name in alike(54, 40)),
    ]
    async with AsyncExitStack() as stack:
        config = configured({"up": listing(tmp_path, "up", tools)})
        served = await stack.enter_async_context(serve(config, "-v"))
        client, other = [await stack.enter_async_context(connect_http(served.url)) for _ in range(2)]

        async def greet() -> None:
            assert await ask(other, "plain_mirrored", {"n": 1}) == "done"

        await greet()
        kind = "invalid arguments of a recursive schema"
        async with budget(served, kind, "four kinds of blocks, 12 levels") as row, pinging(greet, row):
            answer = await ask(client, "edit_mirrored", blocks(12, "cardd"))
            assert "children.0" in answer
            assert '\'type\' is "cardd"; the schema has alternatives for "section", "columns"' in answer
            assert await ask(client, "edit_mirrored", blocks(12, "tabs")) == "done"
            row.outcome = "an error names the block and the kinds"
        kind = "invalid arguments of a deep schema"
        async with budget(served, kind, "3 of 60 levels, 50 kB", memory=100 << 20) as row, pinging(greet, row):
            for number in range(3):
                answer = await ask(client, f"levels{number}_mirrored", nested(60, "wrong"))
                assert "x.x.x: the value does not fit the schema" in answer
            row.outcome = "an error names a place above the value"
        kind = "schemas that double their work"
        async with budget(served, kind, "`anyOf` and `allOf`, 40 levels", memory=600 << 20) as row, pinging(greet, row):
            for _ in range(4):
                assert await ask(client, "any_mirrored", {"a": "x"}) == "done"
                assert await ask(client, "all_mirrored", {"a": 1}) == "done"
            row.outcome = "the upstream validates"
        kind = "texts where another type is expected"
        async with budget(served, kind, "60 levels of alternatives") as row, pinging(greet, row):
            answer = await ask(client, "nest_mirrored", nested(60, "x"))
            assert answer == "done" or "do not fit" in answer
            assert await ask(client, "nest_mirrored", nested(61, "31")) == "done"
            row.outcome = "types are found in linear time"
        async with budget(served, "names that are nearly alike", "`enum` and tools") as row, pinging(greet, row):
            assert "is not one of" in await ask(client, "pick_mirrored", dict.fromkeys("abcde", "ab" * 100))
            assert "Nearest are" in await ask(client, "ab" * 32, {})
            row.outcome = "few of them are compared"
        async with budget(served, "multiples of a number", "arguments of 200 kB") as row, pinging(greet, row):
            for value in (1e300, int("9" * 4000)):
                rows = [value] * (200_000 // len(str(value)))
                assert await ask(client, "price_mirrored", {"a": rows}) in ("done", "")
            row.outcome = "a worker process validates, or the upstream"
