"""The store in Redis: its keys, other writers, and what it finds in them."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from itertools import pairwise
from mmap import mmap
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, get_args

import anyio
import anyio.lowlevel
import msgspec
import pytest
from msgspec.structs import replace
from redis_process import RedisProcess
from redis_values import check_accounts, descriptor, opened, our_keys, put, refused
from removed_files import wait_until_empty
from samples import sample
from waiting import until

import mcp_mirror.stores.redis.store
from mcp_mirror.errors import StoreError
from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.stores.base import Store, Tombstone
from mcp_mirror.stores.memory import MemoryStore
from mcp_mirror.stores.redis.connection import RedisConnection
from mcp_mirror.stores.redis.records import CHUNK, FORMAT, KeyKind
from mcp_mirror.stores.redis.store import RedisStore
from mcp_mirror.types import Descriptor, Provenance, Span, StoreStats, StoreTotals

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

SCRIPT = Path(mcp_mirror.stores.redis.store.__file__).with_name("store.lua")
HELPERS = Path(__file__).parents[1] / "helpers"
MIB = 1 << 20


def test_the_guide_names_every_key() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "redis.md").read_text()
    named = {name for row in guide.splitlines() for name in re.findall(rf"`mcp-mirror:{FORMAT}:(\w+)", row)}
    assert named == set(get_args(KeyKind))


@pytest.fixture
async def store(redis_server: RedisProcess, tmp_path: Path) -> AsyncIterator[RedisStore]:
    async with opened(redis_server, tmp_path) as store:
        yield store


@pytest.mark.parametrize("segments", [1, 3, 5000])
async def test_a_value_of_several_chunks_comes_back_in_any_range(segments: int, store: RedisStore) -> None:
    random = Random(segments)  # noqa: S311  # no secret
    blob = random.randbytes(20 * MIB + 17)
    edges = sorted({0, len(blob), *(random.randrange(len(blob)) for _ in range(segments - 1))})
    parts = tuple(memoryview(blob)[a:b] for a, b in pairwise(edges))
    await store.put("me", descriptor("t-1", len(blob)), parts)
    assert bytes(await store.read("me", "t-1") or b"") == blob
    spans = [Span(0, 0), Span(CHUNK - 1, 2), Span(CHUNK, CHUNK), Span(2 * CHUNK, 99 * MIB), Span(30 * MIB, 1)]
    spans += [Span(at := random.randrange(len(blob)), random.randrange(len(blob) - at)) for _ in range(10)]
    for span in spans:
        assert bytes(await store.read("me", "t-1", span) or b"") == blob[span.start : span.stop]


async def test_a_range_costs_that_range_on_the_wire(store: RedisStore, redis_server: RedisProcess) -> None:
    await put(store, "t-1", bytes(30 * MIB))

    def sent() -> int:
        return int(redis_server.run("INFO", "stats")["total_net_output_bytes"])

    before = sent()
    assert len(await store.read("me", "t-1", Span(CHUNK - 500, 1000)) or b"") == 1000
    assert sent() - before < 20_000


async def test_a_large_value_is_mapped_and_leaves_no_file(store: RedisStore, tmp_path: Path) -> None:
    blob = b"ab" * (17 * MIB)
    await put(store, "t-1", blob)
    read = await store.read("me", "t-1")
    assert isinstance(read, memoryview)
    assert isinstance(read.obj, mmap)
    assert bytes(read) == blob
    wait_until_empty(tmp_path)


async def test_a_large_value_that_finds_no_file_is_an_error(redis_server: RedisProcess, tmp_path: Path) -> None:
    policy = StorePolicy(kind="redis", url=redis_server.url, prefix=f"{tmp_path}:", ttl=60.0)
    async with RedisStore(policy, time.time, lambda: tmp_path / "absent") as store:
        await put(store, "t-1", bytes(17 * MIB))
        with pytest.raises(StoreError, match="No such file or directory"):
            await store.read("me", "t-1")
        assert await store.read("me", "t-1", Span(16 * MIB, 5)) == bytes(5)


async def test_every_key_expires_and_use_extends_all_keys_of_a_value(
    redis_server: RedisProcess, tmp_path: Path
) -> None:
    async with opened(redis_server, tmp_path, ttl=1000.0, max_values=2) as store:
        for base in ("t-1", "t-2", "t-3"):
            await put(store, base, bytes(CHUNK + MIB))
        await store.delete("me", "t-2")
        keys = our_keys(redis_server, tmp_path)
        assert min(keys.values()) > 0
        blobs = [key for key in keys if ":blob:" in key]
        assert len(blobs) == 2
        for key in keys:
            redis_server.run("PEXPIRE", key, 50_000)
        await store.read("me", "t-3", Span(0, 1))
        left = our_keys(redis_server, tmp_path)
        assert all(
            left[key] > 990_000 for key in left if ":blob:" in key or key.endswith(("value:me:t-3", "order", "total"))
        )
        assert min(left.values()) > 0


async def test_values_that_redis_expired_are_reported_as_expired(redis_server: RedisProcess, tmp_path: Path) -> None:
    policy = StorePolicy(kind="redis", url=redis_server.url, prefix=f"{tmp_path}:", ttl=60.0)
    async with (
        opened(redis_server, tmp_path, ttl=0.3) as store,
        RedisStore(policy, lambda: time.time() + 60, lambda: tmp_path) as later,
    ):
        await put(store, "t-1")
        await until(lambda: not any(":blob:" in key for key in our_keys(redis_server, tmp_path)))
        gone = await store.describe("me", "t-1")
        assert isinstance(gone, Tombstone)
        assert gone.reason == "expired"
        assert await store.read("me", "t-1") is None
        await put(later, "t-2")  # which does not expire during the test
        assert isinstance(await store.describe("me", "t-1"), Tombstone)
        assert check_accounts(redis_server, tmp_path) == (3, 1)


async def test_a_value_whose_bytes_the_server_evicted_is_gone(
    store: RedisStore, redis_server: RedisProcess, tmp_path: Path
) -> None:
    await put(store, "t-1", bytes(20 * MIB))
    redis_server.run("DEL", next(key for key in our_keys(redis_server, tmp_path) if key.endswith(":1")))
    assert await store.read("me", "t-1") is None
    assert await store.read("me", "t-1", Span(0, 5)) is None
    gone = await store.describe("me", "t-1")
    assert isinstance(gone, Tombstone)
    assert gone.reason == "evicted"


LISTINGS: dict[str, Callable[[RedisStore], Awaitable[object]]] = {
    "near": lambda store: store.bases_near("me", "t-1", 5),
    "list": lambda store: store.list("me"),
    "describe": lambda store: store.describe("me", "t-1"),
}


@pytest.mark.parametrize("removed", ["blob:me:t-1:", "value:me:t-1", "order:me"])
@pytest.mark.parametrize("first", LISTINGS)
async def test_values_that_redis_removed_are_not_listed_and_warned_about_once(
    first: str, removed: str, store: RedisStore, redis_server: RedisProcess, tmp_path: Path, caplog: Any
) -> None:
    await put(store, "t-1")
    if removed != "order:me":
        await put(store, "t-2")
    redis_server.run("DEL", *(key for key in our_keys(redis_server, tmp_path) if f":2:{removed}" in key))
    left = () if removed == "order:me" else ("t-2",)
    for name in (first, *LISTINGS):
        await LISTINGS[name](store)
        assert len(caplog.messages) == 1, name
    assert "Set its `maxmemory-policy` to noeviction" in caplog.messages[0]
    assert await store.bases_near("me", "t-1", 5) == left
    assert tuple(one.base for one in await store.list("me")) == left


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a:b", "c"), ("a", "b:c")),
        (("a", "b*"), ("a", "bb")),
        (("a%3A", "x"), ("a:", "x")),
        (("ä\n ", "x"), ("a", "x")),
    ],
)
async def test_no_name_reaches_into_anothers(
    one: tuple[str, str], other: tuple[str, str], store: RedisStore, redis_server: RedisProcess, tmp_path: Path
) -> None:
    await put(store, one[1], b'"one"', one[0])
    await put(store, other[1], b'"other"', other[0])
    assert await store.read(*one) == b'"one"'
    assert await store.delete(*other) is True
    assert await store.read(*one) == b'"one"'
    assert [found.base for found in await store.list(one[0])] == [one[1]]
    keys = [key.removeprefix(f"{tmp_path}:") for key in our_keys(redis_server, tmp_path)]
    assert all(key.isascii() and key.isprintable() and " " not in key and key.count(":") <= 5 for key in keys)


async def test_one_principals_share_is_its_own(redis_server: RedisProcess, tmp_path: Path) -> None:
    async with opened(redis_server, tmp_path, namespace_bytes=100, namespace_values=3) as store:
        await put(store, "t-0", b"y" * 90, "you")
        for index in range(5):
            await put(store, f"t-{index}", b"x" * 20)
        assert [one.base for one in await store.list("me")] == ["t-4", "t-3", "t-2"]
        await put(store, "t-5", b"x" * 80)
        assert [one.base for one in await store.list("me")] == ["t-5", "t-4"]
        assert (await store.stats("you")).size == 90
        with pytest.raises(StoreError, match=r"\(`namespace_bytes`\)"):
            await put(store, "t-6", b"x" * 101)
        check_accounts(redis_server, tmp_path)


async def test_very_many_values_make_room_for_one(redis_server: RedisProcess, tmp_path: Path) -> None:
    async with opened(redis_server, tmp_path, max_bytes=1000) as store:
        for index in range(200):
            await put(store, f"t-{index}", b"12345")
        await put(store, "large", b"x" * 998)
        assert check_accounts(redis_server, tmp_path) == (998, 1)
        gone = [await store.describe("me", f"t-{index}") for index in range(200)]
        assert all(isinstance(one, Tombstone) and one.reason == "evicted" for one in gone)


@pytest.mark.slow
async def test_quotas_are_exact_with_concurrent_writers(redis_server: RedisProcess, tmp_path: Path) -> None:
    """Three gateways' stores; the accounts are read all the while, and are never over."""

    async def write(store: RedisStore, writer: int) -> None:
        random = Random(writer)  # noqa: S311  # no secret
        for number in range(40):
            base, namespace = f"t-{random.randrange(30)}", random.choice("abc")
            await put(store, base, b"x" * random.randrange(1, 300), namespace)
            if number % 7 == 0:
                await store.delete(namespace, base)
            await store.read(namespace, f"t-{random.randrange(30)}")

    async def watch(writing: asyncio.Future[Any]) -> None:
        while not writing.done():
            assert int(await asyncio.to_thread(redis_server.run, "GET", f"{tmp_path}:2:total") or 0) <= 2000
            assert await asyncio.to_thread(redis_server.run, "ZCARD", f"{tmp_path}:2:order") <= 20

    keys = {"max_bytes": 2000, "max_values": 20, "namespace_bytes": 1200}
    async with asyncio.timeout(60):
        async with (
            opened(redis_server, tmp_path, **keys) as one,
            opened(redis_server, tmp_path, **keys) as two,
            opened(redis_server, tmp_path, **keys) as three,
        ):
            writing = asyncio.gather(*(write(store, at) for at, store in enumerate((one, two, three) * 4)))
            await asyncio.gather(writing, watch(writing))
            total, values = check_accounts(redis_server, tmp_path)
            stats = [await two.stats(namespace) for namespace in "abc"]
            assert (sum(one.size for one in stats), sum(one.values for one in stats)) == (total, values)
            assert 1000 < total <= 2000


