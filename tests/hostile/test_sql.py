"""SQL queries of two principals at the same time: no query reads or changes anything of another one."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from tests.hostile.conftest import FULL

from mcp_mirror import Mirror

pytest.importorskip("duckdb")

RUNS = 600 if FULL else 30
AT_ONCE = 20


def queries(name: str, number: int) -> list[tuple[str, Any]]:
    """Queries and their rows; those that fail have none."""
    mark = f"{name}-{number}"
    return [
        ("SELECT DISTINCT mark FROM given", [{"mark": name}]),
        (f"SELECT '{mark}' AS mark", [{"mark": mark}]),
        ("SELECT count(*) AS n FROM given a, given b", [{"n": 250_000}]),
        ("SELECT * FROM leftover", None),
        (f"SELECT error('{mark}')", None),
        (f"FROM (VALUES ('{mark}')) AS leftover(m)", [{"m": mark}]),
        ("SELECT name FROM (SHOW TABLES) WHERE name NOT LIKE '\\_\\_%' ESCAPE '\\'", [{"name": "given"}]),
        ("SELECT list(a.range) FROM range(100000) a, range(100000) b", None),
        ("foreign", None),
    ]


@pytest.mark.slow
async def test_two_principals_at_the_same_time_get_only_their_own_rows() -> None:
    names = ("ann", "bob")
    dice, gate = random.Random(5), asyncio.Semaphore(AT_ONCE)  # noqa: S311  # the same queries each time
    async with Mirror(upstreams={"upstreams": {}, "memory_tools": {"timeout": 60}}) as mirror:
        paths = {name: await mirror.put([{"mark": name, "n": n} for n in range(500)], namespace=name) for name in names}

        async def run(number: int) -> None:
            name, other = names[number % 2], names[1 - number % 2]
            sql, expected = dice.choice(queries(name, number))
            inputs = {"given": paths[name]}
            if sql == "foreign":
                sql, inputs["stolen"] = "SELECT * FROM stolen", paths[other]
            async with gate:
                if number % 17 == 0:
                    task = asyncio.create_task(mirror.sql("FROM range(1000000000000)", namespace=name))
                    await asyncio.wait({task}, timeout=0.05)
                    task.cancel()
                    await asyncio.wait({task}, timeout=30)
                    assert task.cancelled()
                reply = await mirror.sql(sql, inputs, namespace=name)
                while "another principal was waiting" in reply.text:
                    reply = await mirror.sql(sql, inputs, namespace=name)
            assert reply.value == expected, (sql, reply.text)
            assert reply.is_error is (expected is None)
            assert other not in reply.text.replace(paths[other], "")
            assert other not in json.dumps(reply.value)

        await asyncio.wait_for(asyncio.gather(*map(run, range(RUNS))), 280)
        for name in names:
            rows = await mirror.sql("SELECT DISTINCT mark FROM g", {"g": paths[name]}, namespace=name)
            assert rows.value == [{"mark": name}]
