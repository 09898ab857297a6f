"""The rate limit for unsolicited messages, and the limit of repeated log lines."""

import asyncio
import base64
import logging
import threading
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import anyio
import pytest
from clocks import Clock

from mcp_mirror.payload.floods import BURST, RATE, Flood
from mcp_mirror.system.limited_logs import OutageLog, RepeatedLog
from mcp_mirror.system.slices import INLINE_BYTES, Pacer, run_by_parts, run_by_size, run_by_values


def test_a_connection_within_the_rate_limit_stays_open() -> None:
    clock = Clock(0.0)
    flood = Flood(clock)
    for _ in range(BURST):
        flood.take()
    for _ in range(10):
        clock.now += 1
        for _ in range(RATE):
            flood.take()
    assert not flood.reason
    flood.take()
    assert "more than 50,000 unsolicited messages at more than 5,000 per second" in flood.reason


def test_responses_do_not_count_as_unsolicited() -> None:
    flood = Flood(Clock(0.0))
    for _ in range(2 * BURST):
        flood.take()
        flood.give_back()
    assert not flood.reason


@pytest.mark.parametrize("is_response", [False, True])
async def test_the_reader_rests_after_unsolicited_messages_only(*, is_response: bool) -> None:
    flood, others = Flood(), list[int]()
    rested = 0.0
    for _ in range(3):
        flood.take()
        flood.pacer.begin()
        began = perf_counter()
        while perf_counter() - began < 0.003:
            pass
        if is_response:
            flood.give_back()
        asyncio.get_running_loop().call_soon(others.append, 1)
        began = perf_counter()
        await flood.pacer.end()
        rested += perf_counter() - began
    assert (others == []) is is_response
    assert rested >= 0.01 or is_response


async def test_readers_that_share_a_connection_rest_at_the_same_time() -> None:
    flood, worked = Flood(), list[float]()

    async def read() -> None:
        for _ in range(10):
            flood.pacer.begin()
            began = perf_counter()
            while perf_counter() - began < 0.001:
                pass
            worked.append(perf_counter() - began)
            await flood.pacer.end()

    began = perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(read)
    assert sum(worked) < 0.4 * (perf_counter() - began)


def test_one_line_of_each_kind_is_logged_per_interval(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    clock = Clock(0.0)
    log = RepeatedLog(logging.getLogger("floods"), clock)
    for number in range(100):
        log.warning("line %d of %s", number, "a")
        log.warning("other %d", number)
    clock.now = 11
    log.warning("line %d of %s", 100, "a")
    log.close()
    assert caplog.messages == [
        "line 0 of a",
        "other 0",
        "line 100 of a (and 99 more like it in 11 s)",
        "other ...: 99 more in 11 s",
    ]


def test_a_service_that_flaps_is_logged_once_until_it_is_calm(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock(0.0)
    log = OutageLog(logging.getLogger("floods"), clock)
    for _ in range(50):
        log.fail("down", "down %d", 1)
        clock.now += 1
        log.recover("up again")
    clock.now += 8
    assert not log.recover("too early")
    clock.now += 1
    assert log.recover("calm again")
    assert not log.recover("calm again")
    assert caplog.messages == ["down 1", "up again", "down 1", "calm again"]


def test_kinds_of_an_outage_that_alternate_are_logged_once_per_interval(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock(0.0)
    log = OutageLog(logging.getLogger("floods"), clock)
    for _ in range(15):
        log.fail("slow", "slow")
        log.fail("down", "down")
        clock.now += 1
    assert caplog.messages == ["slow", "down"] * 2
    assert log.recover("up again")


async def test_other_tasks_run_between_slices_of_work() -> None:
    turns: list[int] = []
    pacer = Pacer()

    async def work() -> None:
        for _ in range(20_000):
            pacer.begin()
            sum(range(100))
            await pacer.end()
        turns.append(-1)

    async def other() -> None:
        while -1 not in turns:
            turns.append(1)
            await anyio.lowlevel.checkpoint()

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            tasks.start_soon(other)
    assert len(turns) > 5


async def test_other_tasks_run_after_a_few_pieces_of_work_even_short_ones() -> None:
    pacer, woken = Pacer(), list[int]()
    for _ in range(40):
        pacer.begin()
        asyncio.get_running_loop().call_soon(woken.append, 1)
        pacer.skip()
        await pacer.end()
    assert 30 <= len(woken) < 40


async def test_work_on_many_bytes_runs_beside_the_event_loop() -> None:
    large = INLINE_BYTES + 1
    assert await run_by_size(INLINE_BYTES, threading.get_ident, principal="alice") == threading.get_ident()
    assert await run_by_size(large, threading.get_ident, principal="alice") != threading.get_ident()
    assert await run_by_size(large, divmod, 7, 2, principal="alice") == (3, 1)


@pytest.mark.parametrize("value", [b"1,", b"{},", b"["])
async def test_work_on_very_many_values_runs_beside_the_event_loop(value: bytes) -> None:
    assert (
        await run_by_values((value * 100, b"word " * 4_000), threading.get_ident, principal="alice")
        == threading.get_ident()
    )
    assert await run_by_values((b"x", value * 5_000), threading.get_ident, principal="alice") != threading.get_ident()
    assert (
        await run_by_values((b"x" * INLINE_BYTES, b"x"), threading.get_ident, principal="alice")
        != threading.get_ident()
    )


@pytest.mark.parametrize(
    "text", [base64.b64encode(bytes(range(256)) * 20), "\u6570\u636e".encode() * 1000, b"a3" * 3000], ids=len
)
async def test_work_on_texts_of_long_words_runs_beside_the_event_loop(text: bytes) -> None:
    assert await run_by_values((text[:4000],), threading.get_ident, principal="alice") == threading.get_ident()
    assert await run_by_values((text,), threading.get_ident, principal="alice") != threading.get_ident()


@pytest.mark.parametrize(
    ("run", "large"),
    [(run_by_values, (b"x" * INLINE_BYTES, b"x")), (run_by_parts, b'"' * 5000), (run_by_size, INLINE_BYTES + 1)],
)
async def test_long_work_of_one_principal_leaves_threads_to_others(run: Callable[..., Any], large: Any) -> None:
    """Threads that compute take turns with the event loop, which many of them would keep from other clients.

    They would also be all threads that the gateway has: of forty, none would be left for another principal.
    """
    begun, gate = list[int](), threading.Event()

    def work() -> None:
        begun.append(1)
        gate.wait(30)

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(partial(run, large, work, principal="mallory"))
        try:
            with anyio.fail_after(10):
                for _ in range(5):
                    assert await run(large, divmod, 7, 2, principal="alice") == (3, 1)
            assert len(begun) <= 3
        finally:
            gate.set()
    assert len(begun) == 20
