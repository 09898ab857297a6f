"""The contract of all event logs; a line in `LOGS` adds one."""

import gc
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from msgspec.structs import replace
from redis.asyncio import Redis
from redis_process import RedisProcess
from samples import sample

from mcp_mirror.errors import StoreError
from mcp_mirror.settings.store import EncryptionPolicy, StorePolicy
from mcp_mirror.stores.base import Store
from mcp_mirror.stores.disk.event_log import DiskEventLog
from mcp_mirror.stores.disk.store import DiskStore
from mcp_mirror.stores.event_log import EventLog, MemoryEventLog, Sums, fair_share
from mcp_mirror.stores.memory import MemoryStore
from mcp_mirror.stores.redis.store import RedisStore
from mcp_mirror.types import Descriptor, Provenance

HOUR = 3600
DAY = 24 * HOUR
KEEP = 5
BASE = "t-9c1d4f0e-6a55-4b8e-9d0a-0f3b2f6f6a11"


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
    "disk": lambda policy, clock, folder: DiskStore(policy, clock, folder() / "store"),
    "redis": RedisStore,
    "sealed disk": lambda policy, clock, folder: DiskStore(policy, clock, folder() / "store"),
    "sealed redis": RedisStore,
}
SEALED = EncryptionPolicy(("an example of a secret of 32 characters",), clear="refuse")


def policy_of(name: str, request: pytest.FixtureRequest, folder: Path) -> StorePolicy:
    """The settings of an own store of a kind."""
    policy = StorePolicy(encryption=SEALED if name.startswith("sealed") else None)
    if name.endswith("redis"):
        policy = replace(policy, url=request.getfixturevalue("redis_server").url, prefix=f"{folder}:")
    return policy


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=sample(LOGS, lambda name: name != "sealed redis"))
async def log(request: pytest.FixtureRequest, clock: Clock, tmp_path: Path) -> AsyncIterator[EventLog]:
    """An empty log of each kind."""
    policy = policy_of(request.param, request, tmp_path)
    async with LOGS[request.param](policy, clock, lambda: tmp_path) as store:
        yield store.events


async def put(store: Store) -> None:
    """Store a value beside the log."""
    described = Descriptor(BASE, "number", 1, 1, (), 1e9, 1e12, Provenance("up", "t", "0" * 64))
    await store.put("me", described, (b"1",))


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


async def test_an_append_to_memory_does_not_look_at_all_namespaces(clock: Clock, tmp_path: Path) -> None:
    async with LOGS["memory"](StorePolicy(), clock, lambda: tmp_path) as store:
        began = time.thread_time()
        for number in range(5_000):
            await add(store.events, b"1", namespace=f"n{number}")
        assert time.thread_time() - began < 0.5  # 2 s if each append looks for old entries of all


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
    assert await log.sums("me", 0) == {first: one, second: msgspec.structs.replace(one, calls=4)}
    assert await log.sums("me", clock.now) == {second: msgspec.structs.replace(one, calls=4)}
    assert await log.sums("me", (clock.hour - 2) * HOUR + 1800) == await log.sums("me", 0)
    assert await log.sums("me", clock.now + HOUR) == {}
    assert await log.namespaces() == {"me"}


async def test_many_entries_and_sums_are_added_and_read_at_once(log: EventLog, clock: Clock) -> None:
    entries = [b"%d" % number for number in range(1_100)]
    sums = {(clock.hour, "up", f"tool-{number}"): Sums(number, sent=1) for number in range(1, 700)}
    await log.append("me", entries, sums, keep=1_000)
    assert await entries_of(log, limit=2_000) == [*reversed(entries)][:1_000]
    assert await log.sums("me", 0) == sums
    assert await log.namespaces() == {"me"}


async def test_calls_are_counted_by_day_without_refused_ones(log: EventLog, clock: Clock) -> None:
    today = clock.hour // 24
    for hour in (clock.hour, today * 24, today * 24 - 1):
        await log.append("me", [], {(hour, "up", "a"): Sums(calls=5, refused=1)}, keep=KEEP)
    days = await log.daily_calls("me", 0)
    assert days == {today: 8, today - 1: 4}
    assert await log.daily_calls("me", clock.now) == {today: 8}


