"""A canary in every field of an upstream: where its values are hidden, a client by hand never receives one."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from http_sessions import META
from mcp_types.methods import SERVER_NOTIFICATIONS, SERVER_REQUESTS, SERVER_RESULTS
from samples import sample
from tests.hostile.servers.canary import URI, mark

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Configured, Lines, OpenLines

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Field:
    """A field of a kind of message, and its rules."""

    message: str
    name: str
    rule: str
    rule_if_hidden: str


def read_table() -> tuple[Field, ...]:
    """Read the documentation's table."""
    page = (ROOT / "docs" / "operations" / "upstream-fields.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+) \| (`.+`) \| (.+) \| (.+) \|$", page, re.MULTILINE)
    return tuple(Field(row[0], name, *row[2:]) for row in rows for name in re.findall(r"`([^`]+)`", row[1]))


FIELDS = read_table()
OLD, NEW = "2025-11-25", "2026-07-28"
ALLOWED = ("passes with the listing", "passes to a person")
"""What passes even where values are hidden: names and titles of a listing, and questions to a person."""
HIDING: dict[str, dict[str, Any]] = {
    "no preview": {"mirror": {"preview": False}},
    "flows.model": {"flows": {"model": {"accepts": {"sources": ["honest"]}}}},
}
CAPABILITIES = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {"listChanged": True}}


class Client:
    """Sends requests, answers what it is asked, and keeps every byte that it receives."""

    def __init__(self, lines: Lines, version: str) -> None:
        self.lines, self.version = lines, version
        self.received: list[str] = []
        self.next_id = 0

    async def greet(self) -> None:
        if self.version == OLD:
            info = {"name": "hand", "version": "0"}
            params = {"protocolVersion": OLD, "capabilities": CAPABILITIES, "clientInfo": info}
            await self.request("initialize", params)
            await self.lines.send('{"jsonrpc":"2.0","method":"notifications/initialized"}')
            await self.request("logging/setLevel", {"level": "debug"})
        else:
            await self.request("server/discover")

    async def request(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        self.next_id += 1
        meta: dict[str, Any] = {"progressToken": f"token-{self.next_id}"}
        if self.version == NEW:
            meta |= META | {
                "io.modelcontextprotocol/clientCapabilities": CAPABILITIES,
                "io.modelcontextprotocol/logLevel": "debug",
            }
        message = {"jsonrpc": "2.0", "id": self.next_id, "method": method, "params": {**(params or {}), "_meta": meta}}
        await self.lines.send(json.dumps(message))
        while True:
            line = await self.lines.receive()
            assert line, b"".join(self.lines.stderr)
            self.received.append(line.decode())
            answer: dict[str, Any] = json.loads(line)
            if "method" in answer and "id" in answer:
                await self.reply(answer)
            elif answer.get("id") == self.next_id:
                return answer

    async def reply(self, asked: dict[str, Any]) -> None:
        result: dict[str, Any] = {"action": "accept", "content": {"a": "b"}}
        if asked["method"] == "roots/list":
            result = {"roots": []}
        elif asked["method"] == "sampling/createMessage":
            result = {"role": "assistant", "content": {"type": "text", "text": "x"}, "model": "m"}
        await self.lines.send(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}))

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        params: dict[str, Any] = {"name": tool, "arguments": arguments}
        answer = await self.request("tools/call", params)
        result = answer.get("result", {})
        if result.get("resultType") == "input_required":
            requests = result["inputRequests"].items()
            accepted: dict[str, Any] = {"action": "accept", "content": {"a": "b"}}
            answers = {key: {"roots": []} if one["method"] == "roots/list" else accepted for key, one in requests}
            state = {"requestState": result["requestState"]} if "requestState" in result else {}
            answer = await self.request("tools/call", {**params, "inputResponses": answers, **state})
        return answer


async def run_through(client: Client, suffix: str) -> dict[str, Any]:
    """Ask for everything that there is; gives the answer to the call that asks the user."""
    await client.greet()
    for method in ("tools/list", "resources/list", "resources/templates/list", "prompts/list"):
        await client.request(method)
    if client.version == OLD:
        await client.request("resources/subscribe", {"uri": URI})
    await client.call(f"work{suffix}")
    for code in (-32000, -32021, -32042, 1 << 40):
        await client.call(f"refuse{suffix}", code=code)
    reply = await client.call(f"ask{suffix}")
    await client.request("resources/read", {"uri": URI})
    await client.request("prompts/get", {"name": "p", "arguments": {}})
    reference = {"type": "ref/prompt", "name": "p"}
    await client.request("completion/complete", {"ref": reference, "argument": {"name": "a", "value": ""}})
    await client.request("resources/read", {"uri": "mcp-mirror://upstreams"})
    await client.request("tools/list")
    return reply


