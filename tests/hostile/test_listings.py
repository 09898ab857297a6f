"""Listings that are expensive to read do not delay other clients, and the gateway reports what it leaves out."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from http_sessions import META
from mcp import Client
from tests.end_to_end.conftest import BOUND, Serve, Served
from tests.hostile import lister
from tests.hostile.bystander import HEADERS
from tests.hostile.conftest import Budget, Configured, connect_http, full_size, pinging
from tests.hostile.schemas import tool
from waiting import until

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


def large() -> Tools:
    properties = {f"p{n}": {"type": "string", "description": "x" * 40} for n in range(10)}
    return [tool(f"bad{n}", {"properties": properties}) for n in range(12_000)]


def longest() -> Tools:
    properties = {f"p{n}": {"type": "string", "description": "x" * 140} for n in range(15)}
    return [tool(f"bad{n}", {"properties": properties}) for n in range(60 << 20 >> 12)]


def described() -> Tools:
    return [tool(f"bad{n}", {"description": "x" * 1_000_000}) for n in range(60)]


KINDS: list[tuple[str, str, Callable[[], Tools], str]] = [
    ("patterns that are large once compiled", "60 kB", patterns, "listed, not validated"),
    ("references into a list", "8,000", references, "listed"),
    ("alternatives at a schema's root", "25,000", cases, "not served"),
    ("a definition of many arrays", "300,000", brackets, "not served"),
    ("definitions of 0.9 MB", "12", costly, "listed"),
    ("tools of one listing", "5,000, 4 MB", many, "listed"),
    ("tools of one listing", "12,000, 10 MB", large, "listed"),
    ("tools of one listing", "15,360, 47 MB", longest, "listed"),
    ("definitions of 1 MB", "60", described, "listed"),
]


async def ask(client: Client, name: str, arguments: Any) -> str:
    result = await client.call_tool(name, arguments)
    return str(result.content[0].text)  # type: ignore[union-attr]


@dataclass
class Scene:
    """A gateway with an upstream whose listing changes, and another that answers."""

    served: Served
    client: Client
    other: Client
    file: Path

    async def greet(self) -> None:
        assert await ask(self.other, "plain_mirrored", {"n": 1}) == "done"

    async def relist(self, text: str) -> None:
        """Let the upstream announce another listing, JSON text."""
        self.file.write_text(text)
        assert await ask(self.client, "relist_mirrored", {}) == "done"


Open = Callable[[], AbstractAsyncContextManager[Scene]]


@pytest.fixture
def opened(configured: Configured, serve: Serve, tmp_path: Path) -> Open:
    return lambda: open_scene(configured, serve, tmp_path)


@asynccontextmanager
async def open_scene(configured: Configured, serve: Serve, tmp_path: Path) -> AsyncIterator[Scene]:
    file, good = tmp_path / "listing.json", tmp_path / "good.json"
    good.write_text(json.dumps([tool("plain", {"properties": {"n": {"type": "integer"}}})]))
    file.write_text(json.dumps(BEGIN))
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
        scene = Scene(served, client, other, file)
        await scene.greet()
        assert await ask(client, "relist_mirrored", {}) == "done"
        yield scene


BEGIN = [tool("relist", {})]


LONG = (large, longest)
"""Listings that take as long as several others; `make hostile` has them."""


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize(
    ("kind", "size", "tools", "outcome"),
    [pytest.param(*each, id=each[2].__name__, marks=full_size if each[2] in LONG else ()) for each in KINDS],
)
async def test_expensive_listings_do_not_delay_other_clients(
    kind: str, size: str, tools: Callable[[], Tools], outcome: str, opened: Open, budget: Budget
) -> None:
    text = json.dumps([*BEGIN, *tools(), tool("last", {})])
    async with AsyncExitStack() as stack:
        scene = await stack.enter_async_context(opened())
        client = scene.client
        changes = await stack.enter_async_context(client.listen(tools_list_changed=True))
        measured = budget(scene.served, kind, size, memory=1 << 30, stall=0.05)
        async with measured as row, pinging(scene.greet, row):
            await scene.relist(text)
            async with asyncio.timeout(3 * BOUND):
                while await ask(client, "last_mirrored", {}) != "done":  # an earlier change may be announced first
                    await anext(aiter(changes))
            row.outcome = outcome


async def test_a_listing_of_millions_of_items_is_refused(opened: Open, budget: Budget) -> None:
    text = "[" + "1," * (31 << 20) + "1]"
    kind = "items of a listing that are not tools"
    async with opened() as scene:
        async with (
            budget(scene.served, kind, "32 million", memory=1 << 30, stall=0.05) as row,
            pinging(scene.greet, row),
            asyncio.timeout(3 * BOUND),
        ):
            await scene.relist(text)
            await until(lambda: b"more than 4,000,000 members" in b"".join(scene.served.stderr))
            row.outcome = "refused; earlier tools stay"
        assert await ask(scene.client, "relist_mirrored", {}) == "done"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "tools"),
    [("5,000 tools, 4 MB", many), ("12,000 tools, 10 MB", large)],
)
async def test_listing_many_tools_does_not_delay_other_clients(
    size: str, tools: Callable[[], Tools], opened: Open, budget: Budget
) -> None:
    definitions = tools()
    async with opened() as scene, asyncio.timeout(4 * BOUND):
        await scene.relist(json.dumps([*BEGIN, *definitions, tool("last", {})]))
        await until(lambda: ask(scene.client, "last_mirrored", {}), lambda found: found == "done")
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}})
        headers = {**HEADERS, "mcp-method": "tools/list"}
        async with (
            budget(scene.served, "a client's `tools/list`", size, stall=0.05) as row,
            httpx2.AsyncClient(timeout=BOUND) as http,
            pinging(scene.greet, row),
        ):
            for _ in range(3):
                answer = await http.post(scene.served.url, content=body, headers=headers)
            row.outcome = "all are listed"
        assert len(answer.json()["result"]["tools"]) > len(definitions)
