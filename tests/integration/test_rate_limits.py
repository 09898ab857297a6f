"""Concurrency limits, waiting queues and rate limits."""

from collections import Counter
from contextlib import AsyncExitStack

import anyio
import pytest
from anyio.lowlevel import checkpoint

from mcp_mirror.callers import Caller, NullChannel
from mcp_mirror.errors import BusyError
from mcp_mirror.security.rate_limits import (
    ConcurrencyLimiter,
    Limit,
    PrincipalLimiter,
    Queue,
    TokenBucket,
    UpstreamLimiter,
)
from mcp_mirror.settings.limits import UpstreamBounds

BOUND = 60.0


def limiter(most: int, waiting: int = 10, seconds: float = BOUND) -> ConcurrencyLimiter:
    return ConcurrencyLimiter(
        Limit("calls_per_upstream", most), Queue(Limit("queued_calls", waiting), seconds), "Upstream 'x'"
    )


async def until_waiting(one: ConcurrencyLimiter, count: int) -> None:
    with anyio.fail_after(BOUND):
        while one.waiting_count != count:
            await checkpoint()


async def test_waiters_are_admitted_round_robin_by_caller() -> None:
    one, order = limiter(1), list[str]()

    async def call(who: str) -> None:
        async with one.acquire(who):
            order.append(who)

    async with anyio.create_task_group() as tasks, one.acquire("first"):
        for count, who in enumerate(("greedy", "greedy", "greedy", "modest", "other"), 1):
            tasks.start_soon(call, who)
            await until_waiting(one, count)
    assert order == ["greedy", "modest", "other", "greedy", "greedy"]
    assert one.is_idle


async def test_a_full_queue_and_a_long_wait_are_refused() -> None:
    one = limiter(1, waiting=1, seconds=0.05)
    async with one.acquire("a"), anyio.create_task_group() as tasks:

        async def late() -> None:
            with pytest.raises(BusyError, match=r"no place became free within 0.05 s \(`limits.queue_timeout`\)"):
                async with one.acquire("b"):
                    pytest.fail("it was let in")

        tasks.start_soon(late)
        await until_waiting(one, 1)
        message = (
            r"Upstream 'x' is busy: `limits.calls_per_upstream` \(1\) calls are running, and `limits.queued_calls` "
            r"\(1\) calls wait already. Try again in 1 s."
        )
        with pytest.raises(BusyError, match=message):
            async with one.acquire("c"):
                pytest.fail("it was let in")
    assert one.is_idle


async def test_one_of_several_callers_gets_half_of_the_places() -> None:
    one = limiter(5, waiting=1)
    async with AsyncExitStack() as inside:
        for _ in range(2):
            await inside.enter_async_context(one.acquire("greedy", leaves_room=True))
        scope = anyio.CancelScope()
        entered = list[str]()

        async def call() -> None:
            with scope:
                async with one.acquire("greedy", leaves_room=True):
                    entered.append("greedy")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await until_waiting(one, 1)
            with pytest.raises(BusyError, match=r"\(5\) calls, of which one client gets at most half, are running"):
                async with one.acquire("greedy", leaves_room=True):
                    pytest.fail("it was let in")
            async with one.acquire("modest", leaves_room=True), one.acquire("other", leaves_room=True):
                assert not entered
            assert not entered  # their places are not for the greedy one
            scope.cancel()
        tasks_of_greedy = anyio.create_task_group()
        async with tasks_of_greedy:
            scope = anyio.CancelScope()
            tasks_of_greedy.start_soon(call)
            await until_waiting(one, 1)
            await inside.aclose()
        assert entered == ["greedy"]
    assert one.is_idle


async def test_callers_that_leave_room_never_take_all_places() -> None:
    one = limiter(16, waiting=0)
    async with AsyncExitStack() as inside:

        async def count_admitted(caller: str) -> int:
            for count in range(17):
                try:
                    await inside.enter_async_context(one.acquire(caller, leaves_room=True))
                except BusyError:
                    return count
            raise AssertionError

        assert [await count_admitted(caller) for caller in "abcde"] == [8, 4, 2, 1, 1]
    assert one.is_idle