def upstream(version: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-S", "-m", "tests.hostile.servers.canary", version], "cwd": str(ROOT)}


def is_quick(case: tuple[str, str, str]) -> bool:
    """Whether `make test` has a case: all pairs of client's version, upstream's version, and way of hiding."""
    version, server, hiding = case
    return (version == server) == (hiding == "no preview")


@pytest.mark.parametrize(("version", "server", "hiding"), sample(product((OLD, NEW), (OLD, NEW), HIDING), is_quick))
async def test_no_canary_arrives_where_values_are_hidden(
    configured: Configured, open_lines: OpenLines, raw: Any, version: str, server: str, hiding: str
) -> None:
    config = configured({"canary": upstream(server), "honest": raw()}, **HIDING[hiding])
    async with asyncio.timeout(100), open_lines(config) as lines:
        client = Client(lines, version)
        reply = await run_through(client, "_mirrored")
    received = "\n".join(client.received)
    arrived = [one for one in FIELDS if one.rule_if_hidden not in ALLOWED and mark(one.message, one.name) in received]
    allowed = {"initialize, server/discover": "instructions"} if hiding == "flows.model" else {}
    assert [(one.message, one.name) for one in arrived if allowed.get(one.message) != one.name] == []
    assert mark("notifications/resources/updated", "uri") not in received
    assert mark("elicitation/create", "message") in received, reply
    assert "isError" not in reply.get("result", {}) or not reply["result"]["isError"] or server == OLD, reply


@pytest.mark.parametrize("version", [OLD, NEW])
async def test_canaries_that_pass_arrive_otherwise(configured: Configured, open_lines: OpenLines, version: str) -> None:
    async with asyncio.timeout(100), open_lines(configured({"canary": upstream(version)}), "-vv") as lines:
        client = Client(lines, version)
        await run_through(client, "_mirrored")
    received = "\n".join(client.received)
    for message, name in (
        ("notifications/progress", "message"),
        ("notifications/message", "data"),
        ("unknown notifications", "params"),
        ("error", "message"),
        ("error -32042", "data.elicitations"),
        ("error -32021", "data.requiredCapabilities"),
        ("completion/complete", "completion"),
        ("resources/read", "contents"),
        ("prompts/get", "description"),
        ("elicitation/create", "message"),
        ("initialize, server/discover", "serverInfo"),
    ):
        assert mark(message, name) in received, (message, name)
    for one in FIELDS:
        if one.rule in ("number", "left out"):
            assert mark(one.message, one.name) not in received, one


MANY_FIELDS = 150
"""Of all messages in all versions: a test that finds none would pass."""
ALIASES = {"initialize": "initialize, server/discover", "server/discover": "initialize, server/discover"}
EMPTY = ("logging/setLevel", "ping", "resources/subscribe", "resources/unsubscribe", "subscriptions/listen")


def test_the_table_has_every_field_of_the_protocol() -> None:
    known: dict[str, set[str]] = {}
    for one in FIELDS:
        known.setdefault(one.message, set()).add(one.name)
    missing, counted = [], 0
    messages = [(*key, model, True) for key, model in SERVER_RESULTS.items()]
    messages += [(*key, model, False) for key, model in {**SERVER_NOTIFICATIONS, **SERVER_REQUESTS}.items()]
    for method, version, model, is_result in messages:
        where = "empty results" if is_result and method in EMPTY else ALIASES.get(method, method)
        assert where in known, (method, version)
        schema = model.model_json_schema() if isinstance(model, type) else {}
        described = schema if is_result else schema.get("properties", {}).get("params", {})
        for part in (described, *described.get("anyOf", ())):
            found = schema.get("$defs", {}).get(str(part.get("$ref", "")).rpartition("/")[2], part)
            names = set(found.get("properties", {}))
            counted += len(names)
            if "params" not in known[where]:
                missing += [(where, version, name) for name in sorted(names - known[where])]
    assert missing == []
    assert counted > MANY_FIELDS


RULES = {
    "passes",
    "passes, up to 64 KiB",
    "passes, cut at 8,000 bytes",
    "shown or stored for a tool call; else passes, 8,000 bytes of both ends",
    "number",
    "keyword",
    "gateway's text",
    "opaque value",
    "shown or stored, as `mirror.capture` says",
    "stored; only its path passes",
    "passes with the listing",
    "passes to a person",
    "the request is refused",
    "left out",
}


def test_the_rules_of_the_table_are_known() -> None:
    assert {rule for one in FIELDS for rule in (one.rule, one.rule_if_hidden)} == RULES
