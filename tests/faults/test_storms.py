"""An upstream that announces changes endlessly costs one listing per second, and does not affect memory or calls."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.faults.stage import staging
from tests.faults.witness import BOUND
from tests.load import slowness

TIMES = 20_000
"""Announcements in a storm."""
FLAT = 10_000_000
"""Bytes by which the gateway's memory may grow."""
PROMPT = 1.0
"""Seconds that a call may take during a storm on a machine without other work."""


def memory(process: int, what: str = "VmRSS") -> int:
    """Bytes of memory of a process, now or at its peak (`VmHWM`)."""
    status = Path(f"/proc/{process}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(f"{what}:"))


@pytest.mark.alone
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_storm_of_announcements_costs_a_listing_a_second_and_no_memory(
    transport: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    async with AsyncExitStack() as stack:
        on = await stack.enter_async_context(staging(transport, tmp_path))
        await on.times(50)
        await on.call("storm", times=300)  # what the first one needs is not its growth
        await on.witness.see("stormed")
        await on.call("echo")
        on.witness.words.clear()
        Path(f"/proc/{on.gateway}/clear_refs").write_text("5")  # resets the peak
        before, taken = memory(on.gateway), []
        call_began = time.monotonic()
        storm = asyncio.create_task(on.call("storm", times=TIMES, adds="after"))
        while "after_mirrored" not in {tool.name for tool in (await on.client.list_tools()).tools}:
            began = time.monotonic()
            answers = await asyncio.gather(on.call("echo"), on.call("ping"))
            assert not any(answer.failed for answer in answers)
            taken.append(max(answer.at for answer in answers) - began)
            assert began - call_began < BOUND
        assert not (await storm).failed
        most = memory(on.gateway, "VmHWM")
        lasted = time.monotonic() - call_began
        listed = [word["at"] for word in on.witness.all("tools/list")]
        what = f"{TIMES:,} announcements of changes over {transport} in {lasted:.1f} s"
        cost = (
            f"{len(listed)} listings, {(most - before) / 1e6:+.1f} MB, a call beside {max(taken) * 1e3:,.0f} ms at most"
        )
        record_property("figure", (what, cost))
        assert len(listed) <= 2 * (lasted + 1)  # over the shared connection, and over the client's own
        assert most - before < FLAT
        assert max(taken) < PROMPT * slowness()
