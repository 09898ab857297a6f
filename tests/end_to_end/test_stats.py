"""`memory_list` and `mcp-mirror stats` report the sent and the saved tokens, also after restarts."""

from __future__ import annotations

import json
import re
import signal
from typing import TYPE_CHECKING, Any

from notices import path_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.end_to_end.conftest import Configured, Lines, OpenLines, Run

LARGE = "\n".join(f"line {number} of a text" for number in range(3000))
FOOTER = re.compile(r"Sent ([\d,]+) tokens; kept out ([\d,]+) \(1 : ([\d,]+)\)\.")


async def say(client: Lines, text: str) -> str:
    result = json.dumps({"content": [{"type": "text", "text": text}]})
    return await client.text("say_mirrored", {"result": result})


async def footer(client: Lines) -> list[int]:
    match = FOOTER.fullmatch((await client.text("memory_list")).splitlines()[-1])
    assert match
    return [int(number.replace(",", "")) for number in match.groups()]


async def test_sent_and_saved_tokens_are_counted_across_restarts(
    configured: Configured, open_lines: OpenLines, run: Run, raw: Any, count_tokens: Callable[[str], int]
) -> None:
    config = configured({"raw": raw()})
    cost = count_tokens(LARGE)
    async with open_lines(config) as client:
        await client.greet()
        notice = await say(client, LARGE)
        sent, kept_out, ratio = await footer(client)
        assert count_tokens(notice) <= sent <= 3 * count_tokens(notice)
        assert cost - count_tokens(notice) * 3 <= kept_out <= 3 * cost
        assert ratio == round(kept_out / sent)
        shown = await client.text("memory_read", {"memory_path": path_in(notice), "limit": 500})
        again = await footer(client)
        assert again[0] >= sent + count_tokens(shown)
        assert again[1] == kept_out
    found = json.loads((await run("stats", "--config", str(config), "--json")).out)["local"]
    assert found.keys() == {"values", "bytes", "tokens_sent", "tokens_kept_out", "ratio"}
    assert (found["values"], found["tokens_kept_out"]) == (1, kept_out)
    assert found["bytes"] == len(json.dumps(LARGE))
    assert found["tokens_sent"] > again[0]
    async with open_lines(config) as client:
        await client.greet()
        assert await say(client, "small") == "small"
        sent, kept_after, _ = await footer(client)
        assert found["tokens_sent"] < sent < found["tokens_sent"] + 10
        assert kept_after == kept_out
        client.process.send_signal(signal.SIGKILL)  # and with it goes what it has counted in the last seconds
    table = await run("stats", "--config", str(config))
    assert table.code == 0
    (row,) = [line.split() for line in table.out.splitlines() if "local" in line]
    assert row[:2] == ["local", "1"]
    assert f"{kept_out:,}" in row


async def test_stats_of_an_empty_store_explain_what_to_do(configured: Configured, run: Run) -> None:
    config = str(configured({}, store={"kind": "disk"}))
    ended = await run("stats", "--config", config)
    assert (ended.code, ended.out) == (
        0,
        "The store is empty, and the gateway has answered no call yet. Call a twin first.\n",
    )
    assert json.loads((await run("stats", "--config", config, "--json")).out) == {}


async def test_stats_of_a_memory_store_point_to_the_gateway(configured: Configured, run: Run) -> None:
    config = configured({}, store={"kind": "memory"})
    ended = await run("stats", "--config", str(config))
    assert (ended.code, ended.out) == (2, "")
    assert (
        "Call its tool `memory_list` (`memory_tools: all` serves it), or set `store.kind` to disk or redis."
        in ended.err
    )
