"""Scripts of two principals at the same time: no script reads or changes anything of another one."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from tests.hostile.conftest import FULL

from mcp_mirror import Mirror

pytest.importorskip("pydantic_monty")

RUNS = 1000 if FULL else 60
AT_ONCE = 40


def scripts(name: str, number: int) -> list[tuple[str, Any]]:
    """Scripts and their results; those that fail have none."""
    mark = f"{name}-{number}"
    return [
        ("given['mark']", name),
        ("open('/memory/given').read()[:8]", '{"mark":'),
        (f"x = await tools.echo(text='{mark}')\nx", mark),
        (f"leftover = given\nprint('{mark}')\n'{mark}'", mark),
        ("leftover", None),
        ("import json\njson = tools = print = None\n1", 1),
        ("import json\nprint('still here')\njson.loads('[1]')", [1]),
        (f"import asyncio\nlen(await asyncio.gather(*[tools.echo(text='{mark}') for n in range(5)]))", 5),
        (f"raise ValueError('{mark}')", None),
        ("x = [0] * 10 ** 9", None),
        (f"await tools.echo(text=5, mark='{mark}')", None),
        ("foreign", None),
    ]


async def test_two_principals_at_the_same_time_get_only_their_own_bytes() -> None:
    names = ("ann", "bob")
    mirror = Mirror(upstreams={"upstreams": {}, "code": {"memory": "32MiB"}})

    @mirror.tool
    async def echo(text: str) -> str:
        await asyncio.sleep(0)
        return text

    dice, gate = random.Random(3), asyncio.Semaphore(AT_ONCE)  # noqa: S311  # the same scripts each time
    async with mirror:
        paths = {name: await mirror.put({"mark": name, "rows": [name] * 500}, namespace=name) for name in names}

        async def run(number: int) -> None:
            name, other = names[number % 2], names[1 - number % 2]
            code, expected = dice.choice(scripts(name, number))
            inputs = {"given": paths[name]}
            if code == "foreign":
                inputs["foreign"] = paths[other]
            async with gate:
                if number % 17 == 0:
                    task = asyncio.create_task(mirror.run("while True: pass", namespace=name))
                    await asyncio.wait({task}, timeout=0.01)
                    task.cancel()
                    await asyncio.wait({task}, timeout=30)
                    assert task.cancelled()
                reply = await mirror.run(code, inputs, namespace=name)
            assert reply.value == expected, (code, reply.text)
            assert reply.is_error is (expected is None)
            text = reply.text.replace(paths[other], "")
            assert other not in text
            assert all(f"{owner}-{n}" not in text for owner in names for n in (number - 1, number + 2) if n != number)

        await asyncio.wait_for(asyncio.gather(*map(run, range(RUNS))), 300)
        for name in names:
            assert (await mirror.run("given['mark']", {"given": paths[name]}, namespace=name)).value == name