async def test_principals_with_long_requests_leave_an_upstream_to_others() -> None:
    one = UpstreamLimiter("x", UpstreamBounds(calls_per_upstream=100, queue_timeout=BOUND))
    channels = {name: NullChannel(Caller(name, scopes=frozenset())) for name in ("alice", "bob", "carol")}
    admitted = Counter[str]()

    async def request(name: str) -> None:
        await one.enter(channels[name])
        admitted[name] += 1

    async with anyio.create_task_group() as tasks:
        for name in ("alice", "bob"):
            for _ in range(50):
                tasks.start_soon(request, name)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(BOUND):
            await request("carol")
        assert sum(admitted.values()) < 100
        tasks.cancel_scope.cancel()


async def test_callers_that_leave_room_take_turns() -> None:
    one = limiter(16, waiting=40)
    running: list[tuple[str, anyio.Event]] = []

    async def call(caller: str) -> None:
        async with one.acquire(caller, leaves_room=True):
            running.append((caller, ended := anyio.Event()))
            await ended.wait()

    async with anyio.create_task_group() as tasks:
        for caller in "ab":
            for _ in range(20):
                tasks.start_soon(call, caller)
        await anyio.wait_all_tasks_blocked()
        for at in range(40):
            running[at][1].set()
            await anyio.wait_all_tasks_blocked()
            if at == 15:
                shares = Counter(caller for caller, ended in running if not ended.is_set())
                assert set(shares.values()) <= {5, 6}
                assert set(shares) == {"a", "b"}
    assert one.is_idle


async def test_a_cancelled_call_frees_its_place() -> None:
    one = limiter(1)
    async with anyio.create_task_group() as tasks:
        async with AsyncExitStack() as inside:
            await inside.enter_async_context(one.acquire("a"))
            scopes = [anyio.CancelScope(), anyio.CancelScope()]

            async def call(scope: anyio.CancelScope) -> None:
                with scope:
                    async with one.acquire("b"):
                        await anyio.sleep_forever()

            for count, scope in enumerate(scopes, 1):
                tasks.start_soon(call, scope)
                await until_waiting(one, count)
            scopes[0].cancel()  # while it waits
            await until_waiting(one, 1)
        scopes[1].cancel()  # as it gets its place
    assert one.is_idle
    async with one.acquire("c"):
        assert not one.is_idle


async def test_a_token_bucket_allows_a_burst_and_then_the_rate() -> None:
    now = [100.0]
    bucket = TokenBucket(Limit("calls_per_minute", 3), "This client", lambda: now[0])
    for _ in range(3):
        bucket.take()
    with pytest.raises(BusyError, match=r"has had `limits.calls_per_minute` \(3\) calls in a minute") as refused:
        bucket.take()
    assert refused.value.retry_after == 20
    now[0] += 20
    bucket.take()
    now[0] += 600
    assert bucket.is_idle
    for _ in range(3):
        bucket.take()
    with pytest.raises(BusyError):
        bucket.take()


async def test_each_principal_has_its_own_limits() -> None:
    now = [0.0]
    queue = Queue(Limit("queued_calls", 0), 1.0)
    admission = PrincipalLimiter(Limit("calls_per_principal", 1), Limit("calls_per_minute", 2), queue, lambda: now[0])

    async def call(who: str) -> None:
        async with admission.acquire(who):
            await checkpoint()

    async with admission.acquire("ann"):
        await call("bob")
        with pytest.raises(BusyError, match="calls_per_principal"):
            await call("ann")
    with pytest.raises(BusyError, match="calls_per_minute"):
        await call("ann")
    for index in range(1500):
        now[0] += 1
        await call(f"one-{index}")
    assert len(admission) <= 1001