async def test_a_change_by_another_gateway_while_room_is_made_does_no_damage(
    redis_server: RedisProcess, tmp_path: Path
) -> None:
    async with opened(redis_server, tmp_path, max_values=1) as store, opened(redis_server, tmp_path) as other:
        for number in range(20):
            await put(store, f"t-{number}")
            await asyncio.gather(put(store, f"t-{number + 1}"), other.delete("me", f"t-{number}"))
            assert check_accounts(redis_server, tmp_path) == (3, 1)
            assert await store.read("me", f"t-{number + 1}") == b'"x"'


@pytest.mark.parametrize("reason", ["evicted", None])
async def test_a_value_that_is_removed_after_it_is_described_keeps_the_reason(
    reason: str | None, redis_server: RedisProcess, tmp_path: Path
) -> None:
    async with opened(redis_server, tmp_path) as store, opened(redis_server, tmp_path, max_values=1) as other:
        await put(store, "t-1", bytes(MIB))
        known = await store.describe("me", "t-1", will_read=True)
        assert isinstance(known, Descriptor)
        await (put(other, "t-2") if reason else other.delete("me", "t-1"))
        assert await store.read("me", "t-1", None, known) is None
        found = await store.describe("me", "t-1")
    assert (found.reason if isinstance(found, Tombstone) else found) == reason


