"""Each fault has only its expected cost; `make faults` prints the measurements."""

import asyncio
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from samples import sample
from tests.faults import proxy
from tests.faults.harness import FAULTS, REFUSALS, Fault, Seen, observe, pattern
from tests.faults.proxy import body_without_end, event_without_end, silence
from tests.faults.stage import HANG, staging
from tests.load import slowness

AT_ONCE = 0.1
"""Seconds within which a call in flight is answered."""
SLACK = 0.4
"""Seconds more, times the slowness of a machine with other work."""
BACK = 1.0
"""Seconds within which a call works after the upstream's return."""

GIVE_UP_AFTER = 30.0
"""Seconds after which the test stops waiting."""
BOUND = 60.0
"""Seconds that letting go of a connection may take."""

STUCK = 1.0
"""Seconds after a call's timeout after which the gateway certainly does not read its answer."""
STOPPED = 2.0
"""Seconds that a process gets to leave before it is killed."""

LOST = {"nothing": 0, "the call": 1, "all in flight": 2}


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms" if math.isfinite(seconds) else "never"


def row_of(fault: Fault, seen: Seen) -> tuple[str, ...]:
    shown = seen.text.splitlines()[0] if seen.failed else "its answer"
    return (
        fault.transport, fault.what, shown, fault.loses, milliseconds(seen.answered), milliseconds(seen.back),
        f"{seen.idle * 1e3:.1f} / {seen.beside * 1e3:.1f} ms",
    )  # fmt: skip


def name_of(case: object) -> str:
    return f"{case.transport}-{case.what.replace(' ', '_')}" if isinstance(case, Fault) else str(case)


ALL = [*((fault, "2025") for fault in FAULTS), *((fault, "2026") for fault in FAULTS if fault.transport == "http")]
CHOSEN = [
    (fault, version)
    for fault, version in ALL
    if "ALL_COMBINATIONS" in os.environ
    or fault.transport != "http"
    or (FAULTS.index(fault) % 2 == 0) == (version == "2025")
]
"""Each fault, over HTTP alternately in one of the two protocol versions; `make soak` uses both."""
_ON_STDIO = {fault.what for fault in FAULTS if fault.transport == "stdio"}
_ONLY_ON_HTTP = [fault for fault in FAULTS if fault.transport == "http" and fault.what not in _ON_STDIO]


def is_quick(case: tuple[Fault, str]) -> bool:
    """Whether `make test` has a fault: all on stdio, and every third of those that only HTTP has."""
    fault, _ = case
    return fault.transport == "stdio" or fault in _ONLY_ON_HTTP[::3]


@pytest.mark.parametrize(
    ("fault", "version"),
    sample(CHOSEN, is_quick),
    ids=name_of,
)
async def test_a_fault_costs_what_it_must_and_no_more(
    fault: Fault, version: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seen = await observe(fault, tmp_path, version)
    if version == "2025":
        record_property("row", row_of(fault, seen))
    assert seen.failed is (fault.loses != "nothing"), seen.text
    assert seen.lost == LOST[fault.loses]
    if fault.loses == "nothing":
        assert seen.text.startswith("echo key")
    else:
        assert pattern(fault).search(seen.text), seen.text
        assert "'bad'" in seen.text
    assert seen.repeated == ()
    assert seen.answered < (fault.waits + AT_ONCE + SLACK) * seen.slowness
    assert seen.refused_slowest < BACK * seen.slowness
    assert seen.back < BACK * seen.slowness
    assert seen.tries == 1 or fault.away  # while it is known to be away, calls fail at once


async def test_an_upstream_that_ends_at_each_start_is_reported_until_it_starts(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    (tmp_path / "down").touch()
    async with staging("stdio", tmp_path) as on:
        for _ in range(REFUSALS):
            began = time.monotonic()
            refused = await on.call("echo")
            assert refused.failed
            assert refused.at - began < (BACK + SLACK) * slowness()
            assert "Upstreams that are not connected now: bad." in refused.text
        await on.witness.see("ended", times=6)  # the pauses between two attempts have grown
        on.down.unlink()
        returned = time.monotonic()
        while (answer := await on.call("echo")).failed and answer.at - returned < GIVE_UP_AFTER:
            pass
        row = ("stdio", "ends at each start, from the first on", refused.text, "calls until it can start",
               milliseconds(refused.at - began), milliseconds(answer.at - returned), "")  # fmt: skip
        record_property("row", row)
        assert not answer.failed
        assert answer.at - returned < BACK * slowness()


async def test_a_server_that_stops_reading_costs_one_call_and_restarts(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    async with staging("stdio", tmp_path) as on:
        before = len(on.witness.all("started"))
        assert not (await on.call("deaf")).failed
        began = time.monotonic()
        lost = await on.call("brief", pad="x" * 1_900_000)
        while (answer := await on.call("echo")).failed and answer.at - began < GIVE_UP_AFTER:
            pass
        returned = (await on.witness.see("started", times=before + 1))["at"]
        row = ("stdio", "reads no more", lost.text, "the call", milliseconds(lost.at - began),
               milliseconds(answer.at - returned), "")  # fmt: skip
        record_property("row", row)
        assert "'bad' does not read its input" in lost.text
        slow = slowness()
        assert lost.at - began < HANG + STUCK + SLACK * slow
        assert not answer.failed
        assert answer.at - returned < BACK * slow
        assert answer.at - lost.at < STOPPED + BACK * slow
        assert on.repeated() == []


async def test_a_network_failure_costs_only_the_calls_made_during_it(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    async with staging("http", tmp_path, proxied=True) as on:
        assert on.proxy is not None
        calls = [await on.begin("wait", gate=str(tmp_path / "gate")) for _ in range(5)]
        await on.proxy.go_away()
        gone = (await on.witness.see("struck"))["at"]
        lost = await asyncio.gather(*calls)
        for answer in lost:
            assert answer.failed
            assert "'bad'" in answer.text
            assert answer.at - gone < AT_ONCE + SLACK * slowness()
        for _ in range(REFUSALS):
            assert (await on.call("echo")).failed
            assert not (await on.call("ping")).failed
        await on.proxy.open()
        returned = time.monotonic()
        answer = await on.call("echo")
        row = ("http", "network: every connection is reset, and none is taken", lost[0].text, "all in flight",
               milliseconds(max(one.at for one in lost) - gone), milliseconds(answer.at - returned), "")  # fmt: skip
        record_property("row", row)
        assert not answer.failed, answer.text
        assert answer.at - returned < BACK * slowness()
        assert on.repeated() == []


@pytest.mark.parametrize("version", sample(["2025", "2026"], lambda version: version == "2025"))
@pytest.mark.parametrize("fault", [body_without_end, event_without_end, silence], ids=lambda fault: fault.__name__)
async def test_the_gateway_stops_reading_responses_that_no_call_awaits(
    fault: proxy.Fault, version: str, tmp_path: Path
) -> None:
    """An answer without an end would cost work for as long as the gateway lives."""
    async with staging("http", tmp_path, proxied=True, version=version) as on:
        assert on.proxy is not None
        on.proxy.arm(fault)
        assert (await on.call("brief")).failed
        async with asyncio.timeout(BOUND):
            await on.proxy.rest()
