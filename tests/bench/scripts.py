"""Scripts in the sandbox: the start of the pool, warm runs beside a small call, and a group-by beside CPython."""

import json
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from measures import show
from rich.console import Console
from setups import HERE, PROXY_PYTHON

from mcp_mirror import Mirror

_CALLS: Final = 200
_ROWS: Final = 60_000
_TIMEOUT: Final = 120.0
"""Seconds that the measurement of CodeMode may take."""
_RATIO: Final = "ratio of the two"
_GROUP_BY: Final = (
    "totals = {}\n"
    "for order in orders:\n"
    "    totals[order['user']] = totals.get(order['user'], 0) + order['cents']\n"
    "sorted(totals.items())[:3]"
)


async def scripts(console: Console, runs: int, large: bool) -> None:  # noqa: ARG001, FBT001  # a table of one signature
    """Each duration is a median; small calls and scripts alternate, and so do both interpreters."""
    measured = [{**await _measure(), **_measure_code_mode()} for _ in range(runs)]
    medians = {name: statistics.median(one[name] for one in measured) for name in measured[0]}
    rows = [(name, _show(name, value)) for name, value in medians.items()]
    show(console, "Scripts in the sandbox", ("", "median"), rows)


def _show(name: str, value: float) -> str:
    if not value:
        return "over its memory limit"
    return f"{value:.1f} x" if name == _RATIO else f"{1e3 * value:.2f} ms"


def _measure_code_mode() -> dict[str, float]:
    """Return the durations of FastMCP's CodeMode; none if it is not installed."""
    if not PROXY_PYTHON:
        return {}
    argv = [PROXY_PYTHON, str(HERE / "code_mode.py")]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_TIMEOUT)
    if ended.returncode:
        return {}
    found = json.loads(ended.stdout)
    return {
        "FastMCP CodeMode: small call": found["small"],
        "FastMCP CodeMode: script `1 + 1`": found["script"],
        "FastMCP CodeMode: added to a small call": found["script"] - found["small"],
        "FastMCP CodeMode: the same group-by over the result of a tool": found["group"],
    }


async def _measure() -> dict[str, float]:
    mirror = Mirror()

    @mirror.tool
    def echo(text: str) -> str:
        return text

    async with mirror:
        first = await _time(lambda: mirror.run("1 + 1"))
        small: list[float] = []
        script: list[float] = []
        for _ in range(_CALLS):
            small.append(await _time(lambda: mirror.call("echo_mirrored", {"text": "x"})))
            script.append(await _time(lambda: mirror.run("1 + 1")))
        nested = [await _time(lambda: mirror.run("await tools.echo(text='x')")) for _ in range(20)]
        rows = [{"id": n, "user": f"user {n % 977}", "cents": n * 7 % 1999, "note": "x" * 40} for n in range(_ROWS)]
        path, text = await mirror.put(rows), json.dumps(rows, separators=(",", ":"))
        ours: list[float] = []
        python: list[float] = []
        for _ in range(5):
            ours.append(await _time(lambda: mirror.run(_GROUP_BY, {"orders": path})))
            began = time.perf_counter()
            exec(_GROUP_BY, {"orders": json.loads(text)})  # noqa: S102  # the same script
            python.append(time.perf_counter() - began)
    base, run = statistics.median(small), statistics.median(script)
    return {
        "first script, with the start of the pool": first,
        "small call of a tool": base,
        "script `1 + 1`, warm": run,
        "added to a small call": run - base,
        "script with one call of a tool, with the type check": statistics.median(nested),
        f"group-by over {len(text) / 1e6:.1f} MB": min(ours),
        "the same in CPython, from the same text": min(python),
        _RATIO: min(ours) / min(python),
    }


async def _time(work: Callable[[], Awaitable[Any]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began
