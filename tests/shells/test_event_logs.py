"""The contract of all event logs; a line in `LOGS` adds one."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from samples import sample

from mcp_mirror.settings.policies import StorePolicy
from mcp_mirror.stores.base import Store
from mcp_mirror.stores.event_log import EventLog, Sums, fair_share
from mcp_mirror.stores.memory import MemoryStore

HOUR = 3600
DAY = 24 * HOUR
KEEP = 5


@dataclass
class Clock:
    now: float = 500_000 * HOUR + 10.0

    def __call__(self) -> float:
        return self.now

    @property
    def hour(self) -> int:
        return int(self.now) // HOUR


LOGS: dict[str, Callable[[StorePolicy, Clock, Callable[[], Path]], AbstractAsyncContextManager[Store]]] = {
    "memory": MemoryStore,
}
NEEDS: dict[str, Callable[[pytest.FixtureRequest, Path], dict[str, Any]]] = {}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=sample(LOGS, lambda _: True))
async def log(request: pytest.FixtureRequest, clock: Clock, tmp_path: Path) -> AsyncIterator[EventLog]:
    """An empty log of each kind."""
    name = request.param
    policy = StorePolicy(**NEEDS[name](request, tmp_path) if name in NEEDS else {})
    async with LOGS[name](policy, clock, lambda: tmp_path) as store:
        yield store.events


async def add(log: EventLog, *entries: bytes, namespace: str = "me", keep: int = KEEP) -> None:
    await log.append(namespace, entries, {}, keep=keep)


async def entries_of(log: EventLog, namespace: str = "me", **range_: Any) -> list[bytes]:
    return [entry for _, entry in await log.read(namespace, **({"limit": 100} | range_))]


async def test_entries_come_back_newest_first(log: EventLog) -> None:
    await add(log, b"1", b"2")
    await add(log, b"3")
    assert await entries_of(log) == [b"3", b"2", b"1"]
    assert await entries_of(log, limit=2) == [b"3", b"2"]


async def test_cursors_select_older_and_newer_entries(log: EventLog) -> None:
    await add(log, b"1", b"2", b"3", b"4")
    cursors = {entry: cursor for cursor, entry in await log.read("me", limit=9)}
    assert sorted(cursors, key=lambda entry: cursors[entry]) == [b"1", b"2", b"3", b"4"]
    assert await entries_of(log, before=cursors[b"3"]) == [b"2", b"1"]
    assert await entries_of(log, after=cursors[b"2"]) == [b"4", b"3"]
    assert await entries_of(log, after=cursors[b"1"], limit=1) == [b"4"]
    assert await entries_of(log, before=cursors[b"4"], after=cursors[b"1"]) == [b"3", b"2"]
    assert await entries_of(log, after=cursors[b"4"]) == []
    assert await entries_of(log, before=cursors[b"1"]) == []


async def test_a_cursor_of_a_removed_entry_keeps_its_place(log: EventLog) -> None:
    await add(log, b"1")
    [(cursor, _)] = await log.read("me", limit=1)
    await add(log, *(b"%d" % number for number in range(2, 9)))
    assert await entries_of(log, after=cursor) == [b"8", b"7", b"6", b"5", b"4"]
    assert await entries_of(log, before=cursor) == []


async def test_only_the_newest_entries_are_kept(log: EventLog) -> None:
    for number in range(20):
        await add(log, b"%d" % number)
    assert await entries_of(log) == [b"19", b"18", b"17", b"16", b"15"]
    await add(log, *(b"%d" % number for number in range(20, 40)))
    assert await entries_of(log) == [b"39", b"38", b"37", b"36", b"35"]


async def test_many_namespaces_share_the_room(log: EventLog) -> None:
    for number in range(25):
        await add(log, *(b"%d" % one for one in range(9)), namespace=f"n{number}")
    assert await entries_of(log, "n24") == [b"8", b"7"]
    assert fair_share(KEEP, 25) == 2
    assert fair_share(KEEP, 10) == fair_share(KEEP, 1) == KEEP
    assert fair_share(KEEP, 1000) == 1


async def test_namespaces_do_not_see_each_other(log: EventLog, clock: Clock) -> None:
    await log.append("me", [b"mine"], {(clock.hour, "up", "tool"): Sums(calls=1)}, keep=KEEP)
    await log.append("you", [b"yours"], {(clock.hour, "up", "tool"): Sums(calls=2)}, keep=KEEP)
    [(cursor, _)] = await log.read("me", limit=9)
    assert await entries_of(log, "you") == [b"yours"]
    assert await entries_of(log, "you", before=cursor, after=cursor) == []
    assert await log.sums("you", 0) == {(clock.hour, "up", "tool"): Sums(calls=2)}
    for stranger in ("", "m", "me:", "me*", "me/you", "stranger"):
        assert await entries_of(log, stranger) == []
        assert await log.sums(stranger, 0) == {}
        assert await log.daily_calls(stranger, 0) == {}
    assert await log.namespaces() == {"me", "you"}


@pytest.mark.parametrize("name", ["a b", "a:b|c", "é\N{SNOWMAN}", "%41", "x" * 300, "\n", "a\x00b"])
async def test_any_text_is_a_namespace_and_a_tool(log: EventLog, clock: Clock, name: str) -> None:
    key = (clock.hour, name, name)
    await log.append(name, [b"\x00\xff"], {key: Sums(calls=1)}, keep=KEEP)
    assert await entries_of(log, name) == [b"\x00\xff"]
    assert await log.sums(name, clock.now) == {key: Sums(calls=1)}
    assert await log.namespaces() == {name}


async def test_sums_are_added_by_hour_upstream_and_tool(log: EventLog, clock: Clock) -> None:
    one = Sums(calls=3, errors=1, refused=2, bytes=1 << 40, sent=4, kept_out=5, milliseconds=6)
    first, second = (clock.hour - 2, "up", "a"), (clock.hour, "up", "b")
    await log.append("me", [], {first: one, second: Sums(calls=1)}, keep=KEEP)
    await log.append("me", [], {second: one}, keep=KEEP)
    assert await log.sums("me", 0) == {first: one, second: replace(one, calls=4)}
    assert await log.sums("me", clock.now) == {second: replace(one, calls=4)}
    assert await log.sums("me", (clock.hour - 2) * HOUR + 1800) == await log.sums("me", 0)
    assert await log.sums("me", clock.now + HOUR) == {}
    assert await log.namespaces() == {"me"}


async def test_calls_are_counted_by_day_without_refused_ones(log: EventLog, clock: Clock) -> None:
    today = clock.hour // 24
    for hour in (clock.hour, today * 24, today * 24 - 1):
        await log.append("me", [], {(hour, "up", "a"): Sums(calls=5, refused=1)}, keep=KEEP)
    days = await log.daily_calls("me", 0)
    assert days == {today: 8, today - 1: 4}
    assert await log.daily_calls("me", clock.now) == {today: 8}


async def test_entries_and_sums_are_removed_after_90_days(log: EventLog, clock: Clock) -> None:
    await log.append("me", [b"old"], {(clock.hour, "up", "a"): Sums(calls=1)}, keep=KEEP)
    clock.now += 91 * DAY
    await log.append("me", [b"new"], {(clock.hour, "up", "a"): Sums(calls=2)}, keep=KEEP)
    assert await entries_of(log) == [b"new"]
    assert await log.sums("me", 0) == {(clock.hour, "up", "a"): Sums(calls=2)}
    assert await log.daily_calls("me", 0) == {clock.hour // 24: 2}
