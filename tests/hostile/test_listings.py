"""Listings that are expensive to read: others are served meanwhile, and what is left out is reported."""

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from tests.hostile import lister
from tests.hostile.conftest import Budget, Configured, connect_http, pinging
from tests.hostile.schemas import tool
from tests.walk.conftest import BOUND, Serve

Tools = list[dict[str, Any]]


def patterns() -> Tools:
    each = "(a{1,200}){1,200}"
    return [tool("bad", {"properties": {f"p{n}": {"pattern": f"{each}{n}"} for n in range(60_000 // len(each))}})]


def references() -> Tools:
    texts = [{"type": "string"}] * 8000
    properties = {f"p{n}": {"$ref": f"#/$defs/l/anyOf/{n}"} for n in range(8000)}
    return [tool("bad", {"properties": properties, "$defs": {"l": {"anyOf": texts}}})]


def cases() -> Tools:
    return [tool("bad", {"anyOf": [{"properties": {"a": {"const": n}}} for n in range(25_000)]})]


def brackets() -> Tools:
    return [tool("bad", {"x": [[]] * 300_000})]


def costly() -> Tools:
    properties = {f"p{n}": {"type": "object", "properties": {"a": {"$ref": "#"}}} for n in range(400)}
    return [tool(f"bad{n}", {"properties": properties, "description": "x" * 900_000}) for n in range(12)]


def many() -> Tools:
    properties = {f"p{n}": {"type": "string", "description": "x" * 40} for n in range(10)}
    return [tool(f"bad{n}", {"properties": properties}) for n in range(5_000)]


KINDS: list[tuple[str, str, Callable[[], Tools], str]] = [
    ("patterns that are large once compiled", "60 kB", patterns, "listed, not validated"),
    ("references into a list", "8,000", references, "listed"),
    ("alternatives at a schema's root", "25,000", cases, "not served"),
    ("a definition of many arrays", "300,000", brackets, "not served"),
    ("definitions of 0.9 MB", "12", costly, "listed"),
    ("tools of one listing", "5,000, 4 MB", many, "listed"),
]


async def ask(client: Client, name: str, arguments: Any) -> str:
    result = await client.call_tool(name, arguments)
    return str(result.content[0].text)  # type: ignore[union-attr]


@pytest.mark.parametrize(("kind", "size", "tools", "outcome"), KINDS, ids=[tools.__name__ for *_, tools, _ in KINDS])
async def test_listings(  # noqa: PLR0917  # as the table has them
    kind: str,
    size: str,
    tools: Callable[[], Tools],
    outcome: str,
    configured: Configured,
    serve: Serve,
    tmp_path: Path,
    budget: Budget,
) -> None:
    file = tmp_path / "listing.json"
    file.write_text("[]")
    good = tmp_path / "good.json"
    good.write_text(json.dumps([tool("plain", {"properties": {"n": {"type": "integer"}}})]))
    begin = [tool("relist", {})]
    file.write_text(json.dumps(begin))
    program = {"command": sys.executable, "cwd": str(tmp_path)}
    config = configured(
        {
            "good": program | {"args": [lister.__file__, str(good)]},
            "bad": program | {"args": [lister.__file__, str(file)], "scope": "shared"},
        }
    )
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(serve(config, "-v"))
        client, other = [await stack.enter_async_context(connect_http(served.url)) for _ in range(2)]

        async def greet() -> None:
            assert await ask(other, "plain_mirrored", {"n": 1}) == "done"

        await greet()
        assert await ask(client, "relist_mirrored", {}) == "done"
        listing = [*tools(), tool("last", {})]
        changes = await stack.enter_async_context(client.listen(tools_list_changed=True))
        async with budget(served, kind, size, memory=700 << 20) as row, pinging(greet, row):
            file.write_text(json.dumps([*begin, *listing]))
            assert await ask(client, "relist_mirrored", {}) == "done"
            async with asyncio.timeout(3 * BOUND):
                while await ask(client, "last_mirrored", {}) != "done":  # an earlier change may be announced first
                    await anext(aiter(changes))
            row.outcome = outcome
