"""`mcp-mirror usage` and `values lineage` over the event log of real gateways, also of killed ones."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from notices import path_in
from samples import sample
from waiting import until

from mcp_mirror import Mirror
from mcp_mirror.stores.event_log import MemoryEventLog
from mcp_mirror.stores.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.end_to_end.conftest import Configured, Lines, OpenLines, Run

LARGE = "\n".join(f"line {number} of a text" for number in range(3000))
BOUND = 60.0


async def say(client: Lines, text: str) -> str:
    result = json.dumps({"content": [{"type": "text", "text": text}]})
    return await client.text("say_mirrored", {"result": result})


def shout(text: str) -> str:
    """Shout a text."""
    return text.upper()


async def usage(run: Run, config: Path, by: str = "tool") -> dict[str, Any]:
    ended = await run("usage", "--config", str(config), "--by", by, "--json")
    assert ended.code == 0, ended.err
    return {row.pop(by): row for row in json.loads(ended.out)}


@pytest.mark.parametrize("kind", sample(["disk", "redis"], lambda kind: kind == "disk"))
async def test_usage_counts_calls_while_a_gateway_runs(
    kind: str, configured: Configured, open_lines: OpenLines, run: Run, request: pytest.FixtureRequest
) -> None:
    raw, folder = request.getfixturevalue("raw"), request.getfixturevalue("tmp_path")
    more = {"url": request.getfixturevalue("redis_server").url, "prefix": f"{folder}:"} if kind == "redis" else {}
    config = configured({"raw": raw()}, store={"kind": kind, **more})
    async with open_lines(config) as client:
        await client.greet()
        notice = await say(client, LARGE)
        await client.text("memory_read", {"memory_path": path_in(notice)})
        await client.call("no_such_tool")
        rows = await until(lambda: usage(run, config), lambda found: len(found) == 3)
    assert rows.keys() == {"say_mirrored", "memory_read", "(unknown)"}
    assert (rows["say_mirrored"]["calls"], rows["(unknown)"]["refused"], rows["memory_read"]["errors"]) == (1, 1, 0)
    assert rows["say_mirrored"]["kept_out"] > 10_000
    assert {name: row["calls"] for name, row in (await usage(run, config, "principal")).items()} == {"local": 3}
    assert {name: row["calls"] for name, row in (await usage(run, config, "upstream")).items()} == {
        "raw": 1,
        "mcp-mirror": 2,
    }
    printed = await run("usage", "--config", str(config), "--since", "1h", "--by", "tool")
    assert "say_mirrored" in printed.out
    assert "total" in printed.out


async def test_paths_that_do_not_resolve_are_refusals_without_keys_of_the_value(
    configured: Configured, open_lines: OpenLines, run: Run, raw: Any, tmp_path: Path
) -> None:
    config = configured({"raw": raw()}, store={"kind": "disk"})
    async with open_lines(config) as client:
        await client.greet()
        path = path_in(await say(client, json.dumps({"key-c4nary": LARGE})))
        for unknown in (f"{path}/no-key", "say-11111111-1111-4111-8111-111111111111", f"{path[:-1]}/x"):
            await client.text("memory_read", {"memory_path": unknown})
            await client.text("hear_mirrored", {"x": unknown})
    rows = await usage(run, config)
    for tool in ("memory_read", "hear_mirrored"):
        assert (rows[tool]["calls"], rows[tool]["errors"], rows[tool]["refused"]) == (3, 0, 3), tool
    log = b"".join(part.read_bytes() for part in (tmp_path / "store").glob("events.sqlite*"))
    assert b"has no key" in log
    assert b"key-c4nary" not in log


async def test_a_gateway_that_ends_writes_its_last_calls(
    configured: Configured, open_lines: OpenLines, run: Run, raw: Any, tmp_path: Path
) -> None:
    config = configured({"raw": raw()}, store={"kind": "disk"})
    async with open_lines(config) as client:
        await client.greet()
        await say(client, "short, with a SECRET")
    assert (await usage(run, config))["say_mirrored"]["calls"] == 1
    assert not any(b"SECRET" in path.read_bytes() for path in (tmp_path / "store").glob("events*"))


async def test_a_killed_gateway_leaves_a_readable_log(
    configured: Configured, open_lines: OpenLines, run: Run, raw: Any
) -> None:
    config = configured({"raw": raw()}, store={"kind": "disk"})
    async with open_lines(config) as client:
        await client.greet()
        await say(client, "one")

        async def is_written() -> bool:
            return "say_mirrored" in await usage(run, config)

        await until(is_written)
        await say(client, "two")
        client.process.kill()
        await asyncio.wait_for(client.process.wait(), BOUND)
    assert (await usage(run, config))["say_mirrored"]["calls"] in (1, 2)
    async with open_lines(config) as client:
        await client.greet()
        await say(client, "three")
    assert (await usage(run, config))["say_mirrored"]["calls"] in (2, 3)


async def test_a_log_that_cannot_be_written_delays_and_fails_no_call(
    configured: Configured, open_lines: OpenLines, run: Run, raw: Any, tmp_path: Path
) -> None:
    config = configured({"raw": raw()}, store={"kind": "disk"})
    async with open_lines(config) as client:
        await client.greet()
        (tmp_path / "store" / "events.sqlite").mkdir()
        notice = await say(client, LARGE)
        assert path_in(notice)
    ended = await run("usage", "--config", str(config))
    assert ended.code == 2
    assert "The event log failed" in ended.err


async def test_disabled_events_leave_no_log(
    configured: Configured, open_lines: OpenLines, run: Run, raw: Any, tmp_path: Path
) -> None:
    config = configured({"raw": raw()}, store={"kind": "disk"}, events={"enabled": False})
    async with open_lines(config) as client:
        await client.greet()
        await say(client, LARGE)
    assert not (tmp_path / "store" / "events.sqlite").exists()
    assert "does not log calls (`events.enabled`)" in (await run("usage", "--config", str(config))).out


async def test_usage_of_one_principal_is_chosen_by_its_name(configured: Configured, run: Run) -> None:
    config = configured({}, store={"kind": "disk"})
    async with Mirror(upstreams=str(config)) as mirror:
        for name, calls in {"alice": 2, "bob": 1}.items():
            for _ in range(calls):
                await mirror.call("memory_list", namespace=json.dumps(["token", name]))
    for given in ("alice", '["token", "alice"]'):
        ended = await run("usage", "--config", str(config), "--namespace", given, "--by", "tool", "--json")
        assert [(row["tool"], row["calls"]) for row in json.loads(ended.out)] == [("memory_list", 2)]
    assert (await usage(run, config))["memory_list"]["calls"] == 3
    ended = await run("usage", "--config", str(config), "--namespace", "carol")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == (
        "mcp-mirror: The event log has no calls of 'carol'. `mcp-mirror usage --since 90d` prints all principals.\n"
    )


async def test_usage_of_a_longer_time_than_the_log_keeps_is_that_of_90_days(configured: Configured, run: Run) -> None:
    config = str(configured({}, store={"kind": "disk"}))
    ended = await run("usage", "--config", config, "--since", "91d")
    assert (ended.code, ended.out) == (0, "The event log has no calls of the last 90d.\n")
    assert ended.err == ("warning: The event log keeps calls for 90d, so the numbers are those of --since 90d.\n")
    assert (await run("usage", "--config", config, "--since", "90d")).err == ""


async def test_usage_of_a_memory_store_is_an_error_with_the_reason(configured: Configured, run: Run) -> None:
    ended = await run("usage", "--config", str(configured({}, store={"kind": "memory"})))
    assert ended.code == 2
    assert "`store.kind: memory` keeps nothing outside the running gateway" in ended.err
    wrong = await run("usage", "--config", str(configured({}, store={"kind": "disk"})), "--since", "week")
    assert "--since takes a number and s, m, h or d" in wrong.err


async def test_lineage_follows_a_value_through_calls(
    configured: Configured, open_lines: OpenLines, run: Run, raw: Any, tmp_path: Path
) -> None:
    config = configured({"raw": raw()}, store={"kind": "disk"})
    async with open_lines(config) as client:
        await client.greet()
        first = path_in(await say(client, LARGE))
        second = path_in(await client.text("memory_edit", {"memory_path": first, **EDIT}))
        await client.text("memory_read", {"memory_path": second})
        third = path_in(await client.text("say_mirrored", {"result": RESULT, "note": second}))
        await client.text("memory_forget", {"memory_path": first})
    config_ = ("--config", str(config))
    tree = await run("values", "lineage", second, *config_)
    assert tree.code == 0, tree.err
    made, used = tree.out.split("used by:")
    assert f"{first} (removed)" in made
    assert "memory_edit" in made
    assert "say_mirrored (raw)" in made
    assert "memory_read" in used
    assert third in used
    dot = await run("values", "lineage", second, "--dot", *config_)
    assert dot.out.startswith("digraph")
    assert (await run("values", "lineage", second, "--mermaid", *config_)).out.startswith("flowchart")
    written = json.loads((await run("values", "lineage", second, "--json", *config_)).out)
    assert {node["path"] for node in written["nodes"] if node["type"] == "value"} == {first, second, third}
    assert (await run("values", "lineage", second, "--json", "--dot", *config_)).code == 2
    unknown = await run("values", "lineage", first[:-4] + "0000", *config_)
    assert unknown.code == 2
    assert "No value is stored" in unknown.err
    with closing(sqlite3.connect(tmp_path / "store" / "events.sqlite")) as log:
        assert log.execute("SELECT count(*) FROM calls").fetchone() == (5,)


EDIT = {"old_text": "line 17 of", "new_text": "LINE 17 of"}
RESULT = json.dumps({"content": [{"type": "text", "text": LARGE}]})


async def test_the_end_writes_counts_and_calls_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    both, written = asyncio.Barrier(2), list[str]()

    def wait_for_other(write: Callable[..., Awaitable[None]], name: str) -> Callable[..., Awaitable[None]]:
        async def write_with_other(*given: Any, **options: Any) -> None:
            async with asyncio.timeout(BOUND):
                await both.wait()
            written.append(name)
            await write(*given, **options)

        return write_with_other

    monkeypatch.setattr(MemoryStore, "count", wait_for_other(MemoryStore.count, "counts"))
    monkeypatch.setattr(MemoryEventLog, "append", wait_for_other(MemoryEventLog.append, "calls"))
    mirror = Mirror(store="memory")
    mirror.tool(shout)
    async with mirror:
        await mirror.call("shout_mirrored", {"text": "hey"})
    assert sorted(written) == ["calls", "counts"]
