"""Tokens are counted without waiting for the store, and each count reaches it once."""

import asyncio

import anyio
import pytest

from mcp_mirror.errors import StoreError
from mcp_mirror.memory import usage
from mcp_mirror.memory.usage import UsageCounter
from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.stores.memory import MemoryStore
from mcp_mirror.types import Traffic


class Fickle(MemoryStore):
    """A store that may be away."""

    away = False
    counted = 0

    async def count(self, namespace: str, traffic: Traffic) -> None:
        self.counted += 1
        if self.away:
            raise StoreError("It is away.")
        await super().count(namespace, traffic)


@pytest.fixture
def store() -> Fickle:
    return Fickle(StorePolicy(), lambda: 1e9, lambda: pytest.fail("no file is needed"))


async def test_counts_are_reported_at_once_and_stored_later(store: Fickle) -> None:
    usage_counter = UsageCounter(store)
    usage_counter.add("me", 10, 500)
    usage_counter.add("me", 5, 0)
    usage_counter.add("you", 1, 0)
    assert store.counted == 0
    assert (await usage_counter.stats("me")).traffic == Traffic(15, 500)
    await usage_counter.flush()
    assert store.counted == 2
    await usage_counter.flush()
    assert store.counted == 2
    assert (await store.stats("me")).traffic == (await usage_counter.stats("me")).traffic == Traffic(15, 500)
    assert (await usage_counter.stats("stranger")).traffic == Traffic()


async def test_the_end_reports_counts_that_the_store_rejects(store: Fickle, caplog: pytest.LogCaptureFixture) -> None:
    usage_counter = UsageCounter(store)
    usage_counter.add("me", 10, 500)
    store.away = True
    await usage_counter.close()
    store.away = False
    await usage_counter.close()
    assert caplog.messages == ["Token counts are lost: the store still failed when the gateway ended."]
    assert (await store.stats("me")).traffic == Traffic(10, 500)


async def test_rejected_counts_are_offered_again_and_counted_once(store: Fickle) -> None:
    usage_counter = UsageCounter(store)
    usage_counter.add("me", 10, 500)
    store.away = True
    await usage_counter.flush()
    usage_counter.add("me", 1, 1)
    assert (await usage_counter.stats("me")).traffic == Traffic(11, 501)
    store.away = False
    await usage_counter.flush()
    assert (await store.stats("me")).traffic == Traffic(11, 501)
    assert (await usage_counter.stats("me")).traffic == Traffic(11, 501)


async def test_counts_reach_the_store_with_a_delay(store: Fickle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "_PAUSE", 0.001)
    usage_counter = UsageCounter(store)
    async with asyncio.timeout(60), anyio.create_task_group() as tasks:
        tasks.start_soon(usage_counter.run)
        for total in (1, 2):
            usage_counter.add("me", 1, 0)
            while (await store.stats("me")).traffic.sent < total:  # the tally continues
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
