"""A call that the client cancels is cancelled at its upstream at once, without leftovers."""

import asyncio
import json
import os
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from samples import sample
from tests.faults.stage import Stage, staging
from tests.load import slowness

CALLS = 200 if "ALL_COMBINATIONS" in os.environ else 40
"""Calls that are cancelled; of 40, the p99 is the slowest."""
AT_ONCE = 0.1
"""Seconds within which the upstream has heard of it, at the p99."""
SLACK = 0.4
"""Seconds more, times the slowness of a machine with other work."""
UNKNOWN = "wait-00000000-0000-4000-8000-000000000000"


def received(word: dict[str, Any], transport: str, version: str) -> dict[str, Any]:
    """The way in which an upstream learns that the client does not wait for this call any more."""
    if (transport, version) == ("http", "2026"):
        return {"what": "left", "key": word["key"]}
    return {"what": "notifications/cancelled", "id": word["id"]}


async def give_up(on: Stage, transport: str, version: str) -> float:
    """Begin a call and cancel it; the seconds until its upstream knew."""
    key = on.key()
    call = asyncio.create_task(on.call("wait", key=key, gate=str(on.folder / "gate"), words=5_000))
    word = await on.witness.see("called", key=key)
    at = time.monotonic()
    call.cancel()
    report = await on.witness.see(**received(word, transport, version))
    await asyncio.wait([call])
    assert call.cancelled()
    return float(report["at"]) - at


ALL = list(product(("stdio", "http"), ("legacy", "auto"), ("stdio", "http"), ("2025", "2026")))
CHOSEN = [
    each
    for each in ALL
    if "ALL_COMBINATIONS" in os.environ or sum(part in {"http", "auto", "2026"} for part in each) % 2 == 0
]
"""Half of them: whatever three of the four are, it is among them (an orthogonal array of strength 3). `make soak` takes
all."""


SAMPLE = {
    ("stdio", "legacy", "stdio", "2025"),
    ("stdio", "auto", "stdio", "2026"),
    ("http", "legacy", "http", "2025"),
    ("http", "auto", "http", "2026"),
}
"""Combinations of `make test`: each value at least twice."""


@pytest.mark.parametrize(("client_transport", "mode", "transport", "version"), sample(CHOSEN, SAMPLE.__contains__))
async def test_a_cancelled_call_is_cancelled_at_its_upstream_and_stores_nothing(
    client_transport: str,
    mode: str,
    transport: str,
    version: str,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    async with staging(transport, tmp_path, client_transport=client_transport, mode=mode, version=version) as on:
        taken = sorted([await give_up(on, transport, version) for _ in range(CALLS)])
        p99 = taken[int(0.99 * CALLS)]
        client = f"a client over {client_transport}, {'2025' if mode == 'legacy' else '2026'}"
        what = f"{client}, cancels {CALLS} calls to an upstream over {transport}, {version}: it knows after"
        record_property("figure", (what, f"{taken[CALLS // 2] * 1e3:.0f} ms; {p99 * 1e3:.0f} ms at the p99"))
        (tmp_path / "gate").touch()
        await on.witness.see("over", times=CALLS)  # with a large answer that no client waits for, or none
        assert not (await on.call("echo")).failed
        read = await on.client.read_resource("mcp-mirror://upstreams")
        status = json.loads(read.contents[0].text)  # type: ignore[union-attr]
        assert [one["under_way"] for one in status["upstreams"]] == [0, 0]
        reply = await on.client.call_tool("retrieve_final_answer_from_memory", {"memory_path": UNKNOWN})
        assert "Nothing is stored" in str(reply.content)
        assert on.repeated() == []
        assert p99 < AT_ONCE + SLACK * slowness()