async def test_sums_are_removed_after_90_days(log: EventLog, clock: Clock) -> None:
    await log.append("me", [], {(clock.hour, "up", "a"): Sums(calls=1)}, keep=KEEP)
    clock.now += 92 * DAY
    await log.append("me", [], {(clock.hour, "up", "a"): Sums(calls=2)}, keep=KEEP)
    assert await log.sums("me", 0) == {(clock.hour, "up", "a"): Sums(calls=2)}
    assert await log.daily_calls("me", 0) == {clock.hour // 24: 2}


@pytest.mark.parametrize("name", ["memory", "disk"])
async def test_entries_are_removed_after_90_days(name: str, clock: Clock, tmp_path: Path) -> None:
    async with LOGS[name](StorePolicy(), clock, lambda: tmp_path) as store:
        await add(store.events, b"old")
        clock.now += 91 * DAY
        await add(store.events, b"new", namespace="you")
        assert await entries_of(store.events) == []
        assert await entries_of(store.events, "you") == [b"new"]
        assert await store.events.namespaces() == {"you"}


async def test_redis_removes_entries_after_90_days(redis_server: RedisProcess, tmp_path: Path) -> None:
    policy = StorePolicy(kind="redis", url=redis_server.url, prefix=f"{tmp_path}:")
    async with (
        RedisStore(policy, time.time, lambda: tmp_path) as store,
        Redis.from_url(redis_server.url) as client,
    ):
        await client.xadd(f"{tmp_path}:2:calls:me", {"e": b"old"}, id=int((time.time() - 91 * DAY) * 1000))
        assert await entries_of(store.events) == [b"old"]
        await add(store.events, b"new")
        assert await entries_of(store.events) == [b"new"]
        for key in await client.keys(f"{tmp_path}:2:*"):
            assert 0 < await client.ttl(key) <= 91 * DAY


@pytest.mark.parametrize("name", sample(["disk", "redis"], lambda name: name == "disk"))
async def test_two_gateways_append_to_one_log(
    name: str, request: pytest.FixtureRequest, clock: Clock, tmp_path: Path
) -> None:
    policy = policy_of(name, request, tmp_path)
    key = (clock.hour, "up", "tool")
    async with (
        LOGS[name](policy, clock, lambda: tmp_path) as one,
        LOGS[name](policy, clock, lambda: tmp_path) as other,
        anyio.create_task_group() as tasks,
    ):

        async def write(store: Store, letter: bytes) -> None:
            for number in range(20):
                await store.events.append("me", [letter + b"%d" % number], {key: Sums(calls=1)}, keep=100)

        tasks.start_soon(write, one, b"a")
        tasks.start_soon(write, other, b"b")
    async with LOGS[name](policy, clock, lambda: tmp_path) as store:
        found = await entries_of(store.events)
        assert [entry for entry in reversed(found) if entry[:1] == b"a"] == [b"a%d" % number for number in range(20)]
        assert [entry for entry in reversed(found) if entry[:1] == b"b"] == [b"b%d" % number for number in range(20)]
        assert await store.events.sums("me", 0) == {key: Sums(calls=40)}


async def test_entries_survive_the_gateway(clock: Clock, tmp_path: Path) -> None:
    for _ in range(2):
        async with DiskStore(StorePolicy(), clock, tmp_path / "store") as store:
            await add(store.events, b"1")
    async with DiskStore(StorePolicy(), clock, tmp_path / "store") as store:
        assert await entries_of(store.events) == [b"1", b"1"]


async def test_encrypted_entries_are_unreadable_without_their_key_or_namespace(
    clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, secret = tmp_path / "store", b"a text that nobody else may read"
    async with DiskStore(StorePolicy(encryption=SEALED), clock, folder) as store:
        await add(store.events, secret)
    assert not any(secret in path.read_bytes() for path in folder.iterdir() if path.is_file())
    with closing(sqlite3.connect(folder / "events.sqlite")) as connection, connection:
        connection.execute("INSERT INTO calls (namespace, at, entry) SELECT 'you', at, entry FROM calls")
        connection.execute("INSERT INTO calls (namespace, at, entry) VALUES ('me', 1, x'93')")
    async with DiskStore(StorePolicy(encryption=SEALED), clock, folder) as store:
        assert await entries_of(store.events) == [secret]
        assert await entries_of(store.events, "you") == []
    assert "Unreadable values are skipped" in caplog.text


async def test_unreadable_entries_do_not_shorten_a_page(clock: Clock, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    async with DiskStore(StorePolicy(encryption=SEALED), clock, folder) as store:
        await add(store.events, b"1", b"2")
    with closing(sqlite3.connect(folder / "events.sqlite")) as connection, connection:
        connection.executemany("INSERT INTO calls (namespace, at, entry) VALUES ('me', 1, ?)", [(b"\x93",)] * 5)
    async with DiskStore(StorePolicy(encryption=SEALED), clock, folder) as store:
        assert await entries_of(store.events, limit=2) == [b"2", b"1"]
        [(cursor, _)] = await store.events.read("me", limit=1)
        assert [entry for _, entry in await store.events.read("me", before=cursor, limit=2)] == [b"1"]


async def test_a_damaged_log_is_set_aside_and_values_stay(
    clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "store"
    async with DiskStore(StorePolicy(), clock, folder) as store:
        await add(store.events, b"1")
        await put(store)
    (folder / "events.sqlite").write_bytes(b"no database" * 1000)
    async with DiskStore(StorePolicy(), clock, folder) as store, DiskStore(StorePolicy(), clock, folder) as other:
        assert await entries_of(store.events) == []
        await add(store.events, b"2")
        await add(other.events, b"3")
        assert await entries_of(store.events) == [b"3", b"2"]
        assert await store.describe("me", BASE) is not None
        (folder / "events.sqlite").rename(folder / "events.sqlite.damaged-1")  # another gateway did that
        await add(store.events, b"4")
        await add(other.events, b"5")
        assert await entries_of(store.events) == [b"5", b"4"]
    assert caplog.text.count("is damaged") == 1


async def test_a_log_that_only_seems_damaged_is_read_again(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with DiskStore(StorePolicy(), clock, tmp_path / "store") as store:
        await add(store.events, b"1")
        error = sqlite3.DatabaseError("database disk image is malformed")  # as from a disk that fails once at reading
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        failing = iter([error])
        select = DiskEventLog._select  # noqa: SLF001  # SQLite cannot be made to fail once

        def select_late(log: DiskEventLog, *arguments: Any) -> Any:
            for failure in failing:
                raise failure
            return select(log, *arguments)

        monkeypatch.setattr(DiskEventLog, "_select", select_late)
        assert await entries_of(store.events) == [b"1"]


async def test_a_log_without_room_is_an_error_that_values_do_not_see(clock: Clock, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    async with DiskStore(StorePolicy(), clock, folder) as store:
        (folder / "events.sqlite").mkdir()
        with pytest.raises(StoreError, match="event log"):
            await add(store.events, b"1")
        with pytest.raises(StoreError, match="event log"):
            await entries_of(store.events)
        await put(store)
        assert await store.describe("me", BASE) is not None


async def test_an_unreachable_redis_server_is_an_error(own_redis: RedisProcess, tmp_path: Path) -> None:
    policy = StorePolicy(kind="redis", url=own_redis.url)
    async with RedisStore(policy, time.time, lambda: tmp_path) as store:
        await add(store.events, b"1")
        own_redis.kill()
        with pytest.raises(StoreError, match="cannot be reached"):
            await add(store.events, b"2")
        own_redis.start()
        await add(store.events, b"3")
        assert await entries_of(store.events) == [b"3", b"1"]


async def test_calls_in_memory_are_nothing_for_the_garbage_collector() -> None:
    log = MemoryEventLog(time.time)
    entries = [b"%d" % number for number in range(5000)]
    gc.collect()
    before = len(gc.get_objects())
    await log.append("me", entries, {}, keep=9000)
    assert len(gc.get_objects()) < before + 100
    assert len(await log.read("me", limit=9000)) == 5000