async def test_a_value_that_is_replaced_after_it_is_described_is_read(
    redis_server: RedisProcess, tmp_path: Path
) -> None:
    async with opened(redis_server, tmp_path) as store:
        await put(store, "t-1", bytes(MIB))
        known = await store.describe("me", "t-1", will_read=True)
        assert isinstance(known, Descriptor)
        await put(store, "t-1", b"1" * MIB)
        assert await store.read("me", "t-1", Span(5, 2), known) == b"11"


@pytest.mark.parametrize(("size", "commands"), [(0, 1), (60_000, 1), (MIB, 2)])
async def test_a_described_value_takes_no_search_to_be_read(
    size: int, commands: int, redis_server: RedisProcess, tmp_path: Path
) -> None:
    blob = b"1" * size

    def count() -> int:
        stats = redis_server.run("INFO", "commandstats")
        return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "getrange"))

    async with opened(redis_server, tmp_path) as store:
        await put(store, "t-1", blob)
        before = count()
        known = await store.describe("me", "t-1", will_read=True)
        assert isinstance(known, Descriptor)
        assert bytes(await store.read("me", "t-1", Span(0, size), known) or b"") == blob
        assert bytes(await store.read("me", "t-1", Span(0, 0), known) or b"") == b""
        assert count() - before == commands


