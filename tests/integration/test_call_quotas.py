"""Quotas of calls: by day and month, different for single principals, shared by gateways over one store."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest
from clocks import Clock

from mcp_mirror.callers import LOCAL, Caller, NullChannel
from mcp_mirror.errors import RefusalReason, StoreError
from mcp_mirror.gateway.call import Call
from mcp_mirror.gateway.pipeline import compose
from mcp_mirror.gateway.stages.limits import CallQuotas
from mcp_mirror.gateway.stages.reporting import ReportStage
from mcp_mirror.observability.audit import Audit
from mcp_mirror.observability.events import EventRecorder
from mcp_mirror.security.sanitize import PathHasher
from mcp_mirror.settings.access import AuthPolicy
from mcp_mirror.settings.limits import PrincipalLimits, TrafficPolicy
from mcp_mirror.settings.policies import Config, EventsPolicy, WirePolicy
from mcp_mirror.stores.event_log import MemoryEventLog


class FickleLog(MemoryEventLog):
    """A log that may be away, or wait before it writes."""

    away = False
    may_write: anyio.Event | None = None

    async def append(self, *arguments: Any, **options: Any) -> None:
        if self.away:
            raise StoreError("It is away.")
        if self.may_write:
            await self.may_write.wait()
        await super().append(*arguments, **options)

    async def daily_calls(self, namespace: str, since: float) -> Mapping[int, int]:
        if self.away:
            raise StoreError("It is away.")
        return await super().daily_calls(namespace, since)


class Gateway:
    """The stages that record and count calls."""

    def __init__(
        self, log: MemoryEventLog, clock: Clock, principals: tuple[PrincipalLimits, ...] = (), **limits: Any
    ) -> None:
        self.config = Config(limits=WirePolicy(traffic=TrafficPolicy(**limits)), auth=AuthPolicy(principals=principals))
        self.recorder = recorder = EventRecorder(log, EventsPolicy(), clock)
        self.quotas = CallQuotas(log, recorder, clock)

        async def answer(_call: Call) -> Mapping[str, bytes]:
            return {"content": b"[]"}

        self._answer = compose([ReportStage(Audit(), recorder, PathHasher(b"key"), clock), self.quotas], answer)

    async def call(self, principal: str = "alice", *, is_limited: bool = True) -> str:
        """Return the error of a call; an empty text if there is none."""
        namespace = LOCAL if principal == LOCAL else json.dumps(["token", principal])
        call = Call(NullChannel(Caller(namespace)), "say", b"{}", is_limited=is_limited, config=self.config)
        reply = await self._answer(call)
        if call.trace.reason is None:
            return ""
        assert call.trace.reason is RefusalReason.QUOTA
        content = reply["content"]
        text = json.loads(b"".join(content) if isinstance(content, tuple) else bytes(content))[0]["text"]
        assert isinstance(text, str)
        return text

    async def calls(self, number: int, principal: str = "alice") -> list[bool]:
        return [await self.call(principal) == "" for _ in range(number)]


@pytest.fixture
def clock() -> Clock:
    return Clock(datetime(2026, 12, 30, 23, 0, tzinfo=UTC).timestamp())


@pytest.fixture
def log(clock: Clock) -> FickleLog:
    return FickleLog(clock)


async def test_calls_over_the_quota_of_the_day_are_refused_until_the_next_day(log: FickleLog, clock: Clock) -> None:
    gateway = Gateway(log, clock, calls_per_day=3)
    assert await gateway.calls(4) == [True, True, True, False]
    error = await gateway.call()
    used_up = "The principal of this client has made the 3 calls that it may make today with all its clients"
    assert error.startswith(f"{used_up} (`calls_per_day`).")
    assert "from 2026-12-31 00:00 UTC" in error
    assert await gateway.calls(1, "bob") == [True]
    await gateway.quotas.refresh()
    assert await gateway.call() != ""
    clock.now += 3600
    await gateway.quotas.refresh()
    assert await gateway.calls(4) == [True, True, True, False]


async def test_calls_over_the_monthly_quota_are_refused_until_the_next_month(log: FickleLog, clock: Clock) -> None:
    gateway = Gateway(log, clock, calls_per_month=3)
    assert await gateway.calls(2) == [True, True]
    await gateway.quotas.refresh()
    clock.now += 3600
    assert await gateway.calls(2) == [True, False]
    assert (
        "this month with all its clients (`calls_per_month`). It can call again from 2027-01-01 00:00 UTC"
        in await gateway.call()
    )
    clock.now += 24 * 3600
    await gateway.quotas.refresh()
    assert await gateway.calls(1) == [True]


async def test_single_principals_have_other_quotas(log: FickleLog, clock: Clock) -> None:
    principals = (PrincipalLimits("bot", calls_per_day=3), PrincipalLimits("boss", calls_per_day=0))
    gateway = Gateway(log, clock, calls_per_day=1, calls_per_month=4, principals=principals)
    assert await gateway.calls(2) == [True, False]
    assert await gateway.calls(4, "bot") == [True, True, True, False]
    assert await gateway.calls(5, "boss") == [True, True, True, True, False]
    assert await gateway.calls(2, LOCAL) == [True, False]


async def test_gateways_over_one_store_share_the_quota(log: FickleLog, clock: Clock) -> None:
    one, other = Gateway(log, clock, calls_per_day=4), Gateway(log, clock, calls_per_day=4)
    assert await one.calls(2) == [True, True]
    await one.quotas.refresh()
    assert await other.calls(2) == [True, True]
    await other.quotas.refresh()
    await one.quotas.refresh()
    assert await one.calls(1) == [False]
    assert await other.calls(1) == [False]


async def test_counts_survive_a_restart_and_an_idle_minute(log: FickleLog, clock: Clock) -> None:
    gateway = Gateway(log, clock, calls_per_day=2)
    assert await gateway.calls(2) == [True, True]
    await gateway.quotas.refresh()
    clock.now += 61
    await gateway.quotas.refresh()
    assert await gateway.calls(1) == [False]
    assert await Gateway(log, clock, calls_per_day=2).calls(1) == [False]


async def test_a_failing_store_does_not_refuse_calls_and_loses_no_count(log: FickleLog, clock: Clock) -> None:
    log.away = True
    gateway = Gateway(log, clock, calls_per_day=3)
    assert await gateway.calls(1) == [True]
    await gateway.quotas.refresh()
    assert await gateway.calls(1) == [True]
    log.away = False
    await gateway.quotas.refresh()
    assert await gateway.calls(2) == [True, False]


async def test_a_call_that_ends_while_the_counts_are_read_counts_once(log: FickleLog, clock: Clock) -> None:
    gateway = Gateway(log, clock, calls_per_day=3)
    assert await gateway.calls(1) == [True]
    log.may_write = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(gateway.recorder.flush)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(gateway.quotas.refresh)
        await anyio.wait_all_tasks_blocked()
        assert await gateway.calls(1) == [True]
        log.may_write.set()
    assert await gateway.calls(2) == [True, False]


async def test_refused_calls_and_those_of_the_program_do_not_count(log: FickleLog, clock: Clock) -> None:
    gateway = Gateway(log, clock, calls_per_day=1)
    assert await gateway.calls(3) == [True, False, False]
    await gateway.quotas.refresh()
    assert [*(await log.daily_calls('["token", "alice"]', 0)).values()] == [1]
    assert await gateway.call(is_limited=False) == ""