async def test_bytes_that_another_program_shortened_are_gone(redis_server: RedisProcess, tmp_path: Path) -> None:
    async with opened(redis_server, tmp_path) as store:
        await put(store, "t-1", b'"abc"')
        [blob] = [key for key in our_keys(redis_server, tmp_path) if ":blob:" in key]
        redis_server.run("SET", blob, "abc")
        assert await store.read("me", "t-1") is None


async def test_a_put_whose_reply_was_lost_is_carried_out_once(
    redis_server: RedisProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = RedisConnection.call

    async def call_twice(connection: RedisConnection, *arguments: Any, **options: Any) -> Any:
        await call(connection, *arguments, **options)
        return await call(connection, *arguments, **options)

    async with opened(redis_server, tmp_path, max_values=1) as store:
        await put(store, "t-1")
        monkeypatch.setattr(RedisConnection, "call", call_twice)
        await put(store, "t-2")
        await put(store, "t-3", bytes(MIB))
        monkeypatch.undo()
        assert check_accounts(redis_server, tmp_path) == (MIB, 1)
        assert await store.read("me", "t-3") == bytes(MIB)


async def test_a_put_that_is_cancelled_after_it_is_visible_keeps_the_bytes(
    redis_server: RedisProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = RedisConnection.call

    async def call_and_cancel(connection: RedisConnection, operation: str, *arguments: Any, **options: Any) -> Any:
        reply = await call(connection, operation, *arguments, **options)
        if operation == "put":
            raise asyncio.CancelledError
        return reply

    async with opened(redis_server, tmp_path) as store:
        monkeypatch.setattr(RedisConnection, "call", call_and_cancel)
        with pytest.raises(asyncio.CancelledError):
            await put(store, "t-1", bytes(MIB))
        monkeypatch.undo()
        assert await store.read("me", "t-1") == bytes(MIB)
        assert check_accounts(redis_server, tmp_path) == (MIB, 1)


@pytest.mark.usefixtures("without_background_removal")
@pytest.mark.slow
async def test_a_put_beside_thousands_of_expired_values_takes_one_call(
    redis_server: RedisProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    call = RedisConnection.call

    async def record_call(connection: RedisConnection, operation: str, *arguments: Any, **options: Any) -> Any:
        calls.append(operation)
        return await call(connection, operation, *arguments, **options)

    async with opened(redis_server, tmp_path, ttl=1000.0) as store:
        await asyncio.gather(*(put(store, f"t-{index}") for index in range(2000)))
        await put(store, "t-used")
        for name in ("order", "order:me"):
            bases = [f"{'me:' if name == 'order' else ''}t-{index}" for index in range(2000)]
            redis_server.run("ZADD", f"{tmp_path}:2:{name}", *(part for base in bases for part in (1, base)))
        monkeypatch.setattr(RedisConnection, "call", record_call)
        await put(store, "t-new")
        assert calls == ["put"]
        assert redis_server.run("ZCARD", f"{tmp_path}:2:order") == 2000
        assert (await store.stats("me")).values == 2
        assert {one.base for one in await store.list("me")} == {"t-used", "t-new"}


@pytest.mark.usefixtures("without_background_removal")
@pytest.mark.slow
@pytest.mark.parametrize("expired", [2050, 4150])
async def test_sums_and_pages_beside_thousands_of_expired_values_are_exact(
    expired: int, redis_server: RedisProcess, tmp_path: Path
) -> None:
    async with opened(redis_server, tmp_path, ttl=1000.0) as store:
        for start in range(0, 6200, 50):
            await asyncio.gather(
                *(put(store, f"t-{number}", b"x" * (number % 9)) for number in range(start, start + 50))
            )
        old = [f"t-{number}" for number in range(6199, 6199 - expired, -1)]
        redis_server.run("ZADD", f"{tmp_path}:2:order:me", *(part for base in old for part in (1, base)))
        kept = [number for number in range(6200) if number < 6200 - expired]
        assert await store.stats("me") == StoreStats(len(kept), sum(number % 9 for number in kept))
        assert {one.base for one in await store.list("me")} == {f"t-{number}" for number in kept}
        assert len(await store.list("me", limit=5)) == 5


LIMITS: dict[str, list[Any]] = {
    "max_bytes": [1000, 3000, 1 << 30],
    "max_values": [7, 15, 1 << 20],
    "namespace_bytes": [None, 700],
    "namespace_values": [None, 4],
}


@pytest.mark.usefixtures("without_background_removal")
@pytest.mark.parametrize("seed", sample(range(60), lambda seed: seed < 2))
async def test_evictions_and_expiry_are_those_of_the_store_in_memory(
    seed: int, redis_server: RedisProcess, tmp_path: Path
) -> None:
    """The script applies the rules of `quotas` in another language: the same calls have the same outcome."""
    random, now = Random(seed), 1e6  # noqa: S311  # no secret
    limits: dict[str, Any] = {name: random.choice(choices) for name, choices in LIMITS.items()}
    policy = StorePolicy(kind="redis", url=redis_server.url, prefix=f"{tmp_path}:", ttl=100.0, **limits)

    async def use(store: Store, action: float, namespace: str, base: str, size: int) -> object:
        if action < 0.6:
            known = Descriptor(base, "text", size, 1, (), now, now + 100, Provenance("up", "tool", "0" * 64))
            try:
                await store.put(namespace, known, (bytes(size),))
            except StoreError as error:
                return str(error)
        elif action < 0.7:
            return await store.delete(namespace, base)
        found = await store.describe(namespace, base)
        listed = [[one.base for one in await store.list(name)] for name in "abcd"]
        return isinstance(found, Tombstone) and found.reason, listed, [await store.stats(name) for name in "abcd"]

    async with (
        MemoryStore(policy, lambda: now, lambda: tmp_path) as memory,
        RedisStore(policy, lambda: now, lambda: tmp_path) as store,
    ):
        for _ in range(120):
            now += random.choice([0.01, 1, 1, 5, 30]) + random.random()
            given = random.random(), random.choice("abcd"), f"t-{random.randrange(40)}", int(900 * random.random() ** 3)
            assert await use(store, *given) == await use(memory, *given)


@pytest.mark.parametrize("together", [1, 3, 100])
async def test_a_list_of_several_pages_is_complete_while_values_come_and_go(
    together: int, redis_server: RedisProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, call = 10, RedisConnection.call
    changes = iter(range(95, 0, -3))

    async def call_and_change(connection: RedisConnection, operation: str, *arguments: Any, **options: Any) -> Any:
        reply = await call(connection, operation, *arguments, **options)
        if operation == "list":
            [newest] = (one.decode() for one in redis_server.run("ZRANGE", f"{tmp_path}:2:made:me", 0, 0, "REV"))
            for base in {f"t-{next(changes):02}", newest, reply[2][-1][0].decode() if reply[2] else newest}:
                await store.delete("me", base)
                gone.add(base)
            await put(store, f"u-{len(gone)}")
        return reply

    now, gone = time.time(), set[str]()
    monkeypatch.setattr("mcp_mirror.stores.redis.store._PAGE", page)
    async with opened(redis_server, tmp_path) as store:
        for number in range(100):
            known = msgspec.structs.replace(descriptor(f"t-{number:02}", 3), created=now + number // together - 100)
            await store.put("me", known, (b'"x"',))
        monkeypatch.setattr(RedisConnection, "call", call_and_change)
        listed = [one.base for one in await store.list("me")]
        assert len(listed) == len(set(listed))
        assert {f"t-{number:02}" for number in range(100)} - gone <= set(listed)


async def test_pages_of_values_of_one_moment_are_as_long_as_requested(
    redis_server: RedisProcess, tmp_path: Path
) -> None:
    known, after, read = descriptor("t-0", 3), None, list[str]()
    async with opened(redis_server, tmp_path) as store:
        for number in range(50):
            await store.put("me", replace(known, base=f"t-{number:02}"), (b'"x"',))
        while page := [one.base for one in await store.list("me", after=after, limit=7)]:
            assert len(page) <= 7
            read += page
            after = page[-1]
    assert sorted(read) == [f"t-{number:02}" for number in range(50)]


async def test_a_page_of_values_with_large_records_is_bounded_in_bytes(
    redis_server: RedisProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, call = list[int](), RedisConnection.call

    async def measure(connection: RedisConnection, operation: str, *arguments: Any, **options: Any) -> Any:
        reply = await call(connection, operation, *arguments, **options)
        if operation == "list":
            sizes.append(sum(len(record) for _, _, record in reply[2]))
        return reply

    async with opened(redis_server, tmp_path) as store:
        for number in range(30):
            large = msgspec.structs.replace(
                descriptor(f"t-{number}", 3), other_members=b'{"_meta":"%s"}' % (b"x" * 300_000)
            )
            await store.put("me", large, (b'"x"',))
        monkeypatch.setattr(RedisConnection, "call", measure)
        assert [one.base for one in await store.list("me")] == [f"t-{number}" for number in reversed(range(30))]
        assert [one.base for one in await store.list("me", after="t-9", limit=7)] == [f"t-{n}" for n in range(8, 1, -1)]
        assert max(sizes) < 2 * MIB


@pytest.mark.parametrize("use", [lambda store: store.list("me", limit=0), lambda store: store.bases_near("me", "t", 0)])
async def test_a_list_of_no_values_is_empty(
    use: Callable[[RedisStore], Awaitable[object]], own_redis: RedisProcess, tmp_path: Path
) -> None:
    async with opened(own_redis, tmp_path) as store:
        await put(store, "t-1")
        assert await use(store) == ()


ROUND_NUMBERS = """
local server, run = redis, {}
for _, name in ipairs({ 'call', 'pcall' }) do
  run[name] = function(...)
    local words = { ... }
    for place, word in ipairs(words) do
      if type(word) == 'number' and word ~= 0 and word % 1e8 == 0 then words[place] = string.format('%g', word) end
    end
    return server[name](unpack(words))
  end
end
local redis = run
"""
"""Makes the commands of a script get round numbers as Redis 7.2.0 to 7.2.4 write them."""


async def test_round_sizes_and_lifetimes_are_integers_for_every_server(
    redis_server: RedisProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "store.lua"
    script.write_text(ROUND_NUMBERS + SCRIPT.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr("mcp_mirror.stores.redis.store._SCRIPT", script)
    async with opened(redis_server, tmp_path, ttl=100_000.0) as store:
        await put(store, "t-1", bytes(100_000_000))
        assert len(await store.read("me", "t-1") or b"") == 100_000_000
        assert check_accounts(redis_server, tmp_path) == (100_000_000, 1)
        assert await store.delete("me", "t-1") is True
        assert check_accounts(redis_server, tmp_path) == (0, 0)


async def test_a_namespace_whose_values_lost_their_keys_takes_no_room(
    redis_server: RedisProcess, tmp_path: Path
) -> None:
    """The keys of values expire before the sums if no gateway runs for the time for which tombstones are kept."""
    async with opened(redis_server, tmp_path, max_bytes=1000) as store:
        await put(store, "t-1", bytes(900), "you")
        await put(store, "t-1", bytes(90))
        redis_server.run("DEL", f"{tmp_path}:2:value:you:t-1")
        for number in range(5):
            await put(store, f"t-{number}", bytes(400))
        assert check_accounts(redis_server, tmp_path) == (800, 2)


async def test_lost_accounting_keys_are_an_error_with_advice(redis_server: RedisProcess, tmp_path: Path) -> None:
    async with opened(redis_server, tmp_path, max_values=1) as store:
        await put(store, "t-1")
        redis_server.run("DEL", f"{tmp_path}:2:order", f"{tmp_path}:2:order:me")
        with pytest.raises(StoreError, match="`maxmemory-policy` to noeviction"):
            await put(store, "t-2")


async def test_a_value_that_redis_removed_is_evicted_with_advice_once(
    redis_server: RedisProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(redis_server, tmp_path) as store:
        for base in ("t-1", "t-2"):
            await put(store, base)
        redis_server.run("DEL", *(key for key in our_keys(redis_server, tmp_path) if ":blob:" in key))
        for base in ("t-1", "t-2"):
            found = await store.describe("me", base)
            assert isinstance(found, Tombstone)
            assert found.reason == "evicted"
        [message] = caplog.messages
        assert "Set its `maxmemory-policy` to noeviction" in message


async def test_a_value_whose_accounts_redis_removed_is_evicted_not_expired(
    redis_server: RedisProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(redis_server, tmp_path) as store:
        await put(store, "t-1")
        redis_server.run("DEL", f"{tmp_path}:2:order")
        found = await store.describe("me", "t-1")
        assert isinstance(found, Tombstone)
        assert found.reason == "evicted"
        assert found.at <= time.time()
        [message] = caplog.messages
        assert "Set its `maxmemory-policy` to noeviction" in message


async def test_keys_of_another_program_are_named_as_the_cause(redis_server: RedisProcess, tmp_path: Path) -> None:
    async with opened(redis_server, tmp_path) as store:
        await put(store, "t-1")
        for key in our_keys(redis_server, tmp_path):
            redis_server.run("DEL", key)
            redis_server.run("SET", key, "x")
        for use in (store.read("me", "t-1"), put(store, "t-2"), store.list("me")):
            assert "another program uses keys that begin with `store.prefix`" in (await refused(use))[0]


NOW = time.time()
FOREIGN: list[tuple[tuple[str, str, *tuple[str | bytes, ...]], Callable[[RedisStore], Awaitable[object]]]] = [
    (("HSET", "value:me:t-1", "size", "many"), lambda store: store.read("me", "t-1")),
    (("HSET", "value:me:t-1", "size", "nan"), lambda store: store.read("me", "t-1")),
    (("HSET", "value:me:t-1", "size", "-5"), lambda store: store.describe("me", "t-1")),
    (("HSET", "value:me:t-1", "size", "1e18"), lambda store: store.read("me", "t-1")),
    (("HDEL", "value:me:t-1", "chunk"), lambda store: store.read("me", "t-1")),
    (("HDEL", "value:me:t-1", "record"), lambda store: store.list("me")),
    (("HSET", "value:me:t-1", "reason", "evicted", "at", "then"), lambda store: store.describe("me", "t-1")),
    (("HSET", "traffic", "sent:me", "many"), lambda store: store.stats("me")),
    (("SET", "total", "many"), lambda store: store.totals()),
    (("SET", "labels", "t"), lambda store: store.slugs("me")),
    (("ZADD", "values", "1", b"\xff"), lambda store: store.namespaces()),
    (("HSET", "days:me", "today", "1"), lambda store: store.events.daily_calls("me", 0.0)),
    (("HSET", f"sums:me:{int(NOW) // 86_400}", "calls", "1"), lambda store: store.events.sums("me", NOW)),
    (("ZADD", "callers", "1", b"\xff"), lambda store: store.events.namespaces()),
]


@pytest.mark.parametrize(("command", "use"), FOREIGN, ids=[command[1].partition(":")[0] for command, _ in FOREIGN])
async def test_what_another_program_wrote_into_a_key_is_an_error(
    redis_server: RedisProcess,
    tmp_path: Path,
    command: tuple[str, str, *tuple[str | bytes, ...]],
    use: Callable[[RedisStore], Awaitable[object]],
) -> None:
    name, key, *rest = command
    async with opened(redis_server, tmp_path) as store:
        await put(store, "t-1")
        redis_server.run(name, f"{tmp_path}:2:{key}", *rest)
        assert "another program uses keys that begin with `store.prefix`" in (await refused(use(store)))[0]


async def test_a_foreign_name_among_the_values_stops_no_put(redis_server: RedisProcess, tmp_path: Path) -> None:
    async with opened(redis_server, tmp_path) as store:
        await put(store, "t-1")
        for key in ("order", "graves"):
            redis_server.run("ZADD", f"{tmp_path}:2:{key}", 0, "a name of another program")
        await put(store, "t-2")
        assert redis_server.run("ZRANGE", f"{tmp_path}:2:order", 0, -1) == [b"me:t-1", b"me:t-2"]
        assert await store.totals() == StoreTotals(2, 6, 0)


async def test_a_command_that_is_disabled_is_named_as_the_cause(tmp_path: Path) -> None:
    with RedisProcess(tmp_path, "--rename-command", "PEXPIRE", "") as server:
        async with opened(server, tmp_path) as store:
            assert "does not know a command" in (await refused(put(store, "t-1")))[0]


async def test_a_cancelled_put_leaves_no_chunks(redis_server: RedisProcess, tmp_path: Path) -> None:
    async with opened(redis_server, tmp_path) as store, anyio.create_task_group() as tasks:
        tasks.start_soon(put, store, "t-1", bytes(60 * MIB))
        while not any(":blob:" in key for key in our_keys(redis_server, tmp_path)):
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert not our_keys(redis_server, tmp_path)


async def test_tombstones_are_bounded(
    redis_server: RedisProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_mirror.stores.redis.store.MAX_TOMBSTONES", 5)
    async with opened(redis_server, tmp_path, max_values=1) as store:
        for index in range(20):
            await put(store, f"t-{index}")
        found = [isinstance(await store.describe("me", f"t-{index}"), Tombstone) for index in range(19)]
        assert found == [False] * 14 + [True] * 5
        assert sum(":value:" in key for key in our_keys(redis_server, tmp_path)) == 6


WRITER = """
import asyncio, sys, time
from pathlib import Path
from redis_values import descriptor
from mcp_mirror.settings.policies import StorePolicy
from mcp_mirror.stores.redis.store import RedisStore
async def main():
    policy = StorePolicy(kind="redis", url=sys.argv[1], prefix=sys.argv[2], ttl=60.0, max_bytes=120 << 20)
    async with RedisStore(policy, time.time, Path) as store:
        for number in range(10_000):
            blob = number.to_bytes(4, "big") * (5 << 20)
            await store.put("me", descriptor(f"t-{number}", len(blob)), (blob,))
            print(number, flush=True)
asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_gateway_killed_while_writing_leaves_only_whole_values(
    redis_server: RedisProcess, tmp_path: Path
) -> None:
    prefix, delays = f"{tmp_path}:", Random(5)  # noqa: S311  # no secret
    async with opened(redis_server, tmp_path, max_bytes=120 * MIB) as store:
        for _ in range(5):
            writing = subprocess.Popen(  # noqa: ASYNC220  # nothing else runs
                [sys.executable, "-c", WRITER, redis_server.url, prefix],
                env={"PYTHONPATH": str(HELPERS)}, stdout=subprocess.PIPE,
            )  # fmt: skip
            assert writing.stdout is not None
            assert writing.stdout.readline()
            await asyncio.sleep(delays.uniform(0, 0.3))  # where in a write it is hit is chance
            writing.kill()
            acknowledged = [0, *map(int, writing.stdout.read().split())]
            writing.wait(20)
            writing.stdout.close()
            for number in acknowledged[-3:]:
                read = await store.read("me", f"t-{number}")
                assert read is not None
                assert bytes(read) == number.to_bytes(4, "big") * (5 * MIB)
            assert check_accounts(redis_server, tmp_path)[0] <= 120 * MIB
            assert min(our_keys(redis_server, tmp_path).values()) > 0
